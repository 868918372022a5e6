package generator

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/fleet"
)

// Import identifies an existing Proxmox resource for an import block.
type Import struct{ Address, ID string }

// Imports returns the imports that restore a VM to a lost state, the VM itself first. The
// engine skips resources that are already in its state. Security groups are imported even
// if none is set yet: the provider does not create groups where some exist, but updates
// imported ones to match the file.
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

// ImportBlocks returns the content of ImportFile. It fails if an address is invalid.
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
