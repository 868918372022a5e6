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
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// Request is a spec with its placement from the planner.
type Request struct {
	Spec      fleet.Spec
	Placement fleet.Placement
	// Key is the VM's key, if the caller must recognize it; if empty, the scaler chooses
	// one.
	Key fleet.Key
	// Standby requests a standby VM, which is created but not started until Wake, and
	// Reserve that it reserves its CPUs and its memory meanwhile.
	Standby, Reserve bool
}

// Change is a step from the current fleet to a new one. It is only a proposal: nothing is
// written until Apply.
type Change struct {
	Before, After           fleet.Fleet
	BeforeFiles, AfterFiles generator.Files
	// Added are the VMs to create, and Removed the VMs to delete.
	Added, Removed []fleet.VM
	// Renumbered are desired VMs that do not exist and whose VMID another guest has
	// taken: Added contains their successors.
	Renumbered []fleet.VM
	// Repaired are VMs whose drift is reverted in place.
	Repaired []fleet.VM
	// Updated are VMs, in their new form, that get other tags, security groups, or another
	// pool or emulator setting while they run.
	Updated []fleet.VM
	// Woken are standby VMs, in their new form, that start and become Nodes.
	Woken []fleet.VM
	// Rested are VMs, in their new form, that an earlier change was to wake, and that are
	// standby VMs again, because nothing started them. Only their files change.
	Rested []fleet.VM
	// Adopted are existing VMs whose files were lost and are restored.
	Adopted []fleet.VM
	// Foreign are VMs that another tool created and that the change imports, and Permit
	// checks right before each apply that the import is still safe. It is not nil if there
	// are any.
	Foreign []fleet.VM
	Permit  func(ctx context.Context) error
	// Snapshot is the basis of the change.
	Snapshot *topology.Snapshot

	// Kind, Why and Undoes are for the fleet's history. The caller may extend Why.
	Kind   audit.Kind
	Why    string
	Undoes string
	// Approval is the approval of the whole change, for the history. Approve may set it.
	Approval *audit.Approval

	// from is the reading on which the change is based.
	from *reading
	// narrow limits planning to the hosts that the change touches.
	narrow bool
	// lean limits planning to the hosts that the change touches and the hosts with
	// unfinished work, even if nothing is requested.
	lean bool
	// importing are hosts to plan completely, because their states lack VMs to be removed.
	importing []topology.HostID
	// leaving are the VMs to be removed, by this change or by a later one.
	leaving map[fleet.Key]bool
	// later are VMs that were requested together with Added, and that later changes create.
	later []fleet.VM
	// outside are the writes to Proxmox since the last change that no plan contains.
	outside []string
	// open is the unfinished work of earlier changes, by host.
	open map[topology.HostID]audit.Open
	// nodes maps the addresses of the cluster's Nodes to their names.
	nodes map[string]string
	// rotations are the VMID rotations after the change.
	rotations rotations
	// templates is a change of the templates of one host, in which no VM changes, or nil.
	templates *templateChange
}

// NewChange reads the fleet, and returns a change of it without requests. It waits for
// clones that an earlier run began.
func (s *Scaler) NewChange(ctx context.Context, snapshot *topology.Snapshot) (*Change, error) {
	from, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if snapshot, err = s.awaitClones(ctx, from, snapshot); err != nil {
		return nil, err
	}
	change := newChange(from, snapshot)
	if change.nodes, err = s.nodeAddresses(ctx, snapshot); err != nil {
		return nil, err
	}
	return change, nil
}

// nodeAddresses returns the addresses of the cluster's Nodes, or nil if no region has address
// pools, from which all static addresses come: reading all Nodes is slow in a large cluster.
func (s *Scaler) nodeAddresses(ctx context.Context, snapshot *topology.Snapshot) (map[string]string, error) {
	if !snapshot.HasAddressPools() {
		return nil, nil
	}
	return s.config.NodeAddresses(ctx)
}

