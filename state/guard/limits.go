package guard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

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

// DefaultLimits allows ordinary scaling, and requires approval for runaway scaling.
// Forty pods are about 12 VMs, and fifty nodes at once over ten hosts are ordinary. One
// host runs 20 to 30 VMs, so 64 creates within an hour are twice its capacity: a host that
// exceeds this creates VMs that are soon deleted. The window allows twice as many VMs as
// one change, for a second burst. The limits for deletes are half as large, because an
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
	Host   topology.HostID
	Intent Intent
}

// Event is the outcome of an earlier change, on one host and for one pool.
type Event struct {
	// Change identifies the change that the event was part of.
	Change string `json:"change"`
	// AgeSeconds is how long ago the change began.
	AgeSeconds int64           `json:"age_seconds"`
	Host       topology.HostID `json:"host"`
	Pool       string          `json:"pool"`
	Amount
	// Failed is set if the apply on the host failed or did not finish.
	Failed bool `json:"failed,omitempty"`
}

// CheckLimits checks the size of a change on all hosts together, including recent
// changes. It ignores events older than the window; their order does not matter. Only the
// limits for updates and imports apply to a part without creates and deletes.
func CheckLimits(parts []HostIntent, recent []Event, limits Limits) Verdict {
	if limits == (Limits{}) {
		return verdict(Allow, []Finding{{
			Rule: RuleRules, Decision: Deny, Message: "no limits are loaded: set them, or use the default ones",
		}})
	}
	t := &tally{limits: limits}
	change := newCount()
	updates, imports := 0, 0
	for _, part := range parts {
		for _, target := range part.Intent.Create {
			change.add(part.Host, target.Pool, Amount{Creates: 1})
		}
		for _, target := range part.Intent.Delete {
			change.add(part.Host, target.Pool, Amount{Deletes: 1})
		}
		updates += len(part.Intent.Update)
		imports += len(part.Intent.Import)
	}
	past := newCount()
	recent = slices.DeleteFunc(slices.Clone(recent), func(e Event) bool { return e.AgeSeconds > limits.WindowSeconds })
	for _, event := range recent {
		past.add(event.Host, event.Pool, event.Amount)
	}

	none := topology.HostID{}
	t.amount("in one change", none, change.total, Amount{}, limits.PerChange)
	t.limit("update", "in one change", none, updates, limits.MaxUpdates)
	t.limit("import", "in one change", none, imports, limits.MaxImports)

	within := "within " + duration(limits.WindowSeconds)
	t.amount(within, none, change.total, past.total, limits.PerWindow)
	for host, amount := range change.hosts {
		t.amount(fmt.Sprintf("on host %s %s", host, within), host, amount, past.hosts[host], limits.PerHost)
	}
	for pool, amount := range change.pools {
		t.amount(fmt.Sprintf("in pool %s %s", cmp.Or(pool, "(unknown)"), within), none, amount, past.pools[pool], limits.PerPool)
	}

	t.breaker(change, recent)
	return verdict(Allow, t.findings)
}

// count is the number of created and deleted VMs, by host and by pool.
type count struct {
	total Amount
	hosts map[topology.HostID]Amount
	pools map[string]Amount
}

func newCount() *count {
	return &count{hosts: map[topology.HostID]Amount{}, pools: map[string]Amount{}}
}

func (c *count) add(host topology.HostID, pool string, amount Amount) {
	c.total = c.total.plus(amount)
	c.hosts[host] = c.hosts[host].plus(amount)
	c.pools[pool] = c.pools[pool].plus(amount)
}

// plus returns the sum of two amounts.
func (a Amount) plus(b Amount) Amount {
	return Amount{Creates: a.Creates + b.Creates, Deletes: a.Deletes + b.Deletes}
}

// tally compares counts with limits.
type tally struct {
	limits   Limits
	findings []Finding
}

// amount compares the VMs of a change and of the past with a limit. Past creates restrict
// only new creates, and past deletes only new deletes.
func (t *tally) amount(where string, host topology.HostID, change, past, limit Amount) {
	if change.Creates > 0 {
		t.limit("create", where, host, change.Creates+past.Creates, limit.Creates)
	}
	if change.Deletes > 0 {
		t.limit("delete", where, host, change.Deletes+past.Deletes, limit.Deletes)
	}
}

func (t *tally) limit(what, where string, host topology.HostID, count, limit int) {
	if count <= limit {
		return
	}
	exceeds := fmt.Sprintf("%d %ss %s exceed", count, what, where)
	if count == 1 {
		exceeds = fmt.Sprintf("1 %s %s exceeds", what, where)
	}
	t.findings = append(t.findings, Finding{
		Rule: RuleLimit, Decision: NeedsApproval, Host: host,
		Message: fmt.Sprintf("%s the limit of %d: approve the change, or raise policy.limits in numaform.yaml", exceeds, limit),
	})
}

// breaker requires approval for creates after consecutive failures, on all hosts or on
// one.
func (t *tally) breaker(change *count, recent []Event) {
	limit := t.limits.BreakAfter
	if change.total.Creates == 0 || limit <= 0 {
		return
	}
	broken := func(where string, host topology.HostID, failures int) {
		t.findings = append(t.findings, Finding{
			Rule: RuleBreaker, Decision: NeedsApproval, Host: host,
			Message: fmt.Sprintf("the last %d changes that create VMs%s failed, and after %d failures creates need approval: "+
				"fix the cause, then approve; the next change that successfully creates VMs resets the count of failures", failures, where, limit),
		})
	}
	if failures := consecutiveFailures(recent); failures >= limit {
		broken("", topology.HostID{}, failures)
		return
	}
	for host, amount := range change.hosts {
		there := slices.DeleteFunc(slices.Clone(recent), func(e Event) bool { return e.Host != host })
		if failures := consecutiveFailures(there); amount.Creates > 0 && failures >= limit {
			broken(" on host "+host.String(), host, failures)
		}
	}
}

// consecutiveFailures returns how many of the newest changes failed. Only changes with
// creates count, because a successful delete does not show that creates work. A change
// that succeeded in part did not fail.
func consecutiveFailures(events []Event) int {
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
