package guard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Limits define how much may change without approval.
type Limits struct {
	// WindowSeconds is the length of the window in which past changes count.
	WindowSeconds int64 `json:"window_seconds"`
	// PerChange applies to one change; the other amounts apply to the window including
	// the change.
	PerChange Amount `json:"per_change"`
	PerWindow Amount `json:"per_window"`
	PerHost   Amount `json:"per_host"`
	PerPool   Amount `json:"per_pool"`
	// MaxUpdates and MaxImports apply to one change.
	MaxUpdates int `json:"max_updates"`
	MaxImports int `json:"max_imports"`
	// BreakAfter is the threshold of the circuit breaker. After that many consecutive
	// failed applies on a host within the window, creates on that host need approval;
	// after that many consecutive changes that failed entirely, all creates do.
	BreakAfter int `json:"break_after"`
}

// Amount is a number of VMs to create and to delete.
type Amount struct {
	Creates int `json:"creates"`
	Deletes int `json:"deletes"`
}

// DefaultLimits allows ordinary scaling and stops what looks like a runaway or a loop.
// Forty pods are about 12 VMs, and fifty nodes at once over ten hosts are ordinary. One
// host runs 20 to 30 VMs, so 64 creates within an hour are twice its capacity; a host
// that needs more creates VMs that do not last. The window allows twice the amount of one
// change: a burst and its echo. The limits for deletes are half as large, because an
// unneeded node costs less than a missing one.
func DefaultLimits() Limits {
	return Limits{
		WindowSeconds: 3600,
		PerChange:     Amount{Creates: 100, Deletes: 50},
		PerWindow:     Amount{Creates: 200, Deletes: 100},
		PerHost:       Amount{Creates: 64, Deletes: 32},
		PerPool:       Amount{Creates: 100, Deletes: 50},
		MaxUpdates:    256,
		MaxImports:    64,
		BreakAfter:    3,
	}
}

// HostIntent is the part of a change that affects one host.
type HostIntent struct {
	Host   fleet.Shard
	Intent Intent
}

// Event is what an earlier change did, or tried to do, on one host for one pool.
type Event struct {
	// Change identifies the change that the event was part of.
	Change string `json:"change"`
	// AgeSeconds is how long ago the change began.
	AgeSeconds int64       `json:"age_seconds"`
	Host       fleet.Shard `json:"host"`
	Pool       string      `json:"pool"`
	Amount
	// Failed is set if the apply on the host failed or did not finish.
	Failed bool `json:"failed,omitempty"`
}

// CheckLimits checks how much a change does on all hosts together, including recent
// changes. It ignores events older than the window; their order does not matter. Only the
// limits for updates and imports apply to a part without creates and deletes.
func CheckLimits(parts []HostIntent, recent []Event, limits Limits) Verdict {
	t := &tally{limits: limits, perHost: map[fleet.Shard]Amount{}, perPool: map[string]Amount{}}
	if limits == (Limits{}) {
		t.findings = append(t.findings, Finding{
			Rule: RuleRules, Decision: Deny, Message: "the limits are empty: load them, or use the shipped ones",
		})
		return verdict(Allow, t.findings)
	}
	for _, part := range parts {
		t.add(part)
	}
	for _, event := range recent {
		if event.AgeSeconds <= limits.WindowSeconds {
			t.recent = append(t.recent, event)
		}
	}
	t.change()
	t.window()
	t.breaker()
	return verdict(Allow, t.findings)
}

// plus returns the sum of two amounts.
func (a Amount) plus(b Amount) Amount {
	return Amount{Creates: a.Creates + b.Creates, Deletes: a.Deletes + b.Deletes}
}

// within returns the part of an amount to which past events apply: they restrict only
// more changes of the same kind.
func (a Amount) within(change Amount) Amount {
	if change.Creates == 0 {
		a.Creates = 0
	}
	if change.Deletes == 0 {
		a.Deletes = 0
	}
	return a
}

// tally counts what a change does and what was done before.
type tally struct {
	limits           Limits
	total            Amount
	updates, imports int
	perHost          map[fleet.Shard]Amount
	perPool          map[string]Amount
	// recent are the events within the window.
	recent   []Event
	findings []Finding
}

func (t *tally) add(part HostIntent) {
	count := func(target Target, amount Amount) {
		t.total = t.total.plus(amount)
		t.perHost[part.Host] = t.perHost[part.Host].plus(amount)
		t.perPool[target.Pool] = t.perPool[target.Pool].plus(amount)
	}
	for _, target := range part.Intent.Create {
		count(target, Amount{Creates: 1})
	}
	for _, target := range part.Intent.Delete {
		count(target, Amount{Deletes: 1})
	}
	t.updates += len(part.Intent.Update)
	t.imports += len(part.Intent.Import)
}

