package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// Request is a spec with its placement from the planner.
type Request struct {
	Spec      fleet.Spec
	Placement fleet.Placement
	// Key is the VM's key, if the caller must recognize it; if empty, the scaler chooses
	// one.
	Key fleet.Key
}

// Change is a step from the current fleet to a new one. It is only a proposal: nothing is
// written until Apply.
type Change struct {
	Before, After           fleet.Fleet
	BeforeFiles, AfterFiles generator.Files
	// Added and Removed are the requested changes.
	Added, Removed []fleet.VM
	// Renumbered are desired VMs that do not exist and whose VMID another guest has
	// taken: Added contains their successors.
	Renumbered []fleet.VM
	// Repaired are VMs whose drift is reverted in place.
	Repaired []fleet.VM
	// Updated are VMs, in their new form, that get other tags, another pool or other
	// security groups while they run.
	Updated []fleet.VM
	// TakenIn are existing VMs whose files were lost and are restored.
	TakenIn []fleet.VM
	// Snapshot is the basis of the change.
	Snapshot *topology.Snapshot

	// Kind, Why and Undoes are for the fleet's history. The caller may extend Why.
	Kind   audit.Kind
	Why    string
	Undoes string

	// from is the fleet that the change was made from.
	from *standing
	// narrow limits planning to the hosts that the change touches.
	narrow bool
	// lean limits planning to the hosts that the change touches and the hosts with
	// unfinished work, even if nothing is requested.
	lean bool
	// leaving are the VMs to be removed, by this change or by a later one.
	leaving map[fleet.Key]bool
	// outside are the writes to Proxmox since the last change that no plan contains.
	outside []string
	// open is what earlier changes have begun and not finished.
	open map[fleet.Shard]audit.Open
	// rotations are the VMID rotations after the change.
	rotations rotations
}

// NewChange reads the fleet, and returns a change of it without requests. It waits for
// clones that an earlier run began.
func (s *Scaler) NewChange(ctx context.Context, snapshot *topology.Snapshot) (*Change, error) {
	from, err := s.stand(ctx)
	if err != nil {
		return nil, err
	}
	if snapshot, err = s.awaitClones(ctx, from, snapshot); err != nil {
		return nil, err
	}
	return s.changeFrom(from, snapshot), nil
}

// changeFrom returns a change of the given fleet, without requests.
func (s *Scaler) changeFrom(from *standing, snapshot *topology.Snapshot) *Change {
	return &Change{
		Before: from.fleet, After: copyFleet(from.fleet), BeforeFiles: from.files, Snapshot: snapshot,
		Kind: audit.KindScaleUp, from: from, open: from.open(), rotations: maps.Clone(from.rotations),
	}
}

// Warnings describes guests that need a person's attention: VMs of the fleet whose
// description lost the marker, and VMs with our marker that have no file.
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
			"an apply deletes it if the state has it, and takes it in if the history knows it; "+
			"else restore its file from version control, or destroy it by hand", guest.VMID, guest.Name, guest.host))
	}
	warnings = append(warnings, c.failedClones()...)
	slices.Sort(warnings)
	return warnings
}

// unwanted returns the guests with our marker that have no file and that neither this
// change, nor one in progress, removes.
func (c *Change) unwanted() []located {
	wanted := map[fleet.Key]bool{}
	for _, vm := range slices.Concat(c.After.VMs, c.Removed) {
		wanted[vm.Key] = true
	}
	for _, open := range c.open {
		for _, vm := range open.Removed {
			wanted[vm.Key] = true
		}
	}
	var unwanted []located
	for _, guest := range locate(c.Snapshot) {
		if key := fleet.Key(guest.Key); guest.ClusterID == c.After.ClusterID && !wanted[key] {
			unwanted = append(unwanted, guest)
		}
	}
	return unwanted
}

// Differences returns the differences of the files that the change touches.
func (c *Change) Differences() []store.Difference {
	return store.Compare(c.BeforeFiles, c.AfterFiles)
}

// Empty reports whether the change contains no request.
func (c *Change) Empty() bool { return len(c.Added)+len(c.Removed)+len(c.Repaired)+len(c.Updated) == 0 }

// Narrow limits planning to the hosts that the change touches.
func (c *Change) Narrow() { c.narrow = true }

