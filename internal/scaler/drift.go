package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// DriftClass is a class of differences between a VM and its file. The remedy depends on it.
type DriftClass string

// The classes of drift.
const (
	// DriftNone means that the VM matches its file.
	DriftNone DriftClass = "in sync"
	// DriftRepairable means that an update in place, without a restart of the VM, makes it
	// match its file.
	DriftRepairable DriftClass = "repairable"
	// DriftReplace means that the VM must be replaced, or restored by hand, to match its
	// file. numaform never replaces it without a request.
	DriftReplace DriftClass = "needs replacement"
	// DriftForeign means that another client changed the VM in a way that only a person can
	// revert: for example, it renamed or stopped the VM, removed its marker, or reused its
	// VMID.
	DriftForeign DriftClass = "foreign edit"
	// DriftVanished means that the VM has a file but does not exist in Proxmox.
	DriftVanished DriftClass = "vanished"
	// DriftMoved means that the VM is on another host than the one in its file.
	DriftMoved DriftClass = "moved"
	// DriftOutside means that the VM exists but is missing or incorrect in the state.
	DriftOutside DriftClass = "not in the state"
	// DriftStray means that a guest carries the fleet's marker but has no file.
	DriftStray DriftClass = "stray"
	// DriftUnknown means that the drift cannot be determined now.
	DriftUnknown DriftClass = "unknown"
)

// DriftClasses returns all classes, the harmless ones first.
func DriftClasses() []DriftClass {
	return []DriftClass{
		DriftNone, DriftRepairable, DriftMoved, DriftReplace, DriftForeign, DriftVanished, DriftOutside, DriftStray, DriftUnknown,
	}
}

// DriftDifference is one attribute that differs from the file. Neither value is ever a
// secret.
type DriftDifference struct {
	Attribute string `json:"attribute"`
	File      string `json:"file"`
	Proxmox   string `json:"proxmox"`
}

// VMDrift is the drift of one VM from its file.
type VMDrift struct {
	// VM is the VM in the file. For a stray, only name, VMID, key and host are set.
	VM    fleet.VM
	Class DriftClass
	// Host is the VM's current host; the zero value if it has none.
	Host        topology.HostID
	Differences []DriftDifference
	// Repairable is set if an update in place fixes all differences. This can be true for
	// a moved VM.
	Repairable bool
	// Notes are additional information for the user.
	Notes []string
	// Advice is the action to take; empty if none is needed.
	Advice string
}

// RootDrift is the drift of one host's VMs.
type RootDrift struct {
	Host topology.HostID
	// VMs are the host's VMs and strays, sorted by VMID.
	VMs []VMDrift
	// Err is why the host could not be planned; VMs is then based only on the snapshot.
	Err error
}

// Clean reports whether nothing on the host needs attention.
func (d *RootDrift) Clean() bool {
	return d.Err == nil && !slices.ContainsFunc(d.VMs, func(vm VMDrift) bool { return vm.Class != DriftNone })
}

// Drift compares every VM of the fleet with Proxmox. It plans each host with a full
// refresh, in a separate directory and without the state's lock, and changes neither the
// fleet nor a state nor Proxmox. If a host cannot be planned, its RootDrift has an Err;
// Drift returns only errors that affect all hosts.
func (s *Scaler) Drift(ctx context.Context, snapshot *topology.Snapshot) (found []RootDrift, err error) {
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	if err := s.render(change); err != nil {
		return nil, err
	}
	err = s.inScratch("drift", "looking for drift", func(at places) error {
		hosts := driftHosts(change)
		found = make([]RootDrift, len(hosts))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(maxParallelHosts)
		for i, host := range hosts {
			group.Go(func() error {
				defer s.engines.plan(ctx)()
				found[i] = s.driftOf(ctx, change, at, host)
				return ctx.Err()
			})
		}
		return group.Wait()
	})
	return found, err
}