// change checks the change alone.
func (t *tally) change() {
	t.amount("in one change", fleet.Shard{}, t.total, t.limits.PerChange)
	t.limit("updates in one change", fleet.Shard{}, t.updates, t.limits.MaxUpdates)
	t.limit("imports in one change", fleet.Shard{}, t.imports, t.limits.MaxImports)
}

// window checks the change together with the events of the window.
func (t *tally) window() {
	within := fmt.Sprintf("within %s", duration(t.limits.WindowSeconds))
	var before Amount
	hosts, pools := map[fleet.Shard]Amount{}, map[string]Amount{}
	for _, event := range t.recent {
		before = before.plus(event.Amount)
		hosts[event.Host] = hosts[event.Host].plus(event.Amount)
		pools[event.Pool] = pools[event.Pool].plus(event.Amount)
	}
	t.amount(within, fleet.Shard{}, t.total.plus(before).within(t.total), t.limits.PerWindow)
	for _, host := range slices.SortedFunc(maps.Keys(t.perHost), topology.HostID.Compare) {
		now := t.perHost[host]
		t.amount(fmt.Sprintf("on host %s %s", host, within), host, now.plus(hosts[host]).within(now), t.limits.PerHost)
	}
	for _, pool := range slices.Sorted(maps.Keys(t.perPool)) {
		now := t.perPool[pool]
		where := fmt.Sprintf("in pool %s %s", cmp.Or(pool, "(unknown)"), within)
		t.amount(where, fleet.Shard{}, now.plus(pools[pool]).within(now), t.limits.PerPool)
	}
}

// breaker requires approval for creates after consecutive failures. Only changes with
// creates count, because a successful delete does not show that creates work.
func (t *tally) breaker() {
	if t.total.Creates == 0 || t.limits.BreakAfter <= 0 {
		return
	}
	everywhere := run(t.recent)
	if everywhere >= t.limits.BreakAfter {
		t.broken("", fleet.Shard{}, everywhere)
		return
	}
	for _, host := range slices.SortedFunc(maps.Keys(t.perHost), topology.HostID.Compare) {
		there := slices.DeleteFunc(slices.Clone(t.recent), func(e Event) bool { return e.Host != host })
		if failures := run(there); t.perHost[host].Creates > 0 && failures >= t.limits.BreakAfter {
			t.broken(" on host "+host.String(), host, failures)
		}
	}
}

func (t *tally) broken(where string, host fleet.Shard, failures int) {
	t.findings = append(t.findings, Finding{
		Rule: RuleBreaker, Decision: NeedsApproval, Host: host,
		Message: fmt.Sprintf("the last %d changes that were to create VMs%s failed, and after %d nothing more is created: "+
			"mend the cause, then approve; the next change that works ends this", failures, where, t.limits.BreakAfter),
	})
}

// run returns the number of consecutive failures among the newest changes in events. A
// change that succeeded in part did not fail.
func run(events []Event) int {
	type outcome struct {
		age    int64
		failed bool
	}
	changes := map[string]outcome{}
	for _, event := range events {
		if event.Creates == 0 {
			continue
		}
		known, ok := changes[event.Change]
		changes[event.Change] = outcome{age: event.AgeSeconds, failed: event.Failed && (!ok || known.failed)}
	}
	newest := slices.SortedFunc(maps.Keys(changes), func(a, b string) int {
		return cmp.Or(cmp.Compare(changes[a].age, changes[b].age), cmp.Compare(b, a))
	})
	if i := slices.IndexFunc(newest, func(id string) bool { return !changes[id].failed }); i >= 0 {
		return i
	}
	return len(newest)
}

func (t *tally) amount(where string, host fleet.Shard, count, limit Amount) {
	t.limit("creates "+where, host, count.Creates, limit.Creates)
	t.limit("deletes "+where, host, count.Deletes, limit.Deletes)
}

func (t *tally) limit(what string, host fleet.Shard, count, limit int) {
	if count > limit {
		t.findings = append(t.findings, Finding{
			Rule: RuleLimit, Decision: NeedsApproval, Host: host,
			Message: fmt.Sprintf("%d %s, %d pass without approval: approve it, or raise the limit", count, what, limit),
		})
	}
}

// duration returns seconds in words.
func duration(seconds int64) string {
	switch {
	case seconds%3600 == 0 && seconds != 0:
		return fmt.Sprintf("%d h", seconds/3600)
	case seconds%60 == 0 && seconds != 0:
		return fmt.Sprintf("%d min", seconds/60)
	}
	return fmt.Sprintf("%d s", seconds)
}
