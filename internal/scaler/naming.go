package scaler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// inUse is what new VMs must not get, besides what guests and VMs of the fleet have.
type inUse struct {
	// vmids are the VMIDs of Nodes and NodeClaims, and nodes maps the addresses of Nodes to
	// the Nodes' names.
	vmids map[topology.RegionName][]fleet.VMID
	nodes map[string]string
	// classes are the ranges of VMIDs of classes, for VMs of classes without a range.
	classes []fleet.VMIDRange
}

// newVMs turns the requests into VMs and advances the rotations; if it returns an error, it
// returns no VM. It assigns neither VMIDs of guests or of VMs in before, nor MAC addresses of
// VMs in after, nor anything in taken.
func (s *Scaler) newVMs(
	requests []Request, snapshot *topology.Snapshot, before, after []fleet.VM, taken inUse, rotations rotations,
) ([]fleet.VM, error) {
	used := map[topology.RegionName][]fleet.VMID{}
	for i := range before {
		used[before[i].Host.Region] = append(used[before[i].Host.Region], before[i].VMID)
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, guest := range host.Guests {
			used[host.Region] = append(used[host.Region], fleet.VMID(guest.VMID))
		}
	}
	allocators := map[topology.RegionName]*fleet.Allocator{} // by the names of their rotations
	for _, region := range s.config.Regions {
		inUse := slices.Concat(used[region.Name], taken.vmids[region.Name])
		allocators[region.Name] = fleet.NewAllocator(region.Name, region.VMIDs, rotations[region.Name], inUse)
		allocators[region.Name].Reserve(taken.classes)
	}

	book := ipam.New(snapshot, slices.Concat(before, after), taken.nodes)
	all := slices.Clone(after)
	var unknown []topology.RegionName
	for _, request := range requests {
		region := request.Placement.Host.Region
		if allocators[region] == nil {
			unknown = append(unknown, region)
			continue
		}
		name := request.Spec.VMIDs.Rotation(region)
		if allocators[name] == nil {
			within, err := allocators[region].Within(request.Spec.NodeClass, request.Spec.VMIDs, rotations[name])
			if err != nil {
				return nil, err
			}
			allocators[name] = within
		}
		vm, err := s.newVM(allocators[name], snapshot, request)
		if err != nil {
			return nil, err
		}
		if err := book.Give(&vm); err != nil {
			return nil, err
		}
		fleet.GiveMACs(&vm, all)
		all = append(all, vm)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("region %s is not configured: add it under clusters in numaform.yaml", slices.Min(unknown))
	}
	for name, allocator := range allocators {
		rotations[name] = allocator.Rotation()
	}
	return all[len(after):], nil
}

// newVM turns a request into a VM: it chooses its VMID, name and key, and the template to
// clone.
func (s *Scaler) newVM(allocator *fleet.Allocator, snapshot *topology.Snapshot, request Request) (fleet.VM, error) {
	host := snapshot.Host(request.Placement.Host)
	template, from, err := templateOf(snapshot, host, request)
	if err != nil {
		return fleet.VM{}, err
	}
	if request.Spec.DataDisks, err = dataDisks(template, request); err != nil {
		return fleet.VM{}, err
	}
	vm, err := allocator.Name(s.config.ClusterID, request.Spec, request.Placement, fleet.Source{
		VMID: fleet.VMID(template.VMID), Host: from, DiskInterface: template.DiskInterface,
		DiskGiB: template.DiskGiB, Storage: template.Storage, Options: template.Options,
	})
	if err != nil {
		return fleet.VM{}, err
	}
	vm.Key = cmp.Or(request.Key, vm.Key)
	vm.Module = modules.HashOf(s.config.Release.Modules)
	vm.Timeouts = s.region(vm.Host.Region).Timeouts
	vm.Standby = request.Standby
	vm.Reserve = request.Standby && request.Reserve
	if vm.SeedStorage == "" {
		return vm, nil
	}
	storage, ok := SeedStorage(host, vm.SeedStorage)
	if !ok {
		return fleet.VM{}, &NoSeedStorageError{Host: vm.Host, Storage: vm.SeedStorage}
	}
	vm.Seed = fleet.SeedVolume(storage, s.config.ClusterID, vm.VMID, vm.Key)
	return vm, nil
}

