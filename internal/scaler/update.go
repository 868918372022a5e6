package scaler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	tfjson "github.com/hashicorp/terraform-json"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Update asks that VMs get the tags, the pool, the security groups and the emulator that
// they have here, while they run; nothing else of them counts. Ask as often as you like: a VM
// that is so already is left alone. VMs that are not known, or that go, are ignored,
// and one that is not made yet changes when it is.
func (w *Writer) Update(vms ...fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range vms {
		if e := w.members[vms[i].Key]; e != nil && w.wish(e, &vms[i].Spec) {
			w.nudge()
		}
	}
}

// wish notes how a VM shall be, and reports whether that is news.
func (w *Writer) wish(e *member, spec *fleet.Spec) bool {
	switch {
	case e.leaving || alike(&e.VM.Spec, spec):
		if e.wish != nil {
			e.wish, e.Changing, e.ChangeErr = nil, e.moving, nil
		}
		return false
	case e.wish != nil && alike(e.wish, spec):
		return false
	}
	e.wish, e.Changing, e.retry = spec, true, delay{}
	return true
}

// alike reports whether two VMs have all in common that changes in place.
func alike(a, b *fleet.Spec) bool {
	return a.ResourcePool == b.ResourcePool && a.Emulator == b.Emulator && slices.Equal(a.Tags, b.Tags) && slices.Equal(a.SecurityGroups, b.SecurityGroups)
}

// inPlace returns a VM with what of a Spec changes in place.
func inPlace(vm fleet.VM, spec *fleet.Spec) fleet.VM {
	vm.Tags, vm.ResourcePool, vm.SecurityGroups = slices.Clone(spec.Tags), spec.ResourcePool, slices.Clone(spec.SecurityGroups)
	vm.Emulator = spec.Emulator
	return vm
}

// askInPlace puts the VMs into a change that is about nothing else which are to change
// while they run: whoever comes or goes does not wait for that.
func (w *Writer) askInPlace(m *move) {
	if !m.change.Empty() {
		return
	}
	now, guests := w.scaler.config.Clock.Now(), locate(m.change.Snapshot)
	for _, state := range w.sorted() {
		vm, e := state.VM, w.members[state.VM.Key]
		// What is not there now waits: a plan that cannot be made is no help to the others.
		guest := guests[guestID{vm.Host.Region, vm.VMID}]
		there := guest.ClusterID == w.scaler.config.ClusterID && fleet.Key(guest.Key) == vm.Key && guest.host == vm.Host
		if there && e.mayChange(now) && !m.change.from.busy[vm.Host] {
			m.update(inPlace(vm, e.wish))
		}
	}
	if len(m.changing) > 0 {
		m.change.Kind = audit.KindUpdate
		m.change.Why = fmt.Sprintf("tags, pool, security groups or emulator of %s follow their class", names(m.change.Updated))
	}
}

// mayChange reports whether a VM is to change in place and can.
func (e *member) mayChange(now time.Time) bool {
	return e.wish != nil && e.Filed && !e.moving && !e.leaving && e.Phase == PhaseMade && !e.retry.until.After(now)
}

func (m *move) update(vm fleet.VM) {
	at := slices.IndexFunc(m.change.After.VMs, func(other fleet.VM) bool { return other.Key == vm.Key })
	if at < 0 {
		return
	}
	m.changing = append(m.changing, vm.Key)
	m.change.After.VMs[at] = vm
	m.change.Updated = append(m.change.Updated, vm)
}

// allowInPlace asks about changes of VMs that run, which are a NodePool's to allow even
// if the guard does.
func (w *Writer) allowInPlace(ctx context.Context, plan *ShardPlan) (approver string, err error) {
	if !plan.InPlace || w.config.Gate == nil {
		return "", nil
	}
	asks, err := w.config.Gate.Asks(ctx, plan)
	if err != nil || !asks {
		return "", err
	}
	approver, err = w.config.Gate.Approver(ctx, plan)
	if err == nil && approver == "" {
		err = &HeldError{Shard: plan.Shard, Verdict: plan.Verdict}
	}
	return approver, err
}