// Shards returns the hosts that the change touches, sorted.
func (c *Change) Shards() []fleet.Shard {
	touched := fleet.Fleet{VMs: slices.Concat(c.Added, c.Removed, c.Repaired, c.Updated)}
	return touched.Shards()
}

// Propose returns the change that creates the requested VMs: NewChange, then AddVMs.
func (s *Scaler) Propose(
	ctx context.Context, snapshot *topology.Snapshot, requests []Request, taken map[topology.RegionName][]fleet.VMID,
) (*Change, error) {
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return change, s.AddVMs(change, requests, taken)
}

// AddVMs assigns each request a VMID, a name and a key, and renders the fleet with them.
// It does not assign VMIDs that are in taken or that guests in the snapshot have, and
// renames VMs whose VMID another guest has taken.
func (s *Scaler) AddVMs(change *Change, requests []Request, taken map[topology.RegionName][]fleet.VMID) error {
	kept, lost := splitLost(s.config.ClusterID, change.After.VMs, change.Snapshot)
	change.After.VMs, change.Renumbered = kept, lost
	requests = slices.Clone(requests)
	for _, vm := range lost {
		requests = append(requests, Request{Spec: vm.Spec, Placement: vm.Placement})
	}
	// VMIDs follow the order of hosts, so that the same decision always reads the same.
	slices.SortStableFunc(requests, func(a, b Request) int {
		return cmp.Or(a.Placement.Host.Compare(b.Placement.Host), cmp.Compare(a.Spec.Pool, b.Spec.Pool))
	})
	for _, region := range change.After.Regions {
		if err := s.nameIn(change, region.Name, requests, taken[region.Name]); err != nil {
			return err
		}
	}
	if unknown := s.unknownRegions(requests); len(unknown) > 0 {
		return fmt.Errorf("naming vms: they are to stand in %q, which the configuration does not know: add it under clusters in numaform.yaml", unknown)
	}
	return s.render(change)
}

// unknownRegions returns the requests' regions that are not configured, sorted.
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

// nameIn names the requests of a region.
func (s *Scaler) nameIn(change *Change, region topology.RegionName, requests []Request, taken []fleet.VMID) error {
	used := usedVMIDs(region, change.Before.VMs, change.Snapshot, taken)
	allocator := fleet.NewAllocator(region, s.region(region).VMIDs, change.rotations[region], used)
	for _, request := range requests {
		if request.Placement.Host.Region != region {
			continue
		}
		vm, err := s.name(allocator, change.Snapshot, request)
		if err != nil {
			return err
		}
		fleet.GiveMACs(&vm, change.After.VMs)
		change.Added = append(change.Added, vm)
		change.After.VMs = append(change.After.VMs, vm)
	}
	change.rotations[region] = allocator.Rotation()
	return nil
}

// usedVMIDs returns the VMIDs of a region that must not be assigned: the ones of VMs and
// guests, and the ones in taken.
func usedVMIDs(region topology.RegionName, vms []fleet.VM, snapshot *topology.Snapshot, taken []fleet.VMID) []fleet.VMID {
	used := slices.Clone(taken)
	for _, vm := range vms {
		if vm.Host.Region == region {
			used = append(used, vm.VMID)
		}
	}
	for h := range snapshot.Hosts {
		if host := &snapshot.Hosts[h]; host.Region == region {
			for _, guest := range host.Guests {
				used = append(used, fleet.VMID(guest.VMID))
			}
		}
	}
	return used
}

// name turns a request into a VM.
func (s *Scaler) name(allocator *fleet.Allocator, snapshot *topology.Snapshot, request Request) (fleet.VM, error) {
	template, err := templateOf(snapshot, request)
	if err != nil {
		return fleet.VM{}, err
	}
	if request.Spec.DataDisks, err = dataDisks(template, request); err != nil {
		return fleet.VM{}, err
	}
	vm, err := allocator.Name(s.config.ClusterID, request.Spec, request.Placement, fleet.Source{
		VMID: fleet.VMID(template.VMID), DiskInterface: template.DiskInterface,
		DiskGiB: template.DiskGiB, Storage: template.Storage, Options: template.Options,
	})
	if err != nil {
		return fleet.VM{}, err
	}
	if request.Key != "" {
		vm.Key = request.Key
	}
	vm.Module = modules.HashOf(s.config.Release.Modules)
	vm.Timeouts = s.region(vm.Host.Region).Timeouts
	vm.Seed, err = seedOf(snapshot, s.config.ClusterID, &vm)
	return vm, err
}

