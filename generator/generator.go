// Package generator writes a fleet as OpenTofu and Terraform files and reads it back from
// them: the files are the desired set of VMs. It accesses neither the disk nor an engine;
// it maps values to bytes. Start at Render and Parse.
package generator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// FormatVersion is the format version of the files that Render writes. Parse rejects newer
// versions.
const FormatVersion = 1

// ImportFile is the name of the file in a root's directory that contains the import blocks
// during an import. The caller that runs the engine owns it: Render does not write it,
// and Parse ignores it.
const ImportFile = "numaform-import.tf"

// The names of a fleet's files and directories.
const (
	fleetFile    = "fleet.json"
	ignoreFile   = ".gitignore"
	mainFile     = "main.tf"
	modulesDir   = "modules"
	templatesDir = "templates"
	nodePrefix   = "node-"
	hclSuffix    = ".tf"
)

// Files are a fleet's files by slash-separated path relative to the fleet's directory.
type Files map[string][]byte

// Release is the modules and the provider version that a version of numaform writes into
// fleets.
type Release struct {
	// Modules are the files of the modules that new VMs call, by path.
	Modules map[string][]byte
	// Provider is the version of the provider that the roots require.
	Provider string
	// Allowed are the custom modules that the operator allows node files to call, by hash.
	Allowed map[string]map[string][]byte
	// Memo remembers the files that Parse has accepted; nil remembers nothing.
	Memo *Memo
}

// Carried returns the files of the modules with the given hash, by paths such as
// "proxmox-node/main.tf", and false if node files must not call them.
func (r Release) Carried(hash string) (map[string][]byte, bool) {
	if files, ok := modules.Released(hash); ok {
		return files, true
	}
	if files, ok := r.Allowed[hash]; ok {
		return files, true
	}
	return r.Modules, hash == modules.HashOf(r.Modules)
}

// Carries returns the hashes of all modules that node files may call, sorted.
func (r Release) Carries() []string {
	hashes := append(modules.Hashes(), slices.Collect(maps.Keys(r.Allowed))...)
	hashes = append(hashes, modules.HashOf(r.Modules))
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// Current returns the release of this numaform.
func Current() Release { return Release{Modules: modules.Files(), Provider: ProviderVersion} }

// Render renders the fleet with the current release.
func Render(f fleet.Fleet) (Files, error) { return Current().Render(f) }

// index is the content of fleet.json: the facts about the whole fleet.
type index struct {
	FormatVersion int            `json:"format_version"`
	ClusterID     string         `json:"cluster_id"`
	Backend       fleet.Backend  `json:"backend"`
	Regions       []fleet.Region `json:"regions"`
}

// Render renders the fleet. The same fleet always gives the same bytes. It writes the
// release's own modules, which VMs without a module hash call, but not the modules that older
// VMs call: these remain in the fleet's directory. All roots require the release's provider
// version, because an older one may no longer be available for download.
func (r Release) Render(f fleet.Fleet) (Files, error) {
	f.Regions = append([]fleet.Region(nil), f.Regions...)
	f.Hosts = f.AllHosts()
	f.VMs = slices.Clone(f.VMs)
	f.Sort()
	carried := modules.HashOf(r.Modules)
	known := make([][]byte, len(f.VMs))
	for i := range f.VMs {
		vm := &f.VMs[i]
		vm.Module = cmp.Or(vm.Module, carried)
		known[i] = r.Memo.rendered(f.ClusterID, NodeFile(vm), vm)
	}
	if err := checkFleet(&f, known); err != nil {
		return nil, fmt.Errorf("rendering fleet: %w", err)
	}

	files := Files{ignoreFile: []byte(ignored)}
	for name, content := range r.Modules {
		files[ModuleFile(carried, name)] = content
	}
	if slices.ContainsFunc(f.VMs, func(vm fleet.VM) bool { return vm.Adopted() }) {
		adopted, _ := modules.Released(modules.Adopted)
		for name, content := range adopted {
			files[ModuleFile(modules.Adopted, name)] = content
		}
	}

	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(index{FormatVersion: FormatVersion, ClusterID: f.ClusterID, Backend: f.Backend, Regions: f.Regions})
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", fleetFile, err)
	}
	files[fleetFile] = text.Bytes()
	for _, host := range f.Hosts {
		files[path.Join(RootDir(host), mainFile)] = renderMain(&f, host, r.Provider)
	}
	for _, name := range sortedPaths(files) {
		if _, problem := excess(files[name]); problem != "" && kindOf(name).isText() {
			return nil, fmt.Errorf("rendering fleet: %w", &FieldError{Field: name, Problem: problem + ": set fewer settings in fleet.backend.config"})
		}
	}
	for i := range f.VMs {
		vm := &f.VMs[i]
		name := NodeFile(vm)
		if known[i] != nil {
			files[name] = known[i]
			continue
		}
		if files[name], err = renderNode(f.ClusterID, vm); err != nil {
			return nil, fmt.Errorf("rendering vm %s: %w", vm.Name, err)
		}
		if _, problem := excess(files[name]); problem != "" {
			return nil, fmt.Errorf("rendering fleet: %w", &FieldError{
				VM: vm.Name, Field: "file", Value: name, Problem: problem + ": set fewer labels, tags, security groups or data disks in its NodePool and ProxmoxNodeClass",
			})
		}
	}
	return files, nil
}

