// Package cpumap draws the owner of each CPU of a host, as text for a terminal or a pipe,
// and as an image for a document. It does no I/O: Owners returns the owners from a host
// and the fleet, Text and SVG draw them.
package cpumap

import (
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Reserved is the owner of the CPUs reserved for the host itself.
const Reserved = "reserved"

// Ownership is the owners of one host's resources.
type Ownership struct {
	// CPUs is the owner of each CPU that has one. For a CPU that several owners claim, it is
	// the list of the owners, joined by " + ", and the CPU is in Disputed.
	CPUs     map[int]string
	Disputed topology.CPUSet
	// BoundMiB is the memory that guests have bound on each NUMA node, by the node's ID.
	BoundMiB map[int]int64
	// Floating are the guests without CPUs of their own: first the running guests, then the
	// VMs of the fleet that are not running.
	Floating []Floater
}

// Floater is a guest that runs, or will run, on any CPUs that Linux chooses.
type Floater struct {
	Name  string
	VCPUs int
}

// Owners returns the owners of the host's CPUs. The host owns the reserved CPUs, running
// guests own the CPUs that they are pinned to, and VMs of the fleet that are not running
// yet own their future pins. It marks standby VMs, and ignores VMs on other hosts and
// stopped standby VMs that reserve nothing.
func Owners(host *topology.Host, vms []fleet.VM) Ownership {
	owners := Ownership{CPUs: map[int]string{}, BoundMiB: map[int]int64{}}
	claims := map[int][]string{} // owners by CPU
	pin := func(cpus topology.CPUSet, owner string) {
		for _, id := range cpus.List() {
			claims[id] = append(claims[id], owner)
		}
	}
	add := func(name string, pins topology.CPUSet, cells []topology.NUMACell, vcpus int) {
		pin(pins, name)
		if pins.IsEmpty() {
			owners.Floating = append(owners.Floating, Floater{Name: name, VCPUs: vcpus})
		}
		for _, cell := range cells { // several NUMA nodes back a cell in equal parts
			nodes := cell.HostNodes.List()
			for i, node := range nodes {
				share := cell.MemoryMiB / int64(len(nodes))
				if i == 0 {
					share += cell.MemoryMiB % int64(len(nodes))
				}
				owners.BoundMiB[node] += share
			}
		}
	}

	pin(host.ReservedCPUs, Reserved)
	names, running := map[int]string{}, map[int]bool{}
	for i := range vms {
		if vms[i].Host == host.ID() {
			names[int(vms[i].VMID)] = nameOf(&vms[i])
		}
	}
	for _, guest := range host.Guests {
		if guest.Running && !guest.Template {
			running[guest.VMID] = true
			add(label(guest, names[guest.VMID]), guest.Pins, guest.NUMA, guest.VCPUs)
		}
	}
	for i := range vms {
		if vms[i].Host == host.ID() && !running[int(vms[i].VMID)] && vms[i].Reserves() {
			add(nameOf(&vms[i]), vms[i].CPUs, vms[i].Cells, vms[i].VCPUs)
		}
	}

	var disputed []int
	for id, names := range claims {
		slices.Sort(names)
		owners.CPUs[id] = strings.Join(names, " + ")
		if len(names) > 1 {
			disputed = append(disputed, id)
		}
	}
	owners.Disputed = topology.CPUs(disputed...)
	return owners
}

// nameOf returns a VM's name, marked if it is a standby VM.
func nameOf(vm *fleet.VM) string {
	if vm.Standby {
		return vm.Name + " (standby)"
	}
	return vm.Name
}

// label returns a guest's name in the fleet, or else its own name with its VMID.
func label(guest topology.Guest, fleetName string) string {
	vmid := strconv.Itoa(guest.VMID)
	switch {
	case fleetName != "":
		return fleetName
	case guest.Name == "":
		return "guest " + vmid
	case strings.HasSuffix(guest.Name, vmid):
		return guest.Name
	default:
		return guest.Name + " (" + vmid + ")"
	}
}
