package planner_test

import (
	"math"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestRefusals checks the message that a user reads for an unplaced VM.
func TestRefusals(t *testing.T) {
	t.Parallel()
	full := spec(fleet.PolicyDedicated, 4, gib)
	full.Overcommit = math.NaN()
	odd := spec("Greedy", 4, gib)
	nowhere := spec(fleet.PolicyShared, 1, gib)
	nowhere.Hosts = nil
	tests := []struct {
		name   string
		change func(*topology.Snapshot)
		spec   fleet.Spec
		want   string
	}{
		{"no host allowed", nil, nowhere, "1 shared vCPU, 1 GiB: no host has the template, storage and zone that the ProxmoxNodeClass and NodePool require: add such a host, or correct the requirements"},
		{"unknown host", nil, spec(fleet.PolicyShared, 1, gib, "pve-9"), "1 shared vCPU, 1 GiB: none of the allowed hosts exists: check their names and the connection to their region"},
		{"nonsense size", nil, spec(fleet.PolicyShared, 0, gib), "a VM must have at least 1 vCPU and 1 MiB of memory: raise cpu and memory"},
		{"nonsense ratio", nil, full, "the overcommit must be a positive number: set overcommit in the ProxmoxNodeClass"},
		{"nonsense policy", nil, odd, "the policy Greedy is unknown: use Shared, NUMA, Dedicated or Isolated"},
		{"larger than the host", nil, spec(fleet.PolicyDedicated, 17, gib), "17 dedicated CPUs, 1 GiB: r1/pve-1 has only 16 CPUs, and a VM with more vCPUs cannot start: add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
		{"memory", nil, spec(fleet.PolicyDedicated, 4, 65*gib), "4 dedicated CPUs, 65 GiB: r1/pve-1 has 64 GiB free: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"},
		{"node memory", nil, spec(fleet.PolicyNUMA, 1, 33*gib), "1 NUMA vCPU, 33 GiB: r1/pve-1 has room for 8 vCPUs and 32 GiB on NUMA node 0; 2 NUMA nodes together have room for 16 vCPUs and 64 GiB: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"},
		{"memory, by a MiB", func(s *topology.Snapshot) { s.Hosts[0].ReservedMemoryMiB = 1 }, spec(fleet.PolicyShared, 1, 64*gib), "1 shared vCPU, 64 GiB: r1/pve-1 has 63.9 GiB free: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"},
		{"node memory, by a MiB", func(s *topology.Snapshot) { s.Hosts[0].ReservedMemoryMiB = 2 }, spec(fleet.PolicyNUMA, 1, 32*gib), "1 NUMA vCPU, 32 GiB: r1/pve-1 has room for 8 vCPUs and 31.9 GiB on NUMA node 0; 2 NUMA nodes together have room for 16 vCPUs and 63.9 GiB: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"},
		{"amounts that look alike", func(s *topology.Snapshot) { s.Hosts[0].ReservedMemoryMiB = 50 }, spec(fleet.PolicyShared, 1, 64*gib-46), "1 shared vCPU, 63.9 GiB: r1/pve-1 has 65486 of 65490 MiB free: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"},
		{"isolated", nil, spec(fleet.PolicyIsolated, 9, gib), "9 isolated CPUs, 1 GiB: r1/pve-1 has room for 4 vCPUs and 32 GiB on NUMA node 0; 2 NUMA nodes together have room for 8 vCPUs and 64 GiB: add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
		{"floating", guests(topology.Guest{Running: true, VCPUs: 10}), spec(fleet.PolicyDedicated, 8, gib), "8 dedicated CPUs, 1 GiB: r1/pve-1 has 6 free CPUs beside 10 floating vCPUs: add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
		{"ratio", guests(topology.Guest{Running: true, VCPUs: 10}), spec(fleet.PolicyShared, 8, gib), "8 shared vCPUs, 1 GiB: r1/pve-1 has 10 floating vCPUs and room for 6 more: add a host or raise overcommit in the ProxmoxNodeClass"},
		{"all reserved", func(s *topology.Snapshot) { s.Hosts[0].ReservedCPUs = s.Hosts[0].OnlineCPUs() }, spec(fleet.PolicyDedicated, 1, gib), "1 dedicated CPU, 1 GiB: r1/pve-1 has 0 free CPUs beside 0 floating vCPUs: add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
		{"offline", func(s *topology.Snapshot) { s.Hosts[0].Online = false }, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (offline): make one of them available again"},
		{"maintenance", func(s *topology.Snapshot) { s.Hosts[0].Maintenance = true }, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (in HA maintenance): make one of them available again"},
		{"problem", func(s *topology.Snapshot) { s.Hosts[0].Problem = "has no template" }, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (has no template): make one of them available again"},
		{"no quorum", func(s *topology.Snapshot) { s.Regions[0].Quorate = false }, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (its region has no quorum): make one of them available again"},
		{"no CPUs", func(s *topology.Snapshot) { s.Hosts[0].CPUs = nil }, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (its CPUs are unknown: grant the token Sys.Audit, or add the host to machines or topology_file): make one of them available again"},
		{"no memory", func(s *topology.Snapshot) {
			s.Hosts[0].MemoryMiB, s.Hosts[0].NUMANodes[0].MemoryMiB = 0, topology.Unknown
		}, spec(fleet.PolicyShared, 1, gib), "1 shared vCPU, 1 GiB: no allowed host is available: r1/pve-1 (it has no memory for guests: set memory in topology_file, or reserve less of it): make one of them available again"},
		{"best of several", func(s *topology.Snapshot) {
			small := host("pve-0", machine(shape{nodes: 1, cores: 2, smt: 1, memory: 8 * gib}))
			down := twoNodes()
			down.Name, down.Online = "pve-2", false
			s.Hosts = []topology.Host{small, s.Hosts[0], down}
		}, spec(fleet.PolicyDedicated, 17, gib, "pve-0", "pve-1", "pve-2"), "17 dedicated CPUs, 1 GiB: r1/pve-1 has only 16 CPUs, and a VM with more vCPUs cannot start, no more on 1 other host, unavailable: r1/pve-2 (offline): add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			snap := snapshot(twoNodes())
			if tt.change != nil {
				tt.change(snap)
			}
			placed, unplaced := planner.New(snap, nil).Place([]fleet.Spec{tt.spec})
			if len(placed) > 0 || len(unplaced) != 1 {
				t.Fatalf("placed %+v", placed)
			}
			if got := unplaced[0].Reason; got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// guests returns a function that sets the guests of the first host.
func guests(list ...topology.Guest) func(*topology.Snapshot) {
	return func(s *topology.Snapshot) { s.Hosts[0].Guests = list }
}

// TestFitsNowhere checks that no spec fits an unknown host, and that no host fits a spec
// with an unknown policy.
func TestFitsNowhere(t *testing.T) {
	t.Parallel()
	p := planner.New(snapshot(twoNodes()), nil)
	if p.Fits(spec(fleet.PolicyShared, 1, gib), topology.HostID{Region: "r1", Host: "pve-9"}) {
		t.Error("fits a host that does not exist")
	}
	if p.Fits(spec("Greedy", 1, gib), topology.HostID{Region: "r1", Host: "pve-1"}) {
		t.Error("fits with an unknown policy")
	}
}