func newChange(from *reading, snapshot *topology.Snapshot) *Change {
	after := from.fleet
	after.Regions = slices.Clone(after.Regions)
	after.VMs = slices.Clone(after.VMs)
	return &Change{
		Before: from.fleet, After: after, BeforeFiles: from.files, Snapshot: snapshot, Kind: audit.KindScaleUp,
		from: from, open: from.open, rotations: maps.Clone(from.rotations),
	}
}

// index returns the guests of the change's snapshot.
func (c *Change) index() guestIndex { return indexGuests(c.Snapshot, c.After.ClusterID) }

// Warnings describes guests that need a person's attention: VMs of the fleet whose
// description lost the marker, VMs with our marker that have no file, clones of VMs that have
// their marker, clones that remained locked and whose VMs got other VMIDs, VMs whose
// update in place is unfinished, and VMs whose host left its Proxmox cluster.
func (c *Change) Warnings() []string {
	var warnings []string
	index := c.index()
	for i := range c.After.VMs {
		vm := &c.After.VMs[i]
		lost := &MarkerLostError{}
		if hasKey(c.Foreign, vm.Key) {
			continue
		}
		if guest, exists := index.with(vm); exists && errors.As(index.mayBe(guest, vm), &lost) {
			warnings = append(warnings, lost.Error())
		}
	}
	vms := map[fleet.Key]*fleet.VM{}
	for i := range c.After.VMs {
		vms[c.After.VMs[i].Key] = &c.After.VMs[i]
	}
	for _, guest := range index.guests {
		if vm := vms[fleet.Key(guest.Key)]; vm != nil && index.clone(guest, vm) {
			warnings = append(warnings, fmt.Sprintf("guest %d (%s) on %s carries the marker of %s, because it is a clone of it: "+
				"remove the line that begins with numaform/ from its description", guest.VMID, guest.Name, guest.host, vm.Name))
		}
	}
	for _, guest := range c.strays() {
		warnings = append(warnings, fmt.Sprintf("guest %d (%s) on %s carries this fleet's marker but has no file: "+
			"an apply deletes it if the state contains it; if only the history contains it, an apply restores its file: "+
			"to keep it, restore its file from version control; to remove it if neither contains it, destroy it by hand", guest.VMID, guest.Name, guest.host))
	}
	for _, vm := range c.UnfinishedUpdates() {
		warnings = append(warnings, fmt.Sprintf("the update in place of vm %s on %s is unfinished: an apply repeats it", vm.Name, vm.Host))
	}
	for i := range c.Renumbered {
		vm := &c.Renumbered[i]
		if guest, _ := index.with(vm); guest.inCreation() {
			warnings = append(warnings, fmt.Sprintf("guest %d on %s is locked (%s) by a task that failed; it was probably meant for %s, which gets another VMID: "+
				"inspect it, then destroy it: qm unlock %d && qm destroy %d --purge", vm.VMID, guest.host, guest.Lock, vm.Name, vm.VMID, vm.VMID))
		}
	}
	warnings = append(warnings, c.leftWarnings()...)
	slices.Sort(warnings)
	return warnings
}

// UnfinishedUpdates returns the VMs that an earlier change should have updated in place. A dry
// run does not plan these updates, because it does not refresh the state.
func (c *Change) UnfinishedUpdates() []fleet.VM {
	var vms []fleet.VM
	for i := range c.After.VMs {
		if slices.Contains(c.open[c.After.VMs[i].Host].Updated, c.After.VMs[i].Key) {
			vms = append(vms, c.After.VMs[i])
		}
	}
	return vms
}

// strays returns the guests with our marker that have no file and that neither this
// change, nor one in progress, removes.
func (c *Change) strays() []located {
	known := map[fleet.Key]bool{}
	for _, vm := range slices.Concat(c.After.VMs, c.Removed) {
		known[vm.Key] = true
	}
	for _, open := range c.open {
		for _, vm := range open.Removed {
			known[vm.Key] = true
		}
	}
	var strays []located
	for _, guest := range c.index().guests {
		if guest.ClusterID == c.After.ClusterID && !known[fleet.Key(guest.Key)] {
			strays = append(strays, guest)
		}
	}
	return strays
}

