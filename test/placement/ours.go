package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// Numaform is numaform's planner with the policy Dedicated. It places each VM in a separate
// batch, so later VMs are unknown. It prefers whole cores or, with wholeCores, requires
// them.
func Numaform(wholeCores bool) Kind {
	name := "numaform"
	if wholeCores {
		name += ", wholeCores: Require"
	}
	return Kind{
		Name: name, Dedicated: true,
		New: func(m *Machine) Placer { return &numaform{machine: m, wholeCores: wholeCores} },
	}
}

// numaform calls the planner, and stores its placements.
type numaform struct {
	machine    *Machine
	wholeCores bool
	kept       []fleet.VM
}

func (p *numaform) Place(vm VM) (Place, bool) {
	snapshot := &topology.Snapshot{
		Regions: []topology.Region{{Name: p.machine.Host.Region, Quorate: true}},
		Hosts:   []topology.Host{p.machine.Host},
	}
	placed, _ := planner.New(snapshot, p.kept).Place([]fleet.Spec{p.spec(vm)})
	if len(placed) == 0 {
		return Place{}, false
	}
	p.keep(vm, placed[0].Placement)
	place := p.machine.placeOf(&placed[0].Placement)
	place.Broken = strings.Contains(placed[0].Reason, "enough whole cores")
	return place, true
}

// spec returns the planner's spec of a VM.
func (p *numaform) spec(vm VM) fleet.Spec {
	return fleet.Spec{
		Pool: "bench", VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, Policy: fleet.PolicyDedicated, WholeCores: p.wholeCores,
		Hosts: []topology.HostID{p.machine.Host.ID()},
	}
}

// keep records the placement of a VM.
func (p *numaform) keep(vm VM, where fleet.Placement) {
	p.kept = append(p.kept, fleet.VM{
		Key: fleet.Key(fmt.Sprintf("vm-%d", vm.ID)), VMID: fleet.VMID(vm.ID), Spec: p.spec(vm), Placement: where,
	})
}

func (p *numaform) Remove(vm VM) {
	p.kept = slices.DeleteFunc(p.kept, func(k fleet.VM) bool { return int(k.VMID) == vm.ID })
}

// placeOf converts a placement of the planner.
func (m *Machine) placeOf(from *fleet.Placement) Place {
	to := Place{CPUs: from.VCPUPins}
	for _, cell := range from.Cells {
		c := Cell{GuestCPUs: cell.GuestCPUs.List(), MemoryMiB: cell.MemoryMiB}
		for _, id := range cell.HostNodes.List() {
			c.Nodes = append(c.Nodes, slices.IndexFunc(m.Nodes, func(n Node) bool { return n.ID == id }))
		}
		to.Cells = append(to.Cells, c)
	}
	return to
}
