package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// guestID identifies a guest: VMIDs are unique within a region.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
}

// located is a guest of a snapshot, which must not be changed, and its host.
type located struct {
	*topology.Guest
	host topology.HostID
	// unread is set for a guest of which only the VMID is known, because its host is
	// down: its owner is unknown.
	unread bool
	// home is the host of the VM in the files that has the guest's VMID, for a guest in
	// creation: until its end, the clone of another host's template is on that host.
	home topology.HostID
}

// looksLike reports whether a guest without a marker may still be the VM with that name,
// because people edit descriptions.
func (l located) looksLike(name, clusterID string) bool {
	return l.Key == "" && (l.Name == name || slices.Contains(l.Tags, "numaform-"+clusterID))
}

// unclaimed reports whether a guest has neither a marker nor a tag of numaform.
func (l located) unclaimed() bool {
	return l.Key == "" && !l.unread && !slices.ContainsFunc(l.Tags, func(tag string) bool { return tag == "numaform" || strings.HasPrefix(tag, "numaform-") })
}

// inCreation reports whether a guest may still be in creation: a clone has no name or
// marker until it is complete, so its owner is unknown.
func (l located) inCreation() bool {
	return l.Key == "" && !l.unread && (l.Lock == "clone" || l.Lock == "create")
}

// guestIndex finds the guests of a snapshot by VMID.
type guestIndex struct {
	clusterID string
	guests    map[guestID]located
}

func indexGuests(snapshot *topology.Snapshot, clusterID string) guestIndex {
	size := 0
	for h := range snapshot.Hosts {
		size += len(snapshot.Hosts[h].Guests)
	}
	index := guestIndex{clusterID: clusterID, guests: make(map[guestID]located, size)}
	for h := range snapshot.Hosts {
		host := &snapshot.Hosts[h]
		down := problemOf(host) != ""
		for g := range host.Guests {
			guest := &host.Guests[g]
			index.guests[guestID{host.Region, fleet.VMID(guest.VMID)}] = located{
				Guest: guest, host: host.ID(), unread: guest.Key == "" && down,
			}
		}
	}
	return index
}

// with returns the guest that has a VM's VMID, regardless of its owner, or an empty guest.
func (g guestIndex) with(vm *fleet.VM) (guest located, exists bool) {
	if guest, exists = g.guests[guestID{vm.Host.Region, vm.VMID}]; !exists {
		guest.Guest = &topology.Guest{}
	}
	return guest, exists
}

// is reports whether a guest is the VM: see fleet.VM.IsGuest.
func (g guestIndex) is(guest located, vm *fleet.VM) bool {
	return vm.IsGuest(g.clusterID, guest.host.Region, guest.Guest)
}

// of returns the guest that has a VM's VMID, and whether it provably is that VM.
func (g guestIndex) of(vm *fleet.VM) (guest located, exists bool) {
	guest, exists = g.with(vm)
	return guest, exists && g.is(guest, vm)
}

// clone reports whether a guest is a clone of the VM: it has the VM's marker, but another VMID.
func (g guestIndex) clone(guest located, vm *fleet.VM) bool {
	return guest.ClusterID == g.clusterID && fleet.Key(guest.Key) == vm.Key && !g.is(guest, vm)
}

// mayBe returns why a guest that is not provably the VM may still be it, or nil.
func (g guestIndex) mayBe(guest located, vm *fleet.VM) error {
	switch {
	case guest.unread:
		return &HostDownError{Host: guest.host, Problem: fmt.Sprintf("guest %d on it cannot be read", guest.VMID)}
	case guest.looksLike(vm.Name, g.clusterID):
		return &MarkerLostError{VM: vm.Name, VMID: vm.VMID, Host: guest.host, Marker: markerOf(g.clusterID, vm), Adopted: vm.Adopted()}
	}
	return nil
}

// keys returns the keys of the cluster's guests, including clones.
func (g guestIndex) keys() map[fleet.Key]bool {
	keys := map[fleet.Key]bool{}
	for _, guest := range g.guests {
		if guest.ClusterID == g.clusterID {
			keys[fleet.Key(guest.Key)] = true
		}
	}
	return keys
}

// reused returns the VMs that do not exist and whose VMID belongs to a guest without their
// key. It omits VMs whose guest is on a host that is down, or only lacks the marker: that
// guest may be the VM. It also omits VMs whose marker another guest carries, because a user
// must decide which of the two is the node: see VMIDTakenError.
func (g guestIndex) reused(vms []fleet.VM) []fleet.VM {
	alive := g.keys()
	var lost []fleet.VM
	for i := range vms {
		guest, taken := g.with(&vms[i])
		if taken && !alive[vms[i].Key] && g.mayBe(guest, &vms[i]) == nil {
			lost = append(lost, vms[i])
		}
	}
	return lost
}

// markerOf returns the marker line that identifies the VM.
func markerOf(clusterID string, vm *fleet.VM) string {
	marker := fleet.Marker{ClusterID: clusterID, Key: vm.Key}
	if vm.PinWith == fleet.PinWithHostAgent {
		marker.Pins, marker.Emulator = vm.VCPUPins, vm.Emulator
	}
	return marker.String()
}

// problemOf returns why a host cannot be used now, or "". The host is nil if Proxmox does
// not list it.
func problemOf(host *topology.Host) string {
	switch {
	case host == nil:
		return "Proxmox does not list it"
	case host.Problem != "":
		return host.Problem
	case !host.Online:
		return "it is offline"
	}
	return ""
}

