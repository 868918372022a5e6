package scaler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// reading is the desired state and the recent history of a fleet, as read from its store.
// Each change is based on one reading.
type reading struct {
	fleet    fleet.Fleet
	files    generator.Files
	revision store.Revision
	// recent are the latest changes that this installation recorded, oldest first, and
	// last is the ID of the latest change by anyone.
	recent []audit.Entry
	last   string
	// unverified is set if other installations recorded changes after the last one in
	// recent: what they began, and on which host, is unknown.
	unverified bool
	// open is the unfinished work by host.
	open map[topology.HostID]audit.Open
	// rotations are the VMID rotations.
	rotations rotations
	// busy are the hosts that must not be changed now: this process is applying a change to
	// them or, in a Writer, they wait for a clone or after a failure.
	busy map[topology.HostID]bool
	// quiet marks the hosts whose files and Proxmox differ although a recent plan found
	// nothing to do. They are planned only for requested changes.
	quiet map[topology.HostID]bool
	// updating marks the hosts where updates in place that are unfinished wait.
	updating map[topology.HostID]bool
	// removing marks the hosts where the retry of removals waits.
	removing map[topology.HostID]bool
	// gathering marks the hosts whose removals wait for further removals.
	gathering map[topology.HostID]bool
	// done are the hosts that succeeded in changes that continue on other hosts.
	done map[hostPart]bool
}

// hostPart is a host's part in a change.
type hostPart struct {
	change string
	host   topology.HostID
}

// rotations are the VMID rotations by region, and by the name of a class's range: see
// fleet.VMIDRange.Rotation.
type rotations map[topology.RegionName]fleet.Rotation

const (
	// recently is the minimum period for which the history is read for a change.
	recently = 24 * time.Hour
	// clockSkew is how far the clocks of two machines may differ: other installations'
	// records that are further in the future are ignored.
	clockSkew = 5 * time.Minute
)

// read reads the fleet and its recent history.
func (s *Scaler) read(ctx context.Context) (*reading, error) {
	// Copy what is in progress first: a change that ends while the history is read then
	// still counts as in progress.
	r := &reading{}
	s.mu.Lock()
	r.busy = maps.Clone(s.busy)
	r.done = maps.Clone(s.done)
	s.mu.Unlock()

	var err error
	if r.files, r.revision, err = s.config.Store.Read(ctx); err != nil {
		return nil, err
	}
	since := max(recently, time.Duration(s.config.Rules.Limits.WindowSeconds)*time.Second)
	history, err := s.config.Store.History(ctx, s.config.Clock.Now().Add(-since))
	if err != nil {
		return nil, err
	}
	r.recent = verified(history)
	r.last = lastOf(history)

	if r.fleet, err = s.parse(r.files); err != nil {
		return nil, err
	}
	r.unverified = s.changedByOthers(history)
	r.open = s.unfinishedWork(r)
	// Omit hosts without VMs and unfinished work whose region is not configured.
	r.fleet.Hosts = slices.DeleteFunc(r.fleet.Hosts, func(host topology.HostID) bool {
		_, unfinished := r.open[host]
		return !unfinished && !s.configured(host.Region) &&
			!slices.ContainsFunc(r.fleet.VMs, func(vm fleet.VM) bool { return vm.Host == host })
	})
	r.rotations = s.readRotations(r)
	return r, nil
}

// parse returns the desired state in files of the fleet, with the settings of the
// configuration.
func (s *Scaler) parse(files generator.Files) (f fleet.Fleet, err error) {
	f.ClusterID = s.config.ClusterID
	if len(files) > 0 {
		// If people revert the change that created the very first VM, the revert deletes the
		// file with the cluster ID; the configuration then provides it.
		s.configure(&f)
		whole, err := s.config.Release.Render(f)
		if err == nil {
			maps.Copy(whole, files)
			f, err = s.config.Release.Parse(whole)
		}
		if err != nil {
			return f, fmt.Errorf("reading the fleet: %w", err)
		}
	}
	if f.ClusterID != s.config.ClusterID {
		return f, fmt.Errorf("fleet %s belongs to cluster %q, but the configuration is for cluster %q: give each cluster its own fleet (fleet in numaform.yaml)",
			s.config.Dir, f.ClusterID, s.config.ClusterID)
	}
	s.configure(&f)
	return f, nil
}

// configure sets backend, regions and endpoints from the configuration.
func (s *Scaler) configure(f *fleet.Fleet) {
	f.Backend = s.config.Backend
	f.Regions = nil
	for _, region := range s.config.Regions {
		f.Regions = append(f.Regions, fleet.Region{Name: region.Name, Endpoint: region.Endpoint, Insecure: region.Insecure})
	}
	f.Sort()
}

func (s *Scaler) configured(name topology.RegionName) bool {
	return slices.ContainsFunc(s.config.Regions, func(r Region) bool { return r.Name == name })
}