// Differences returns the differences of the files that the change touches.
func (c *Change) Differences() []store.Difference {
	return store.Compare(c.BeforeFiles, withModules(c))
}

// Empty reports whether the change contains no request.
func (c *Change) Empty() bool {
	return c.templates == nil && len(c.Added)+len(c.Removed)+len(c.Repaired)+len(c.Updated)+len(c.Woken)+len(c.Foreign) == 0
}

// Narrow limits planning to the hosts that the change touches.
func (c *Change) Narrow() { c.narrow = true }

// Hosts returns the hosts that the change touches, sorted.
func (c *Change) Hosts() []topology.HostID {
	if c.templates != nil {
		return []topology.HostID{c.templates.host}
	}
	touched := fleet.Fleet{VMs: slices.Concat(c.Added, c.Removed, c.Repaired, c.Updated, c.Woken, c.Foreign)}
	return touched.AllHosts()
}

// Unfinished reports whether work remains besides the change: an unfinished earlier
// change, or differences between the files and Proxmox.
func (c *Change) Unfinished() bool { return len(c.unfinished()) > 0 }

// unfinished returns the hosts with unfinished work and the differing hosts, except the
// hosts to which this process is applying a change.
func (c *Change) unfinished() []topology.HostID {
	hosts := append(c.differing(), c.importing...)
	for host, open := range c.open {
		if waits := open.OnlyUpdates() && c.from.updating[host] || open.OnlyRemovals() && c.from.removing[host]; !waits {
			hosts = append(hosts, host)
		}
	}
	return slices.DeleteFunc(hosts, func(host topology.HostID) bool { return c.from.busy[host] })
}

// differing returns the hosts where a desired VM that is not to be removed does not exist, or a
// guest with our marker has no file, except busy and quiet hosts, and hosts that left their
// Proxmox cluster, where nothing can be created.
func (c *Change) differing() []topology.HostID {
	var hosts []topology.HostID
	index := c.index()
	for i := range c.Before.VMs {
		vm := &c.Before.VMs[i]
		if _, exists := index.with(vm); !exists && !c.leaving[vm.Key] && !c.Snapshot.Left(vm.Host) {
			hosts = append(hosts, vm.Host)
		}
	}
	for _, guest := range c.strays() {
		hosts = append(hosts, guest.host)
	}
	return slices.DeleteFunc(hosts, func(host topology.HostID) bool { return c.from.quiet[host] || c.from.busy[host] })
}

// interrupted reports whether a host has unfinished work other than updates in place and
// wakes, or unknown work, so that a create may have been interrupted.
func interrupted(open map[topology.HostID]audit.Open, host topology.HostID) bool {
	work, unfinished := open[host]
	return unfinished && (work.Whole || len(work.Updated)+len(work.Woken) == 0 || len(work.Removed)+len(work.Made) > 0)
}

// Propose returns the change that creates the requested VMs: NewChange, then AddVMs.
func (s *Scaler) Propose(
	ctx context.Context, snapshot *topology.Snapshot, requests []Request, taken map[topology.RegionName][]fleet.VMID,
) (*Change, error) {
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return change, s.AddVMs(ctx, change, requests, taken)
}

