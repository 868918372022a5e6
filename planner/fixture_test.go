package planner_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// tb is the common part of testing.T and rapid.T.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

const gib = 1024

// shape describes a regular machine.
type shape struct {
	nodes, cores, smt int // cores per node
	coresPerL3        int // 0: one L3 per node
	memory            int64
	// interleaved numbers CPUs round-robin over the nodes.
	interleaved bool
}

// machine builds a regular machine. The siblings of CPU n are n plus multiples of the total
// number of cores.
func machine(s shape) topology.Machine {
	var m topology.Machine
	total := s.nodes * s.cores
	perL3 := s.coresPerL3
	if perL3 == 0 {
		perL3 = s.cores
	}
	for thread := range s.smt {
		for c := range total {
			node, within := c/s.cores, c%s.cores
			if s.interleaved {
				node, within = c%s.nodes, c/s.nodes
			}
			m.CPUs = append(m.CPUs, topology.CPU{
				ID: thread*total + c, Online: true, NUMANode: node, Core: c,
				L3: node*((s.cores+perL3-1)/perL3) + within/perL3,
			})
		}
	}
	for n := range s.nodes {
		m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: n, MemoryMiB: s.memory})
	}
	m.MemoryMiB = int64(s.nodes) * s.memory
	return m
}

// known loads a real or constructed machine. If its total memory is not reported, it gets 4
// GiB for each online CPU.
func known(t *testing.T, name string) topology.Machine {
	t.Helper()
	m, err := machines.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if m.MemoryMiB == 0 {
		m.MemoryMiB = int64(m.OnlineCPUs().Size()) * 4 * gib
	}
	return m
}

// host returns a host with the machine.
func host(name string, m topology.Machine) topology.Host {
	return topology.Host{Region: "r1", Name: topology.HostName(name), Online: true, Machine: m}
}

// snapshot returns a snapshot with hosts in one healthy region.
func snapshot(hosts ...topology.Host) *topology.Snapshot {
	return &topology.Snapshot{Regions: []topology.Region{{Name: "r1", Quorate: true}}, Hosts: hosts}
}

// spec returns a spec that may go to any of the hosts.
func spec(policy fleet.Policy, vcpus int, memory int64, hosts ...string) fleet.Spec {
	s := fleet.Spec{Pool: "workers", VCPUs: vcpus, MemoryMiB: memory, Policy: policy}
	if len(hosts) == 0 {
		hosts = []string{"pve-1"}
	}
	for _, h := range hosts {
		s.Hosts = append(s.Hosts, topology.HostID{Region: "r1", Host: topology.HostName(h)})
	}
	return s
}

// same returns n copies of a spec.
func same(s fleet.Spec, n int) []fleet.Spec {
	specs := make([]fleet.Spec, n)
	for i := range specs {
		specs[i] = s
	}
	return specs
}

// asExisting turns placements into existing VMs.
func asExisting(first int, specs []fleet.Spec, placed []planner.Placed) []fleet.VM {
	vms := make([]fleet.VM, len(placed))
	for i, p := range placed {
		id := first + i
		vms[i] = fleet.VM{
			Key: fleet.Key(fmt.Sprintf("key-%d", id)), VMID: fleet.VMID(id), Name: fmt.Sprintf("workers-%d", id),
			Spec: specs[p.Index], Placement: p.Placement,
		}
	}
	return vms
}

// guestOf returns the running guest of an existing VM.
func guestOf(vm fleet.VM) topology.Guest {
	return topology.Guest{
		VMID: int(vm.VMID), Name: vm.Name, Kind: topology.GuestVM, Running: true, VCPUs: vm.VCPUs,
		MemoryMiB: vm.MemoryMiB, HugePagesKiB: int(vm.HugePages.MiB()) << 10, Pins: vm.CPUs, NUMA: vm.Cells, ClusterID: "test", Key: string(vm.Key),
	}
}

// place places one batch with a new planner and checks the result.
func place(t tb, snap *topology.Snapshot, existing []fleet.VM, specs ...fleet.Spec) ([]planner.Placed, []planner.Unplaced) {
	t.Helper()
	placed, unplaced := planner.New(snap, existing).Place(specs)
	mustAccount(t, specs, placed, unplaced)
	mustBeValid(t, snap, existing, specs, placed)
	return placed, unplaced
}

// placeOne places a single spec that must fit.
func placeOne(t tb, snap *topology.Snapshot, existing []fleet.VM, s fleet.Spec) planner.Placed {
	t.Helper()
	placed, unplaced := place(t, snap, existing, s)
	if len(unplaced) > 0 {
		t.Fatalf("not placed: %s", unplaced[0].Reason)
	}
	return placed[0]
}
