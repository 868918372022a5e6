package scaler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// hostView contains the operations that a change may perform on one host, and the guests
// in Proxmox.
type hostView struct {
	guestIndex
	change *Change
	id     topology.HostID
	host   *topology.Host
	// snapshot contains host.
	snapshot *topology.Snapshot
	vms      map[string]fleet.VM // by address, from the files
	added    map[string]fleet.VM // requested by this change
	removed  map[string]fleet.VM // removed by this change or an earlier one
	updated  map[string]fleet.VM // to change in place, by this change or an earlier one
	woken    map[string]fleet.VM // standby VMs to start, by this change or an earlier one
	// calls are the module calls of VMs in updated that a plan without the rest of the host
	// contains, including calls for security groups that were removed from their files. Updates
	// of earlier changes are planned by themselves, because their refresh may find a difference
	// that is not allowed.
	calls []string
	// retrying is set if VMs of an earlier change are planned by calls or are among woken.
	retrying bool
	// retried are the VMs of earlier changes that are planned by calls.
	retried map[string]fleet.VM
	// complete is set if all guests are known: a guest that is not listed then does not
	// exist.
	complete bool
	// interrupted is set if a create may have been interrupted.
	interrupted bool
	// blocked is the reason why each VM in removed must not be deleted yet, by address.
	blocked map[string]string
	// gone marks the VMs in removed whose Node does not exist, by address.
	gone map[string]bool
	// left is set if the host left its Proxmox cluster: the VMs in removed do not exist.
	left bool
}

// viewHost returns the view of a host, or a HostDownError if the host cannot be used now.
// If fresh is set, it reads the host again, including the guests that the change removes,
// updates or wakes, and the guests with the VMIDs in also.
func (s *Scaler) viewHost(ctx context.Context, change *Change, id topology.HostID, fresh bool, also ...fleet.VMID) (*hostView, error) {
	snapshot := change.Snapshot
	if live := s.region(id.Region).Live; fresh && live != nil {
		var err error
		if snapshot, err = live.Refresh(ctx, snapshot, change.hostsOf(id), append(change.guestsOf(id), also...)...); err != nil {
			return nil, err
		}
	}
	host := snapshot.Host(id)
	index := indexGuests(snapshot, change.After.ClusterID)
	left := snapshot.Left(id) && change.onlyForgets(id, index)
	if problem := problemOf(host); problem != "" && !left && !change.onlyMovedAway(id) {
		if snapshot.Left(id) {
			return nil, &HostDownError{Host: id, Problem: change.leftProblem(id, index), Left: true}
		}
		return nil, &HostDownError{Host: id, Problem: problem}
	}
	region := regionOf(snapshot, id.Region)
	if !region.Quorate {
		return nil, &HostDownError{Host: id, Problem: "its cluster has lost its quorum"}
	}

	v := &hostView{
		guestIndex: index, left: left, change: change, id: id, host: host, snapshot: snapshot, complete: !region.HidesGuests,
		vms: byAddress(change.After.VMs, id), added: byAddress(change.Added, id),
		removed: byAddress(change.Removed, id), updated: byAddress(change.Updated, id),
		woken: byAddress(change.Woken, id), retried: map[string]fleet.VM{},
		interrupted: interrupted(change.open, id),
	}
	open := change.open[id]
	for address, vm := range byAddress(open.Removed, id) {
		if _, desired := v.vms[address]; !desired {
			v.removed[address] = vm
		}
	}
	for address, vm := range v.vms {
		if slices.Contains(open.Updated, vm.Key) {
			v.updated[address] = vm
		}
		if slices.Contains(open.Woken, vm.Key) && !vm.Standby {
			if guest, ours := v.of(&vm); change.leaving[vm.Key] && (!ours || !guest.Running) {
				continue // do not start a VM only to destroy it next
			}
			v.woken[address] = vm
			v.retrying = true
		}
	}
	v.addCalls(open.Updated, len(open.Woken) == 0 && !slices.Contains(change.Hosts(), id))
	return v, nil
}

