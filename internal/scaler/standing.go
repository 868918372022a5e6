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

// standing is a fleet as its store has it: what is wanted, and what has been done.
type standing struct {
	fleet    fleet.Fleet
	files    generator.Files
	revision store.Revision
	// recent are the latest changes that this installation recorded, oldest first, and
	// last is the ID of the latest that anyone did.
	recent []audit.Entry
	last   string
	// unverified tells that others recorded changes after the last one of recent: what
	// they began on which host is not known.
	unverified bool
	// rotations are how far VMIDs were given out.
	rotations rotations
	// busy are the shards that this process applies a change to now.
	busy map[fleet.Shard]bool
	// quiet are shards that look unfinished, and where there was nothing to do.
	quiet map[fleet.Shard]bool
	// done are shards that ended well in changes whose other shards go on.
	done map[endedShard]bool
}

// recently is how far back the history is read for a change, at least.
const recently = 24 * time.Hour

// stand reads the fleet and its recent history.
func (s *Scaler) stand(ctx context.Context) (*standing, error) {
	// What runs is asked first: what ends while the history is read counts as running.
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

// leaveOut drops hosts without VMs whose region left the configuration, unless
// something is under way there: nothing can be done on them any more.
func (s *Scaler) leaveOut(now *standing) {
	open := now.open()
	now.fleet.Hosts = slices.DeleteFunc(now.fleet.Hosts, func(host fleet.Shard) bool {
		_, unfinished := open[host]
		return !unfinished &&
			!slices.ContainsFunc(s.config.Regions, func(r Region) bool { return r.Name == host.Region }) &&
			!slices.ContainsFunc(now.fleet.VMs, func(vm fleet.VM) bool { return vm.Host == host })
	})
}

// parse reads the fleet's files. People who revert the change that made the first
// VM of all take the file with it that says whose the others are: then it is as
// the configuration says.
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

// open returns what is in progress, by shard. Where others recorded changes that cannot
// be verified, something may be on every host: each is planned in full, as after a crash.
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

// ended reports whether an earlier change that was under way on a host beside the
// newest one has come to a good end there.
func (n *standing) ended(open audit.Open) bool {
	id := cmp.Or(open.Change, n.recent[len(n.recent)-1].Change.ID)
	if n.done[endedShard{id, open.Host}] {
		return true
	}
	i := slices.IndexFunc(n.recent, func(e audit.Entry) bool { return e.Change.ID == id })
	return i >= 0 && wellOn(&n.recent[i], open.Host)
}

// wellOn reports whether a change has come to a good end on a host.
func wellOn(entry *audit.Entry, shard fleet.Shard) bool {
	result := entry.Result()
	return result != nil && slices.ContainsFunc(result.Shards, func(e audit.Ended) bool { return e.Host == shard && e.Error == "" })
}

// Fleet returns the desired state as its files say. A fleet that has no files
// yet is empty and has the regions of the configuration.
func (s *Scaler) Fleet(ctx context.Context) (fleet.Fleet, generator.Files, error) {
	now, err := s.stand(ctx)
	if err != nil {
		return fleet.Fleet{}, nil, err
	}
	return now.fleet, now.files, nil
}

// History returns the changes of the fleet that began at or after since, oldest
// first, whoever recorded them: see Verified of each. The zero time means all.
func (s *Scaler) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	return s.config.Store.History(ctx, since)
}

// configure lets the configuration decide about backend, regions and endpoints.
func (s *Scaler) configure(f *fleet.Fleet) {
	f.Backend, f.Regions = s.config.Backend, nil
	for _, region := range s.config.Regions {
		f.Regions = append(f.Regions, fleet.Region{Name: region.Name, Endpoint: region.Endpoint, Insecure: region.Insecure})
	}
	f.Sort()
}
