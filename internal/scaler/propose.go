package scaler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// Request is a spec with the place that the planner found for it.
type Request struct {
	Spec      fleet.Spec
	Placement fleet.Placement
}

// Change is a step from the fleet that is to the fleet that shall be. It is only
// a proposal: nothing is written until Apply.
type Change struct {
	Before, After           fleet.Fleet
	BeforeFiles, AfterFiles generator.Files
	// Added and Removed are what the change asks for.
	Added, Removed []fleet.VM
	// Renumbered are VMs that were wanted, do not exist, and whose VMID someone
	// else took meanwhile: their successors are among Added.
	Renumbered []fleet.VM
	// Snapshot is what the change was decided on.
	Snapshot *topology.Snapshot

	// leaving are the VMs whose removal an earlier change began.
	leaving map[fleet.Key]bool
}

// Warnings tells of guests that a person should look at: VMs of the fleet whose
// description lost the marker, and VMs with our marker that no file wants.
func (c *Change) Warnings() []string {
	var warnings []string
	guests := locate(c.Snapshot)
	for _, vm := range c.After.VMs {
		guest, exists := guests[guestID{vm.Host.Region, vm.VMID}]
		if exists && !guest.unread && guest.looksLike(vm.Name, c.After.ClusterID) {
			warnings = append(warnings, (&MarkerLostError{VM: vm.Name, VMID: vm.VMID, Host: guest.host, Marker: markerOf(c.After.ClusterID, vm)}).Error())
		}
	}
	for _, guest := range c.unwanted() {
		warnings = append(warnings, fmt.Sprintf("guest %d (%s) on %s carries this fleet's marker and no file wants it: "+
			"restore its file from version control, or destroy it by hand", guest.VMID, guest.Name, guest.host))
	}
	slices.Sort(warnings)
	return warnings
}

// unwanted returns the guests with our marker that no file wants and that this
// change does not remove.
func (c *Change) unwanted() []located {
	wanted := map[fleet.Key]bool{}
	for _, vm := range slices.Concat(c.After.VMs, c.Removed) {
		wanted[vm.Key] = true
	}
	var unwanted []located
	for _, guest := range locate(c.Snapshot) {
		if key := fleet.Key(guest.Key); guest.ClusterID == c.After.ClusterID && !wanted[key] && !c.leaving[key] {
			unwanted = append(unwanted, guest)
		}
	}
	return unwanted
}

// Differences are the files that the change touches.
func (c *Change) Differences() []store.Difference {
	return store.Compare(c.BeforeFiles, c.AfterFiles)
}

// Empty reports whether the change asks for nothing.
func (c *Change) Empty() bool { return len(c.Added) == 0 && len(c.Removed) == 0 }

// Shards returns the hosts that the change touches, sorted.
func (c *Change) Shards() []fleet.Shard {
	touched := fleet.Fleet{VMs: slices.Concat(c.Added, c.Removed)}
	return touched.Shards()
}

// Fleet returns the desired state as its files say. A fleet that has no files
// yet is empty and has the regions of the configuration.
func (s *Scaler) Fleet() (fleet.Fleet, generator.Files, error) {
	files, err := s.config.Store.Read()
	if err != nil {
		return fleet.Fleet{}, nil, err
	}
	current := fleet.Fleet{ClusterID: s.config.ClusterID}
	if len(files) > 0 {
		if current, err = generator.Parse(files); err != nil {
			return fleet.Fleet{}, nil, fmt.Errorf("reading fleet %s: %w", s.config.Store.Path(), err)
		}
	}
	if current.ClusterID != s.config.ClusterID {
		return fleet.Fleet{}, nil, fmt.Errorf("fleet %s belongs to cluster %q, the configuration says %q: "+
			"name its own directory in fleet.dir", s.config.Store.Path(), current.ClusterID, s.config.ClusterID)
	}
	s.configure(&current)
	return current, files, nil
}

// configure lets the configuration decide about backend and endpoints, and adds
// the regions that the fleet does not know yet.
func (s *Scaler) configure(f *fleet.Fleet) {
	f.Backend = s.config.Backend
	known := map[topology.RegionName]fleet.Rotation{}
	for _, region := range f.Regions {
		known[region.Name] = region.Rotation
	}
	f.Regions = nil
	for _, region := range s.config.Regions {
		f.Regions = append(f.Regions, fleet.Region{
			Name: region.Name, Endpoint: region.Endpoint, Insecure: region.Insecure, Rotation: known[region.Name],
		})
	}
	f.Sort()
}

// Propose gives each request a VMID, a name and a key, and renders the fleet with
// them. VMIDs in taken are not given out; nor are those of guests in the snapshot.
func (s *Scaler) Propose(snapshot *topology.Snapshot, requests []Request, taken map[topology.RegionName][]fleet.VMID) (*Change, error) {
	before, files, err := s.Fleet()
	if err != nil {
		return nil, err
	}
	change := &Change{Before: before, BeforeFiles: files, Snapshot: snapshot}
	change.After = copyFleet(before)
	kept, lost := splitLost(s.config.ClusterID, before.VMs, snapshot)
	change.After.VMs, change.Renumbered = kept, lost
	requests = slices.Clone(requests)
	for _, vm := range lost {
		requests = append(requests, Request{Spec: vm.Spec, Placement: vm.Placement})
	}
	// Numbers follow the order of hosts, so that the same decision reads the same.
	slices.SortStableFunc(requests, func(a, b Request) int {
		return cmp.Or(a.Placement.Host.Compare(b.Placement.Host), cmp.Compare(a.Spec.Pool, b.Spec.Pool))
	})
	for i := range change.After.Regions {
		if err := s.nameIn(change, i, requests, taken); err != nil {
			return nil, err
		}
	}
	if unknown := s.unknownRegions(requests); len(unknown) > 0 {
		return nil, fmt.Errorf("naming vms: they are to stand in %q, which the configuration does not know: add it under clusters in numaform.yaml", unknown)
	}
	return change, s.render(change)
}

