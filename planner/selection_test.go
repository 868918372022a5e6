package planner_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// selects returns the spec with a way to select its host.
func selects(how fleet.HostSelection, s fleet.Spec) fleet.Spec {
	s.HostSelection = how
	return s
}

// withGuest returns the host with a running guest of another owner.
func withGuest(h topology.Host, vcpus int, memory int64) topology.Host {
	h.Guests = append(h.Guests, topology.Guest{VMID: 100 + len(h.Guests) + 10*int(h.Name[len(h.Name)-1]), Kind: topology.GuestVM, Running: true, VCPUs: vcpus, MemoryMiB: memory})
	return h
}

// hostsOf counts VMs by host.
func hostsOf(t *testing.T, snap *topology.Snapshot, specs ...fleet.Spec) map[topology.HostName]int {
	t.Helper()
	placed, unplaced := place(t, snap, nil, specs...)
	for _, u := range unplaced {
		t.Errorf("not placed: %s", u.Reason)
	}
	got := map[topology.HostName]int{}
	for _, p := range placed {
		got[p.Host.Host]++
	}
	return got
}

// TestHostSelection checks which of several hosts VMs get, next to an unmanaged guest of 10
// vCPUs on the first host.
func TestHostSelection(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 1, cores: 16, smt: 1, memory: 64 * gib})
	three := func() *topology.Snapshot {
		return snapshot(withGuest(host("pve-1", m), 10, 4*gib), host("pve-2", m), host("pve-3", m))
	}
	all := []string{"pve-1", "pve-2", "pve-3"}
	tests := []struct {
		name string
		snap *topology.Snapshot
		spec fleet.Spec
		n    int
		want map[topology.HostName]int
	}{
		{"Shared by default", three(), spec(fleet.PolicyShared, 2, gib, all...), 1, map[topology.HostName]int{"pve-2": 1}},
		{"Shared by default, several", three(), spec(fleet.PolicyShared, 2, gib, all...), 6, map[topology.HostName]int{"pve-2": 3, "pve-3": 3}},
		{"Shared by default, also on the loaded host", three(), spec(fleet.PolicyShared, 2, gib, all...), 14, map[topology.HostName]int{"pve-1": 2, "pve-2": 6, "pve-3": 6}},
		{"Shared, packed", three(), selects(fleet.MostAllocated, spec(fleet.PolicyShared, 2, gib, all...)), 3, map[topology.HostName]int{"pve-1": 3}},
		{"Dedicated by default", three(), spec(fleet.PolicyDedicated, 2, gib, all...), 2, map[topology.HostName]int{"pve-1": 2}},
		{"Dedicated, spread", three(), selects(fleet.LeastAllocated, spec(fleet.PolicyDedicated, 2, gib, all...)), 4, map[topology.HostName]int{"pve-2": 2, "pve-3": 2}},
		{"NUMA, spread", three(), selects(fleet.LeastAllocated, spec(fleet.PolicyNUMA, 2, gib, all...)), 4, map[topology.HostName]int{"pve-2": 2, "pve-3": 2}},
		{
			"the scarcest resource counts", snapshot(withGuest(host("pve-1", m), 1, 48*gib), withGuest(host("pve-2", m), 8, gib)),
			spec(fleet.PolicyShared, 2, gib, all...), 1,
			map[topology.HostName]int{"pve-2": 1},
		},
		{
			"shares, not amounts", snapshot(host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 16 * gib})), host("pve-2", m)),
			spec(fleet.PolicyShared, 1, 4*gib, all...), 5,
			map[topology.HostName]int{"pve-1": 1, "pve-2": 4},
		},
		{"spreading the pool has priority", three(), spreads(spec(fleet.PolicyShared, 2, gib, all...)), 3, map[topology.HostName]int{"pve-1": 1, "pve-2": 1, "pve-3": 1}},
		{"spreading the pool, then the share", three(), spreads(spec(fleet.PolicyShared, 2, gib, all...)), 2, map[topology.HostName]int{"pve-2": 1, "pve-3": 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, hostsOf(t, tt.snap, same(tt.spec, tt.n)...)); diff != "" {
				t.Errorf("VMs by host (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBusyHost checks that a host with a high measured load gets no VM, that the refusal
// says so, and that a limit of 0, an unknown load and a lower load change nothing.
func TestBusyHost(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 2, cores: 8, smt: 1, memory: 32 * gib})
	busy, idle := host("pve-1", m), host("pve-2", m)
	busy.Load = &topology.Load{CPUPercent: 95}
	idle.Load = &topology.Load{CPUPercent: 90, MemoryPercent: 100}
	for _, policy := range []fleet.Policy{fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated} {
		s := spec(policy, 2, gib, "pve-1", "pve-2")
		s.MaxHostLoad = 95
		if got := hostsOf(t, snapshot(busy, idle), same(s, 3)...); got["pve-2"] != 3 {
			t.Errorf("%s: %v, want all on pve-2", policy, got)
		}
		s.MaxHostLoad = 0
		if got := hostsOf(t, snapshot(busy, idle), s); got["pve-1"] != 1 {
			t.Errorf("%s without a limit: %v, want pve-1", policy, got)
		}
		s.MaxHostLoad = 95
		if got := hostsOf(t, snapshot(host("pve-1", m), idle), s); got["pve-1"] != 1 {
			t.Errorf("%s, unknown load: %v, want pve-1", policy, got)
		}

		s.MaxHostLoad = 90
		p := planner.New(snapshot(busy, idle), nil)
		_, unplaced := p.Place([]fleet.Spec{s})
		const want = "has a CPU load of at least 95 %, and placement.maxHostLoad is 90, no more on 1 other host: wait until its load falls"
		if len(unplaced) != 1 || !strings.Contains(unplaced[0].Reason, want) {
			t.Errorf("%s: unplaced %+v, want %q", policy, unplaced, want)
		}
		if p.Fits(s, busy.ID()) {
			t.Errorf("%s fits the busy host", policy)
		}
		if v := p.View(s, busy.ID()); v.Fits || !strings.Contains(v.Lacks, "a CPU load of at least 95 %") {
			t.Errorf("%s: view %+v", policy, v)
		}
	}
}

// TestBalanced checks that the measured load counts as much as the allocated share, by the
// larger of CPUs and memory, and that an unknown load is not a disadvantage.
func TestBalanced(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 1, cores: 16, smt: 1, memory: 64 * gib})
	loaded := func(name string, vcpus, cpu, memory int) topology.Host {
		h := withGuest(host(name, m), vcpus, gib)
		h.Load = &topology.Load{CPUPercent: cpu, MemoryPercent: memory}
		return h
	}
	for _, test := range []struct {
		name string
		a, b topology.Host
		want topology.HostName
	}{
		{"an idle guest counts less than a busy one", loaded("pve-1", 2, 60, 0), loaded("pve-2", 8, 5, 0), "pve-2"},
		{"measured memory counts", loaded("pve-1", 2, 0, 60), loaded("pve-2", 8, 5, 0), "pve-2"},
		{"the allocated share counts", loaded("pve-1", 10, 10, 0), loaded("pve-2", 2, 10, 0), "pve-2"},
		{"unknown loads", withGuest(host("pve-1", m), 4, gib), withGuest(host("pve-2", m), 2, gib), "pve-2"},
	} {
		s := selects(fleet.Balanced, spec(fleet.PolicyShared, 2, gib, "pve-1", "pve-2"))
		if got := hostsOf(t, snapshot(test.a, test.b), s); got[test.want] != 1 {
			t.Errorf("%s: %v, want %s", test.name, got, test.want)
		}
	}
}