// unfinishedWork returns the unfinished work by host. If other installations recorded
// changes that cannot be verified, every host may have some: each is planned completely,
// as after a crash.
func (s *Scaler) unfinishedWork(r *reading) map[topology.HostID]audit.Open {
	found := map[topology.HostID]audit.Open{}
	if len(r.recent) > 0 {
		newest := &r.recent[len(r.recent)-1]
		for _, open := range newest.Change.Open {
			// An earlier change that was in progress when the newest began may have ended since.
			id := cmp.Or(open.Change, newest.Change.ID)
			i := slices.IndexFunc(r.recent, func(e audit.Entry) bool { return e.Change.ID == id })
			ended := succeededOn(newest, open.Host) || r.done[hostPart{id, open.Host}] || i >= 0 && succeededOn(&r.recent[i], open.Host)
			if open, remains := open.Left(ended); remains {
				found[open.Host] = open
			}
		}
	}
	if !r.unverified {
		return found
	}
	for _, host := range r.fleet.AllHosts() {
		if s.configured(host.Region) {
			open, known := found[host]
			open.Host, open.Whole = host, known
			found[host] = open
		}
	}
	return found
}

// succeededOn reports whether a change has ended successfully on a host.
func succeededOn(entry *audit.Entry, host topology.HostID) bool {
	result := entry.Result()
	return result != nil && slices.ContainsFunc(result.Hosts, func(e audit.Ended) bool { return e.Host == host && e.Error == "" })
}

// readRotations returns the VMID rotations: from the history, and for ranges that the
// history does not contain, from the fleet's VMs.
func (s *Scaler) readRotations(r *reading) rotations {
	found := rotations{}
	for i := range r.recent {
		for region, rotation := range r.recent[i].Change.Rotations {
			if known, ok := found[region]; !ok || rotation.Compare(known) > 0 {
				found[region] = rotation
			}
		}
	}
	unknown := slices.DeleteFunc(slices.Clone(r.fleet.VMs), func(vm fleet.VM) bool {
		_, known := found[vm.VMIDs.Rotation(vm.Host.Region)]
		return known
	})
	s.advance(found, unknown)
	return found
}

// advance advances the rotations past the VMIDs of VMs.
func (s *Scaler) advance(r rotations, vms []fleet.VM) {
	for i := range vms {
		region, bounds := vms[i].Host.Region, vms[i].VMIDs
		name := bounds.Rotation(region)
		if name == region {
			bounds = s.region(region).VMIDs
		}
		if bounds.Contains(vms[i].VMID) {
			r[name] = r[name].Past(vms[i].VMID)
		}
	}
}

// Fleet returns the desired state from the files. A fleet without files is empty and has
// the regions of the configuration.
func (s *Scaler) Fleet(ctx context.Context) (fleet.Fleet, generator.Files, error) {
	r, err := s.read(ctx)
	if err != nil {
		return fleet.Fleet{}, nil, err
	}
	return r.fleet, r.files, nil
}

// History returns the changes of the fleet that began at or after since, oldest first,
// including unverified ones: see Entry.Verified. The zero time means all.
func (s *Scaler) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	return s.config.Store.History(ctx, since)
}

// Records are evidence only if this installation wrote them, because anyone with write
// access to the fleet's store can add and change records. Decisions never depend on the
// content of records that cannot be verified. Everything that such records could describe
// can be found in the fleet's files, the states and Proxmox, at the cost of a plan of
// every host.

// verified returns the entries that this installation recorded.
func verified(entries []audit.Entry) []audit.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e audit.Entry) bool { return !e.Verified })
}

// verifiedHistory returns all changes that this installation recorded, oldest first.
func (s *Scaler) verifiedHistory(ctx context.Context) ([]audit.Entry, error) {
	entries, err := s.config.Store.History(ctx, time.Time{})
	return verified(entries), err
}

// changedByOthers reports whether other installations recorded changes after this
// installation's last one, and sends one notice for the latest of them. It ignores
// records from the future, because such a record would remain the latest forever.
func (s *Scaler) changedByOthers(history []audit.Entry) bool {
	var last time.Time
	for i := range history {
		if history[i].Verified {
			last = history[i].Change.Time
		}
	}
	until := s.config.Clock.Now().Add(clockSkew)
	others := slices.DeleteFunc(slices.Clone(history), func(e audit.Entry) bool {
		return e.Verified || !e.Change.Time.After(last) || e.Change.Time.After(until)
	})
	if len(others) == 0 {
		return false
	}

	latest := lastOf(others)
	s.mu.Lock()
	known := s.noticed == latest
	s.noticed = latest
	s.mu.Unlock()
	if !known {
		s.config.Notice(fmt.Sprintf("after this installation's own last change, the history contains %s that it did not record, the latest %s: "+
			"numaform does not trust such changes and plans every host; if another machine also changes this fleet, give both the same key "+
			"(history.key_file in numaform.yaml); `numaform history` shows such changes as unverified", topology.Count(len(others), "change"), latest))
	}
	return true
}

// lastOf returns the ID of the newest change, or "".
func lastOf(entries []audit.Entry) string {
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].Change.ID
}