// AddVMs assigns each request a VMID, a name and a key, and renders the fleet with them.
// It does not assign VMIDs that are in taken or that guests in the snapshot have. Desired
// VMs that do not exist and whose VMID another guest has taken are replaced by VMs with
// other VMIDs, names and keys, unless they are adopted, or their host left its Proxmox cluster:
// numaform cannot create them.
func (s *Scaler) AddVMs(ctx context.Context, change *Change, requests []Request, taken map[topology.RegionName][]fleet.VMID) error {
	requests = slices.Clone(requests)
	change.Renumbered = slices.DeleteFunc(change.index().reused(change.After.VMs), func(vm fleet.VM) bool {
		return vm.Adopted() || change.Snapshot.Left(vm.Host)
	})
	for _, vm := range change.Renumbered {
		change.After.VMs = slices.DeleteFunc(change.After.VMs, func(other fleet.VM) bool { return other.Key == vm.Key })
		requests = append(requests, Request{Spec: vm.Spec, Placement: vm.Placement, Standby: vm.Standby, Reserve: vm.Reserve})
	}
	// VMIDs follow the order of hosts, so that the same decision always produces the same
	// files.
	slices.SortStableFunc(requests, func(a, b Request) int {
		return cmp.Or(a.Placement.Host.Compare(b.Placement.Host), cmp.Compare(a.Spec.Pool, b.Spec.Pool))
	})

	all := inUse{vmids: taken, nodes: change.nodes}
	if len(requests) > 0 {
		var err error
		if all.classes, err = s.config.ClassVMIDs(ctx); err != nil {
			return err
		}
	}
	vms, err := s.newVMs(requests, change.Snapshot, change.Before.VMs, change.After.VMs, all, change.rotations)
	if err != nil {
		return err
	}
	change.Added = append(change.Added, vms...)
	change.After.VMs = append(change.After.VMs, vms...)
	return s.render(change)
}

// UpdateVMs adds updates in place to a change: VMs of the fleet get the tags, the pool, the
// security groups and the emulator given here; their other fields are ignored. VMs that
// already match stay unchanged, and so do VMs that do not exist on their host.
func (s *Scaler) UpdateVMs(change *Change, vms []fleet.VM) error {
	index := change.index()
	ats := map[fleet.Key]int{}
	for i := range change.After.VMs {
		ats[change.After.VMs[i].Key] = i
	}
	for i := range vms {
		at, exists := ats[vms[i].Key]
		if !exists || sameInPlace(&change.After.VMs[at].Spec, &vms[i].Spec) {
			continue
		}
		vm := inPlace(change.After.VMs[at], &vms[i].Spec)
		if guest, ours := index.of(&vm); ours && guest.host == vm.Host {
			change.After.VMs[at] = vm
			change.Updated = append(change.Updated, vm)
		}
	}
	if len(change.Updated) == 0 {
		return nil
	}
	if len(change.Added) == 0 {
		change.Kind = audit.KindUpdate
	}
	change.Why = whyUpdate(change.Updated)
	return s.render(change)
}

// whyUpdate is the reason for updates in place, for the history.
func whyUpdate(vms []fleet.VM) string {
	return fmt.Sprintf("update tags, pool, security groups or emulator of %s to match their class", names(vms))
}

// UnknownVMError reports names to be removed that are not in the fleet.
type UnknownVMError struct{ Names []string }

func (e *UnknownVMError) Error() string {
	return fmt.Sprintf("%s: not in the fleet: run `numaform get vms` for the names", strings.Join(e.Names, ", "))
}

// ProposeRemoval returns the change that removes the named VMs. It returns an
// *UnknownVMError if the fleet does not contain one of them.
func (s *Scaler) ProposeRemoval(ctx context.Context, snapshot *topology.Snapshot, names []string) (*Change, error) {
	if len(names) == 0 {
		return nil, errors.New("removing nodes: no name was given: name at least one node")
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
	var staying []fleet.VM
	for _, vm := range c.After.VMs {
		if which(vm) {
			c.Removed = append(c.Removed, vm)
			continue
		}
		staying = append(staying, vm)
	}
	c.After.VMs = staying
}

// ignoreFile is the only file of the fleet that people may edit freely.
const ignoreFile = ".gitignore"

func (s *Scaler) render(change *Change) (err error) {
	// Restore the root of a host whose files a person deleted, so that it can be planned.
	change.After.Hosts = slices.Concat(change.After.Hosts, change.unfinished())
	change.After.Hosts = change.After.AllHosts()
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

// UnfinishedError reports that a host's VMs are not repaired because an earlier change is
// unfinished there: a successful repair would look like the success of that change.
type UnfinishedError struct{ Host topology.HostID }

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("host %s: an earlier change is unfinished there, so the drift of its VMs is not reverted: "+
		"run `numaform apply` first, which finishes it, then repair again", e.Host)
}

// ProposeRepair returns the change that reverts drift where an update in place can. The
// change affects no files and, in Proxmox, only the drifted VMs. It is empty if there is
// nothing to repair. ProposeRepair ignores other drift, and skips hosts with unfinished
// work: skipped contains an UnfinishedError for each of these hosts.
func (s *Scaler) ProposeRepair(ctx context.Context, snapshot *topology.Snapshot, drift []RootDrift) (change *Change, skipped, err error) {
	change, err = s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, nil, err
	}
	change.Kind = audit.KindRepair
	change.narrow = true
	reported := map[topology.HostID]bool{}
	for _, host := range drift {
		for i := range host.VMs {
			at := slices.IndexFunc(change.Before.VMs, func(vm fleet.VM) bool { return vm.Key == host.VMs[i].VM.Key })
			if at < 0 || !host.VMs[i].Repairable {
				continue
			}
			vm := change.Before.VMs[at]
			if _, unfinished := change.open[vm.Host]; !unfinished {
				change.Repaired = append(change.Repaired, vm)
			} else if !reported[vm.Host] {
				reported[vm.Host] = true
				skipped = errors.Join(skipped, &UnfinishedError{Host: vm.Host})
			}
		}
	}
	change.Why = "revert the drift of " + names(change.Repaired)
	return change, skipped, s.render(change)
}

