package scaler_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// cloner is a Proxmox that reports clones in progress until the check with number ends.
// From that check on, it returns the snapshot after.
type cloner struct {
	live
	asked *int
	ends  int
	after *topology.Snapshot
	// clock advances by 20 minutes at each check; nil means no clock.
	clock *clocktesting.FakeClock
}

func (c cloner) Busy(context.Context, topology.HostName) (bool, error) {
	*c.asked++
	if c.clock != nil {
		c.clock.SetTime(c.clock.Now().Add(20 * time.Minute))
	}
	return *c.asked < c.ends, nil
}

func (c cloner) Refresh(context.Context, *topology.Snapshot, []topology.HostName, ...fleet.VMID) (*topology.Snapshot, error) {
	if *c.asked < c.ends {
		return c.snapshot, nil
	}
	return c.after, nil
}

// mute is a Proxmox that does not respond, or only reports that nothing is being cloned.
type mute struct {
	live
	busy error
}

func (m mute) Busy(context.Context, topology.HostName) (bool, error) { return false, m.busy }

func (mute) Refresh(context.Context, *topology.Snapshot, []topology.HostName, ...fleet.VMID) (*topology.Snapshot, error) {
	return nil, errors.New("no answer")
}

// TestProposeWithoutAnAnswer checks that Propose returns an error if a host with a clone
// cannot be read, instead of treating the clone as failed.
func TestProposeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, busy := range []error{nil, errors.New("no answer")} {
		before := snapshot(topology.Guest{VMID: 2000, Kind: topology.GuestVM, Lock: "clone"})
		s := newScaler(t, func(c *scaler.Config) { c.Regions[0].Live = mute{live: live{before}, busy: busy} }, vm(pve1, 2000))
		_, err := s.Propose(t.Context(), before, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "waiting for clones on lab/pve-1: no answer") {
			t.Errorf("busy %v: got %v", busy, err)
		}
	}
}

// TestProposeAwaitsClones checks that Propose waits for a guest in creation with a VM's
// VMID, and gives the VM another VMID if the guest does not become that VM.
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

// TestProposeAwaitsClonesElsewhere checks that Propose also waits for the clone of another
// host's template, which is on that host until its end, and then reads the host of the VM.
func TestProposeAwaitsClonesElsewhere(t *testing.T) {
	t.Parallel()
	wanted := vm(pve2, 2000)
	before := snapshot(topology.Guest{VMID: 2000, Kind: topology.GuestVM, Lock: "clone"})
	after := snapshot()
	after.Hosts[1].Guests = []topology.Guest{guestOf(wanted)}
	asked := 0
	var read []topology.HostName
	s := newScaler(t, func(c *scaler.Config) {
		c.Regions[0].Live = reader{cloner: cloner{live: live{before}, asked: &asked, ends: 2, after: after}, read: &read}
	}, wanted)
	change := propose(t, s, before)
	if len(change.Renumbered) > 0 || asked != 2 || !slices.Contains(read, "pve-1") || !slices.Contains(read, "pve-2") {
		t.Errorf("asked %d times, read %v, renumbered %v", asked, read, ids(change.Renumbered))
	}
}

// reader is a cloner that records which hosts are read.
type reader struct {
	cloner
	read *[]topology.HostName
}

func (r reader) Refresh(ctx context.Context, snapshot *topology.Snapshot, hosts []topology.HostName, also ...fleet.VMID) (*topology.Snapshot, error) {
	*r.read = append(*r.read, hosts...)
	return r.cloner.Refresh(ctx, snapshot, hosts, also...)
}

// TestProposeAwaitsNoCloneForever checks that Propose stops waiting for clones that do not
// end, with an error that names each guest.
func TestProposeAwaitsNoCloneForever(t *testing.T) {
	t.Parallel()
	making := func(id int, lock string) topology.Guest {
		return topology.Guest{VMID: id, Kind: topology.GuestVM, Lock: lock}
	}
	now := snapshot(making(2000, "clone"), making(2001, "create"))
	asked := 0
	var said []string
	clock := clocktesting.NewFakeClock(time.Now())
	s := newScaler(t, func(c *scaler.Config) {
		c.Clock = clock
		c.Regions[0].WaitDelay = 40 * time.Minute
		c.Regions[0].Live = cloner{live: live{now}, asked: &asked, ends: 100, after: now, clock: clock}
		c.Progress = func(host topology.HostID, message string) { said = append(said, host.String()+": "+message) }
	}, vm(pve1, 2000), vm(pve1, 2001))
	_, err := s.Propose(t.Context(), now, nil, nil)
	var stuck *scaler.CloneStuckError
	if !errors.As(err, &stuck) || asked != 2 {
		t.Fatalf("asked %d times, want 2: %v", asked, err)
	}
	for _, want := range []string{"guest 2000 on lab/pve-1 is still locked (clone) after 40m0s", "qm unlock 2000", "guest 2001 on lab/pve-1 is still locked (create)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if len(said) != 2 || !strings.Contains(said[0], "pve-1: waiting for guest 2000") || !strings.Contains(said[1], "guest 2001") {
		t.Errorf("said %q", said)
	}
}