// unknownRegions returns those of the requests that are not configured, sorted.
func (s *Scaler) unknownRegions(requests []Request) []topology.RegionName {
	var unknown []topology.RegionName
	for _, request := range requests {
		name := request.Placement.Host.Region
		if !slices.ContainsFunc(s.config.Regions, func(r Region) bool { return r.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}

// nameIn names the requests of the change's i-th region.
func (s *Scaler) nameIn(change *Change, i int, requests []Request, taken map[topology.RegionName][]fleet.VMID) error {
	region := &change.After.Regions[i]
	used := slices.Clone(taken[region.Name])
	for _, vm := range change.Before.VMs {
		if vm.Host.Region == region.Name {
			used = append(used, vm.VMID)
		}
	}
	for h := range change.Snapshot.Hosts {
		if host := &change.Snapshot.Hosts[h]; host.Region == region.Name {
			for _, guest := range host.Guests {
				used = append(used, fleet.VMID(guest.VMID))
			}
		}
	}
	allocator := fleet.NewAllocator(region.Name, s.region(region.Name).VMIDs, region.Rotation, used)
	for _, request := range requests {
		if request.Placement.Host.Region != region.Name {
			continue
		}
		source, err := templateOf(change.Snapshot, request)
		if err != nil {
			return err
		}
		vm, err := allocator.Name(change.After.ClusterID, request.Spec, request.Placement, source)
		if err != nil {
			return err
		}
		change.Added = append(change.Added, vm)
		change.After.VMs = append(change.After.VMs, vm)
	}
	region.Rotation = allocator.Rotation()
	return nil
}

// splitLost tells the VMs that hold their VMID from those that were never made
// and whose VMID is now a guest's without their key. A guest on a host that is
// down may be the VM, and so may one that only lacks the marker.
func splitLost(clusterID string, vms []fleet.VM, snapshot *topology.Snapshot) (kept, lost []fleet.VM) {
	guests := locate(snapshot)
	alive := map[fleet.Key]bool{}
	for _, guest := range guests {
		alive[fleet.Key(guest.Key)] = true
	}
	for _, vm := range vms {
		guest, taken := guests[guestID{vm.Host.Region, vm.VMID}]
		if taken && !guest.unread && !guest.looksLike(vm.Name, clusterID) && fleet.Key(guest.Key) != vm.Key && !alive[vm.Key] {
			lost = append(lost, vm)
			continue
		}
		kept = append(kept, vm)
	}
	return kept, lost
}

// templateOf finds the request's template on its host.
func templateOf(snapshot *topology.Snapshot, request Request) (fleet.Source, error) {
	host := snapshot.Host(request.Placement.Host)
	if host == nil {
		return fleet.Source{}, fmt.Errorf("placing on %s: Proxmox has no such host any more: plan again", request.Placement.Host)
	}
	for _, template := range host.Templates {
		if template.Name == request.Spec.Template {
			return fleet.Source{
				VMID: fleet.VMID(template.VMID), DiskInterface: template.DiskInterface,
				DiskGiB: template.DiskGiB, Storage: template.Storage, Options: template.Options,
			}, nil
		}
	}
	return fleet.Source{}, fmt.Errorf("placing on %s: it has no template %q: make one there or leave the host out of the ProxmoxNodeClass",
		request.Placement.Host, request.Spec.Template)
}

// UnknownVMError says that a name to be removed is not in the fleet.
type UnknownVMError struct{ Names []string }

func (e *UnknownVMError) Error() string {
	return fmt.Sprintf("%s: not in the fleet: see the node-*.tf files for the names", strings.Join(e.Names, ", "))
}

// ProposeRemoval renders the fleet without the named VMs.
func (s *Scaler) ProposeRemoval(snapshot *topology.Snapshot, names []string) (*Change, error) {
	before, files, err := s.Fleet()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("removing nodes: no name was given")
	}
	change := &Change{Before: before, BeforeFiles: files, Snapshot: snapshot}
	change.After = copyFleet(before)
	change.After.VMs = nil
	unknown := slices.Clone(names)
	for _, vm := range before.VMs {
		if !slices.Contains(names, vm.Name) {
			change.After.VMs = append(change.After.VMs, vm)
			continue
		}
		change.Removed = append(change.Removed, vm)
		unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == vm.Name })
	}
	if len(unknown) > 0 {
		return nil, &UnknownVMError{Names: unknown}
	}
	return change, s.render(change)
}

func (s *Scaler) render(change *Change) (err error) {
	change.After.Hosts = change.After.Shards()
	change.After.Sort()
	change.AfterFiles, err = generator.Render(change.After)
	if err != nil {
		return fmt.Errorf("rendering the fleet: %w", err)
	}
	if theirs, exists := change.BeforeFiles[ignoreFile]; exists {
		change.AfterFiles[ignoreFile] = generator.MergeIgnore(theirs, change.AfterFiles[ignoreFile])
	}
	change.leaving, err = s.journal().leaving()
	return err
}

// ignoreFile is the one file of the fleet that people may write in.
const ignoreFile = ".gitignore"

func copyFleet(f fleet.Fleet) fleet.Fleet {
	f.Regions = slices.Clone(f.Regions)
	f.VMs = slices.Clone(f.VMs)
	return f
}
