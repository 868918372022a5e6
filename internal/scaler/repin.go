package scaler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// PinsError reports that a VM cannot be pinned as its file says while it runs.
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
	was, is := declared(r.Was), declared(r.Is)
	return fmt.Sprintf("%s: %s → %s", r.VM.Name, was, strings.TrimPrefix(is, "pins "))
}

// repinned returns the VMs whose files declare other pins, or another emulator setting,
// than the state and Proxmox have. The host agent applies them while the VMs run, so this
// is an update of the description. The guard checks what else such a plan would change.
func (w *wanted) repinned(plan *tfjson.Plan) []Repin {
	var found []Repin
	for _, change := range plan.ResourceChanges {
		vm, ours := w.vms[change.Address]
		if !ours || change.Type != guard.ResourceType || !change.Change.Actions.Update() || vm.PinWith != fleet.PinWithHostAgent {
			continue
		}
		r := Repin{VM: vm, Was: markerIn(change.Change.Before), Is: markerIn(change.Change.After)}
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		if exists && w.is(guest, vm) && guest.host == w.shard && r.ofFile() {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b Repin) int { return cmp.Compare(a.VM.VMID, b.VM.VMID) })
	return found
}

// ofFile reports whether the VM gets what its file declares and does not have it yet.
func (r *Repin) ofFile() bool {
	same := slices.Equal(r.Was.Pins, r.Is.Pins) && r.Was.Emulator == r.Is.Emulator
	return !same && r.Was.Key == r.VM.Key && r.Is.Key == r.VM.Key && slices.Equal(r.Is.Pins, r.VM.VCPUPins)
}

// markerIn returns the marker in a resource's values, or the zero marker.
func markerIn(values any) fleet.Marker {
	attributes, _ := values.(map[string]any)
	description, _ := attributes["description"].(string)
	marker, _ := fleet.ParseMarker(description)
	return marker
}

// pinsFit refuses pins of a running VM that its host could not have assigned: the VM's
// memory stays where it is.
func (w *wanted) pinsFit(vm fleet.VM) error {
	refuse := func(format string, args ...any) error {
		return &PinsError{VM: vm.Name, Host: w.shard, Pins: vm.VCPUPins, Problem: fmt.Sprintf(format, args...)}
	}
	if w.host == nil || len(w.host.CPUs) == 0 {
		return nil
	}
	for vcpu, id := range vm.VCPUPins {
		cpu := w.host.CPU(id)
		switch {
		case cpu == nil || !cpu.Online:
			return refuse("of which CPU %d is not there, or offline", id)
		case w.host.ReservedCPUs.Contains(id):
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

// repin records the VMs that a plan pins to other CPUs, checks each of them, and allows
// the plan to update them: a person who edits files need not request it.
func (w *wanted) repin(plan *ShardPlan) error {
	plan.Repinned = w.repinned(plan.Plan.JSON)
	var vms []fleet.VM
	for _, r := range plan.Repinned {
		if err := w.pinsFit(r.VM); err != nil {
			return err
		}
		vms = append(vms, r.VM)
	}
	plan.Intent.Update = w.alsoUpdate(plan.Intent.Update, vms)
	return nil
}
