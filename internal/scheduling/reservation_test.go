package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// TestStandbyLostItsCPUs checks that a standby VM is not woken but replaced if another guest
// was pinned to one of its CPUs, because the guard would deny its start.
func TestStandbyLostItsCPUs(t *testing.T) {
	t.Parallel()
	pool, buffer := nodePool("general", "dedicated", ""), virtual(1, "3")
	vms := made(nil, standbyFor(t, load(t, classes, pool), lab(), buffer))
	busy := load(t, classes, pool, deployment("web", 1, "3", "1Gi", ""))
	decide := func(pins topology.CPUSet) standbyOutcome {
		snapshot := withGuests(lab(), vms...)
		host := snapshot.Host(vms[0].Host)
		host.Guests = append(host.Guests, topology.Guest{VMID: 105, Name: "db", Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: 1024, Pins: pins})
		return standbyOutcomeOf(t, busy, scheduling.Request{Snapshot: snapshot, Existing: vms, Standby: buffer})
	}
	ours := topology.CPUs(vms[0].CPUs.List()[0])
	want := standbyOutcome{Outdated: []string{"guest 105 (db) is pinned to its CPUs " + ours.String()}, Nodes: 1, Standby: 1, Spare: 1}
	if diff := cmp.Diff(want, decide(ours)); diff != "" {
		t.Errorf("a guest on its CPUs (-want +got):\n%s", diff)
	}
	free := vms[0].CPUs
	for id := range 100 {
		if free = topology.CPUs(id); free.Intersection(vms[0].CPUs).IsEmpty() {
			break
		}
	}
	want = standbyOutcome{Woken: []string{vms[0].Name}, Standby: 1}
	if diff := cmp.Diff(want, decide(free)); diff != "" {
		t.Errorf("a guest on other CPUs (-want +got):\n%s", diff)
	}

	// Others may use what a VM does not reserve.
	vms[0].Reserve = false
	if got := decide(ours); got.Outdated != nil {
		t.Errorf("without a reservation, it is outdated: %q", got.Outdated)
	}
}

// TestStandbyLostItsAddress checks that a standby VM is not woken but replaced if its address
// pool no longer assigns its address.
func TestStandbyLostItsAddress(t *testing.T) {
	t.Parallel()
	pool, buffer := nodePool("static", "static", ""), virtual(1, "3")
	withPool := func(last string) *topology.Snapshot {
		return pooled(t, ipam.Config{Name: "nodes", Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.10-10.0.0." + last}})
	}
	vms := made(nil, standbyFor(t, load(t, addressClasses, pool), withPool("99"), buffer))
	vms[0].VMID = 50 // it gets one of the last addresses
	snapshot := withPool("99")
	if err := ipam.New(snapshot, nil, nil).Give(&vms[0]); err != nil {
		t.Fatal(err)
	}
	busy := load(t, addressClasses, pool, deployment("web", 1, "3", "1Gi", ""))
	got := standbyOutcomeOf(t, busy, scheduling.Request{Snapshot: withGuests(snapshot, vms...), Existing: vms, Standby: buffer})
	if diff := cmp.Diff(standbyOutcome{Woken: []string{vms[0].Name}, Standby: 1}, got); diff != "" {
		t.Errorf("the same pool (-want +got):\n%s", diff)
	}
	got = standbyOutcomeOf(t, busy, scheduling.Request{Snapshot: withGuests(withPool("20"), vms...), Existing: vms, Standby: buffer})
	want := standbyOutcome{Outdated: []string{`net0 has the address 10.0.0.60/24, which address pool "nodes" does not assign`}, Nodes: 1, Standby: 1, Spare: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a smaller pool (-want +got):\n%s", diff)
	}
}
