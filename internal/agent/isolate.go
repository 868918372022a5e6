package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// confinements returns the control groups that the agent has confined or will confine, and
// records in r the ones to restore. Guests without pins are confined to the shared CPUs.
// Guests with pins are confined to their own CPUs, and also to the shared CPUs if their
// emulator is shared, because the kernel runs workers in their groups that can only be moved
// by group. A VM without pins whose affinity root set keeps it, and no other guest gets new
// pins on its CPUs.
func (a *Agent) confinements(r *round, next *State) []Confinement {
	groups := map[string]topology.CPUSet{}
	if a.Settings.Isolation == IsolationEnforce && !next.Pinned.IsEmpty() && !next.Shared.IsEmpty() {
		groups[cgroup.Containers] = next.Shared
		for _, vm := range r.vms {
			pins := r.pins[vm.VMID]
			switch {
			case pins == nil && !vm.Config.Affinity.IsEmpty():
			case pins == nil:
				groups[cgroup.VM(vm.VMID)] = next.Shared
			case pins.Emulator == fleet.EmulatorShared:
				groups[cgroup.VM(vm.VMID)] = pins.Set().Union(next.Shared)
			default:
				groups[cgroup.VM(vm.VMID)] = pins.Set()
			}
		}
	}

	confined := []Confinement{}
	for _, c := range a.state.Confined {
		if cpus, ok := groups[c.Group]; ok && a.groups.Exists(c.Group) {
			c.Now = cpus
		} else {
			r.restore = append(r.restore, c)
		}
		delete(groups, c.Group)
		confined = append(confined, c)
	}
	for group, cpus := range groups {
		if !a.groups.Exists(group) {
			continue
		}
		// No file means that the controller is off for the group: nothing was configured.
		was, _ := a.groups.Configured(group)
		confined = append(confined, Confinement{Group: group, Was: was, Now: cpus})
	}
	slices.SortFunc(confined, func(x, y Confinement) int { return strings.Compare(x.Group, y.Group) })
	return confined
}

// isolate restores the groups that no longer need confinement, and confines the others. It
// continues after an error, and returns all errors.
func (a *Agent) isolate(r *round) error {
	forget := func(group string) {
		delete(a.confined, group)
		a.state.Confined = slices.DeleteFunc(a.state.Confined, func(c Confinement) bool { return c.Group == group })
	}
	var errs []error
	for _, c := range r.restore {
		now, err := a.groups.Configured(c.Group)
		if err == nil && now != c.Was {
			r.moved = true
			err = a.groups.Restore(c.Group, c.Was, a.possible)
		}
		if err != nil && !errors.Is(err, cgroup.ErrNoGroup) {
			errs = append(errs, fmt.Errorf("restoring: %w", err))
			continue
		}
		forget(c.Group)
	}

	for _, c := range slices.Clone(a.state.Confined) {
		if find(r.restore, func(other Confinement) bool { return other.Group == c.Group }) != nil {
			continue // it could not be restored
		}
		now, err := a.groups.Configured(c.Group)
		if err == nil && now == c.Now.String() {
			a.confined[c.Group] = c.Now
			continue
		}
		if last := a.confined[c.Group]; err == nil && !last.IsEmpty() && last.Equal(c.Now) {
			a.Log.Warn("confined control group that another program changed", "group", c.Group, "had", now, "cpus", c.Now.String())
		}
		r.moved = true
		if err = a.groups.Confine(c.Group, c.Now); err == nil {
			a.confined[c.Group] = c.Now
			continue
		}
		if now, wrong := a.groups.Configured(c.Group); wrong != nil || now != c.Now.String() {
			forget(c.Group)
		}
		if a.groups.Exists(c.Group) { // otherwise the guest just ended
			r.failed[c.Group] = err
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// intruders returns the guests without pins that may run on pinned CPUs or their siblings,
// or none with IsolationOff. For a VM it checks only the first thread: the other threads
// inherit its CPUs.
func (a *Agent) intruders(r *round) []Intruder {
	found := []Intruder{}
	exclusive := a.state.Online.Difference(a.state.Shared)
	if a.Settings.Isolation == IsolationOff || exclusive.IsEmpty() {
		return found
	}
	add := func(guest qemu.Guest, group string, cpus topology.CPUSet, err error) {
		on := cpus.Intersection(exclusive)
		if err != nil || on.IsEmpty() {
			return
		}
		intruder := Intruder{VMID: guest.VMID, CPUs: on}
		if a.Settings.Isolation == IsolationEnforce {
			switch failed := r.failed[group]; {
			case failed != nil:
				intruder.Text = failed.Error()
			case !guest.Config.Affinity.IsEmpty():
				intruder.Text = fmt.Sprintf("root set its affinity to %s", guest.Config.Affinity)
			default:
				intruder.Text = fmt.Sprintf("it is not in control group %s", group)
			}
		}
		found = append(found, intruder)
	}
	for _, vm := range r.vms {
		if r.pins[vm.VMID] == nil {
			cpus, err := a.Affinities.Affinity(vm.PID)
			add(vm, cgroup.VM(vm.VMID), cpus, err)
		}
	}
	for _, container := range r.containers {
		cpus, err := a.groups.Effective(fmt.Sprintf("%s/%d", cgroup.Containers, container.VMID))
		add(container, cgroup.Containers, cpus, err)
	}
	slices.SortFunc(found, func(x, y Intruder) int { return x.VMID - y.VMID })
	return found
}