// TestStrain checks that a host whose guests are backed up, or whose memory is in use beyond
// its guests and reservations, gets a VM only if no other host places it equally well, and
// that the reason of the placement is the same as without.
func TestStrain(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 1, cores: 16, smt: 1, memory: 64 * gib})
	backup := func(h topology.Host) topology.Host {
		h.Backup = true
		return h
	}
	// uses returns the host with a guest of 16 GiB and this part of its memory in use.
	uses := func(h topology.Host, percent int) topology.Host {
		h = withGuest(h, 1, 16*gib)
		h.Load = &topology.Load{MemoryPercent: percent}
		return h
	}
	pve1, pve2 := host("pve-1", m), host("pve-2", m)
	for _, test := range []struct {
		name   string
		a, b   topology.Host
		memory int64
		want   topology.HostName
	}{
		{"a backup", backup(pve1), withGuest(pve2, 4, 8*gib), gib, "pve-2"},
		{"backups everywhere", backup(pve1), backup(withGuest(pve2, 4, 8*gib)), gib, "pve-1"},
		{"no room elsewhere", backup(pve1), withGuest(pve2, 4, 63*gib), 4 * gib, "pve-1"},
		{"memory in use", uses(pve1, 80), withGuest(pve2, 4, 32*gib), 16 * gib, "pve-2"}, // 48 GiB are not allocated, but only 12 GiB free
		{"memory in use that leaves enough", uses(pve1, 80), withGuest(pve2, 4, 32*gib), 8 * gib, "pve-1"},
		{"less memory in use than the guest has", uses(pve1, 10), withGuest(pve2, 4, 32*gib), 16 * gib, "pve-1"},
		{"both", backup(uses(pve1, 80)), backup(withGuest(pve2, 4, 32*gib)), 16 * gib, "pve-2"},
	} {
		for _, policy := range []fleet.Policy{fleet.PolicyShared, fleet.PolicyDedicated} {
			s := selects(fleet.LeastAllocated, spec(policy, 1, test.memory, "pve-1", "pve-2"))
			if got := hostsOf(t, snapshot(test.a, test.b), s); got[test.want] != 1 {
				t.Errorf("%s, %s: %v, want %s", test.name, policy, got, test.want)
			}
		}
	}
	calm, strained := placeOne(t, snapshot(pve1), nil, spec(fleet.PolicyShared, 1, gib)), placeOne(t, snapshot(backup(pve1)), nil, spec(fleet.PolicyShared, 1, gib))
	if diff := cmp.Diff(calm, strained); diff != "" {
		t.Errorf("the placement on the only host changes with a backup (-without +with):\n%s", diff)
	}
}

