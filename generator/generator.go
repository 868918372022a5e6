// Package generator writes a fleet as OpenTofu and Terraform files and reads it
// back from them: the desired set of VMs is what the files say. It knows neither
// a disk nor an engine; it maps values to bytes. Start at Render and Parse.
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

// FormatVersion is the format of the files that Render writes. Parse refuses
// files of a newer one.
const FormatVersion = 1

// ImportFile is the name of the file in a shard's directory that holds import
// blocks for as long as an import takes. It belongs to whoever runs the engine:
// Render does not write it and Parse passes it over.
const ImportFile = "numaform-import.tf"

// The names of files and directories of a fleet.
const (
	fleetFile    = "fleet.json"
	ignoreFile   = ".gitignore"
	mainFile     = "main.tf"
	modulesDir   = "modules"
	templatesDir = "templates"
	nodePrefix   = "node-"
	hclSuffix    = ".tf"
)

// Files are the files of a fleet by their slash-separated paths below its
// directory.
type Files map[string][]byte

// Release is what a version of numaform brings along for the fleets that it
// writes.
type Release struct {
	// Modules are the modules that new VMs call, by the paths of their files.
	Modules map[string][]byte
	// Provider is the version of the provider that shards ask for.
	Provider string
	// Allowed are further modules that node files may call, by their hash: those of a
	// build of one's own, which the operator named.
	Allowed map[string]map[string][]byte
}

// Carried returns the files of the modules of a hash, by paths such as
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

// Current returns what this numaform brings along.
func Current() Release { return Release{Modules: modules.Files(), Provider: ProviderVersion} }

// Render writes the fleet as the current release does.
func Render(f fleet.Fleet) (Files, error) { return Current().Render(f) }

// Render writes the fleet. The same fleet gives the same bytes. Of modules, only
// those of the release are written, which VMs call that name none: a fleet keeps
// the others, which older VMs still call. All shards ask for the provider of the
// release, as nobody can say how long an older one is to be had.
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

// Ignored returns what a fleet's .gitignore holds, if nobody else writes in it.
func Ignored() []byte { return []byte(ignored) }

// ignored keeps what numaform and the engine leave beside the files out of git.
const ignored = `.numaform/
.terraform/
*.tfstate
*.tfstate.*
*.tfplan
` + ImportFile + "\n"

// ShardDir returns the directory of a host's shard.
func ShardDir(host topology.HostID) string {
	return path.Join(string(host.Region), string(host.Host))
}

// NodeFile returns the path of a VM's file.
func NodeFile(vm *fleet.VM) string {
	return path.Join(ShardDir(vm.Host), nodePrefix+vm.Name+hclSuffix)
}

// ModuleFile returns the path of a file of the modules of a hash.
func ModuleFile(hash, name string) string {
	return path.Join(modulesDir, path.Dir(name), hash, path.Base(name))
}

// Address returns the address of the resource that is the VM itself.
func Address(vm *fleet.VM) string {
	return "module." + label(vm.Name) + ".proxmox_virtual_environment_vm.node"
}

// Calls returns the addresses of the module calls in a VM's file, the one that
// makes the VM first.
func Calls(vm *fleet.VM) []string {
	calls := []string{"module." + label(vm.Name)}
	if len(vm.SecurityGroups) > 0 {
		calls = append(calls, "module."+groupsLabel(vm.Name))
	}
	return calls
}

// Addresses returns the addresses of all resources that a VM's file makes, the
// VM's own first.
func Addresses(vm *fleet.VM) []string {
	var addresses []string
	for _, i := range Imports(vm) {
		addresses = append(addresses, i.Address)
	}
	return addresses
}

// groupsLabel returns the label of the call that gives a VM its security groups.
// No VM's name has an underscore, so it is no other's.
func groupsLabel(name string) string { return label(name) + "_security_groups" }

// label returns the module call's label for a VM. An identifier cannot begin
// with a digit as a VM's name can, and no VM's name begins with an underscore.
func label(name string) string {
	if strings.IndexFunc(name, func(r rune) bool { return r >= '0' && r <= '9' }) == 0 {
		return "_" + name
	}
	return name
}

// sortedPaths returns the paths of files in a stable order.
func sortedPaths(files Files) []string { return slices.Sorted(maps.Keys(files)) }