// The provider and the engine version that the roots require. The provider's address is
// fully qualified, so that OpenTofu and Terraform share states and lock files.
const (
	providerName    = "proxmox"
	ProviderSource  = "registry.opentofu.org/bpg/proxmox"
	ProviderVersion = "0.111.1"
	engineVersions  = ">= 1.8"
)

// renderMain renders the main.tf of a host's root, which requires a version of the provider.
// The fleet must contain the host's region.
func renderMain(f *fleet.Fleet, host topology.HostID, provider string) []byte {
	return renderRoot(f, host, provider, "host "+host.String(), StateName(f.ClusterID, host))
}

// renderRoot renders the main.tf of a root on a host: what the root is for is in its first
// line, and state is the name of its state.
func renderRoot(f *fleet.Fleet, host topology.HostID, provider, what, state string) []byte {
	file := hclwrite.NewEmptyFile()
	body := file.Body()
	comment(body, fmt.Sprintf("%s%s. DO NOT EDIT.", rootHeader, what))
	body.AppendNewline()

	terraform := body.AppendNewBlock("terraform", nil).Body()
	setText(terraform, "required_version", engineVersions)
	terraform.AppendNewline()
	required := terraform.AppendNewBlock("required_providers", nil).Body()
	required.SetAttributeValue(providerName, cty.ObjectVal(map[string]cty.Value{
		"source":  cty.StringVal(ProviderSource),
		"version": cty.StringVal(provider),
	}))
	if f.Backend.Type != "" {
		terraform.AppendNewline()
		backend := terraform.AppendNewBlock("backend", []string{f.Backend.Type}).Body()
		settings := backendSettings(f.Backend, state)
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			setText(backend, name, settings[name])
		}
	}
	body.AppendNewline()

	settings := body.AppendNewBlock("provider", []string{providerName}).Body()
	region := f.Regions[regionIndex(f, host.Region)]
	// With several endpoints, the environment contains one that responds.
	if region.Endpoint != "" {
		setText(settings, "endpoint", region.Endpoint)
	}
	settings.SetAttributeValue("insecure", cty.BoolVal(region.Insecure))
	return hclwrite.Format(file.Bytes())
}

// regionIndex returns the index of a region, or -1 if the fleet does not have it.
func regionIndex(f *fleet.Fleet, name topology.RegionName) int {
	return slices.IndexFunc(f.Regions, func(r fleet.Region) bool { return r.Name == name })
}

// ignored is the content of a new .gitignore. It excludes the working files of numaform and
// the engine from git.
const ignored = `.numaform/
.terraform/
*.tfstate
*.tfstate.*
*.tfplan
` + ImportFile + "\n"

// RootDir returns the directory of a host's root.
func RootDir(host topology.HostID) string {
	return path.Join(string(host.Region), string(host.Host))
}

// NodeFile returns the path of a VM's file.
func NodeFile(vm *fleet.VM) string {
	return path.Join(RootDir(vm.Host), nodePrefix+vm.Name+hclSuffix)
}

// ModuleFile returns the path of a file of the modules with the given hash.
func ModuleFile(hash, name string) string {
	return path.Join(modulesDir, path.Dir(name), hash, path.Base(name))
}

// Address returns the resource address of the VM.
func Address(vm *fleet.VM) string {
	return "module." + label(vm.Name) + ".proxmox_virtual_environment_vm.node"
}

// Calls returns the addresses of the module calls in a VM's file. The first call creates
// the VM.
func Calls(vm *fleet.VM) []string {
	calls := []string{"module." + label(vm.Name)}
	if len(vm.SecurityGroups) > 0 {
		calls = append(calls, "module."+groupsLabel(vm.Name))
	}
	return calls
}

// Addresses returns the addresses of all resources that a VM's file creates, the VM first.
func Addresses(vm *fleet.VM) []string {
	var addresses []string
	for _, i := range Imports(vm) {
		addresses = append(addresses, i.Address)
	}
	return addresses
}

// Import identifies an existing Proxmox resource for an import block.
type Import struct{ Address, ID string }

// Imports returns the imports that restore a VM to a lost state, the VM itself first. The
// engine skips resources that are already in its state. The security groups in the file are
// imported even if the VM in Proxmox has none: the provider cannot create groups where some
// exist, but it updates imported groups to match the file.
func Imports(vm *fleet.VM) []Import {
	id := fmt.Sprintf("%s/%d", vm.Host.Host, vm.VMID)
	imports := []Import{{Address: Address(vm), ID: id}}
	if len(vm.SecurityGroups) > 0 {
		imports = append(imports, Import{
			Address: "module." + groupsLabel(vm.Name) + ".proxmox_virtual_environment_firewall_rules.security_groups",
			ID:      "vm/" + id,
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
			return nil, fmt.Errorf("importing %q: invalid address: must have the form module.<name>.<type>.<name>", i.Address)
		}
		body := file.Body().AppendNewBlock("import", nil).Body()
		body.SetAttributeTraversal("to", address)
		setText(body, "id", i.ID)
	}
	return file.Bytes(), nil
}

// groupsLabel returns the label of the call that sets a VM's security groups. It is
// unique because VM names contain no underscore.
func groupsLabel(name string) string { return label(name) + "_security_groups" }

// label returns the label of a VM's module call. Unlike a VM's name, an identifier cannot
// begin with a digit. The leading underscore is unambiguous, because VM names contain no
// underscore.
func label(name string) string {
	if name != "" && '0' <= name[0] && name[0] <= '9' {
		return "_" + name
	}
	return name
}

// sortedPaths returns the paths of files, sorted.
func sortedPaths(files Files) []string { return slices.Sorted(maps.Keys(files)) }