// driftHosts returns the hosts with files in the fleet and the hosts of guests that have
// our marker but no file, sorted.
func driftHosts(change *Change) []topology.HostID {
	hosts := change.After.AllHosts()
	for _, guest := range change.strays() {
		hosts = append(hosts, guest.host)
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.DeleteFunc(slices.Compact(hosts), change.abandoned)
}

// driftOf compares the VMs of one host.
func (s *Scaler) driftOf(ctx context.Context, change *Change, at places, host topology.HostID) RootDrift {
	found := RootDrift{Host: host}
	if change.Snapshot.Left(host) {
		found.Err = &HostDownError{Host: host, Problem: change.leftProblem(host, change.index()), Left: true}
	} else if problem := problemOf(change.Snapshot.Host(host)); problem != "" {
		found.Err = &HostDownError{Host: host, Problem: problem}
	}
	c := newComparison(change)
	found.Err = errors.Join(found.Err, s.refresh(ctx, change, at, host, c))
	for _, vm := range on(change.After.VMs, host) {
		found.VMs = append(found.VMs, c.classify(vm))
	}
	for _, guest := range change.strays() {
		if guest.host != host {
			continue
		}
		found.VMs = append(found.VMs, VMDrift{
			VM: fleet.VM{
				Name: guest.Name, VMID: fleet.VMID(guest.VMID), Key: fleet.Key(guest.Key),
				Placement: fleet.Placement{Host: guest.host},
			},
			Class: DriftStray, Host: guest.host,
			Advice: "the next apply deletes it if the state contains it; if only the history contains it, the next apply restores its file: " +
				"to keep it, restore its file from version control; to remove it if neither contains it, destroy it by hand",
		})
	}
	slices.SortFunc(found.VMs, func(a, b VMDrift) int { return cmp.Compare(a.VM.VMID, b.VM.VMID) })
	return found
}

// refresh plans the VMs of a host that exist and are ours, with a full refresh, and
// records the result. If the provider cannot read a VM, refresh plans the others again
// without it. The plan is never applied.
func (s *Scaler) refresh(ctx context.Context, change *Change, at places, host topology.HostID, c *comparison) (err error) {
	vms := byAddress(change.After.VMs, host)
	maps.DeleteFunc(vms, func(_ string, vm fleet.VM) bool {
		guest, ours := c.of(&vm)
		return !ours || problemOf(c.snapshot.Host(guest.host)) != ""
	})
	if len(vms) == 0 {
		return nil
	}
	s.config.Progress(host, "looking for drift")
	workspace, err := s.workspace(change, at, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, workspace.Close()) }()
	for len(vms) > 0 {
		plan, err := change.plan(ctx, workspace, host, state.PlanOptions{Refresh: true, Unlocked: true, Targets: refreshTargets(vms, c.guestIndex)})
		if err == nil {
			c.read(plan.JSON, vms, s.config.Rules)
			return nil
		}
		if !c.leaveOut(err, vms) {
			return err
		}
	}
	return nil
}

// refreshTargets returns the addresses of the VMs' module calls to refresh, sorted. It
// omits the security groups of a moved VM, which the provider would look for on the old
// host.
func refreshTargets(vms map[string]fleet.VM, index guestIndex) []string {
	var calls []string
	for _, vm := range vms {
		all := generator.Calls(&vm)
		if guest, _ := index.with(&vm); guest.host != vm.Host {
			all = all[:1]
		}
		calls = append(calls, all...)
	}
	slices.Sort(calls)
	return calls
}

// comparison compares VMs of one host with Proxmox.
type comparison struct {
	guestIndex
	snapshot *topology.Snapshot
	// vms are the VMs of the whole fleet.
	vms []fleet.VM
	// planned is the evidence from a refreshed plan.
	planned map[fleet.Key]*evidence
}

func newComparison(change *Change) *comparison {
	return &comparison{
		guestIndex: change.index(), snapshot: change.Snapshot, vms: change.After.VMs, planned: map[fleet.Key]*evidence{},
	}
}

// evidence is the information about one VM in a refreshed plan.
type evidence struct {
	vm *tfjson.ResourceChange
	// gone is set if the refresh did not find the VM.
	gone        bool
	differences []DriftDifference
	// refused are the guard's reasons against reverting the differences in place.
	refused []guard.Finding
	// failed is why the provider could not read the VM.
	failed string
}

// leaveOut removes from vms the VMs that an engine error names, records that the provider
// could not read them, and reports whether it removed any.
func (c *comparison) leaveOut(err error, vms map[string]fleet.VM) bool {
	var failed *state.CommandError
	if !errors.As(err, &failed) {
		return false
	}
	named := false
	for address, vm := range vms {
		if namesVM(err, &vm) {
			reason, _, _ := strings.Cut(failed.Text, "\n")
			c.planned[vm.Key] = &evidence{failed: strings.TrimPrefix(reason, "Error: ")}
			delete(vms, address)
			named = true
		}
	}
	return named
}

// namesVM reports whether an error is an engine error that names a resource of the VM.
func namesVM(err error, vm *fleet.VM) bool {
	var failed *state.CommandError
	return errors.As(err, &failed) &&
		slices.ContainsFunc(generator.Addresses(vm), func(address string) bool { return strings.Contains(failed.Text, address) })
}