// addCalls sets calls, retried and retrying. The updates in unfinished are of earlier changes;
// alone is set if the change does nothing else on the host.
func (v *hostView) addCalls(unfinished []fleet.Key, alone bool) {
	requested := byAddress(v.change.Updated, v.id)
	for address, vm := range v.updated {
		if slices.Contains(unfinished, vm.Key) {
			if _, again := requested[address]; !again && !alone {
				continue
			}
			v.retried[address] = vm
			v.retrying = true
		}
		v.calls = append(v.calls, generator.Calls(withAnyGroups(vm))...)
	}
}

// withAnyGroups returns a VM with security groups, also if they were removed from its file.
func withAnyGroups(vm fleet.VM) *fleet.VM {
	vm.SecurityGroups = []string{"any"}
	return &vm
}

// leaveOut removes the retried VMs that prevent their common plan from calls and retried, and
// reports whether it can be planned again: some were removed, and others are left. err is why
// there is no plan, or nil if there is one.
func (v *hostView) leaveOut(plan *RootPlan, err error) bool {
	if plan.Touched {
		return false
	}
	pins := &PinsError{}
	_ = errors.As(err, &pins)
	left := maps.Clone(v.retried)
	maps.DeleteFunc(left, func(address string, vm fleet.VM) bool {
		guest, ours := v.of(&vm)
		elsewhere := err != nil && (!ours || guest.host != v.id)
		return elsewhere || pins.VM == vm.Name || namesVM(err, withAnyGroups(vm)) ||
			slices.ContainsFunc(plan.Verdict.Findings, func(f guard.Finding) bool {
				return f.Decision == guard.Deny && cmp.Or(guard.VMOf(f.Address), f.Address) == address
			})
	})
	if len(left) == 0 || len(left) == len(v.retried) {
		return false
	}
	v.retried, v.calls = left, nil
	for _, vm := range left {
		v.calls = append(v.calls, generator.Calls(withAnyGroups(vm))...)
	}
	return true
}

// targets returns the module calls affected by the change, sorted.
func (v *hostView) targets() []string {
	targets := slices.Clone(v.calls)
	for _, vm := range v.woken {
		targets = append(targets, generator.Calls(&vm)[0]) // its security groups do not change
	}
	for _, vms := range []map[string]fleet.VM{v.added, v.removed} {
		for _, vm := range vms {
			targets = append(targets, generator.Calls(&vm)...)
		}
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// targetOf returns the target of a VM in the files. A VM that cannot be rendered has no
// inputs, and the guard then denies everything but a delete.
func targetOf(clusterID string, vm *fleet.VM) guard.Target {
	inputs, err := generator.Inputs(clusterID, vm)
	if err != nil {
		inputs = nil
	}
	return guard.Target{
		Address: generator.Address(vm), VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host, Pool: vm.Pool,
		Module: cmp.Or(vm.Module, modules.Hash()), Addresses: vm.Addresses(), ClassVMIDs: vm.VMIDs, Inputs: inputs,
	}
}

// started returns the target of a VM that the plan creates or wakes. Its guest then gets the
// static addresses in its file.
func (v *hostView) started(vm *fleet.VM) guard.Target {
	target := targetOf(v.clusterID, vm)
	if err := ipam.Check(v.change.Snapshot, vm, v.change.nodes); err != nil {
		target.AddressProblem = err.Error()
	}
	return target
}

// claims returns the CPUs that guests of the host are pinned to, by VMID.
func (v *hostView) claims() []guard.Claim {
	var claims []guard.Claim
	for _, guest := range v.guests {
		if guest.host == v.id && !guest.Pins.IsEmpty() {
			claims = append(claims, guard.Claim{Host: v.id.Host, CPUs: guest.Pins, Guest: guest.Name, VMID: fleet.VMID(guest.VMID)})
		}
	}
	slices.SortFunc(claims, func(a, b guard.Claim) int { return cmp.Compare(a.VMID, b.VMID) })
	return claims
}

// addressClaims returns the static addresses of the fleet's VMs, including VMs that this
// change or an earlier one removes: their guests still use them.
func (c *Change) addressClaims() []guard.AddressClaim {
	var claims []guard.AddressClaim
	add := func(vms []fleet.VM) {
		for i := range vms {
			for _, ip := range vms[i].Addresses() {
				claims = append(claims, guard.AddressClaim{Address: ip, Key: vms[i].Key, VM: vms[i].Name})
			}
		}
	}
	add(c.After.VMs)
	add(c.Removed)
	for _, open := range c.open {
		add(open.Removed)
	}
	slices.SortFunc(claims, func(a, b guard.AddressClaim) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Key, b.Key))
	})
	return slices.Compact(claims)
}