// splitLost separates the VMs that still have their VMID from the ones that were never
// created and whose VMID now belongs to a guest without their key. A guest on a host that
// is down may be the VM, and so may one that only lacks the marker.
func splitLost(clusterID string, vms []fleet.VM, snapshot *topology.Snapshot) (kept, lost []fleet.VM) {
	guests := locate(snapshot)
	alive := map[fleet.Key]bool{}
	for _, guest := range guests {
		if guest.ClusterID == clusterID {
			alive[fleet.Key(guest.Key)] = true
		}
	}
	for _, vm := range vms {
		guest, taken := guests[guestID{vm.Host.Region, vm.VMID}]
		if taken && !guest.unread && !guest.looksLike(vm.Name, clusterID) && !alive[vm.Key] {
			lost = append(lost, vm)
			continue
		}
		kept = append(kept, vm)
	}
	return kept, lost
}

// templateOf finds the request's template on its host.
func templateOf(snapshot *topology.Snapshot, request Request) (*topology.Template, error) {
	host := snapshot.Host(request.Placement.Host)
	if host == nil {
		return nil, fmt.Errorf("placing on %s: Proxmox has no such host any more: plan again", request.Placement.Host)
	}
	numbered := slices.IndexFunc(host.Templates, func(t topology.Template) bool { return fleet.VMID(t.VMID) == request.Spec.TemplateVMID })
	for i := range host.Templates {
		if host.Templates[i].Name == request.Spec.Template && (numbered < 0 || i == numbered) {
			return &host.Templates[i], nil
		}
	}
	return nil, fmt.Errorf("placing on %s: it has no template %q: make one there or leave the host out of the ProxmoxNodeClass",
		request.Placement.Host, request.Spec.Template)
}

// UnknownVMError reports names to be removed that are not in the fleet.
type UnknownVMError struct{ Names []string }

func (e *UnknownVMError) Error() string {
	return fmt.Sprintf("%s: not in the fleet: see the node-*.tf files for the names", strings.Join(e.Names, ", "))
}

// ProposeRemoval renders the fleet without the named VMs.
func (s *Scaler) ProposeRemoval(ctx context.Context, snapshot *topology.Snapshot, names []string) (*Change, error) {
	if len(names) == 0 {
		return nil, errors.New("removing nodes: no name was given")
	}
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	change.Kind = audit.KindScaleDown
	unknown := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(change.Before.VMs, func(vm fleet.VM) bool { return vm.Name == name })
	})
	if len(unknown) > 0 {
		return nil, &UnknownVMError{Names: unknown}
	}
	change.remove(func(vm fleet.VM) bool { return slices.Contains(names, vm.Name) })
	return change, s.render(change)
}

// remove removes VMs from the fleet.
func (c *Change) remove(which func(fleet.VM) bool) {
	var kept []fleet.VM
	for _, vm := range c.After.VMs {
		if which(vm) {
			c.Removed = append(c.Removed, vm)
			continue
		}
		kept = append(kept, vm)
	}
	c.After.VMs = kept
}

func (s *Scaler) render(change *Change) (err error) {
	// Restore the root of a host whose files a person deleted, so that it can be planned.
	change.After.Hosts = slices.Concat(change.After.Hosts, change.unfinished())
	change.After.Hosts = change.After.Shards()
	change.After.Sort()
	change.AfterFiles, err = s.config.Release.Render(change.After)
	if err != nil {
		return fmt.Errorf("rendering the fleet: %w", err)
	}
	if theirs, exists := change.BeforeFiles[ignoreFile]; exists {
		change.AfterFiles[ignoreFile] = generator.MergeIgnore(theirs, change.AfterFiles[ignoreFile])
	}
	return nil
}

// ignoreFile is the only file of the fleet that people may edit freely.
const ignoreFile = ".gitignore"

func copyFleet(f fleet.Fleet) fleet.Fleet {
	f.Regions = slices.Clone(f.Regions)
	f.VMs = slices.Clone(f.VMs)
	return f
}
