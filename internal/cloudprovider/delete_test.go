package cloudprovider_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	engine "github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

const notFound = "not found"

// cloneOf returns a clone that a user made of a VM: it has the VM's marker.
func cloneOf(vm fleet.VM) topology.Guest {
	clone := guest(vm)
	clone.VMID, clone.Name = 2999, "copy"
	return clone
}

func TestDelete(t *testing.T) {
	t.Parallel()
	own := vm(pve1, 2000)
	tests := []struct {
		name string
		edit func(w *world)
		// want is part of the error, notFound, or "" for no error.
		want    string
		removed []fleet.Key
	}{
		{name: "wanted", edit: func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseMade)}
		}, removed: []fleet.Key{own.Key}},
		{name: "reserved", edit: func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseReserved)}
		}, removed: []fleet.Key{own.Key}},
		{name: "never woken", edit: func(w *world) {
			standby := state(own, scaler.PhaseMade)
			standby.VM.Standby = true
			w.fleet.states = []scaler.VMState{standby}
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest(own))
		}, want: notFound},
		{name: "failed", edit: func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseFailed)}
		}, removed: []fleet.Key{own.Key}},
		{name: "held", edit: func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhasePendingApproval)}
		}, removed: []fleet.Key{own.Key}},
		{name: "being removed", edit: func(w *world) {
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseRemoving)}
		}},
		{name: "waits for a person", edit: func(w *world) {
			s := state(own, scaler.PhaseRemoving)
			s.Err = &scaler.PendingApprovalError{Host: pve1}
			w.fleet.states = []scaler.VMState{s}
		}},
		{name: "waits for the state backend", edit: func(w *world) {
			s := state(own, scaler.PhaseRemoving)
			s.Err = &engine.CommandError{Backend: "kubernetes"}
			w.fleet.states = []scaler.VMState{s}
		}},
		{name: "cannot be removed", edit: func(w *world) {
			s := state(own, scaler.PhaseRemoving)
			s.Err = errors.New("host is down")
			w.fleet.states = []scaler.VMState{s}
		}, want: "removing vm workers-2000: host is down"},
		{name: "gone", edit: func(*world) {}, want: notFound},
		{name: "its number is another's of ours", edit: func(w *world) {
			other := own
			other.Key = fleet.Key(strings.Repeat("a", 32))
			w.fleet.states = []scaler.VMState{state(other, scaler.PhaseMade)}
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest(other))
		}, want: notFound},
		{name: "its number is a stranger's", edit: func(w *world) {
			stranger := guest(own)
			stranger.ClusterID, stranger.Key, stranger.Name = "", "", "accounting"
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, stranger)
		}, want: notFound},
		{name: "its key is another numaform's", edit: func(w *world) {
			other := guest(own)
			other.ClusterID = "other"
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, other)
		}, want: notFound},
		{name: "still seen", edit: func(w *world) {
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest(own))
		}},
		{name: "still seen on another host", edit: func(w *world) {
			w.snapshot.Hosts[1].Guests = append(w.snapshot.Hosts[1].Guests, guest(own))
		}},
		{name: "gone, but not its clone", edit: func(w *world) {
			w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, cloneOf(own))
		}, want: notFound},
		{name: "on a host that is down", edit: func(w *world) {
			w.snapshot.Hosts[1].Guests = append(w.snapshot.Hosts[1].Guests, guest(own))
			down(&w.snapshot.Hosts[1])
		}, want: "is on a host that cannot be read"},
		{name: "another host is down", edit: func(w *world) {
			down(&w.snapshot.Hosts[0])
		}, want: notFound},
		{name: "no quorum", edit: func(w *world) {
			w.snapshot.Regions[0].Quorate = false
		}, want: "has lost its quorum"},
		{name: "region not read", edit: func(w *world) {
			w.snapshot.Regions = nil
		}, want: "region lab was not read"},
		{name: "region never read", edit: func(w *world) {
			w.snapshot.Regions = []topology.Region{{Name: "lab", HidesGuests: true}}
			w.snapshot.Hosts = nil
		}, want: "region lab was not read"},
		{name: "fleet not read", edit: func(w *world) {
			w.fleet.unread = true
		}, want: "not been read yet"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			test.edit(w)
			err := w.Delete(t.Context(), claimOf(own))
			switch {
			case test.want == notFound && !karpenter.IsNodeClaimNotFoundError(err), test.want == "" && err != nil:
				t.Errorf("error is %v, want %q", err, test.want)
			case test.want != notFound && test.want != "" && (err == nil || karpenter.IsNodeClaimNotFoundError(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error is %v, want %q", err, test.want)
			}
			if diff := cmp.Diff(test.removed, w.fleet.removed); diff != "" {
				t.Errorf("removed differs:\n%s", diff)
			}
		})
	}
}

// TestDeleteFindsClaimsOfKarpenter checks that a NodeClaim created by Karpenter is
// identified by its UID if the annotations are lost.
func TestDeleteFindsClaimsOfKarpenter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	c := claim("x")
	if _, err := w.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), c); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]fleet.Key{scheduling.KeyOf(c.UID)}, w.fleet.removed); diff != "" {
		t.Errorf("removed differs:\n%s", diff)
	}
}