// intent returns the operations that the plan must perform: create the VMs that this
// change or earlier changes added, import existing VMs, delete removed VMs, start woken
// VMs, and update VMs in place.
func (v *hostView) intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	intent := guard.Intent{ClusterID: v.clusterID, Claims: v.claims(), Addresses: v.change.addressClaims()}

	// An update in place is possible only for VMs that the plan changes in no other way.
	requested := map[string]bool{}
	for i := range imported {
		target := targetOf(v.clusterID, &imported[i])
		requested[target.Address] = true
		guest, _ := v.with(&imported[i])
		created := v.isUpdate(target.Address)
		_, woken := v.woken[target.Address]
		target.Incomplete = (v.interrupted || woken) && !created && v.mayBeHalfMade(&imported[i], guest)
		intent.Import = append(intent.Import, target)
	}
	listed := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		listed[change.Address] = true
		if vm, ok := v.vms[change.Address]; ok && change.Change.Actions.Create() && !requested[change.Address] {
			requested[change.Address] = true
			intent.Create = append(intent.Create, v.started(&vm))
		}
		if vm, ok := v.removed[change.Address]; ok {
			requested[change.Address] = true
			target := targetOf(v.clusterID, &vm)
			target.Address = change.Address
			target.Inputs = nil
			target.Blocked = v.blocked[change.Address]
			target.Drained = target.Blocked == ""
			target.Gone = v.gone[change.Address]
			intent.Delete = append(intent.Delete, target)
		}
	}
	// The plan must contain what this change adds; otherwise the guard reports it.
	for address, vm := range v.added {
		if !listed[address] {
			requested[address] = true
			intent.Create = append(intent.Create, v.started(&vm))
		}
	}

	// A failed start leaves the VM in the state as started, but without the addresses that its
	// guest reports, so that even a plan without a refresh changes it again.
	for _, change := range plan.ResourceChanges {
		if vm, ok := v.woken[change.Address]; ok && !requested[change.Address] && !change.Change.Actions.NoOp() {
			requested[change.Address] = true
			intent.Wake = append(intent.Wake, v.started(&vm))
		}
	}

	var updates []fleet.VM
	for _, change := range plan.ResourceChanges {
		address := cmp.Or(guard.VMOf(change.Address), change.Address)
		if vm, ok := v.updated[address]; ok && !requested[address] && !change.Change.Actions.NoOp() {
			updates = append(updates, vm)
		}
	}
	slices.SortFunc(updates, func(a, b fleet.VM) int { return cmp.Compare(generator.Address(&a), generator.Address(&b)) })
	intent.Update = v.alsoUpdate(nil, updates)
	return intent
}

// isUpdate reports whether a VM is to be updated in place, and was completely created before.
func (v *hostView) isUpdate(address string) bool {
	vm, updated := v.updated[address]
	return updated && !v.mayBeNew(vm.Key)
}

// mayBeNew reports whether an unfinished change creates or completes a VM.
func (v *hostView) mayBeNew(key fleet.Key) bool {
	return slices.ContainsFunc(v.change.open[v.id].Made, func(made guard.Target) bool { return made.Key == key })
}

// alsoUpdate returns targets, and the targets of those VMs that are not among them yet.
func (v *hostView) alsoUpdate(targets []guard.Target, vms []fleet.VM) []guard.Target {
	for i := range vms {
		address := generator.Address(&vms[i])
		if !slices.ContainsFunc(targets, func(t guard.Target) bool { return t.Address == address }) {
			targets = append(targets, targetOf(v.clusterID, &vms[i]))
		}
	}
	return targets
}

