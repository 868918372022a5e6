package cloudprovider_test

import (
	"strings"
	"testing"
	"time"

	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
)

// listed returns the provider IDs in List, with brackets for VMs being removed.
func (w *world) listed(t *testing.T) string {
	t.Helper()
	claims, err := w.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range claims {
		id := strings.TrimPrefix(c.Status.ProviderID, "proxmox://lab/")
		if !c.DeletionTimestamp.IsZero() {
			id = "(" + id + ")"
		}
		ids = append(ids, id)
	}
	return strings.Join(ids, " ")
}

func TestListAndGet(t *testing.T) {
	t.Parallel()
	own := vm(pve1, 2000)
	made := func(w *world) { w.fleet.states = []scaler.VMState{state(own, scaler.PhaseMade)} }
	later := func(w *world) { w.clock.Step(time.Hour) }
	seen := func(w *world) { w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest(own)) }
	cloned := func(w *world) { w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, cloneOf(own)) }
	plain := func(name string) func(*world) {
		return func(w *world) {
			g := guest(own)
			g.ClusterID, g.Key, g.Name = "", "", name
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, g)
		}
	}
	tests := []struct {
		name  string
		edits []func(w *world)
		list  string
		// get is the result for VM 2000: "", notFound or part of another error.
		get string
	}{
		{name: "nothing", get: notFound},
		{name: "every phase", edits: []func(*world){func(w *world) {
			for i, phase := range []scaler.Phase{
				scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade, scaler.PhaseFailed, scaler.PhasePendingApproval, scaler.PhaseRemoving,
			} {
				w.fleet.states = append(w.fleet.states, state(vm(pve1, fleet.VMID(2000+i)), phase))
			}
		}}, list: "2000 2001 2002 2003 2004 (2005)"},
		{name: "standby", edits: []func(*world){seen, func(w *world) {
			standby := state(own, scaler.PhaseMade)
			standby.VM.Standby = true
			w.fleet.states = []scaler.VMState{standby}
		}}, get: notFound},
		{name: "made and seen", edits: []func(*world){made, seen, later}, list: "2000"},
		{name: "made and not seen yet", edits: []func(*world){made}, list: "2000"},
		{name: "deleted by hand", edits: []func(*world){made, later}, get: notFound},
		{name: "deleted by hand, number a stranger's", edits: []func(*world){made, later, plain("accounting")}, get: notFound},
		{name: "deleted by hand, but not its clone", edits: []func(*world){made, later, cloned}, get: notFound},
		{name: "no file wants it and its clone", edits: []func(*world){cloned, seen}, list: "2000 2999"},
		{name: "marker lost", edits: []func(*world){made, later, plain(own.Name)}, list: "2000"},
		{name: "reserved for long", edits: []func(*world){func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseReserved)}
		}, later}, list: "2000"},
		{name: "moved to a host that runs", edits: []func(*world){made, later, func(w *world) {
			w.snapshot.Hosts[1].Guests = append(w.snapshot.Hosts[1].Guests, guest(own))
		}}, list: "2000"},
		{name: "host down", edits: []func(*world){made, seen, later, func(w *world) { down(&w.snapshot.Hosts[0]) }}, list: "2000"},
		{name: "host down, nothing said of its guests", edits: []func(*world){made, later, func(w *world) { down(&w.snapshot.Hosts[0]) }}, list: "2000"},
		{name: "host not in Proxmox", edits: []func(*world){made, later, func(w *world) { w.snapshot.Hosts = w.snapshot.Hosts[1:] }}, list: "2000"},
		{name: "no quorum", edits: []func(*world){made, later, func(w *world) { w.snapshot.Regions[0].Quorate = false }}, list: "2000"},
		{name: "guests hidden", edits: []func(*world){made, later, func(w *world) { w.snapshot.Regions[0].HidesGuests = true }}, list: "2000"},
		{name: "no file wants it", edits: []func(*world){seen}, list: "2000"},
		{name: "no file wants it, and its host is down", edits: []func(*world){seen, func(w *world) { down(&w.snapshot.Hosts[0]) }}, get: "is on a host that cannot be read"},
		{name: "another numaform's", edits: []func(*world){seen, func(w *world) { w.snapshot.Hosts[0].Guests[0].ClusterID = "other" }}, get: notFound},
		{name: "two guests of one key while one moves", edits: []func(*world){made, seen, func(w *world) {
			w.snapshot.Hosts[1].Guests = append(w.snapshot.Hosts[1].Guests, guest(own))
		}}, list: "2000"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			for _, edit := range test.edits {
				edit(w)
			}
			if got := w.listed(t); got != test.list {
				t.Errorf("listed %q, want %q", got, test.list)
			}
			got, err := w.Get(t.Context(), "proxmox://lab/2000")
			switch {
			case test.get == "" && (err != nil || got.Status.ProviderID != "proxmox://lab/2000"):
				t.Errorf("got %v, %v", got, err)
			case test.get == notFound && !karpenter.IsNodeClaimNotFoundError(err):
				t.Errorf("error is %v, want not found", err)
			case test.get != "" && test.get != notFound && (err == nil || karpenter.IsNodeClaimNotFoundError(err) || !strings.Contains(err.Error(), test.get)):
				t.Errorf("error is %v, want %q", err, test.get)
			}
		})
	}
}

// TestListAndGetWaitForTheFleet checks that no VM is reported as deleted before the fleet
// has been read.
func TestListAndGetWaitForTheFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.fleet.unread = true
	if claims, err := w.List(t.Context()); err == nil {
		t.Errorf("listed %v", claims)
	}
	if _, err := w.Get(t.Context(), "proxmox://lab/2000"); err == nil || karpenter.IsNodeClaimNotFoundError(err) {
		t.Errorf("error is %v", err)
	}
}

func TestGetOfAnotherProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	if _, err := w.Get(t.Context(), "kind://docker/kind/worker"); err == nil || karpenter.IsNodeClaimNotFoundError(err) {
		t.Errorf("error is %v: what is none of ours is not gone", err)
	}
}
