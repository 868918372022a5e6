package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/topology"
)

// DriftClass says how a VM differs from its file, and so what can be done about it.
type DriftClass string

// The classes of drift. Nothing of any of them is ever mended unasked.
const (
	// DriftNone: the VM is as its file says.
	DriftNone DriftClass = "in sync"
	// DriftRepairable: an update in place, which the running VM does not notice,
	// makes it what its file says.
	DriftRepairable DriftClass = "repairable"
	// DriftReplace: what the VM is made of differs. It is never replaced unasked.
	DriftReplace DriftClass = "needs replacement"
	// DriftForeign: someone took the VM over, or the line by which it is known.
	DriftForeign DriftClass = "foreign edit"
	// DriftVanished: the file wants the VM, and Proxmox does not have it.
	DriftVanished DriftClass = "vanished"
	// DriftMoved: the VM runs on another host than its file says.
	DriftMoved DriftClass = "moved"
	// DriftOutside: the VM exists and the state does not hold it as it should.
	DriftOutside DriftClass = "not in the state"
	// DriftStray: a guest carries the fleet's marker and no file wants it.
	DriftStray DriftClass = "stray"
	// DriftUnknown: nobody can tell now.
	DriftUnknown DriftClass = "unknown"
)

// DriftDifference is one attribute that is not as the file says. Neither value is
// ever a secret.
type DriftDifference struct {
	Attribute string `json:"attribute"`
	File      string `json:"file"`
	Proxmox   string `json:"proxmox"`
}

// VMDrift is how one VM differs from its file.
type VMDrift struct {
	// VM is as its file says. Of a stray only name, VMID, key and host are known.
	VM    fleet.VM
	Class DriftClass
	// Host is where the VM is now; the zero value if it is nowhere.
	Host        topology.HostID
	Differences []DriftDifference
	// Repairable tells a VM of which an update in place takes all differences back;
	// one that moved may be.
	Repairable bool
	// Notes are what else a person should know.
	Notes []string
	// Advice says what to do; empty if there is nothing to do.
	Advice string
}

// ShardDrift is the drift of one host's VMs.
type ShardDrift struct {
	Shard fleet.Shard
	// VMs are all of the shard's, in the order of their VMIDs.
	VMs []VMDrift
	// Err is why the shard could not be planned; then only what Proxmox lists is
	// known of its VMs.
	Err error
}

// Clean reports whether nothing of the shard needs to be looked at.
func (d *ShardDrift) Clean() bool {
	return d.Err == nil && !slices.ContainsFunc(d.VMs, func(vm VMDrift) bool { return vm.Class != DriftNone })
}

// Drift compares every VM of the fleet with Proxmox: it plans each host with a full
// refresh, in a directory of its own and without the state's lock, and changes
// neither the fleet nor a state nor Proxmox. A shard that cannot be planned has an
// Err; the error is for what stops all of them.
func (s *Scaler) Drift(ctx context.Context, snapshot *topology.Snapshot) (found []ShardDrift, err error) {
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	change, err := s.newChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	if err := s.render(change); err != nil {
		return nil, err
	}
	temporary, err := scratch.New("drift")
	if err != nil {
		return nil, fmt.Errorf("looking for drift: %w", err)
	}
	defer func() { err = errors.Join(err, temporary.Remove()) }()
	at, err := dryPlaces(temporary.Path())
	if err != nil {
		return nil, fmt.Errorf("looking for drift: %w", err)
	}
	if err := s.writeCAs(at.work); err != nil {
		return nil, err
	}
	shards := driftShards(change)
	found = make([]ShardDrift, len(shards))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelShards)
	for i, shard := range shards {
		group.Go(func() error {
			found[i] = s.driftOf(ctx, change, at, shard)
			return ctx.Err()
		})
	}
	return found, group.Wait()
}

// driftShards returns the hosts that have VMs of the fleet, by its files or by
// Proxmox, sorted.
func driftShards(change *Change) []fleet.Shard {
	shards := change.After.Shards()
	for _, guest := range change.unwanted() {
		shards = append(shards, guest.host)
	}
	slices.SortFunc(shards, topology.HostID.Compare)
	return slices.Compact(shards)
}

// driftOf compares the VMs of one shard.
func (s *Scaler) driftOf(ctx context.Context, change *Change, at places, shard fleet.Shard) ShardDrift {
	found := ShardDrift{Shard: shard}
	if host := change.Snapshot.Host(shard); host == nil || !host.Online || host.Problem != "" {
		found.Err = &HostDownError{Host: shard, Problem: problem(host)}
	}
	look := newLooker(change)
	found.Err = errors.Join(found.Err, s.compare(ctx, change, at, shard, look))
	for _, vm := range byAddress(change.After.VMs, shard) {
		found.VMs = append(found.VMs, look.at(vm))
	}
	for _, guest := range change.unwanted() {
		if guest.host == shard {
			found.VMs = append(found.VMs, stray(guest))
		}
	}
	slices.SortFunc(found.VMs, func(a, b VMDrift) int { return cmp.Compare(a.VM.VMID, b.VM.VMID) })
	return found
}

// stray tells of a guest that carries the fleet's marker and that no file wants.
func stray(guest located) VMDrift {
	return VMDrift{
		VM: fleet.VM{
			Name: guest.Name, VMID: fleet.VMID(guest.VMID), Key: fleet.Key(guest.Key),
			Placement: fleet.Placement{Host: guest.host},
		},
		Class: DriftStray, Host: guest.host,
		Advice: "it is left alone: restore its file from version control, or destroy it by hand",
	}
}

// DriftClasses returns all classes, the harmless ones first.
func DriftClasses() []DriftClass {
	return []DriftClass{
		DriftNone, DriftRepairable, DriftMoved, DriftReplace, DriftForeign, DriftVanished, DriftOutside, DriftStray, DriftUnknown,
	}
}
