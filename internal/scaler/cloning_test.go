package scaler_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// cloner is a Proxmox that clones until it was asked a few times.
type cloner struct {
	live
	asked *int
	ends  int
	after *topology.Snapshot
}

func (c cloner) Cloning(context.Context, topology.HostName) (bool, error) {
	*c.asked++
	return *c.asked < c.ends, nil
}

func (c cloner) Refresh(context.Context, *topology.Snapshot, []topology.HostName) (*topology.Snapshot, error) {
	if *c.asked < c.ends {
		return c.snapshot, nil
	}
	return c.after, nil
}

// TestProposeAwaitsClones finds a guest in the making under the number of a VM.
func TestProposeAwaitsClones(t *testing.T) {
	t.Parallel()
	wanted := vm(pve1, 2000)
	making := topology.Guest{VMID: 2000, Kind: topology.GuestVM, Lock: "clone"}
	elsewhere := making
	elsewhere.VMID = 2007
	for _, tt := range []struct {
		name    string
		before  topology.Guest
		after   topology.Guest
		asked   int
		lost    []fleet.VMID
		warning string
	}{
		{"it becomes ours", making, guestOf(wanted), 2, nil, ""},
		{"it becomes somebody's", making, stranger(2000), 2, []fleet.VMID{2000}, ""},
		{"it failed", making, making, 2, []fleet.VMID{2000}, "qm destroy 2000"},
		{"another number", elsewhere, elsewhere, 0, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked, before := 0, snapshot(tt.before)
			s := newScaler(t, func(c *scaler.Config) {
				c.Regions[0].Live = cloner{live: live{before}, asked: &asked, ends: 2, after: snapshot(tt.after)}
			}, wanted)
			change := propose(t, s, before)
			if diff := cmp.Diff(tt.lost, ids(change.Renumbered)); diff != "" || asked != tt.asked {
				t.Errorf("asked %d times, want %d; renumbered (-want +got):\n%s", asked, tt.asked, diff)
			}
			if warnings := strings.Join(change.Warnings(), "\n"); !strings.Contains(warnings, tt.warning) || (tt.warning == "") != (warnings == "") {
				t.Errorf("warnings %q, want %q", warnings, tt.warning)
			}
		})
	}
}