// repairable returns an error if a VM must not be repaired now.
func (v *hostView) repairable(repaired map[string]fleet.VM) error {
	if v.interrupted {
		return &UnfinishedError{Host: v.id}
	}
	for _, address := range sortedKeys(repaired) {
		vm := repaired[address]
		guest, exists := v.with(&vm)
		if exists && v.is(guest, &vm) {
			continue
		}
		if exists {
			if err := v.mayBe(guest, &vm); err != nil {
				return err
			}
		}
		return fmt.Errorf("repairing vm %s: guest %d no longer exists, or its VMID now belongs to another guest: run `numaform drift` again", vm.Name, vm.VMID)
	}
	return nil
}

// PinsError reports that a VM cannot get the pins in its file while it runs.
type PinsError struct {
	VM      string
	Host    topology.HostID
	Pins    topology.Pins
	Problem string
}

func (e *PinsError) Error() string {
	return fmt.Sprintf("vm %s: its file pins it to CPUs %s of host %s, %s: declare other CPUs in its file, or replace the node",
		e.VM, e.Pins, e.Host, e.Problem)
}

// Repin is a change of the CPUs on which the host agent runs the threads of a running VM.
type Repin struct {
	VM      fleet.VM
	Was, Is fleet.Marker
}

// String returns the change in the form "workers-2001: pins 4,36 → 6,38".
func (r Repin) String() string {
	return fmt.Sprintf("%s: %s → %s", r.VM.Name, pinText(r.Was), strings.TrimPrefix(pinText(r.Is), "pins "))
}

// pinText describes what a marker requests from the host agent.
func pinText(m fleet.Marker) string {
	if len(m.Pins) == 0 {
		return "no pins"
	}
	text := "pins " + topology.Pins(m.Pins).String()
	if m.Emulator != "" {
		text += ", emulator " + string(m.Emulator)
	}
	return text
}

// samePins reports whether two markers request the same from the host agent.
func samePins(a, b fleet.Marker) bool {
	return slices.Equal(a.Pins, b.Pins) && a.Emulator == b.Emulator
}

// repin records the VMs whose files declare other pins, or another emulator setting, than
// the state and Proxmox have. The host agent applies the pins while the VMs run, so only
// the description changes, and repin allows the plan to update it: a person who edits
// files need not request the update. The guard checks what else such a plan would change.
// repin returns a PinsError if the host cannot provide the pins.
func (v *hostView) repin(plan *RootPlan) error {
	plan.Repinned = nil
	for _, change := range plan.Plan.JSON.ResourceChanges {
		vm, inFiles := v.vms[change.Address]
		if !inFiles || change.Type != guard.ResourceType || !change.Change.Actions.Update() || vm.PinWith != fleet.PinWithHostAgent {
			continue
		}
		_, was, _ := recordedVM(change.Change.Before)
		_, is, _ := recordedVM(change.Change.After)
		guest, ours := v.of(&vm)
		declared := !samePins(was, is) && was.Key == vm.Key && is.Key == vm.Key && slices.Equal(is.Pins, vm.VCPUPins)
		if ours && guest.host == v.id && declared {
			plan.Repinned = append(plan.Repinned, Repin{VM: vm, Was: was, Is: is})
		}
	}
	slices.SortFunc(plan.Repinned, func(a, b Repin) int { return cmp.Compare(a.VM.VMID, b.VM.VMID) })
	var vms []fleet.VM
	for i := range plan.Repinned {
		if err := v.pinsFit(&plan.Repinned[i].VM); err != nil {
			return err
		}
		vms = append(vms, plan.Repinned[i].VM)
	}
	plan.Intent.Update = v.alsoUpdate(plan.Intent.Update, vms)
	return nil
}

// pinsFit refuses pins of a running VM to CPUs that its host lacks or reserves, or that are
// on another NUMA node than the vCPU's memory, which does not move.
func (v *hostView) pinsFit(vm *fleet.VM) error {
	refuse := func(format string, args ...any) error {
		return &PinsError{VM: vm.Name, Host: v.id, Pins: vm.VCPUPins, Problem: fmt.Sprintf(format, args...)}
	}
	if v.host == nil || len(v.host.CPUs) == 0 {
		return nil
	}
	for vcpu, id := range vm.VCPUPins {
		cpu := v.host.CPU(id)
		switch {
		case cpu == nil || !cpu.Online:
			return refuse("of which CPU %d does not exist or is offline", id)
		case v.host.ReservedCPUs.Contains(id):
			return refuse("of which CPU %d is reserved for the host", id)
		}
		for _, cell := range vm.Cells {
			if cell.GuestCPUs.Contains(vcpu) && cpu.NUMANode != topology.Unknown && !cell.HostNodes.Contains(cpu.NUMANode) {
				return refuse("but vCPU %d has its memory on NUMA node %s, and CPU %d is on NUMA node %d", vcpu, cell.HostNodes, id, cpu.NUMANode)
			}
		}
	}
	return nil
}

