package planner_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// spreads returns the spec with its pool's VMs spread over hosts.
func spreads(s fleet.Spec) fleet.Spec {
	s.Spread = fleet.SpreadHosts
	return s
}

// TestSpread checks that VMs of one pool are placed on the host with the fewest of them,
// including existing VMs but not other pools.
func TestSpread(t *testing.T) {
	t.Parallel()
	three := func() *topology.Snapshot {
		m := machine(shape{nodes: 2, cores: 8, smt: 1, memory: 32 * gib})
		return snapshot(host("pve-1", m), host("pve-2", m), host("pve-3", m))
	}
	all := []string{"pve-1", "pve-2", "pve-3"}
	other := spec(fleet.PolicyDedicated, 2, gib, all...)
	other.Pool = "others"
	at := func(s fleet.Spec, hosts ...string) []fleet.VM {
		var vms []fleet.VM
		for i, name := range hosts {
			s.Hosts = spec(s.Policy, 1, 1, name).Hosts
			placed, _ := planner.New(three(), vms).Place([]fleet.Spec{s})
			vms = append(vms, asExisting(3000+i, []fleet.Spec{s}, placed)...)
		}
		return vms
	}
	tests := []struct {
		name     string
		existing []fleet.VM
		spec     fleet.Spec
		n        int
		want     map[topology.HostName]int
	}{
		{"packed unless requested", nil, spec(fleet.PolicyDedicated, 2, gib, all...), 4, map[topology.HostName]int{"pve-1": 4}},
		{"dedicated", nil, spreads(spec(fleet.PolicyDedicated, 2, gib, all...)), 6, map[topology.HostName]int{"pve-1": 2, "pve-2": 2, "pve-3": 2}},
		{"shared", nil, spreads(spec(fleet.PolicyShared, 2, gib, all...)), 5, map[topology.HostName]int{"pve-1": 2, "pve-2": 2, "pve-3": 1}},
		{"numa", nil, spreads(spec(fleet.PolicyNUMA, 2, gib, all...)), 3, map[topology.HostName]int{"pve-1": 1, "pve-2": 1, "pve-3": 1}},
		{"allowed hosts only", nil, spreads(spec(fleet.PolicyShared, 2, gib, all[1:]...)), 4, map[topology.HostName]int{"pve-2": 2, "pve-3": 2}},
		{
			"existing VMs count, whether or not they were spread", at(spec(fleet.PolicyDedicated, 2, gib), "pve-1", "pve-1", "pve-2"),
			spreads(spec(fleet.PolicyDedicated, 2, gib, all...)), 3,
			map[topology.HostName]int{"pve-2": 1, "pve-3": 2},
		},
		{
			"other pools do not", at(other, "pve-1", "pve-2"),
			spreads(spec(fleet.PolicyDedicated, 2, gib, all...)), 3,
			map[topology.HostName]int{"pve-1": 1, "pve-2": 1, "pve-3": 1},
		},
		{
			"a host that is full is passed over", at(other, "pve-3", "pve-3", "pve-3", "pve-3", "pve-3", "pve-3", "pve-3", "pve-3"),
			spreads(spec(fleet.PolicyDedicated, 2, gib, all...)), 4,
			map[topology.HostName]int{"pve-1": 2, "pve-2": 2},
		},
		{
			"before fewer NUMA nodes", at(spreads(spec(fleet.PolicyDedicated, 6, gib)), "pve-1", "pve-2"),
			spreads(spec(fleet.PolicyDedicated, 10, gib, all...)), 1,
			map[topology.HostName]int{"pve-3": 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			placed, _ := place(t, three(), tt.existing, same(tt.spec, tt.n)...)
			got := map[topology.HostName]int{}
			for _, p := range placed {
				got[p.Host.Host]++
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("VMs by host (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpreadSaysSo checks that the reason reports the spread, and that a last resort
// outweighs spreading.
func TestSpreadSaysSo(t *testing.T) {
	t.Parallel()
	s := spreads(spec(fleet.PolicyShared, 2, gib))
	placed, _ := place(t, snapshot(twoNodes()), nil, s, s)
	for i, want := range []string{"; spread over hosts: first VM of its pool on this host", "; spread over hosts: 1 other VM of its pool on this host"} {
		if !strings.HasSuffix(placed[i].Reason, want) {
			t.Errorf("reason %q lacks %q", placed[i].Reason, want)
		}
	}
	unknown := host("pve-2", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 32 * gib}))
	for i := range unknown.CPUs {
		unknown.CPUs[i].Core = topology.Unknown
	}
	snap := snapshot(twoNodes(), unknown)
	pinned := spreads(spec(fleet.PolicyDedicated, 2, gib, "pve-1", "pve-2"))
	placed, _ = place(t, snap, nil, pinned, pinned)
	for _, p := range placed {
		if p.Host.Host != "pve-1" {
			t.Errorf("placed on a host with unknown siblings: %s", p.Reason)
		}
	}
	if !strings.Contains(placed[1].Reason, "; spread over hosts: 1 other VM of its pool on this host") {
		t.Errorf("reason %q does not mention the other VM", placed[1].Reason)
	}
}

// TestSpreadAfterRemoval checks that a removed VM no longer counts, and that pools
// distinguish otherwise equal VMs.
func TestSpreadAfterRemoval(t *testing.T) {
	t.Parallel()
	p := planner.New(snapshot(twoNodes()), nil)
	ours := spreads(spec(fleet.PolicyShared, 2, gib))
	theirs := ours
	theirs.Pool = "others"
	specs := []fleet.Spec{theirs, ours}
	placed, _ := p.Place(specs)
	p.Remove(asExisting(5000, specs, placed)[1])
	again, _ := p.Place([]fleet.Spec{ours})
	if want := "first VM of its pool on this host"; !strings.HasSuffix(again[0].Reason, want) {
		t.Errorf("reason %q lacks %q", again[0].Reason, want)
	}
}
