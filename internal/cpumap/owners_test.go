package cpumap_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
)

func TestOwners(t *testing.T) {
	t.Parallel()
	h := load(t, "nuc-i7-1165g7-4c8t")
	h.ReservedCPUs = cpus(t, "0,4")
	h.Guests = []topology.Guest{
		{VMID: 100, Name: "db", Running: true, Pins: cpus(t, "1")},
		{VMID: 101, Running: true, Pins: cpus(t, "5")},
		{VMID: 102, Name: "stopped", Pins: cpus(t, "7")},
		{VMID: 103, Name: "floating", Running: true, VCPUs: 3, NUMA: []topology.NUMACell{{HostNodes: topology.CPUs(0, 1), MemoryMiB: 5}}},
		{VMID: 104, Name: "template", Running: true, Template: true, Pins: cpus(t, "7")},
		{VMID: 2001, Name: "workers-2001", Running: true, Pins: cpus(t, "2"), NUMA: []topology.NUMACell{{HostNodes: topology.CPUs(0), MemoryMiB: 10}}},
	}
	elsewhere := vm(t, 2009, "7", 0, 1000)
	elsewhere.Host.Host = "pve-2"
	shared := vm(t, 2003, "", 0, 0)
	shared.Name, shared.VCPUs, shared.Cells = "shared-2003", 2, nil
	got := cpumap.Owners(&h, []fleet.VM{vm(t, 2001, "3", 0, 1000), vm(t, 2002, "6", 1, 100), elsewhere, shared})
	want := cpumap.Ownership{
		CPUs: map[int]string{
			0: cpumap.Reserved, 4: cpumap.Reserved,
			1: "db (100)", 5: "guest 101", 2: "workers-2001", 6: "workers-2002",
		},
		BoundMiB: map[int]int64{0: 10 + 3, 1: 100 + 2},
		Floating: []cpumap.Floater{{"floating (103)", 3}, {"shared-2003", 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// TestOwnersMarkStandby checks that Owners marks the CPUs that a standby VM reserves, and
// ignores a standby VM that reserves none.
func TestOwnersMarkStandby(t *testing.T) {
	t.Parallel()
	h := load(t, "nuc-i7-1165g7-4c8t")
	reserving, free := vm(t, 2001, "3", 0, 100), vm(t, 2002, "6", 0, 100)
	reserving.Standby, reserving.Reserve, free.Standby = true, true, true
	h.Guests = []topology.Guest{{VMID: 2001, Name: "workers-2001", Pins: cpus(t, "3")}}
	got := cpumap.Owners(&h, []fleet.VM{reserving, free})
	want := cpumap.Ownership{CPUs: map[int]string{3: "workers-2001 (standby)"}, BoundMiB: map[int]int64{0: 100}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

func TestOwnersShowWhatIsClaimedTwice(t *testing.T) {
	t.Parallel()
	h := load(t, "nuc-i7-1165g7-4c8t")
	h.ReservedCPUs = cpus(t, "0")
	h.Guests = []topology.Guest{{VMID: 100, Name: "db", Running: true, Pins: cpus(t, "0-1")}}
	got := cpumap.Owners(&h, []fleet.VM{vm(t, 2001, "1-2", 0, 0)})
	want := map[int]string{0: "db (100) + reserved", 1: "db (100) + workers-2001", 2: "workers-2001"}
	if diff := cmp.Diff(want, got.CPUs); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if got.Disputed.String() != "0-1" {
		t.Errorf("disputed CPUs are %s, want 0-1", got.Disputed)
	}
}