// read extracts the evidence from a refreshed plan of the VMs. The guard decides what may
// change in place.
func (c *comparison) read(plan *tfjson.Plan, vms map[string]fleet.VM, rules guard.Rules) {
	byAddress := map[string]*evidence{}
	for _, vm := range vms {
		found := &evidence{}
		c.planned[vm.Key] = found
		for _, address := range generator.Addresses(&vm) {
			byAddress[address] = found
		}
	}
	for _, change := range plan.ResourceChanges {
		if found := byAddress[change.Address]; found != nil && change.Change != nil {
			found.add(change)
		}
	}
	for _, change := range plan.ResourceDrift {
		if found := byAddress[change.Address]; found != nil && change.Type == guard.ResourceType {
			found.gone = change.Change.Actions.Delete()
		}
	}

	// Get the guard's reasons against reverting all differences in place.
	intent := guard.Intent{ClusterID: c.clusterID, Targeted: true}
	for _, address := range sortedKeys(vms) {
		if vm := vms[address]; len(c.planned[vm.Key].differences) > 0 {
			intent.Update = append(intent.Update, targetOf(c.clusterID, &vm))
		}
	}
	findings := guard.Check(plan, intent, rules).Findings
	for address, found := range byAddress {
		for _, finding := range findings {
			if finding.Decision == guard.Deny && (finding.Address == address || finding.Address == "") {
				found.refused = append(found.refused, finding)
			}
		}
	}
}

// add records the change that a plan makes to one of the VM's resources. For a VM's
// firewall rules, only the rules are compared: their positions and host follow from them.
func (e *evidence) add(change *tfjson.ResourceChange) {
	actions := change.Change.Actions
	if change.Type == guard.ResourceType {
		e.vm = change
		if actions.Update() || actions.Replace() {
			e.differences = append(e.differences, differences(change.Change)...)
		}
		return
	}
	if actions.NoOp() {
		return
	}
	for _, d := range differences(change.Change) {
		if strings.HasPrefix(d.Attribute, "rule") && !strings.HasSuffix(d.Attribute, ".pos") {
			e.differences = append(e.differences, d)
		}
	}
}

// classify returns the drift of one VM.
func (c *comparison) classify(vm fleet.VM) VMDrift {
	found := VMDrift{VM: vm, Class: DriftNone}
	guest, exists := c.with(&vm)
	if exists {
		found.Host = guest.host
	}
	region := regionOf(c.snapshot, vm.Host.Region)
	switch {
	case !exists && (region.HidesGuests || !region.Quorate):
		found.unknown("Proxmox does not list it, but currently does not show all guests: check again when it does")
	case !exists && c.snapshot.Left(vm.Host):
		found.Class = DriftVanished
		found.Advice = fmt.Sprintf("its host left the Proxmox cluster, so it is not created again: delete its NodeClaim, or run `numaform remove %s`, which removes its file", vm.Name)
	case !exists:
		found.Class = DriftVanished
		found.Advice = fmt.Sprintf("without a controller, the next apply creates it again; a controller removes its file instead, and its pods get another node; to remove its file yourself, run `numaform remove %s`", vm.Name)
	case guest.unread:
		found.unknown(fmt.Sprintf("host %s cannot be read: check again when it is back", guest.host))
	case c.is(guest, &vm):
		c.classifyOwn(&found, guest)
		found.addMissing(guest)
	default:
		c.classifyForeign(&found, guest)
	}
	return found
}

func (d *VMDrift) unknown(advice string) {
	d.Class = DriftUnknown
	d.Advice = advice
}

// classifyForeign records a guest with a VM's VMID but not its key.
func (c *comparison) classifyForeign(found *VMDrift, guest located) {
	vm := &found.VM
	found.Class = DriftForeign
	if guest.looksLike(vm.Name, c.clusterID) {
		found.Differences = []DriftDifference{{Attribute: "description", File: "the marker", Proxmox: "no marker"}}
		found.Advice = "numaform neither changes nor replaces it; to fix it, add this line to its description in Proxmox: " + markerOf(c.clusterID, vm)
		return
	}
	found.Differences = []DriftDifference{{Attribute: "vm_id", File: vm.Name, Proxmox: fmt.Sprintf("guest %q without this VM's key", guest.Name)}}
	found.Advice = fmt.Sprintf("numaform does not change that guest; the next apply creates the VM with another VMID; to remove its file instead, run `numaform remove %s`", vm.Name)
	for _, other := range c.guests {
		if c.clone(other, vm) {
			found.Notes = append(found.Notes, fmt.Sprintf("guest %d (%s) on %s carries this VM's marker: it is a copy, or was restored under another VMID",
				other.VMID, other.Name, other.host))
			found.Advice = "check which of the two guests is the node, and remove the marker from the description of the other"
		}
	}
	slices.Sort(found.Notes)
}

