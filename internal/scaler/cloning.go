package scaler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// clonePoll is how often it is asked whether clones have ended.
const clonePoll = 500 * time.Millisecond

// inTheMaking reports whether a guest may still be made: a clone has neither name
// nor marker before it is complete, so that nobody can say whose it is.
func (l located) inTheMaking() bool {
	return l.Key == "" && !l.unread && (l.Lock == "clone" || l.Lock == "create")
}

// awaitClones returns the snapshot once the clones have ended that hold VMIDs of
// the fleet: an earlier run may have died and left them. A clone that is locked
// though its host clones nothing has failed, and is as anybody's guest.
func (s *Scaler) awaitClones(ctx context.Context, from *standing, snapshot *topology.Snapshot) (*topology.Snapshot, error) {
	for {
		busy := false
		for _, host := range cloning(from, snapshot) {
			live := s.region(host.Region).Live
			if live == nil {
				continue
			}
			s.config.Progress(host, "waiting for a clone that an earlier run began")
			clones, err := live.Cloning(ctx, host.Host)
			if err == nil {
				snapshot, err = live.Refresh(ctx, snapshot, []topology.HostName{host.Host})
			}
			if err != nil {
				return nil, fmt.Errorf("waiting for clones on %s: %w", host, err)
			}
			busy = busy || clones
		}
		if !busy {
			return snapshot, nil
		}
		if err := wait(ctx, clonePoll); err != nil {
			return nil, fmt.Errorf("waiting for clones: %w", err)
		}
	}
}

// failedClones tells of clones that were left locked, and whose VMs got other
// numbers.
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

// cloning returns the hosts with a guest in the making that has a VMID of the
// fleet, sorted.
func cloning(from *standing, snapshot *topology.Snapshot) []fleet.Shard {
	guests := locate(snapshot)
	vms := slices.Clone(from.fleet.VMs)
	for _, open := range from.open() {
		vms = append(vms, open.Removed...)
	}
	var hosts []fleet.Shard
	for _, vm := range vms {
		if guest, exists := guests[guestID{vm.Host.Region, vm.VMID}]; exists && guest.inTheMaking() {
			hosts = append(hosts, guest.host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.Compact(hosts)
}

// wait waits, or returns why it must not.
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