// followMoved updates the state to the current hosts of VMs to be removed, and reports
// whether that was necessary. The engine destroys a resource without a file as the state
// recorded it before the plan, even if the plan refreshes, and the provider would look for
// the VM on its old host. So this is a separate plan that changes only the state. Security
// groups are deleted with their VM; their entries name the old host, which may no longer
// exist.
func (s *Scaler) followMoved(ctx context.Context, plan *RootPlan, v *hostView) (followed bool, err error) {
	moved := v.movedAway()
	if len(moved) == 0 || plan.dry {
		return false, nil
	}
	resources, err := plan.workspace.Resources(ctx)
	if err != nil {
		return false, err
	}
	targets, groups := v.outdated(resources, moved)
	if len(targets)+len(groups) == 0 {
		return false, nil
	}
	if len(groups) > 0 {
		if err := plan.workspace.Forget(ctx, groups...); err != nil {
			return false, err
		}
		plan.outside = append(plan.outside, "removed from the state, because their VMs are on another host: "+strings.Join(groups, ", "))
	}
	if len(targets) == 0 {
		return true, nil
	}

	list := strings.Join(targets, ", ")
	s.config.Progress(plan.Host, "reading the hosts of moved VMs: "+list)
	return true, s.refreshState(ctx, plan, v, targets, "updated the host of "+list+" in the state")
}

// refreshRested updates the state of VMs that an engine may have recorded as started although
// they are standby VMs again. A guest that runs was started by a user.
func (s *Scaler) refreshRested(ctx context.Context, plan *RootPlan, v *hostView) error {
	stopped := byAddress(v.change.Rested, v.id)
	for address, vm := range v.vms {
		if vm.Standby && slices.Contains(v.change.open[v.id].Woken, vm.Key) {
			stopped[address] = vm // an earlier change could not read it
		}
	}
	maps.DeleteFunc(stopped, func(_ string, vm fleet.VM) bool {
		guest, ours := v.of(&vm)
		return !ours || guest.Running
	})
	if len(stopped) == 0 || plan.dry {
		return nil
	}
	targets := refreshTargets(stopped, v.guestIndex)
	return s.refreshState(ctx, plan, v, targets, "updated "+strings.Join(targets, ", ")+" in the state")
}

// refreshState updates the state of module calls to what Proxmox reports, by a plan that
// changes only the state. If it changes anything, that is recorded as did.
func (s *Scaler) refreshState(ctx context.Context, plan *RootPlan, v *hostView, targets []string, did string) error {
	refresh, err := v.change.plan(ctx, plan.workspace, v.id, state.PlanOptions{RefreshOnly: true, Targets: targets})
	if err != nil || !refresh.Changes {
		return err
	}
	intent := guard.Intent{ClusterID: v.clusterID, Targeted: true}
	if verdict := guard.Check(refresh.JSON, intent, s.config.Rules); verdict.Decision != guard.Allow {
		return &DeniedError{Host: plan.Host, Verdict: verdict}
	}
	if _, err := plan.workspace.Apply(ctx, refresh); err != nil {
		return err
	}
	plan.outside = append(plan.outside, fmt.Sprintf("%s, by plan %s", did, refresh.SHA256))
	return nil
}

// movedAway returns the VMs to be removed that are now on another host, sorted.
func (v *hostView) movedAway() []fleet.VM {
	var moved []fleet.VM
	for _, vm := range v.removed {
		if guest, ours := v.of(&vm); ours && guest.host != v.id {
			moved = append(moved, vm)
		}
	}
	slices.SortFunc(moved, func(a, b fleet.VM) int { return cmp.Compare(a.VMID, b.VMID) })
	return moved
}