// classifyOwn classifies an existing VM that carries its marker.
func (c *comparison) classifyOwn(found *VMDrift, guest located) {
	if guest.host != found.VM.Host {
		c.addMove(found, guest)
	}
	planned := c.planned[found.VM.Key]
	switch {
	case planned == nil && found.Class == DriftNone:
		found.unknown("its host cannot be compared now: see the error of the host")
	case planned == nil:
	case planned.failed != "":
		found.Notes = append(found.Notes, "the provider cannot read it: "+planned.failed)
		if found.Class == DriftNone {
			found.unknown("inspect it in Proxmox, then run `numaform drift` again")
		}
	case planned.vm == nil || planned.gone || planned.vm.Change.Actions.Create() ||
		planned.vm.ActionReason == tfjson.ActionReasonReplaceBecauseTainted:
		found.Class = DriftOutside
		found.Advice = "run `numaform apply`, which imports it into the state; without your approval, this can only set its tags, pool, " +
			"description and start at boot in Proxmox to the values of its file, and add security groups"
	case len(planned.differences) > 0 || planned.vm.Change.Actions.Replace():
		found.Differences = append(found.Differences, planned.differences...)
		found.chooseRemedy(planned, guest)
	}
}

// manualEdits lists the attributes that must be restored by hand, with the command for
// this: neither an update in place nor a new VM is the right fix.
var manualEdits = []struct{ attribute, why, back string }{
	{"name", "a person renamed it", "qm set VMID --name NAME"},
	{"protection", "a person protected it: Proxmox refuses to remove it until the protection is removed", "qm set VMID --protection 0"},
	{"started", "a person stopped it, or it shut down or crashed", "qm start VMID"},
}

// chooseRemedy chooses the class and advice for a VM's differences.
func (d *VMDrift) chooseRemedy(planned *evidence, guest located) {
	for _, edit := range manualEdits {
		if slices.ContainsFunc(d.Differences, func(diff DriftDifference) bool { return diff.Attribute == edit.attribute }) {
			d.Class = DriftForeign
			if edit.attribute == "started" && d.VM.Standby {
				edit.why = "a person started it: it is a standby VM, and cannot become a node while it runs without join data"
				edit.back = "qm stop VMID"
			}
			d.Notes = append(d.Notes, edit.why)
			d.Advice = "restore it on its host: " + strings.NewReplacer("VMID", strconv.Itoa(int(d.VM.VMID)), "NAME", d.VM.Name).Replace(edit.back)
			return
		}
	}
	// Of the guard's refusals, only these two mean that the VM itself differs.
	other := slices.IndexFunc(planned.refused, func(f guard.Finding) bool {
		return f.Rule != guard.RuleUpdate && f.Rule != guard.RuleReplace
	})
	switch {
	case other >= 0 && planned.refused[other].Address == "":
		d.unknown("its plan cannot be evaluated: " + planned.refused[other].Message)
	case other >= 0:
		d.Class = DriftForeign
		d.Advice = planned.refused[other].Message
	case len(planned.refused) > 0:
		d.replace(guest)
	default:
		d.Repairable = true
		if d.Class == DriftNone {
			d.Class = DriftRepairable
		}
		d.Advice = strings.TrimPrefix(d.Advice+"; `numaform drift --repair` reverts the differences while the VM runs", "; ")
	}
}

// replace records a VM that must be replaced to match its file.
func (d *VMDrift) replace(guest located) {
	d.Class = DriftReplace
	d.Advice = fmt.Sprintf("it is never replaced automatically: restore it in Proxmox, or drain the node and run `numaform remove %s`; its pods get a new node", d.VM.Name)
	size := []string{"cpu.cores", "cpu.sockets", "memory.dedicated"}
	more := slices.ContainsFunc(d.Differences, func(diff DriftDifference) bool { return !slices.Contains(size, diff.Attribute) })
	if d.VM.VCPUs == guest.VCPUs && d.VM.MemoryMiB == guest.MemoryMiB && !more {
		d.Notes = append(d.Notes, "the running VM still matches its file: the edit takes effect at the next restart")
	}
}

