package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// confinements returns the control groups that the agent confines or will confine, and
// records the ones to restore in the round.
func (a *Agent) confinements(r *round, next *State) []Confinement {
	wanted := a.confinable(r, next)
	held := []Confinement{}
	for _, c := range a.state.Confined {
		if cpus, ok := wanted[c.Group]; ok {
			c.Now = cpus
			delete(wanted, c.Group)
		} else {
			r.restore = append(r.restore, c)
		}
		held = append(held, c)
	}
	for group, cpus := range wanted {
		// No file means that the controller is off for the group: nothing was configured.
		was, _ := a.groups.Wanted(group)
		held = append(held, Confinement{Group: group, Was: was, Now: cpus})
	}
	slices.SortFunc(held, func(x, y Confinement) int { return strings.Compare(x.Group, y.Group) })
	return held
}

// confinable returns the CPUs of each group to confine. Guests without pins are kept off
// the CPUs of others; guests with pins are confined to their own, because the kernel runs
// workers in them that can only be moved by group. A guest with an affinity set by root
// keeps it: its CPUs are not given out as pins.
func (a *Agent) confinable(r *round, next *State) map[string]topology.CPUSet {
	if a.Settings.Isolation != IsolationEnforce || next.Pinned.IsEmpty() || next.Shared.IsEmpty() {
		return nil
	}
	groups := map[string]topology.CPUSet{cgroup.Containers: next.Shared}
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
	maps.DeleteFunc(groups, func(group string, _ topology.CPUSet) bool { return !a.groups.Exists(group) })
	return groups
}

// unconfine restores groups.
func (a *Agent) unconfine(r *round) error {
	var errs []error
	for _, c := range r.restore {
		now, err := a.groups.Wanted(c.Group)
		if err == nil && now != c.Was {
			r.moved = true
			err = a.groups.Restore(c.Group, c.Was, a.possible)
		}
		if err != nil && !errors.Is(err, cgroup.ErrNoGroup) {
			errs = append(errs, fmt.Errorf("restoring: %w", err))
			continue
		}
		a.drop(c.Group)
	}
	return errors.Join(errs...)
}

// drop forgets a group.
func (a *Agent) drop(group string) {
	delete(a.confined, group)
	a.state.Confined = slices.DeleteFunc(a.state.Confined, func(c Confinement) bool { return c.Group == group })
}

// isolate confines the other guests if configured.
func (a *Agent) isolate(r *round) error {
	var errs []error
	for _, c := range slices.Clone(a.state.Confined) {
		if slices.ContainsFunc(r.restore, func(other Confinement) bool { return other.Group == c.Group }) {
			continue // it could not be restored
		}
		if err := a.confine(r, c); err != nil {
			r.failed[c.Group] = err
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// confine confines a group to its CPUs. A guest that just ended is not an error.
func (a *Agent) confine(r *round, c Confinement) error {
	now, err := a.groups.Wanted(c.Group)
	if err == nil && now == c.Now.String() {
		a.confined[c.Group] = c.Now
		return nil
	}
	if last := a.confined[c.Group]; err == nil && !last.IsEmpty() && last.Equal(c.Now) {
		a.Log.Warn("control group had been changed, confined again", "group", c.Group, "had", now, "cpus", c.Now.String())
	}
	r.moved = true
	err = a.groups.Confine(c.Group, c.Now)
	if err == nil {
		a.confined[c.Group] = c.Now
		return nil
	}
	if now, wrong := a.groups.Wanted(c.Group); wrong != nil || now != c.Now.String() {
		a.drop(c.Group)
	}
	if !a.groups.Exists(c.Group) {
		return nil
	}
	return err
}

// intruders finds guests that may run on pinned CPUs or their siblings. For a VM it checks
// the first thread: the others start with its CPUs.
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
			intruder.Text = whyNotConfined(guest, group, r.failed[group])
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

func whyNotConfined(guest qemu.Guest, group string, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case !guest.Config.Affinity.IsEmpty():
		return fmt.Sprintf("root gave it the affinity %s", guest.Config.Affinity)
	default:
		return fmt.Sprintf("it is not in control group %s", group)
	}
}