// settleInPlace takes over how the change of a VM that runs ended. If it failed, its
// file says what it shall be, and what is unfinished is tried again.
func (w *Writer) settleInPlace(e *member, err error) {
	e.moving, e.ChangeErr = false, err
	if e.wish != nil && alike(&e.VM.Spec, e.wish) {
		e.wish = nil
	}
	e.Changing = e.wish != nil || err != nil
}

// logInPlace tells of changes that have to wait.
func logInPlace(ctx context.Context, m *move, excluded map[fleet.Shard]error) {
	for _, shard := range slices.SortedFunc(maps.Keys(excluded), topology.HostID.Compare) {
		if vms := on(m.change.Updated, shard); len(vms) > 0 {
			log.FromContext(ctx).Info("put off a change of vms in place", logkey.Host, shard.String(), logkey.VM, names(vms),
				logkey.Reason, excluded[shard].Error())
		}
	}
}

// updating finds the VMs of a shard that are to change in place: those of the change,
// and those of an earlier one that has not ended well.
func (w *wanted) updating(change *Change) {
	w.updated = byAddress(change.Updated, w.shard)
	for address, vm := range w.vms {
		if slices.Contains(change.open[w.shard].Updated, vm.Key) {
			w.updated[address], w.lagging = vm, true
		}
	}
	for _, vm := range w.updated {
		// Groups that its file has no more are planned, too.
		vm.SecurityGroups = []string{"any"}
		w.calls = append(w.calls, generator.Calls(&vm)...)
	}
}

// updates returns those of the VMs that are to change in place, and that a plan changes
// in no other way.
func (w *wanted) updates(plan *tfjson.Plan, intent guard.Intent) []guard.Target {
	otherwise := map[string]bool{}
	for _, target := range slices.Concat(intent.Create, intent.Delete, intent.Import) {
		otherwise[target.Address] = true
	}
	found := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		address := change.Address
		if vm := guard.VMOf(address); vm != "" {
			address = vm
		}
		if _, asked := w.updated[address]; asked && !otherwise[address] && !change.Change.Actions.NoOp() {
			found[address] = true
		}
	}
	var targets []guard.Target
	for _, address := range slices.Sorted(maps.Keys(found)) {
		targets = append(targets, w.target(w.updated[address]))
	}
	return targets
}

// alsoUpdate adds VMs to targets that do not have them yet.
func (w *wanted) alsoUpdate(targets []guard.Target, vms []fleet.VM) []guard.Target {
	for _, vm := range vms {
		target := w.target(vm)
		if !slices.ContainsFunc(targets, func(t guard.Target) bool { return t.Address == target.Address }) {
			targets = append(targets, target)
		}
	}
	return targets
}

// stillUpdatable refuses, right before an apply, to change what is not our VM any more.
func (w *wanted) stillUpdatable(targets []guard.Target) error {
	for _, target := range targets {
		vm, known := w.vms[target.Address]
		if !known {
			continue
		}
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		switch {
		case exists && w.is(guest, vm):
		case exists && guest.unread:
			return w.unknown(guest)
		case exists && guest.looksLike(vm.Name, w.clusterID):
			return w.markerLost(vm, guest)
		default:
			return &VanishedError{VM: vm.Name, VMID: vm.VMID, Host: vm.Host}
		}
	}
	return nil
}

// updatedOn adds the keys of VMs that a change changes in place on a shard to those of
// earlier changes.
func (c *Change) updatedOn(shard fleet.Shard, earlier []fleet.Key) []fleet.Key {
	keys := slices.Clone(earlier)
	for _, vm := range on(c.Updated, shard) {
		if !slices.Contains(keys, vm.Key) {
			keys = append(keys, vm.Key)
		}
	}
	return keys
}
