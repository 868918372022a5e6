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

// DriftClass says how a VM differs from its file, and so which remedy applies.
type DriftClass string

// The classes of drift. None of them is ever fixed without a request.
const (
	// DriftNone means that the VM matches its file.
	DriftNone DriftClass = "in sync"
	// DriftRepairable means that an update in place, without effect on the running VM,
	// makes it match its file.
	DriftRepairable DriftClass = "repairable"
	// DriftReplace means that the VM itself differs. It is never replaced without a
	// request.
	DriftReplace DriftClass = "needs replacement"
	// DriftForeign means that another client took over the VM or removed its marker.
	DriftForeign DriftClass = "foreign edit"
	// DriftVanished means that the VM has a file but does not exist in Proxmox.
	DriftVanished DriftClass = "vanished"
	// DriftMoved means that the VM runs on another host than its file says.
	DriftMoved DriftClass = "moved"
	// DriftOutside means that the VM exists but is missing or incorrect in the state.
	DriftOutside DriftClass = "not in the state"
	// DriftStray means that a guest carries the fleet's marker but has no file.
	DriftStray DriftClass = "stray"
	// DriftUnknown means that the drift cannot be determined now.
	DriftUnknown DriftClass = "unknown"
)

// DriftDifference is one attribute that differs from the file. Neither value is ever a
// secret.
type DriftDifference struct {
	Attribute string `json:"attribute"`
	File      string `json:"file"`
	Proxmox   string `json:"proxmox"`
}

// VMDrift is how one VM differs from its file.
type VMDrift struct {
	// VM is the VM in the file. For a stray, only name, VMID, key and host are set.
	VM    fleet.VM
	Class DriftClass
	// Host is the VM's current host; the zero value if it has none.
	Host        topology.HostID
	Differences []DriftDifference
	// Repairable is set if an update in place fixes all differences. This can be true for
	// a moved VM.
	Repairable bool
	// Notes are additional information for a person.
	Notes []string
	// Advice says what to do; empty if nothing is needed.
	Advice string
}

// ShardDrift is the drift of one host's VMs.
type ShardDrift struct {
	Shard fleet.Shard
	// VMs are the host's VMs, sorted by VMID.
	VMs []VMDrift
	// Err is why the host could not be planned; VMs then contains only what Proxmox
	// lists.
	Err error
}

// Clean reports whether nothing on the host needs attention.
func (d *ShardDrift) Clean() bool {
	return d.Err == nil && !slices.ContainsFunc(d.VMs, func(vm VMDrift) bool { return vm.Class != DriftNone })
}

// Drift compares every VM of the fleet with Proxmox. It plans each host with a full
// refresh, in a separate directory and without the state's lock, and changes neither the
// fleet nor a state nor Proxmox. If a host cannot be planned, its ShardDrift has an Err;
// Drift returns only errors that affect all hosts.
func (s *Scaler) Drift(ctx context.Context, snapshot *topology.Snapshot) (found []ShardDrift, err error) {
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	change, err := s.NewChange(ctx, snapshot)
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

// driftShards returns the hosts that have VMs of the fleet in files or in Proxmox,
// sorted.
func driftShards(change *Change) []fleet.Shard {
	shards := change.After.Shards()
	for _, guest := range change.unwanted() {
		shards = append(shards, guest.host)
	}
	slices.SortFunc(shards, topology.HostID.Compare)
	return slices.Compact(shards)
}

// driftOf compares the VMs of one host.
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

// stray returns the drift of a guest that carries the fleet's marker but has no file.
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