// templateOf finds the request's template on its host, or on another host of the Proxmox
// cluster, which it then also returns.
func templateOf(snapshot *topology.Snapshot, host *topology.Host, request Request) (*topology.Template, topology.HostName, error) {
	if host == nil {
		return nil, "", fmt.Errorf("placing a VM on %s: the host no longer exists in Proxmox: plan again", request.Placement.Host)
	}
	numbered := slices.IndexFunc(host.Templates, func(t topology.Template) bool { return fleet.VMID(t.VMID) == request.Spec.TemplateVMID })
	problem := "create the template there, or exclude the host in the ProxmoxNodeClass"
	for i := range snapshot.Hosts {
		from := &snapshot.Hosts[i]
		if numbered >= 0 || request.Spec.TemplateVMID == 0 || from.Region != host.Region || from.Name == host.Name {
			continue
		}
		for j := range from.Templates {
			t := &from.Templates[j]
			if fleet.VMID(t.VMID) != request.Spec.TemplateVMID || t.Name != request.Spec.Template {
				continue
			}
			why := host.CloneProblem(t, from, fullStorage(&request.Spec))
			if why == "" {
				return t, from.Name, nil
			}
			problem = "the host " + why
		}
	}
	for i := range host.Templates {
		if host.Templates[i].Name == request.Spec.Template && (numbered < 0 || i == numbered) {
			return &host.Templates[i], "", nil
		}
	}
	return nil, "", fmt.Errorf("placing a VM on %s: it has no template %q: %s", request.Placement.Host, request.Spec.Template, problem)
}

// fullStorage returns the storage for the disks of a full clone, or "" for the template's.
func fullStorage(spec *fleet.Spec) string {
	if spec.Clone != fleet.CloneFull {
		return ""
	}
	return spec.Storage
}

// NoSlotError reports that a template has no free SCSI slot for a VM's data disks.
type NoSlotError struct {
	Host         topology.HostID
	Template     int
	Wanted, Free int
}

func (e *NoSlotError) Error() string {
	return fmt.Sprintf("placing a VM on %s: template %d has free SCSI slots for %d of %d data disks: remove drives from the template, or disks from spec.dataDisks",
		e.Host, e.Template, e.Free, e.Wanted)
}

// dataDisks assigns a request's data disks to the template's free slots, and sets the
// storage of disks without one.
func dataDisks(template *topology.Template, request Request) ([]fleet.DataDisk, error) {
	disks := slices.Clone(request.Spec.DataDisks)
	slots := fleet.FreeSlots(append(slices.Clone(template.Drives), template.DiskInterface), len(disks))
	if len(slots) < len(disks) {
		return nil, &NoSlotError{Host: request.Placement.Host, Template: template.VMID, Wanted: len(disks), Free: len(slots)}
	}
	for i := range disks {
		disks[i].Interface = slots[i]
		disks[i].Storage = cmp.Or(disks[i].Storage, request.Spec.Storage, template.Storage)
	}
	return disks, nil
}

// isoContent is the Proxmox content type of ISO images.
const isoContent = "iso"

// NoSeedStorageError reports that a host has no storage for the seed of a VM.
type NoSeedStorageError struct {
	Host topology.HostID
	// Storage is the requested storage, or fleet.AnySeedStorage.
	Storage string
}

func (e *NoSeedStorageError) Error() string {
	if e.Storage == fleet.AnySeedStorage {
		return fmt.Sprintf("placing a VM on %s: it has no active storage with content iso for the seed: "+
			"add iso to the content of one (pvesm set), or exclude the host in the ProxmoxNodeClass", e.Host)
	}
	return fmt.Sprintf("placing a VM on %s: it has no active storage %q with content iso for the seed: "+
		"activate that storage there and add iso to its content (pvesm set), or change spec.metadata.storage of the ProxmoxNodeClass", e.Host, e.Storage)
}

// SeedStorage returns the storage of a host for seeds: the requested one, or the first
// suitable one by name if requested is fleet.AnySeedStorage. It returns false if the host
// is nil or has no active storage for ISO images with that name, or if requested is empty.
func SeedStorage(host *topology.Host, requested string) (string, bool) {
	if host == nil || requested == "" {
		return "", false
	}
	first := ""
	for i := range host.Storages {
		storage := &host.Storages[i]
		named := requested == fleet.AnySeedStorage || storage.Name == requested
		if named && storage.Active && slices.Contains(storage.Content, isoContent) && (first == "" || storage.Name < first) {
			first = storage.Name
		}
	}
	return first, first != ""
}
