package generator

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/fleet"
)

// Import names a resource that exists on Proxmox, for an import block.
type Import struct{ Address, ID string }

// Imports returns what must be imported to take a VM back into a state that was
// lost, the VM itself first. An engine passes over what its state has already. The
// security groups are imported even where none is set yet: the provider sets no
// groups where there are any, but brings imported ones to what the file says.
func Imports(vm *fleet.VM) []Import {
	place := fmt.Sprintf("%s/%d", vm.Host.Host, vm.VMID)
	imports := []Import{{Address(vm), place}}
	if len(vm.SecurityGroups) > 0 {
		imports = append(imports, Import{
			"module." + groupsLabel(vm.Name) + ".proxmox_virtual_environment_firewall_rules.security_groups", "vm/" + place,
		})
	}
	return imports
}

// ImportBlocks returns the content of ImportFile. It fails if an address is none.
func ImportBlocks(imports []Import) ([]byte, error) {
	file := hclwrite.NewEmptyFile()
	for _, i := range imports {
		address, diagnostics := hclsyntax.ParseTraversalAbs([]byte(i.Address), "address", hcl.InitialPos)
		if diagnostics.HasErrors() {
			return nil, fmt.Errorf("importing %q: not an address: write module.<name>.<type>.<name>", i.Address)
		}
		body := file.Body().AppendNewBlock("import", nil).Body()
		body.SetAttributeTraversal("to", address)
		body.SetAttributeValue("id", cty.StringVal(i.ID))
	}
	return file.Bytes(), nil
}
