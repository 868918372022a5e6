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
)

// standing is a fleet as its store has it: the desired state, and the history.
type standing struct {
	fleet    fleet.Fleet
	files    generator.Files
	revision store.Revision
	// recent are the latest changes that this installation recorded, oldest first, and
	// last is the ID of the latest change by anyone.
	recent []audit.Entry
	last   string
	// unverified is set if others recorded changes after the last one in recent: what
	// they began, and on which host, is unknown.
	unverified bool
	// rotations are the VMID rotations.
	rotations rotations
	// busy are the hosts to which this process is applying a change.
	busy map[fleet.Shard]bool
	// quiet are hosts that look unfinished, but where there was nothing to do.
	quiet map[fleet.Shard]bool
	// done are hosts that ended successfully in changes that continue on other hosts.
	done map[endedShard]bool
}

// recently is the minimum period for which the history is read for a change.
const recently = 24 * time.Hour

// stand reads the fleet and its recent history.
func (s *Scaler) stand(ctx context.Context) (*standing, error) {
	// Read the running changes first: one that ends while the history is read then counts
	// as running.
	busy, done := s.running.now()
	files, revision, err := s.config.Store.Read(ctx)
	if err != nil {
		return nil, err
	}
	now := &standing{busy: busy, done: done, files: files, revision: revision, fleet: fleet.Fleet{ClusterID: s.config.ClusterID}}
	since := max(recently, time.Duration(s.config.Rules.Limits.WindowSeconds)*time.Second)
	history, err := s.config.Store.History(ctx, s.config.Clock.Now().Add(-since))
	if err != nil {
		return nil, err
	}
	now.recent, now.last = verified(history), lastOf(history)
	if len(files) > 0 {
		if now.fleet, err = s.parse(files); err != nil {
			return nil, fmt.Errorf("reading the fleet: %w", err)
		}
	}
	if now.fleet.ClusterID != s.config.ClusterID {
		return nil, fmt.Errorf("fleet %s belongs to cluster %q, the configuration says %q: give each cluster a fleet of its own, see fleet in numaform.yaml",
			s.config.Dir, now.fleet.ClusterID, s.config.ClusterID)
	}
	s.configure(&now.fleet)
	if others := s.later(history); len(others) > 0 {
		now.unverified = true
		s.noteOthers(others)
	}
	s.leaveOut(now)
	now.rotations = s.rotations(&now.fleet, now.recent)
	return now, nil
}

// leaveOut drops hosts without VMs whose region was removed from the configuration,
// because nothing can be done on them any more. It keeps hosts with unfinished work.
func (s *Scaler) leaveOut(now *standing) {
	open := now.open()
	now.fleet.Hosts = slices.DeleteFunc(now.fleet.Hosts, func(host fleet.Shard) bool {
		_, unfinished := open[host]
		return !unfinished &&
			!slices.ContainsFunc(s.config.Regions, func(r Region) bool { return r.Name == host.Region }) &&
			!slices.ContainsFunc(now.fleet.VMs, func(vm fleet.VM) bool { return vm.Host == host })
	})
}

// parse parses the fleet's files. If people revert the change that created the very first
// VM, the revert deletes the file with the cluster ID; the configuration then provides
// it.
func (s *Scaler) parse(files generator.Files) (fleet.Fleet, error) {
	ours := fleet.Fleet{ClusterID: s.config.ClusterID}
	s.configure(&ours)
	whole, err := s.config.Release.Render(ours)
	if err != nil {
		return fleet.Fleet{}, err
	}
	maps.Copy(whole, files)
	return s.config.Release.Parse(whole)
}

// open returns the unfinished work by host. If others recorded changes that cannot be
// verified, every host may have some: each is planned completely, as after a crash.
func (n *standing) open() map[fleet.Shard]audit.Open {
	found := map[fleet.Shard]audit.Open{}
	if len(n.recent) > 0 {
		for _, open := range n.recent[len(n.recent)-1].Unfinished() {
			if !n.ended(open) {
				found[open.Host] = open
			}
		}
	}
	if !n.unverified {
		return found
	}
	for _, shard := range n.fleet.Shards() {
		configured := slices.ContainsFunc(n.fleet.Regions, func(r fleet.Region) bool { return r.Name == shard.Region })
		if _, known := found[shard]; !known && configured {
			found[shard] = audit.Open{Host: shard}
		}
	}
	return found
}

// ended reports whether an earlier change that ran on a host concurrently with the newest
// one has ended there successfully.
func (n *standing) ended(open audit.Open) bool {
	id := cmp.Or(open.Change, n.recent[len(n.recent)-1].Change.ID)
	if n.done[endedShard{id, open.Host}] {
		return true
	}
	i := slices.IndexFunc(n.recent, func(e audit.Entry) bool { return e.Change.ID == id })
	return i >= 0 && wellOn(&n.recent[i], open.Host)
}

// wellOn reports whether a change has ended successfully on a host.
func wellOn(entry *audit.Entry, shard fleet.Shard) bool {
	result := entry.Result()
	return result != nil && slices.ContainsFunc(result.Shards, func(e audit.Ended) bool { return e.Host == shard && e.Error == "" })
}

// Fleet returns the desired state from the files. A fleet without files is empty and has
// the regions of the configuration.
func (s *Scaler) Fleet(ctx context.Context) (fleet.Fleet, generator.Files, error) {
	now, err := s.stand(ctx)
	if err != nil {
		return fleet.Fleet{}, nil, err
	}
	return now.fleet, now.files, nil
}

// History returns the changes of the fleet that began at or after since, oldest first,
// including unverified ones: see Verified of each. The zero time means all.
func (s *Scaler) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	return s.config.Store.History(ctx, since)
}

// configure sets backend, regions and endpoints from the configuration.
func (s *Scaler) configure(f *fleet.Fleet) {
	f.Backend, f.Regions = s.config.Backend, nil
	for _, region := range s.config.Regions {
		f.Regions = append(f.Regions, fleet.Region{Name: region.Name, Endpoint: region.Endpoint, Insecure: region.Insecure})
	}
	f.Sort()
}
