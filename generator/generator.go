// Package generator writes a fleet as OpenTofu and Terraform files and reads it back from
// them: the files are the desired set of VMs. It accesses neither the disk nor an engine;
// it maps values to bytes. Start at Render and Parse.
package generator

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// FormatVersion is the format version of the files that Render writes. Parse refuses
// newer versions.
const FormatVersion = 1

// ImportFile is the name of the file in a root's directory that holds import blocks
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

// Release is what a version of numaform supplies to the fleets that it writes.
type Release struct {
	// Modules are the modules that new VMs call, by the paths of their files.
	Modules map[string][]byte
	// Provider is the version of the provider that the roots require.
	Provider string
	// Allowed are further modules that node files may call, by hash: custom modules that
	// the operator has named.
	Allowed map[string]map[string][]byte
}

// Carried returns the files of the modules with a hash, by paths such as
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

// Render renders the fleet. The same fleet always gives the same bytes. Of the modules,
// it writes only the release's own, which VMs without a module hash call; the fleet's
// directory keeps the others, which older VMs still call. All roots require the release's
// provider version, because an older one may no longer be available for download.
func (r Release) Render(f fleet.Fleet) (Files, error) {
	f.Regions, f.Hosts, f.VMs = slices.Clone(f.Regions), f.Shards(), slices.Clone(f.VMs)
	f.Sort()
	if err := checkFleet(&f); err != nil {
		return nil, fmt.Errorf("rendering fleet: %w", err)
	}
	files, carried := Files{ignoreFile: []byte(ignored)}, modules.HashOf(r.Modules)
	for name, content := range r.Modules {
		files[ModuleFile(carried, name)] = content
	}
	if err := renderFleet(files, &f); err != nil {
		return nil, fmt.Errorf("rendering fleet: %w", err)
	}
	for _, host := range f.Hosts {
		content, err := renderShard(&f, host, r.Provider)
		if err != nil {
			return nil, fmt.Errorf("rendering shard %s: %w", host, err)
		}
		files[path.Join(ShardDir(host), mainFile)] = content
	}
	for i := range f.VMs {
		if f.VMs[i].Module == "" {
			f.VMs[i].Module = carried
		}
		content, err := renderNode(f.ClusterID, &f.VMs[i])
		if err != nil {
			return nil, fmt.Errorf("rendering vm %s: %w", f.VMs[i].Name, err)
		}
		files[NodeFile(&f.VMs[i])] = content
	}
	return files, nil
}

// Ignored returns the content of a fleet's .gitignore if no other .gitignore exists.
func Ignored() []byte { return []byte(ignored) }

// ignored keeps the working files of numaform and the engine out of git.
const ignored = `.numaform/
.terraform/
*.tfstate
*.tfstate.*
*.tfplan
` + ImportFile + "\n"

// ShardDir returns the directory of a host's root.
func ShardDir(host topology.HostID) string {
	return path.Join(string(host.Region), string(host.Host))
}

// NodeFile returns the path of a VM's file.
func NodeFile(vm *fleet.VM) string {
	return path.Join(ShardDir(vm.Host), nodePrefix+vm.Name+hclSuffix)
}

// ModuleFile returns the path of a file of the modules with a hash.
func ModuleFile(hash, name string) string {
	return path.Join(modulesDir, path.Dir(name), hash, path.Base(name))
}

// Address returns the resource address of the VM.
func Address(vm *fleet.VM) string {
	return "module." + label(vm.Name) + ".proxmox_virtual_environment_vm.node"
}

// Calls returns the addresses of the module calls in a VM's file; the call that creates
// the VM comes first.
func Calls(vm *fleet.VM) []string {
	calls := []string{"module." + label(vm.Name)}
	if len(vm.SecurityGroups) > 0 {
		calls = append(calls, "module."+groupsLabel(vm.Name))
	}
	return calls
}

// Addresses returns the addresses of all resources that a VM's file creates; the VM comes
// first.
func Addresses(vm *fleet.VM) []string {
	var addresses []string
	for _, i := range Imports(vm) {
		addresses = append(addresses, i.Address)
	}
	return addresses
}

// groupsLabel returns the label of the call that sets a VM's security groups. It is
// unique because VM names contain no underscore.
func groupsLabel(name string) string { return label(name) + "_security_groups" }

// label returns the module call's label for a VM. Unlike a VM's name, an identifier
// cannot begin with a digit; a leading underscore is unambiguous because no VM's name has
// one.
func label(name string) string {
	if strings.IndexFunc(name, func(r rune) bool { return r >= '0' && r <= '9' }) == 0 {
		return "_" + name
	}
	return name
}

// sortedPaths returns the paths of files, sorted.
func sortedPaths(files Files) []string { return slices.Sorted(maps.Keys(files)) }