// UndoError reports why a change cannot be reverted.
type UndoError struct{ ID, Problem string }

func (e *UndoError) Error() string { return fmt.Sprintf("undoing %s: %s", e.ID, e.Problem) }

// ProposeUndo renders the reverse of a change: it removes the VMs that the change created,
// and re-creates the VMs that it removed, with new VMIDs and keys, on their former hosts
// or, if these have no room, on other hosts of the region. It returns an *UndoError if no
// host has room, if nothing is left to revert, or if the change woke VMs or updated them
// in place.
func (s *Scaler) ProposeUndo(
	ctx context.Context, snapshot *topology.Snapshot, undone *audit.Change, taken map[topology.RegionName][]fleet.VMID,
) (*Change, error) {
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	change.Kind = audit.KindUndo
	change.Undoes = undone.ID
	change.Why = fmt.Sprintf("undo %s (%s)", undone.ID, undone.Why)
	change.remove(func(vm fleet.VM) bool {
		return slices.ContainsFunc(undone.Added, func(made fleet.VM) bool { return made.Key == vm.Key })
	})
	removed, err := s.removedBy(ctx, undone, change.After.VMs)
	if err != nil {
		return nil, err
	}
	if undone.Kind == audit.KindWake {
		return nil, &UndoError{ID: undone.ID, Problem: "its VMs have started and cannot become standby VMs again: remove their nodes instead"}
	}
	if undone.Kind == audit.KindAdopt {
		var lines strings.Builder
		for i := range undone.Adopted {
			if vm := &undone.Adopted[i]; slices.ContainsFunc(change.After.VMs, func(other fleet.VM) bool { return other.Key == vm.Key }) {
				fmt.Fprintf(&lines, "\n- %s: VM %d on %s, file %s, NodeClaim %s", vm.Name, vm.VMID, vm.Host, generator.NodeFile(vm), fleet.NodeName(vm.Pool, vm.VMID))
			}
		}
		return nil, &UndoError{ID: undone.ID, Problem: "it adopted VMs, and to remove them from the fleet would delete them. To give a VM back to the tool that created it, stop numaform's controller, " +
			"remove the Node's owner and the NodeClaim's finalizers with kubectl patch, delete the NodeClaim, remove the line of the VM's description that begins with numaform/1 and the tags that begin with numaform, " +
			"and then delete the VM's file from the fleet (docs/adopt.md has the commands):" + lines.String()}
	}
	if undone.Kind == audit.KindUpdate {
		return nil, &UndoError{ID: undone.ID, Problem: "it updated VMs to match their ProxmoxNodeClass: revert the class instead"}
	}
	if len(removed) == 0 && len(change.Removed) == 0 {
		return nil, &UndoError{ID: undone.ID, Problem: "nothing is left to undo: the VMs that it created no longer exist, and the VMs that it removed, if any, were re-created"}
	}

	place := planner.New(change.Snapshot, change.After.VMs)
	requests := make([]Request, len(removed))
	for i := range removed {
		// Try the VM's former host first, then the region's hosts that have the template.
		spec := removed[i].Spec
		spec.Hosts = []topology.HostID{removed[i].Host}
		placed, unplaced := place.Place([]fleet.Spec{spec})
		if len(unplaced) > 0 {
			spec.Hosts = nil
			for h := range change.Snapshot.Hosts {
				host := &change.Snapshot.Hosts[h]
				_, _, err := templateOf(change.Snapshot, host, Request{Spec: spec})
				if host.Region == removed[i].Host.Region && err == nil {
					spec.Hosts = append(spec.Hosts, host.ID())
				}
			}
			placed, unplaced = place.Place([]fleet.Spec{spec})
		}
		if len(unplaced) > 0 {
			return nil, &UndoError{ID: undone.ID, Problem: fmt.Sprintf("no host has room for a %s of pool %s: %s",
				spec.InstanceType, spec.Pool, unplaced[0].Reason)}
		}
		requests[i] = Request{Spec: removed[i].Spec, Placement: placed[0].Placement, Standby: removed[i].Standby, Reserve: removed[i].Reserve}
	}
	return change, s.AddVMs(ctx, change, requests, taken)
}