// outdated returns the module calls of moved VMs whose host is outdated in the state, and
// the addresses of moved VMs' security groups.
func (v *hostView) outdated(resources []state.Resource, moved []fleet.VM) (targets, groups []string) {
	for _, resource := range resources {
		for i := range moved {
			now, _ := v.with(&moved[i])
			switch at := slices.Index(generator.Addresses(&moved[i]), resource.Address); {
			case at == 0 && resource.Host != now.host.Host:
				targets = append(targets, generator.Calls(&moved[i])[0])
			case at > 0:
				groups = append(groups, resource.Address)
			}
		}
	}
	return targets, groups
}

// removedFrom returns the VMs that a change removes from a host, and those whose removal an
// earlier change began: their files no longer exist.
func (c *Change) removedFrom(host topology.HostID) (removed, unfinished []fleet.VM) {
	removed = on(c.Removed, host)
	for _, vm := range on(c.open[host].Removed, host) {
		if !hasKey(removed, vm.Key) && !hasKey(c.After.VMs, vm.Key) {
			unfinished = append(unfinished, vm)
		}
	}
	return removed, unfinished
}

// onlyMovedAway reports whether a change only removes VMs of a host that are now on other
// hosts, all of which are usable. It then does not matter if the host itself is down. VMs that
// an earlier change has certainly deleted do not matter either.
func (c *Change) onlyMovedAway(host topology.HostID) bool {
	if len(on(c.Added, host)) > 0 {
		return false
	}
	index := c.index()
	removed, unfinished := c.removedFrom(host)
	region := regionOf(c.Snapshot, host.Region)
	if region.Quorate && !region.HidesGuests {
		unfinished = slices.DeleteFunc(unfinished, func(vm fleet.VM) bool {
			_, listed := index.with(&vm)
			return !listed
		})
	}
	removed = slices.Concat(removed, unfinished)
	for i := range removed {
		guest, ours := index.of(&removed[i])
		if !ours || guest.host == host || problemOf(c.Snapshot.Host(guest.host)) != "" {
			return false
		}
	}
	return len(removed) > 0
}

// hostsOf returns the hosts whose guests must be read before a host is changed: the host
// itself, and the hosts to which its VMs have moved.
func (c *Change) hostsOf(host topology.HostID) []topology.HostName {
	hosts := []topology.HostName{host.Host}
	index := c.index()
	removed, unfinished := c.removedFrom(host)
	for _, vm := range slices.Concat(on(c.Before.VMs, host), removed, unfinished) {
		if guest, ours := index.of(&vm); ours {
			hosts = append(hosts, guest.host.Host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// guestsOf returns the VMIDs of the existing VMs that a change removes, updates, wakes or
// rests on a host, including those that an earlier change left unfinished.
func (c *Change) guestsOf(host topology.HostID) []fleet.VMID {
	open := c.open[host]
	vms := slices.Concat(on(c.Removed, host), on(c.Updated, host), on(c.Woken, host), on(c.Rested, host), on(c.Foreign, host), on(open.Removed, host))
	for _, vm := range on(c.After.VMs, host) {
		if slices.Contains(open.Updated, vm.Key) || slices.Contains(open.Woken, vm.Key) {
			vms = append(vms, vm)
		}
	}
	var vmids []fleet.VMID
	for i := range vms {
		vmids = append(vmids, vms[i].VMID)
	}
	return vmids
}

// recordedVM returns the key, name and VMID of the VM that a resource's values describe,
// its marker, and whether its description has one.
func recordedVM(values any) (vm fleet.VM, marker fleet.Marker, marked bool) {
	attributes, _ := values.(map[string]any)
	description, _ := attributes["description"].(string)
	marker, marked = fleet.ParseMarker(description)
	vm.Key = marker.Key
	vm.Name, _ = attributes["name"].(string)
	switch vmid := attributes["vm_id"].(type) {
	case float64:
		vm.VMID = fleet.VMID(vmid)
	case json.Number:
		if number, err := vmid.Int64(); err == nil {
			vm.VMID = fleet.VMID(number)
		}
	}
	return vm, marker, marked
}