// regionOf returns a region of a snapshot. A region that was not read hides its guests.
func regionOf(snapshot *topology.Snapshot, name topology.RegionName) topology.Region {
	for _, region := range snapshot.Regions {
		if region.Name == name {
			return region
		}
	}
	return topology.Region{Name: name, HidesGuests: true}
}

// clonePoll is the interval between checks whether clones have ended.
const clonePoll = 500 * time.Millisecond

// CloneStuckError reports that the creation or destruction of a guest with one of the
// fleet's VMIDs takes longer than an apply may take.
type CloneStuckError struct {
	VMID   int
	Host   topology.HostID
	Lock   string
	Waited time.Duration
}

func (e *CloneStuckError) Error() string {
	return fmt.Sprintf("guest %d on %s is still locked (%s) after %s, and its host is still cloning or destroying guests: check its task on the host; "+
		"if no task is using the guest, run qm unlock %d; then try again", e.VMID, e.Host, e.Lock, e.Waited, e.VMID)
}

// awaitClones waits until no guest with a VMID of the fleet is being cloned or destroyed,
// and returns a snapshot taken after that. An earlier run may have started these tasks and
// died. A clone that is locked on a host without clone tasks has failed, and counts as
// unmanaged. awaitClones waits as long as an apply can take for one VM, and then returns a
// CloneStuckError.
func (s *Scaler) awaitClones(ctx context.Context, from *reading, snapshot *topology.Snapshot) (*topology.Snapshot, error) {
	reported := map[guestID]bool{}
	began := s.config.Clock.Now()
	for {
		cloning := cloningGuests(from, snapshot)
		for _, guest := range cloning {
			if id := (guestID{guest.host.Region, fleet.VMID(guest.VMID)}); !reported[id] && s.region(guest.host.Region).Live != nil {
				reported[id] = true
				s.config.Progress(guest.host, fmt.Sprintf("waiting for guest %d, which is locked (%s), possibly by an earlier run",
					guest.VMID, guest.Lock))
			}
		}
		busy, now, err := s.refreshCloning(ctx, cloning, snapshot)
		if err != nil {
			return nil, err
		}
		if snapshot = now; len(busy) == 0 {
			return snapshot, nil
		}

		var stuck []error
		for _, guest := range cloningGuests(from, snapshot) {
			limit := cmp.Or(s.region(guest.host.Region).WaitDelay, state.DefaultWaitDelay)
			if s.config.Clock.Since(began) >= limit && slices.Contains(busy, guest.host) {
				stuck = append(stuck, &CloneStuckError{VMID: guest.VMID, Host: guest.host, Lock: guest.Lock, Waited: limit})
			}
		}
		if len(stuck) > 0 {
			return nil, errors.Join(stuck...)
		}
		if err := wait(ctx, clonePoll); err != nil {
			return nil, fmt.Errorf("waiting for clones: %w", err)
		}
	}
}

// refreshCloning reads the hosts of the guests in cloning again. busy are the hosts that
// are still cloning or destroying guests, and the hosts that these guests are for; now is
// the new snapshot.
func (s *Scaler) refreshCloning(
	ctx context.Context, cloning []located, snapshot *topology.Snapshot,
) (busy []topology.HostID, now *topology.Snapshot, err error) {
	var hosts []topology.HostID
	concerned := map[topology.HostID][]topology.HostID{} // by the host of the guest
	for _, guest := range cloning {
		hosts = append(hosts, guest.host)
		for _, host := range []topology.HostID{guest.host, guest.home} {
			if !slices.Contains(concerned[guest.host], host) {
				concerned[guest.host] = append(concerned[guest.host], host)
			}
		}
	}
	for _, host := range slices.Compact(hosts) {
		live := s.region(host.Region).Live
		if live == nil {
			continue
		}
		clones, err := live.Busy(ctx, host.Host)
		if err == nil {
			var read []topology.HostName
			for _, one := range concerned[host] {
				read = append(read, one.Host)
			}
			snapshot, err = live.Refresh(ctx, snapshot, read)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("waiting for clones on %s: %w", host, err)
		}
		if clones {
			busy = append(busy, concerned[host]...)
		}
	}
	return busy, snapshot, nil
}

// cloningGuests returns the guests with a VMID of the fleet that are being created or
// destroyed, sorted by host: their final form is known only when that operation has
// ended.
func cloningGuests(from *reading, snapshot *topology.Snapshot) []located {
	index := indexGuests(snapshot, from.fleet.ClusterID)
	vms := slices.Clone(from.fleet.VMs)
	for _, open := range from.open {
		vms = append(vms, open.Removed...)
	}
	cloning := map[guestID]located{}
	for i := range vms {
		guest, exists := index.with(&vms[i])
		inProgress := guest.inCreation() || (!guest.unread && guest.Lock == "destroyed")
		guest.home = vms[i].Host
		if exists && inProgress && !from.busy[guest.host] && !from.busy[guest.home] {
			cloning[guestID{guest.host.Region, fleet.VMID(guest.VMID)}] = guest
		}
	}
	return slices.SortedFunc(maps.Values(cloning), func(a, b located) int {
		return cmp.Or(a.host.Compare(b.host), cmp.Compare(a.VMID, b.VMID))
	})
}

// wait waits for d. If ctx ends first, it returns the cause.
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
