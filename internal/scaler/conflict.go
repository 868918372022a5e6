package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Proxmox has no reservations of CPUs, memory or addresses, so two writers on one Proxmox
// cluster can assign the same resources at the same time: each reads the host before the other's
// VM exists. Each therefore checks again after its VMs exist; the second one to do so
// then sees the other's. If both see each other, the one whose cluster ID sorts later
// removes its VMs; the other waits for that, and removes its own only if nothing happens. A
// VM that has just been created runs no pods.

const (
	// conflictPatience is how long to wait for another writer to remove its VMs.
	conflictPatience = time.Minute
	// conflictPoll is the interval between checks.
	conflictPoll = time.Second
)

// ConflictError reports that another guest got the CPUs, memory or address of new VMs before or
// while they were created, and that these VMs are removed again.
type ConflictError struct {
	VMs   []fleet.VM
	Cause error
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("numaform removes %s, because another guest got the same CPUs, memory or address at the same time: %v", names(e.VMs), e.Cause)
}

// Unwrap returns the cause.
func (e *ConflictError) Unwrap() error { return e.Cause }

// awaitNoConflict checks a host after its VMs were created, by this change or by one that
// was interrupted before its check. While another writer has to give way, it waits for at
// most conflictPatience. It returns a ConflictError if VMs must be removed again.
func (s *Scaler) awaitNoConflict(ctx context.Context, change *Change, plan *RootPlan) error {
	made := append(plan.toCheck(change.open[plan.Host].Made), plan.Intent.Wake...)
	if len(made) == 0 || s.region(plan.Host.Region).Live == nil {
		return nil
	}
	for began := s.config.Clock.Now(); ; {
		v, err := s.viewHost(ctx, change, plan.Host, true)
		if err != nil {
			return err
		}
		lost, rivals := v.conflicts(made)
		if len(lost.VMs) == 0 {
			return nil
		}
		givesWay := func(rival located) bool { return rival.ClusterID > v.clusterID }
		outranked := len(rivals) > 0 && !slices.ContainsFunc(rivals, func(r located) bool { return !givesWay(r) })
		if outranked && !slices.ContainsFunc(rivals, func(r located) bool { return r.Running }) {
			// The rivals are certain to check: a writer checks once its VMs run.
			return nil
		}
		if !outranked || s.config.Clock.Since(began) > conflictPatience {
			return lost
		}
		s.config.Progress(plan.Host, "another writer created VMs on the same CPUs or memory: waiting until it removes them")
		if wait(ctx, conflictPoll) != nil {
			return lost
		}
	}
}

// conflicts returns in lost the VMs of targets that conflict with other guests; lost has
// no VMs if none does. rivals are the conflicting guests that carry no marker of this
// fleet.
func (v *hostView) conflicts(targets []guard.Target) (lost *ConflictError, rivals []located) {
	lost = &ConflictError{}
	for _, target := range targets {
		vm, desired := v.vms[target.Address]
		if !desired || vm.Key != target.Key {
			continue // removed by an earlier change
		}

		// Another guest may have been pinned to the VM's CPUs since it was placed.
		err := v.memoryFits(&vm)
		shortOfMemory := true
		for _, guest := range v.guests {
			if guest.host != v.id || v.is(guest, &vm) {
				continue
			}
			if shared := guest.Pins.Intersection(vm.CPUs); !shared.IsEmpty() {
				err = &CPUsTakenError{VM: vm.Name, CPUs: shared, Guest: guest.Name, VMID: guest.VMID, Host: guest.host}
				shortOfMemory = false
				break
			}
		}
		if err == nil {
			var rival located
			if rival, err = v.addressTaken(&vm); err != nil {
				lost.VMs = append(lost.VMs, vm)
				lost.Cause = errors.Join(lost.Cause, err)
				rivals = append(rivals, rival)
			}
			continue
		}
		lost.VMs = append(lost.VMs, vm)
		lost.Cause = errors.Join(lost.Cause, err)
		for _, guest := range v.guests {
			if guest.host != v.id || guest.ClusterID == v.clusterID {
				continue
			}
			if !guest.Pins.Intersection(vm.CPUs).IsEmpty() || (shortOfMemory && guest.ClusterID != "") {
				rivals = append(rivals, guest)
			}
		}
	}
	return lost, rivals
}

// addressTaken returns a guest of any host that has one of a VM's static addresses, and an
// AddressTakenError about it.
func (v *hostView) addressTaken(vm *fleet.VM) (located, error) {
	for _, ip := range vm.Addresses() {
		for _, guest := range v.guests {
			if !v.is(guest, vm) && slices.Contains(guest.Addresses, ip.String()) {
				return guest, &AddressTakenError{VM: vm.Name, Address: ip.String(), Guest: guest.Name, VMID: guest.VMID, Host: guest.host}
			}
		}
	}
	return located{}, nil
}