// removedBy returns the VMs that a change removed and that no earlier undo of it has
// re-created. For a VM whose file a person deleted, only the change that created it
// contains its spec.
func (s *Scaler) removedBy(ctx context.Context, undone *audit.Change, current []fleet.VM) (removed []fleet.VM, err error) {
	if len(undone.Removed) == 0 {
		return nil, nil
	}
	entries, err := s.verifiedHistory(ctx)
	if err != nil {
		return nil, err
	}
	var back []fleet.VM
	for i := range entries {
		if entries[i].Change.Undoes != undone.ID {
			continue
		}
		for _, vm := range entries[i].Change.Added {
			if slices.ContainsFunc(current, func(other fleet.VM) bool { return other.Key == vm.Key }) {
				back = append(back, vm)
			}
		}
	}

	recorded := recordedVMs(entries)
	for _, vm := range undone.Removed {
		if vm.VCPUs == 0 {
			known, ok := recorded[vm.Key]
			if !ok {
				return nil, &UndoError{ID: undone.ID, Problem: fmt.Sprintf("the history does not contain the spec of %s: "+
					"restore its file from version control", vm.Name)}
			}
			vm = known
		}
		if i := slices.IndexFunc(back, func(b fleet.VM) bool { return b.Pool == vm.Pool && b.InstanceType == vm.InstanceType }); i >= 0 {
			back = slices.Delete(back, i, i+1)
			continue
		}
		removed = append(removed, vm)
	}
	return removed, nil
}

// recordedVMs returns the VMs whose spec is in the history, by key. A woken VM is not a
// standby VM, even if the record of its creation declares it as one.
func recordedVMs(entries []audit.Entry) map[fleet.Key]fleet.VM {
	recorded := map[fleet.Key]fleet.VM{}
	woken := wokenIn(entries)
	for i := range entries {
		for _, vm := range slices.Concat(entries[i].Change.Added, entries[i].Change.Adopted, entries[i].Change.Removed) {
			if vm.VCPUs > 0 {
				vm.Standby = vm.Standby && !woken[vm.Key]
				recorded[vm.Key] = vm
			}
		}
	}
	return recorded
}

// wokenIn returns the keys of the VMs that changes woke, except the VMs that became standby
// VMs again.
func wokenIn(entries []audit.Entry) map[fleet.Key]bool {
	woken := map[fleet.Key]bool{}
	for i := range entries {
		for _, vm := range entries[i].Change.Woken {
			woken[vm.Key] = true
		}
		for _, vm := range entries[i].Change.Rested {
			delete(woken, vm.Key)
		}
	}
	return woken
}