// addMissing adds the PCI devices and data disks that a VM lacks, because they were
// detached or its creation was interrupted. No plan shows these, because the modules ignore
// changes of devices and disks of an existing VM.
func (d *VMDrift) addMissing(guest located) {
	var devices, disks []string
	passed := slices.Clone(guest.PCIDevices)
	for _, device := range d.VM.PCIDevices {
		i := slices.Index(passed, topology.PassedDevice{Mapping: device.Mapping, MDev: device.MDev})
		if i < 0 {
			devices = append(devices, "mapping "+device.Mapping)
			continue
		}
		passed = slices.Delete(passed, i, i+1)
	}
	for _, disk := range d.VM.DataDisks {
		if len(guest.Disks) > 0 && !slices.Contains(guest.Disks, disk.Interface) {
			disks = append(disks, fmt.Sprintf("%s of %d GiB on %s", disk.Interface, disk.SizeGiB, disk.Storage))
		}
	}
	for _, missing := range []struct {
		attribute string
		items     []string
	}{{"hostpci", devices}, {"disk", disks}} {
		if len(missing.items) > 0 && (d.Class == DriftNone || d.Class == DriftRepairable || d.Class == DriftReplace) {
			d.Differences = append(d.Differences, DriftDifference{Attribute: missing.attribute, File: strings.Join(missing.items, ", "), Proxmox: "nothing"})
			d.Repairable = false
			d.replace(guest)
		}
	}
}

// addMove records a VM that is not on the host in its file, and the effect of its pins on
// its current host.
func (c *comparison) addMove(found *VMDrift, guest located) {
	vm := &found.VM
	found.Class = DriftMoved
	found.Differences = []DriftDifference{{Attribute: "node_name", File: string(vm.Host.Host), Proxmox: string(guest.host.Host)}}
	found.Advice = fmt.Sprintf("move it back to %s in Proxmox, or drain the node and run `numaform remove %s`; its pods get a new node",
		vm.Host.Host, vm.Name)
	note := func(format string, args ...any) { found.Notes = append(found.Notes, fmt.Sprintf(format, args...)) }
	note("its Node's label topology.kubernetes.io/zone is still %s", vm.Host.Host)
	host := c.snapshot.Host(guest.host)
	if host == nil {
		return
	}

	if pins := vm.CPUs.Union(guest.Pins); !pins.IsEmpty() {
		note("its CPUs %s were chosen on %s and are different CPUs on %s", pins, vm.Host.Host, host.Name)
		c.notePinConflicts(pins, vm, host, note)
	}
	var nodes topology.CPUSet
	for _, cell := range vm.Cells {
		nodes = nodes.Union(cell.HostNodes)
	}
	if nodes.IsEmpty() {
		return
	}
	note("its memory is bound to NUMA nodes %s, which are different on %s", nodes, host.Name)
	var ids []int
	for _, node := range host.NUMANodes {
		ids = append(ids, node.ID)
	}
	if absent := nodes.Difference(topology.CPUs(ids...)); len(ids) > 0 && !absent.IsEmpty() {
		note("%s has no NUMA nodes %s: the VM cannot start there again", host.Name, absent)
	}
}

// notePinConflicts notes what else uses a VM's pinned CPUs on its current host.
func (c *comparison) notePinConflicts(pins topology.CPUSet, vm *fleet.VM, host *topology.Host, note func(string, ...any)) {
	var ids []int
	for _, cpu := range host.CPUs {
		ids = append(ids, cpu.ID)
	}
	if absent := pins.Difference(topology.CPUs(ids...)); len(ids) > 0 && !absent.IsEmpty() {
		note("%s has no CPUs %s", host.Name, absent)
	}
	if reserved := pins.Intersection(host.ReservedCPUs); !reserved.IsEmpty() {
		note("CPUs %s are reserved for %s itself", reserved, host.Name)
	}
	guests := slices.SortedFunc(maps.Values(c.guests), func(a, b located) int { return cmp.Compare(a.VMID, b.VMID) })
	for _, other := range guests {
		shared := pins.Intersection(other.Pins)
		if other.host == host.ID() && other.VMID != int(vm.VMID) && !shared.IsEmpty() {
			note("CPUs %s are pinned by guest %d (%s) there too", shared, other.VMID, other.Name)
		}
	}
	for i := range c.vms {
		other := &c.vms[i]
		_, exists := c.with(other)
		shared := pins.Intersection(other.CPUs)
		if !exists && other.Host == host.ID() && other.Key != vm.Key && !shared.IsEmpty() {
			note("CPUs %s are reserved for %s, which does not exist yet", shared, other.Name)
		}
	}
}