// memoryFits returns an error if the guests running on a VM's host use more memory than
// memoryLimit, or if the guests bound to one of the VM's NUMA nodes use more than that node
// has.
func (v *hostView) memoryFits(vm *fleet.VM) error {
	if v.host == nil {
		return nil
	}
	var used int64
	bound := map[int]int64{} // by NUMA node
	for _, guest := range v.guests {
		if guest.host != v.id || !guest.Running {
			continue
		}
		used += guest.MemoryMiB
		for _, cell := range guest.NUMA {
			if cell.HostNodes.Size() == 1 && cell.Policy == topology.NUMABind {
				bound[cell.HostNodes.List()[0]] += cell.MemoryMiB
			}
		}
	}
	if limit := v.memoryLimit(); limit > 0 && used > limit {
		has := fmt.Sprintf("the host has %d MiB", v.host.MemoryMiB)
		if limit > v.host.MemoryMiB {
			has += fmt.Sprintf(", and its VMs tolerate %d MiB", limit)
		}
		return fmt.Errorf("vm %s: the guests of %s use %d MiB, but %s: free memory there, or plan again", vm.Name, v.id, used, has)
	}
	for _, node := range v.host.NUMANodes {
		uses := slices.ContainsFunc(vm.Cells, func(cell topology.NUMACell) bool { return cell.HostNodes.Contains(node.ID) })
		if uses && node.MemoryMiB > 0 && bound[node.ID] > node.MemoryMiB {
			return fmt.Errorf("vm %s: %d MiB are bound to NUMA node %d of %s, which has %d MiB: free memory there, or plan again",
				vm.Name, bound[node.ID], node.ID, v.id, node.MemoryMiB)
		}
	}
	return nil
}

// memoryLimit returns the memory that the guests of the host may use together, in MiB, or 0 if
// the host's memory is unknown. It exceeds the host's memory if all of our VMs with ordinary
// memory there tolerate that: the limit is never below the planner's.
func (v *hostView) memoryLimit() int64 {
	ratio := 0.0
	for _, vm := range v.vms {
		if tolerated := max(1, vm.MemoryOvercommit); vm.HugePages == "" && vm.Reserves() && (ratio == 0 || tolerated < ratio) {
			ratio = tolerated
		}
	}
	if ratio <= 1 {
		return v.host.MemoryMiB
	}

	ordinary := v.host.MemoryMiB - v.host.ReservedMemoryMiB
	for _, node := range v.host.NUMANodes {
		for kib, count := range node.HugePages {
			ordinary -= int64(kib) * count / 1024
		}
	}
	return v.host.MemoryMiB + int64(math.Ceil((ratio-1)*float64(max(0, ordinary))))
}

// yield removes VMs that were created at the same time as another writer's. The removal
// is a separate change with its own plan and guard check.
func (s *Scaler) yield(ctx context.Context, old *topology.Snapshot, lost []fleet.VM) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("removing %s: %w: drain the nodes, then run `numaform remove`; until then, other guests share their CPUs or memory",
				names(lost), err)
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
	change.Kind = audit.KindScaleDown
	change.Why = "another writer assigned the CPUs or memory of " + names(lost) + " at the same time"
	change.narrow = true
	change.remove(func(vm fleet.VM) bool { return hasKey(lost, vm.Key) })
	if err := s.render(change); err != nil {
		return err
	}
	_, err = s.apply(ctx, change, func(plans []RootPlan) (string, error) {
		for i := range plans {
			if plans[i].Err == nil && plans[i].Verdict.Decision != guard.Allow {
				return "", &DeniedError{Host: plans[i].Host, Verdict: plans[i].Verdict}
			}
		}
		return "", nil
	})
	return err
}

// readAgain returns old with the hosts of VMs read again.
func (s *Scaler) readAgain(ctx context.Context, old *topology.Snapshot, vms []fleet.VM) (*topology.Snapshot, error) {
	hosts := map[topology.RegionName][]topology.HostName{}
	var guests []fleet.VMID
	for i := range vms {
		hosts[vms[i].Host.Region] = append(hosts[vms[i].Host.Region], vms[i].Host.Host)
		guests = append(guests, vms[i].VMID)
	}
	for _, region := range slices.Sorted(maps.Keys(hosts)) {
		var err error
		slices.Sort(hosts[region])
		if old, err = s.region(region).Live.Refresh(ctx, old, slices.Compact(hosts[region]), guests...); err != nil {
			return nil, err
		}
	}
	return old, nil
}
