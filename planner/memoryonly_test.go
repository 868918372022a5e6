package planner_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// withMemoryOnly returns a host with one NUMA node of 16 CPUs and 124 GiB, and one of 250
// GiB without CPUs.
func withMemoryOnly() topology.Host {
	h := host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 2, memory: 124 * gib}))
	h.NUMANodes = append(h.NUMANodes, topology.NUMANode{ID: 1, MemoryMiB: 250 * gib})
	h.MemoryMiB += 250 * gib
	return h
}

// TestMemoryOnlyNodes checks which VMs get memory of a NUMA node without CPUs: VMs for
// which the other nodes have too little, unless the memory may belong to a GPU or the
// settings forbid its use.
func TestMemoryOnlyNodes(t *testing.T) {
	t.Parallel()
	const refused = "r1/pve-1 has 124 GiB free: add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool, or list NUMA nodes 1 under memorynodes of the host in topology_file"
	none, some := topology.CPUs(), topology.CPUs(1)
	for _, tt := range []struct {
		name   string
		change func(*topology.Host)
		spec   fleet.Spec
		want   string // cells as node:MiB, or the refusal
	}{
		{"near memory first", nil, spec(fleet.PolicyDedicated, 8, 100*gib), "0:102400"},
		{"floating, near memory first", nil, spec(fleet.PolicyNUMA, 8, 100*gib), "0:102400"},
		{"dedicated", nil, spec(fleet.PolicyDedicated, 8, 130*gib), "0-1:133120"},
		{"isolated", nil, spec(fleet.PolicyIsolated, 8, 130*gib), "0-1:133120"},
		{"floating", nil, spec(fleet.PolicyNUMA, 8, 130*gib), "0-1:133120"},
		{"one vCPU", nil, spec(fleet.PolicyNUMA, 1, 130*gib), "0-1:133120"},
		{"another architecture", func(h *topology.Host) { h.Arch = "arm64" }, spec(fleet.PolicyDedicated, 8, 130*gib), refused},
		{"another architecture, shared", func(h *topology.Host) { h.Arch = "arm64" }, spec(fleet.PolicyShared, 8, 130*gib), refused},
		{"another architecture, listed", func(h *topology.Host) { h.Arch, h.MemoryNodes = "arm64", &some }, spec(fleet.PolicyNUMA, 8, 130*gib), "0-1:133120"},
		{"listed as none", func(h *topology.Host) { h.MemoryNodes = &none }, spec(fleet.PolicyNUMA, 8, 130*gib), refused},
		{"huge pages", func(h *topology.Host) {
			h.NUMANodes[0].HugePages, h.NUMANodes[1].HugePages = map[int]int64{1 << 20: 8}, map[int]int64{1 << 20: 200}
		}, inPages(spec(fleet.PolicyNUMA, 8, 16*gib), fleet.HugePages1Gi), "r1/pve-1 has room for 16 vCPUs and 8 GiB in huge pages of 1 GiB on NUMA node 0: reserve more of these huge pages at boot (Proxmox uses only those on NUMA nodes 0 to 9), or lower the memory requests of the pods"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := withMemoryOnly()
			if tt.change != nil {
				tt.change(&h)
			}
			placed, unplaced := place(t, snapshot(h), nil, tt.spec)
			got := ""
			for _, p := range placed {
				got = cellsOf(p)
			}
			for _, u := range unplaced {
				got = u.Reason[strings.Index(u.Reason, "r1/"):]
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMemoryOnlyMachine checks where VMs are placed, one by one, on a machine with two NUMA
// nodes without CPUs.
func TestMemoryOnlyMachine(t *testing.T) {
	t.Parallel()
	p := planner.New(snapshot(host("pve-1", known(t, "constructed/xeon-2s-memory-only"))), nil)
	var got []string
	for _, s := range []fleet.Spec{
		spec(fleet.PolicyDedicated, 8, 64*gib), spec(fleet.PolicyDedicated, 8, 130*gib), spec(fleet.PolicyDedicated, 8, 64*gib),
		spec(fleet.PolicyNUMA, 4, 40*gib),
	} {
		placed, unplaced := p.Place([]fleet.Spec{s})
		for _, u := range unplaced {
			got = append(got, u.Reason)
		}
		for _, one := range placed {
			got = append(got, one.CPUs.String()+" "+cellsOf(one)+" "+one.Reason)
		}
	}
	if diff := cmp.Diff([]string{
		"0-3,32-35 0:65536 NUMA 0, L3 0: 4 whole cores, 1 NUMA node (the minimum); leaves 24 CPUs, 32 GiB",
		"16-19,48-51 1,3:133120 NUMA 1, L3 1: 4 whole cores, memory in equal parts from 2 NUMA nodes because no single node has room for the VM; leaves 24 CPUs, 510 GiB",
		"20-23,52-55 1-3:65536 NUMA 1, L3 1: 4 whole cores, memory in equal parts from 3 NUMA nodes because no single node has room for the VM; leaves 16 CPUs, 446 GiB",
		" 0:31061 1:9899 NUMA 0+1: memory bound, 4 vCPUs floating, 2 NUMA nodes (minimum on an empty host: 1); leaves 40 CPUs, 1.6 GiB; memory per NUMA node not proportional to its CPUs",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
