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

// Update requests that VMs get the tags, the pool, the security groups and the emulator
// given here, while they run; it ignores their other fields. It is idempotent: a VM that
// already matches is left alone. It ignores unknown VMs and VMs that are being removed,
// and changes a VM that is not created yet once it exists.
func (w *Writer) Update(vms ...fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range vms {
		if e := w.members[vms[i].Key]; e != nil && w.wish(e, &vms[i].Spec) {
			w.nudge()
		}
	}
}

// wish records the desired form of a VM, and reports whether it is new.
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

// alike reports whether two VMs are equal in everything that changes in place.
func alike(a, b *fleet.Spec) bool {
	return a.ResourcePool == b.ResourcePool && a.Emulator == b.Emulator && slices.Equal(a.Tags, b.Tags) && slices.Equal(a.SecurityGroups, b.SecurityGroups)
}

// inPlace returns a VM with the fields of spec that change in place.
func inPlace(vm fleet.VM, spec *fleet.Spec) fleet.VM {
	vm.Tags, vm.ResourcePool, vm.SecurityGroups = slices.Clone(spec.Tags), spec.ResourcePool, slices.Clone(spec.SecurityGroups)
	vm.Emulator = spec.Emulator
	return vm
}

// askInPlace adds the VMs to update while they run to a change that contains nothing
// else, so that creates and deletes do not wait for them.
func (w *Writer) askInPlace(m *move) {
	if !m.change.Empty() {
		return
	}
	now, guests := w.scaler.config.Clock.Now(), locate(m.change.Snapshot)
	for _, state := range w.sorted() {
		vm, e := state.VM, w.members[state.VM.Key]
		// A VM that does not exist now waits: a plan that cannot be made would not help
		// the others.
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

// mayChange reports whether a VM has a pending update in place that is possible now.
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

// allowInPlace requests approval for updates of running VMs if the NodePool requires it,
// even if the guard allows them.
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

// settleInPlace records how the update of a running VM ended. If it failed, its file has
// the desired values, and the unfinished work is retried.
func (w *Writer) settleInPlace(e *member, err error) {
	e.moving, e.ChangeErr = false, err
	if e.wish != nil && alike(&e.VM.Spec, e.wish) {
		e.wish = nil
	}
	e.Changing = e.wish != nil || err != nil
}

// logInPlace logs updates that have to wait.
func logInPlace(ctx context.Context, m *move, excluded map[fleet.Shard]error) {
	for _, shard := range slices.SortedFunc(maps.Keys(excluded), topology.HostID.Compare) {
		if vms := on(m.change.Updated, shard); len(vms) > 0 {
			log.FromContext(ctx).Info("put off a change of vms in place", logkey.Host, shard.String(), logkey.VM, names(vms),
				logkey.Reason, excluded[shard].Error())
		}
	}
}

// updating finds the VMs of a host to update in place: the ones of the change, and the
// ones of an earlier change that has not succeeded yet.
func (w *wanted) updating(change *Change) {
	w.updated = byAddress(change.Updated, w.shard)
	for address, vm := range w.vms {
		if slices.Contains(change.open[w.shard].Updated, vm.Key) {
			w.updated[address], w.lagging = vm, true
		}
	}
	for _, vm := range w.updated {
		// Groups that were removed from its file are planned, too.
		vm.SecurityGroups = []string{"any"}
		w.calls = append(w.calls, generator.Calls(&vm)...)
	}
}

// updates returns the VMs to update in place that a plan changes in no other way.
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

// alsoUpdate adds VMs to targets that are not in it yet.
func (w *wanted) alsoUpdate(targets []guard.Target, vms []fleet.VM) []guard.Target {
	for _, vm := range vms {
		target := w.target(vm)
		if !slices.ContainsFunc(targets, func(t guard.Target) bool { return t.Address == target.Address }) {
			targets = append(targets, target)
		}
	}
	return targets
}

// stillUpdatable refuses, right before an apply, to change a VM that is no longer ours.
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

// updatedOn adds the keys of VMs that a change updates in place on a host to the ones of
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
