package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestRoom checks that Room reports the free resources, also after VMs were placed, and the
// problem of a host that accepts no VMs.
func TestRoom(t *testing.T) {
	t.Parallel()
	big := topology.Host{Region: "r", Name: "b", Online: true, Machine: machine(shape{nodes: 2, cores: 4, smt: 2, memory: 16 * gib})}
	big.ReservedCPUs = topology.CPUs(0)
	big.Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 3, MemoryMiB: 2 * gib}}
	flat := topology.Host{Region: "r", Name: "a", Online: true, Machine: machine(shape{nodes: 1, cores: 2, smt: 1, memory: 8 * gib})}
	off := topology.Host{Region: "r", Name: "c", Machine: machine(shape{nodes: 1, cores: 2, smt: 1, memory: 8 * gib})}
	snapshot := &topology.Snapshot{Regions: []topology.Region{{Name: "r", Quorate: true}}, Hosts: []topology.Host{flat, big, off}}
	p := planner.New(snapshot, nil)
	spec := fleet.Spec{VCPUs: 2, MemoryMiB: 4 * gib, Policy: fleet.PolicyIsolated, Hosts: []topology.HostID{big.ID()}}
	placed, unplaced := p.Place([]fleet.Spec{spec})
	if len(unplaced) != 0 {
		t.Fatal(unplaced)
	}
	at := placed[0].Cells[0].HostNodes.List()[0]
	// Node 0 has CPU 0 reserved; two isolated vCPUs take two cores of two threads.
	free := []planner.Free{{NUMANode: 0, CPUs: 7, MemoryMiB: 15 * gib}, {NUMANode: 1, CPUs: 8, MemoryMiB: 15 * gib}}
	free[at].CPUs -= 4
	free[at].MemoryMiB -= 4 * gib
	want := []planner.Room{
		{Host: flat.ID(), Nodes: []planner.Free{{NUMANode: 0, CPUs: 2, MemoryMiB: 8 * gib}}},
		{Host: big.ID(), Floating: 3, Nodes: free},
		{Host: off.ID(), Problem: "offline", Nodes: []planner.Free{{NUMANode: 0, CPUs: 2, MemoryMiB: 8 * gib}}},
	}
	if diff := cmp.Diff(want, p.Room()); diff != "" {
		t.Errorf("room differs:\n%s", diff)
	}
}