// TestSelectionSaysSo checks that reasons contain the selection and the shares that it
// compared.
func TestSelectionSaysSo(t *testing.T) {
	t.Parallel()
	h := withGuest(host("pve-1", machine(shape{nodes: 1, cores: 16, smt: 1, memory: 64 * gib})), 4, 16*gib)
	h.Load = &topology.Load{CPUPercent: 15, MemoryPercent: 40}
	for how, want := range map[fleet.HostSelection]string{
		"":                   "; LeastAllocated: 37 % of the host's CPUs and 50 % of its memory allocated",
		fleet.LeastAllocated: "; LeastAllocated: 37 % of the host's CPUs and 50 % of its memory allocated",
		fleet.MostAllocated:  "; MostAllocated: 37 % of the host's CPUs and 50 % of its memory allocated",
		fleet.Balanced:       "; Balanced: 37 % of the host's CPUs and 50 % of its memory allocated, 15 % of its CPUs and 40 % of its memory in use",
	} {
		if got := placeOne(t, snapshot(h), nil, selects(how, spec(fleet.PolicyShared, 2, 16*gib))).Reason; !strings.HasSuffix(got, want) {
			t.Errorf("%s: reason %q, want %q", how, got, want)
		}
	}
	h.Load = nil
	if got := placeOne(t, snapshot(h), nil, selects(fleet.Balanced, spec(fleet.PolicyDedicated, 2, 16*gib))).Reason; !strings.Contains(got, ", load unknown") {
		t.Errorf("reason %q does not say that the load is unknown", got)
	}
	_, unplaced := planner.New(snapshot(h), nil).Place([]fleet.Spec{selects("Best", spec(fleet.PolicyShared, 2, gib))})
	if len(unplaced) != 1 || !strings.Contains(unplaced[0].Reason, "host selection Best is unknown") {
		t.Errorf("unplaced %+v", unplaced)
	}
}
