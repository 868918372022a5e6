package scaler

import (
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
)

// limit runs the guard's limits on all plans of a change together, with the recent
// changes.
func (s *Scaler) limit(change *Change, plans []ShardPlan) {
	var parts []guard.HostIntent
	for i := range plans {
		if plans[i].Err == nil {
			parts = append(parts, guard.HostIntent{Host: plans[i].Shard, Intent: plans[i].Intent})
		}
	}
	verdict := guard.CheckLimits(parts, events(change.from, s.config.Clock.Now()), s.config.Rules.Limits)
	for i := range plans {
		if plans[i].Err == nil {
			plans[i].Verdict = plans[i].Verdict.And(verdict.On(plans[i].Shard))
		}
	}
}

// events returns the earlier changes in the guard's form.
func events(from *standing, now time.Time) []guard.Event {
	var found []guard.Event
	for i := range from.recent {
		entry := &from.recent[i]
		failures := map[fleet.Shard]bool{}
		for _, open := range entry.Unfinished() {
			// An outcome that this installation did not write proves nothing, not even
			// that the change died.
			replaced := entry.Outcome != nil && entry.Result() == nil
			failures[open.Host] = !replaced && (entry.Result() != nil || !from.goesOn(i, open.Host))
		}
		for _, shard := range entry.Change.Shards {
			base := guard.Event{
				Change: entry.Change.ID, AgeSeconds: int64(now.Sub(entry.Change.Time) / time.Second),
				Host: shard.Host, Failed: failures[shard.Host],
			}
			found = append(found, byPool(base, shard)...)
		}
	}
	return found
}

// goesOn reports whether a change without an outcome has not failed on a host: it is
// being applied now, ended successfully, or died and was completed by a later change.
func (n *standing) goesOn(i int, shard fleet.Shard) bool {
	return n.busy[shard] || n.done[endedShard{n.recent[i].Change.ID, shard}] ||
		slices.ContainsFunc(n.recent[i+1:], func(later audit.Entry) bool { return wellOn(&later, shard) })
}

// byPool splits what happened on a host by pool. It omits events without creates and
// deletes, however they ended.
func byPool(base guard.Event, shard audit.Shard) []guard.Event {
	pools := map[string]guard.Amount{}
	for _, target := range shard.Create {
		amount := pools[target.Pool]
		amount.Creates++
		pools[target.Pool] = amount
	}
	for _, target := range shard.Delete {
		amount := pools[target.Pool]
		amount.Deletes++
		pools[target.Pool] = amount
	}
	var found []guard.Event
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		event := base
		event.Pool, event.Amount = pool, pools[pool]
		found = append(found, event)
	}
	return found
}
