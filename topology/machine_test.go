package topology_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestFromCounts(t *testing.T) {
	t.Parallel()
	threaded := topology.FromCounts("N5105", 1, 2, 4, 8192)
	if err := threaded.Validate(); err != nil {
		t.Fatal(err)
	}
	want := "N5105\nonline 0-3\nnode 0: 0-3\ncpus: status\nnuma: assumed\n"
	if diff := cmp.Diff(want, summary(&threaded)); diff != "" {
		t.Errorf("four threads on two cores (-want +got):\n%s", diff)
	}
	if threaded.SiblingsKnown() || threaded.NUMANodes[0].MemoryMiB != topology.Unknown || threaded.MemoryMiB != 8192 {
		t.Errorf("counts alone set more facts: %+v", threaded)
	}
	unthreaded := topology.FromCounts("", 2, 4, 4, 8192)
	want = "online 0-3\nnode 0: 0-3\ncores 0 1 2 3\ncpus: status\nsiblings: status\nnuma: assumed\n"
	if diff := cmp.Diff(want, summary(&unthreaded)); diff != "" {
		t.Errorf("four threads on four cores (-want +got):\n%s", diff)
	}
	if unthreaded.CPUs[0].Socket != topology.Unknown || threaded.CPUs[0].Socket != 0 {
		t.Error("sockets are known if, and only if, there is one")
	}
}

func TestFromAbsurdCounts(t *testing.T) {
	t.Parallel()
	none := topology.FromCounts("", 0, 0, 0, 0)
	if len(none.CPUs) != 0 || len(none.NUMANodes) != 0 {
		t.Errorf("a host without counts has CPUs: %+v", none)
	}
	if got := len(topology.FromCounts("", 1, 1, 1<<40, 0).CPUs); got != topology.MaxCPU+1 {
		t.Errorf("an absurd count gives %d CPUs", got)
	}
}

func TestCoresAndGroups(t *testing.T) {
	t.Parallel()
	m := sound()
	m.CPUs[3].Online = false
	wantCores := []topology.Core{
		{ID: 0, CPUs: topology.CPUs(0, 2), NUMANode: 0},
		{ID: 1, CPUs: topology.CPUs(1), NUMANode: 1},
	}
	if diff := cmp.Diff(wantCores, m.Cores()); diff != "" {
		t.Errorf("cores (-want +got):\n%s", diff)
	}
	wantGroups := []topology.Group{
		{NUMANode: 0, CPUs: topology.CPUs(0, 2)},
		{NUMANode: 1, CPUs: topology.CPUs(1)},
	}
	if diff := cmp.Diff(wantGroups, m.Groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func TestGroupsDistinguishKindsAndCaches(t *testing.T) {
	t.Parallel()
	m := topology.Machine{CPUs: []topology.CPU{
		{ID: 0, Online: true, L3: 1, Kind: topology.KindPerformance},
		{ID: 1, Online: true, L3: 0, Kind: topology.KindPerformance},
		{ID: 2, Online: true, L3: 0, Kind: topology.KindEfficiency},
		{ID: 3, Online: true, L3: topology.Unknown, NUMANode: topology.Unknown},
	}}
	want := []topology.Group{
		{NUMANode: topology.Unknown, L3: topology.Unknown, CPUs: topology.CPUs(3)},
		{L3: 0, Kind: topology.KindEfficiency, CPUs: topology.CPUs(2)},
		{L3: 0, Kind: topology.KindPerformance, CPUs: topology.CPUs(1)},
		{L3: 1, Kind: topology.KindPerformance, CPUs: topology.CPUs(0)},
	}
	if diff := cmp.Diff(want, m.Groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func TestSiblingsKnown(t *testing.T) {
	t.Parallel()
	m := sound()
	m.CPUs[2].Core, m.CPUs[2].Online = topology.Unknown, false
	if !m.SiblingsKnown() {
		t.Error("an offline CPU hides that siblings are known")
	}
	m.CPUs[1].Core = topology.Unknown
	if m.SiblingsKnown() || (&topology.Machine{}).SiblingsKnown() {
		t.Error("siblings count as known where a core is unknown, or there is no CPU")
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	m := sound()
	if m.CPU(2) != &m.CPUs[2] || m.CPU(4) != nil || m.NUMANode(1) != &m.NUMANodes[1] || m.NUMANode(2) != nil {
		t.Error("a CPU or NUMA node is not found by its id")
	}
}

func TestHostID(t *testing.T) {
	t.Parallel()
	var id topology.HostID
	if err := id.UnmarshalText([]byte("region-1/pve-1")); err != nil || id.String() != "region-1/pve-1" {
		t.Errorf("got %s, error %v", id, err)
	}
	for _, text := range []string{"", "pve-1", "/pve-1", "region-1/"} {
		checkError(t, id.UnmarshalText([]byte(text)), "must be REGION/HOST")
	}
}
