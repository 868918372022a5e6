package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Proxmox has no reservations of CPUs or memory, so two writers on one Proxmox cluster
// can assign the same resources at the same time: each reads the host before the other's
// VM exists. Each therefore checks again after its VMs exist; the second one to do so
// then sees the other's. If both see each other, the one whose cluster ID sorts later
// removes its VMs and places them again; the other waits for that, and removes its own
// only if nothing happens. A VM that has just been created runs no pods.

// patience is how long to wait for another writer to remove its VMs, and lookAgain the
// interval between checks.
const (
	patience  = time.Minute
	lookAgain = time.Second
)

// ContendedError reports that another guest was pinned to new VMs' CPUs while they were
// created, and that these VMs are removed again.
type ContendedError struct {
	VMs   []fleet.VM
	Cause error
}

func (e *ContendedError) Error() string {
	return fmt.Sprintf("%s: taken back, as another writer gave the same CPUs away at the same time: %v", names(e.VMs), e.Cause)
}

// Unwrap returns the cause.
func (e *ContendedError) Unwrap() error { return e.Cause }

// uncontended checks a host after its VMs were created, by this change or by one that did
// not get to check.
func (s *Scaler) uncontended(ctx context.Context, change *Change, plan *ShardPlan) error {
	made := plan.unlooked(change.open[plan.Shard].Made)
	if len(made) == 0 || s.region(plan.Shard.Region).Live == nil {
		return nil
	}
	for began := s.config.Clock.Now(); ; {
		w, err := s.look(ctx, change, plan.Shard, true)
		if err != nil {
			return err
		}
		lost, rivals := w.contested(made)
		switch {
		case len(lost.VMs) == 0, w.keeps(rivals):
			return nil
		case !w.outranks(rivals), s.config.Clock.Since(began) > patience:
			return lost
		}
		s.config.Progress(plan.Shard, "another writer made VMs in the same place: waiting for it to take them back")
		timer := time.NewTimer(lookAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return lost
		}
	}
}

// contested returns the targets that conflict with other guests, and these guests.
func (w *wanted) contested(targets []guard.Target) (lost *ContendedError, rivals []located) {
	lost = &ContendedError{}
	for _, target := range targets {
		vm, wanted := w.vms[target.Address]
		if !wanted || vm.Key != target.Key {
			continue // removed by an earlier change
		}
		err := w.pinsFree(vm)
		if err == nil {
			err = w.memoryFits(vm)
		}
		if err == nil {
			continue
		}
		lost.VMs, lost.Cause = append(lost.VMs, vm), errors.Join(lost.Cause, err)
		rivals = append(rivals, w.rivals(vm, err)...)
	}
	return lost, rivals
}

// rivals returns the guests that conflict with a VM: the ones that share its CPUs or, if
// memory is short, the ones of other numaform installations.
func (w *wanted) rivals(vm fleet.VM, cause error) []located {
	var taken *CPUsTakenError
	short := !errors.As(cause, &taken)
	var rivals []located
	for _, guest := range w.guests {
		if guest.host != w.shard || guest.ClusterID == w.clusterID {
			continue
		}
		if !guest.Pins.Intersection(vm.CPUs).IsEmpty() || (short && guest.ClusterID != "") {
			rivals = append(rivals, guest)
		}
	}
	return rivals
}

// outranks reports whether all rivals belong to installations that give way.
func (w *wanted) outranks(rivals []located) bool {
	return len(rivals) > 0 && !slices.ContainsFunc(rivals, func(g located) bool { return g.ClusterID <= w.clusterID })
}

// keeps reports whether all rivals give way and are certain to check: they do not run
// yet, and a writer checks once its VMs run.
func (w *wanted) keeps(rivals []located) bool {
	return w.outranks(rivals) && !slices.ContainsFunc(rivals, func(g located) bool { return g.Running })
}

// memoryFits returns an error if the guests running on a VM's host use more memory than
// the host has, or than a NUMA node has to which the VM is bound.
func (w *wanted) memoryFits(vm fleet.VM) error {
	if w.host == nil {
		return nil
	}
	used, bound := w.memoryUsed()
	if limit := w.host.MemoryMiB; limit > 0 && used > limit {
		return fmt.Errorf("vm %s: the guests of %s hold %d MiB of %d MiB", vm.Name, w.shard, used, limit)
	}
	for _, node := range w.host.NUMANodes {
		mine := slices.ContainsFunc(vm.Cells, func(cell topology.NUMACell) bool { return cell.HostNodes.Contains(node.ID) })
		if mine && node.MemoryMiB > 0 && bound[node.ID] > node.MemoryMiB {
			return fmt.Errorf("vm %s: %d MiB are bound to NUMA node %d of %s, which has %d MiB",
				vm.Name, bound[node.ID], node.ID, w.shard, node.MemoryMiB)
		}
	}
	return nil
}

// memoryUsed returns the memory of the guests running on the host, and the part bound to
// each single NUMA node, in MiB.
func (w *wanted) memoryUsed() (used int64, bound map[int]int64) {
	bound = map[int]int64{}
	for _, guest := range w.guests {
		if guest.host != w.shard || !guest.Running {
			continue
		}
		used += guest.MemoryMiB
		for _, cell := range guest.NUMA {
			if cell.HostNodes.Size() == 1 && cell.Policy == topology.NUMABind {
				bound[cell.HostNodes.List()[0]] += cell.MemoryMiB
			}
		}
	}
	return used, bound
}

// contended returns the VMs that must be removed again.
func contended(results []Result) []fleet.VM {
	var lost []fleet.VM
	for _, result := range results {
		var one *ContendedError
		if errors.As(result.Err, &one) {
			lost = append(lost, one.VMs...)
		}
	}
	return lost
}

// yield removes VMs that were created at the same time as another writer's. It is a
// change of its own, with plan and guard.
func (s *Scaler) yield(ctx context.Context, old *topology.Snapshot, lost []fleet.VM) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("taking %s back: %w: CPUs or memory are given away twice as long as they run: drain and remove them", names(lost), err)
		}
	}()
	snapshot, err := s.readAgain(ctx, old, lost)
	if err != nil {
		return err
	}
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return err
	}
	change.Kind, change.Why = audit.KindScaleDown, "another writer gave the CPUs of "+names(lost)+" away at the same time"
	change.narrow = true
	change.remove(func(vm fleet.VM) bool {
		return slices.ContainsFunc(lost, func(one fleet.VM) bool { return one.Key == vm.Key })
	})
	if err := s.render(change); err != nil {
		return err
	}
	_, err = s.apply(ctx, change, func(plans []ShardPlan) (string, error) {
		for i := range plans {
			if plans[i].Err == nil && plans[i].Verdict.Decision != guard.Allow {
				return "", &DeniedError{Shard: plans[i].Shard, Verdict: plans[i].Verdict}
			}
		}
		return "", nil
	})
	return err
}

// readAgain reads the hosts of VMs again.
func (s *Scaler) readAgain(ctx context.Context, old *topology.Snapshot, vms []fleet.VM) (*topology.Snapshot, error) {
	hosts := map[topology.RegionName][]topology.HostName{}
	for _, vm := range vms {
		hosts[vm.Host.Region] = append(hosts[vm.Host.Region], vm.Host.Host)
	}
	for _, region := range slices.Sorted(maps.Keys(hosts)) {
		var err error
		if old, err = s.region(region).Live.Refresh(ctx, old, slices.Compact(slices.Sorted(slices.Values(hosts[region])))); err != nil {
			return nil, err
		}
	}
	return old, nil
}
