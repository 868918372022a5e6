package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// clonePoll is the interval between checks whether clones have ended.
const clonePoll = 500 * time.Millisecond

// inTheMaking reports whether a guest may still be being created: a clone has no name or
// marker until it is complete, so its owner is unknown.
func (l located) inTheMaking() bool {
	return l.Key == "" && !l.unread && (l.Lock == "clone" || l.Lock == "create")
}

// underWay reports whether a guest is being created or destroyed: its final form is known
// only when that has ended.
func (l located) underWay() bool {
	return l.inTheMaking() || (!l.unread && l.Lock == "destroyed")
}

// CloneStuckError reports that the creation or destruction of a guest with one of the
// fleet's VMIDs takes longer than an apply may take.
type CloneStuckError struct {
	VMID   int
	Host   topology.HostID
	Lock   string
	Waited time.Duration
}

func (e *CloneStuckError) Error() string {
	return fmt.Sprintf("guest %d on %s is still locked (%s) after %s, and its host still clones or destroys guests: look at its task there; "+
		"if nothing is done to the guest any more: qm unlock %d; then run again", e.VMID, e.Host, e.Lock, e.Waited, e.VMID)
}

// awaitClones waits until all clones and destroys of guests with VMIDs of the fleet have
// ended, and returns the snapshot from then. An earlier run may have died and left them.
// A clone that is locked on a host without clone tasks has failed, and counts as
// unmanaged. awaitClones waits as long as an apply may take for one VM, and then returns
// a CloneStuckError.
func (s *Scaler) awaitClones(ctx context.Context, from *standing, snapshot *topology.Snapshot) (*topology.Snapshot, error) {
	told := map[guestID]bool{}
	for began := s.config.Clock.Now(); ; {
		making := cloning(from, snapshot)
		for _, guest := range making {
			if id := (guestID{guest.host.Region, fleet.VMID(guest.VMID)}); !told[id] && s.region(guest.host.Region).Live != nil {
				told[id] = true
				s.config.Progress(guest.host, fmt.Sprintf("waiting for guest %d, which is locked (%s): an earlier run may have begun that",
					guest.VMID, guest.Lock))
			}
		}
		busy, now, err := s.lookAtClones(ctx, making, snapshot)
		if err != nil {
			return nil, err
		}
		if snapshot = now; len(busy) == 0 {
			return snapshot, nil
		}
		if err := s.stuck(busy, cloning(from, snapshot), s.config.Clock.Since(began)); err != nil {
			return nil, err
		}
		if err := wait(ctx, clonePoll); err != nil {
			return nil, fmt.Errorf("waiting for clones: %w", err)
		}
	}
}

// lookAtClones reads the hosts of guests in creation again, and returns the ones that are
// still cloning.
func (s *Scaler) lookAtClones(
	ctx context.Context, making []located, snapshot *topology.Snapshot,
) (busy []fleet.Shard, now *topology.Snapshot, err error) {
	var hosts []fleet.Shard
	for _, guest := range making {
		hosts = append(hosts, guest.host)
	}
	for _, host := range slices.Compact(hosts) {
		live := s.region(host.Region).Live
		if live == nil {
			continue
		}
		clones, err := live.Busy(ctx, host.Host)
		if err == nil {
			snapshot, err = live.Refresh(ctx, snapshot, []topology.HostName{host.Host})
		}
		if err != nil {
			return nil, nil, fmt.Errorf("waiting for clones on %s: %w", host, err)
		}
		if clones {
			busy = append(busy, host)
		}
	}
	return busy, snapshot, nil
}

// stuck returns an error for each guest on the busy hosts that has exceeded its region's
// timeout.
func (s *Scaler) stuck(busy []fleet.Shard, making []located, waited time.Duration) error {
	var errs []error
	for _, guest := range making {
		bound := cmp.Or(s.region(guest.host.Region).WaitDelay, state.DefaultWaitDelay)
		if waited >= bound && slices.Contains(busy, guest.host) {
			errs = append(errs, &CloneStuckError{VMID: guest.VMID, Host: guest.host, Lock: guest.Lock, Waited: bound})
		}
	}
	return errors.Join(errs...)
}

// failedClones returns warnings about clones that remained locked and whose VMs got other
// VMIDs.
func (c *Change) failedClones() []string {
	guests := locate(c.Snapshot)
	var warnings []string
	for _, vm := range c.Renumbered {
		if guest := guests[guestID{vm.Host.Region, vm.VMID}]; guest.inTheMaking() {
			warnings = append(warnings, fmt.Sprintf("guest %d on %s is locked (%s) by a task that failed, it was probably to be %s, which is made under another number: "+
				"look at it, and destroy it: qm unlock %d && qm destroy %d --purge", vm.VMID, guest.host, guest.Lock, vm.Name, vm.VMID, vm.VMID))
		}
	}
	return warnings
}

// cloning returns the guests with a VMID of the fleet that are being created or
// destroyed, sorted by host.
func cloning(from *standing, snapshot *topology.Snapshot) []located {
	guests := locate(snapshot)
	vms := slices.Clone(from.fleet.VMs)
	for _, open := range from.open() {
		vms = append(vms, open.Removed...)
	}
	making := map[guestID]located{}
	for _, vm := range vms {
		id := guestID{vm.Host.Region, vm.VMID}
		if guest, exists := guests[id]; exists && guest.underWay() && !from.busy[guest.host] {
			making[id] = guest
		}
	}
	return slices.SortedFunc(maps.Values(making), func(a, b located) int {
		return cmp.Or(a.host.Compare(b.host), cmp.Compare(a.VMID, b.VMID))
	})
}

// wait waits for d, or returns the context's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
