package guard_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// small are limits that any two operations exceed; some tests raise some of them.
var small = guard.Limits{
	WindowSeconds: 600, PerChange: one, PerWindow: one, PerHost: one, PerPool: one,
	MaxUpdates: 1, MaxImports: 1, BreakAfter: 3,
}

var (
	one  = guard.Amount{Creates: 1, Deletes: 1}
	many = guard.Amount{Creates: 9, Deletes: 9}
)

// host returns the n-th host.
func host(n int) topology.HostID {
	return topology.HostID{Region: "lab", Host: topology.HostName(fmt.Sprintf("pve-%d", n))}
}

// part returns creates and deletes on the n-th host.
func part(n, creates, deletes int, pool string) guard.HostIntent {
	targets := func(from, count int) []guard.Target {
		list := make([]guard.Target, count)
		for i := range list {
			list[i] = vm(fleet.VMID(from + i))
			list[i].Host, list[i].Pool = host(n).Host, pool
		}
		return list
	}
	return guard.HostIntent{Host: host(n), Intent: guard.Intent{
		ClusterID: "prod", Create: targets(1000*n, creates), Delete: targets(1000*n+500, deletes),
	}}
}

// past returns a successful event of the n-th host and pool a, worse a failed one.
func past(change string, age int64, n, creates, deletes int) guard.Event {
	return guard.Event{
		Change: change, AgeSeconds: age, Host: host(n), Pool: "a",
		Amount: guard.Amount{Creates: creates, Deletes: deletes},
	}
}

func worse(change string, age int64, n, creates, deletes int) guard.Event {
	event := past(change, age, n, creates, deletes)
	event.Failed = true
	return event
}

func TestCheckLimits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		parts  []guard.HostIntent
		recent []guard.Event
		edit   func(*guard.Limits)
		want   string
	}{
		{
			"creates",
			[]guard.HostIntent{part(1, 1, 0, "a"), part(2, 1, 0, "b")},
			nil,
			func(l *guard.Limits) { l.PerWindow = many }, "2 creates in one change exceed the limit of 1:",
		},
		{
			"one delete",
			[]guard.HostIntent{part(1, 0, 1, "a")},
			nil,
			func(l *guard.Limits) { l.PerChange.Deletes = 0 }, "1 delete in one change exceeds the limit of 0:",
		},
		{
			"deletes",
			[]guard.HostIntent{part(1, 0, 1, "a"), part(2, 0, 1, "b")},
			nil,
			func(l *guard.Limits) { l.PerWindow = many }, "2 deletes in one change exceed the limit of 1:",
		},
		{
			"creates within the window",
			[]guard.HostIntent{part(1, 1, 0, "b")},
			[]guard.Event{past("x", 600, 2, 2, 0)},
			func(*guard.Limits) {}, "3 creates within 10 min exceed the limit of 1:",
		},
		{
			"creates within seconds",
			[]guard.HostIntent{part(1, 1, 0, "b")},
			[]guard.Event{past("x", 60, 2, 2, 0)},
			func(l *guard.Limits) { l.WindowSeconds = 90 }, "3 creates within 90 s exceed the limit of 1:",
		},
		{
			"creates within hours",
			[]guard.HostIntent{part(1, 1, 0, "b")},
			[]guard.Event{past("x", 600, 2, 2, 0)},
			func(l *guard.Limits) { l.WindowSeconds = 7200 }, "3 creates within 2 h exceed the limit of 1:",
		},
		{
			"deletes within the window",
			[]guard.HostIntent{part(1, 0, 1, "b")},
			[]guard.Event{past("x", 600, 2, 5, 1)},
			func(*guard.Limits) {}, "2 deletes within 10 min exceed the limit of 1:",
		},
		{
			"creates on a host",
			[]guard.HostIntent{part(1, 1, 0, "b")},
			[]guard.Event{worse("x", 1, 1, 1, 0)},
			func(l *guard.Limits) { l.PerWindow = many }, "2 creates on host lab/pve-1 within 10 min exceed the limit of 1:",
		},
		{
			"deletes on a host",
			[]guard.HostIntent{part(1, 0, 1, "b")},
			[]guard.Event{past("x", 1, 1, 0, 1)},
			func(l *guard.Limits) { l.PerWindow = many }, "2 deletes on host lab/pve-1 within 10 min exceed the limit of 1:",
		},
		{
			"creates in a pool",
			[]guard.HostIntent{part(1, 1, 0, "a")},
			[]guard.Event{past("x", 1, 2, 1, 0)},
			func(l *guard.Limits) { l.PerWindow = many }, "2 creates in pool a within 10 min exceed the limit of 1:",
		},
		{
			"deletes in a pool",
			[]guard.HostIntent{part(1, 0, 1, "a")},
			[]guard.Event{past("x", 1, 2, 0, 1)},
			func(l *guard.Limits) { l.PerWindow = many }, "2 deletes in pool a within 10 min exceed the limit of 1:",
		},
		{
			"updates",
			[]guard.HostIntent{{Host: host(1), Intent: guard.Intent{Update: both.Create}}},
			nil,
			func(*guard.Limits) {}, "2 updates in one change exceed the limit of 1:",
		},
		{
			"imports",
			[]guard.HostIntent{{Host: host(1), Intent: guard.Intent{Import: both.Create}}},
			nil,
			func(*guard.Limits) {}, "2 imports in one change exceed the limit of 1:",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			limits := small
			tt.edit(&limits)
			v := guard.CheckLimits(tt.parts, tt.recent, limits)
			if v.Decision != guard.NeedsApproval || len(v.Findings) != 1 || !has(v, guard.NeedsApproval, guard.RuleLimit, tt.want) {
				t.Errorf("want approval because of %q only, got\n%s", tt.want, v)
			}
		})
	}
}

func TestCheckLimitsForgets(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		part   guard.HostIntent
		recent []guard.Event
	}{
		{"what is older than the window", part(1, 1, 0, "a"), []guard.Event{past("x", 601, 1, 9, 9)}},
		{"deletes for creates", part(1, 1, 0, "a"), []guard.Event{past("x", 1, 1, 0, 9)}},
		{"creates for deletes", part(1, 0, 1, "a"), []guard.Event{past("x", 1, 1, 9, 0)}},
		{"everything for nothing", part(1, 0, 0, "a"), []guard.Event{worse("x", 1, 1, 9, 9), worse("y", 2, 1, 9, 9), worse("z", 3, 1, 9, 9)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if v := guard.CheckLimits([]guard.HostIntent{tt.part}, tt.recent, small); v.Decision != guard.Allow || len(v.Findings) > 0 {
				t.Errorf("want allowed, got\n%s", v)
			}
		})
	}
}

func TestDefaultLimitsLetScalingPass(t *testing.T) {
	t.Parallel()
	fifty := make([]guard.HostIntent, 10)
	for i := range fifty {
		fifty[i] = part(i+1, 5, 0, "a")
	}
	ups := []guard.Event{past("x", 60, 1, 12, 0), past("y", 120, 1, 12, 12)}
	for name, tt := range map[string]struct {
		parts  []guard.HostIntent
		recent []guard.Event
	}{
		"40 pods":                 {[]guard.HostIntent{part(1, 4, 0, "a"), part(2, 4, 0, "a"), part(3, 4, 0, "a")}, nil},
		"a homelab":               {[]guard.HostIntent{part(1, 2, 1, "a")}, ups},
		"50 nodes over 10 hosts":  {fifty, []guard.Event{past("x", 900, 1, 5, 0), past("y", 1800, 2, 5, 25)}},
		"a whole host goes":       {[]guard.HostIntent{part(1, 0, 25, "a")}, ups[:1]},
		"a retry after a failure": {[]guard.HostIntent{part(1, 12, 0, "a")}, []guard.Event{worse("x", 60, 1, 12, 0), worse("y", 90, 1, 12, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if v := guard.CheckLimits(tt.parts, tt.recent, guard.DefaultLimits()); v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
		})
	}
	if v := guard.CheckLimits([]guard.HostIntent{part(1, 1000, 0, "a")}, nil, guard.DefaultLimits()); v.Decision != guard.NeedsApproval {
		t.Errorf("1000 VMs: want approval, got\n%s", v)
	}
	if v := guard.CheckLimits(fifty, nil, guard.Limits{}); v.Decision != guard.Deny || len(v.Findings) != 1 || !has(v, guard.Deny, guard.RuleRules, "no limits are loaded") {
		t.Errorf("empty limits: want denied, got\n%s", v)
	}
}

func TestCircuitBreaker(t *testing.T) {
	t.Parallel()
	limits := guard.DefaultLimits()
	limits.WindowSeconds = 600
	failures := []guard.Event{worse("3", 10, 1, 1, 0), worse("2", 20, 1, 1, 0), worse("1", 30, 1, 1, 0)}
	elsewhere := []guard.Event{past("3", 10, 2, 1, 0), past("2", 20, 2, 1, 0), past("1", 30, 2, 1, 0)}
	up1, up2, down := part(1, 1, 0, "a"), part(2, 1, 0, "a"), part(1, 0, 1, "a")
	tests := []struct {
		name   string
		parts  []guard.HostIntent
		recent []guard.Event
		want   string
	}{
		{"three failures", []guard.HostIntent{up2}, failures, "the last 3 changes that create VMs failed"},
		{"three failures on one host", []guard.HostIntent{up1, up2}, append(elsewhere, failures...), "the last 3 changes that create VMs on host lab/pve-1 failed"},
		{"the same on another host", []guard.HostIntent{up2}, append(elsewhere, failures...), ""},
		{"deletes there, creates elsewhere", []guard.HostIntent{down, up2}, append(elsewhere, failures...), ""},
		{"a change that failed on one host only", []guard.HostIntent{up2}, []guard.Event{failures[0], elsewhere[0], failures[1], failures[2]}, ""},
		{"deletes go on", []guard.HostIntent{down}, failures, ""},
		{"two failures", []guard.HostIntent{up1}, failures[:2], ""},
		{"one change on three hosts", []guard.HostIntent{up1}, []guard.Event{worse("1", 1, 1, 1, 0), worse("1", 1, 2, 1, 0), worse("1", 1, 3, 1, 0)}, ""},
		{"one that worked since", []guard.HostIntent{up1}, append([]guard.Event{past("4", 5, 1, 1, 0)}, failures...), ""},
		{"one that worked before", []guard.HostIntent{up1}, append([]guard.Event{past("0", 40, 1, 1, 0)}, failures...), "the last 3 changes"},
		{"a delete that worked since", []guard.HostIntent{up1}, append([]guard.Event{past("4", 5, 1, 0, 1)}, failures...), "the last 3 changes"},
		{"deletes that failed", []guard.HostIntent{up1}, []guard.Event{worse("3", 10, 1, 0, 1), worse("2", 20, 1, 0, 1), worse("1", 30, 1, 0, 1)}, ""},
		{"failures before the window", []guard.HostIntent{up1}, []guard.Event{failures[0], failures[1], worse("1", 601, 1, 1, 0)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := guard.CheckLimits(tt.parts, tt.recent, limits)
			if tt.want == "" && v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
			if tt.want != "" && (v.Decision != guard.NeedsApproval || len(v.Findings) != 1 || !has(v, guard.NeedsApproval, guard.RuleBreaker, tt.want)) {
				t.Errorf("want approval because of %q only, got\n%s", tt.want, v)
			}
		})
	}
}

func TestVerdictOnOneHost(t *testing.T) {
	t.Parallel()
	limits := guard.DefaultLimits()
	limits.PerHost.Creates = 2
	v := guard.CheckLimits([]guard.HostIntent{part(1, 3, 0, "a"), part(2, 1, 0, "a")}, nil, limits)
	if on := v.On(host(1)); on.Decision != guard.NeedsApproval || len(on.Findings) != 1 {
		t.Errorf("on the host that goes beyond: got\n%s", on)
	}
	if on := v.On(host(2)); on.Decision != guard.Allow || len(on.Findings) > 0 {
		t.Errorf("on the other host: got\n%s", on)
	}
	limits.PerChange.Creates = 3
	v = guard.CheckLimits([]guard.HostIntent{part(1, 3, 0, "a"), part(2, 1, 0, "a")}, nil, limits)
	if on := v.On(host(2)); on.Decision != guard.NeedsApproval || !strings.Contains(on.String(), "4 creates in one change") {
		t.Errorf("beyond the limit of the change: got\n%s", on)
	}
	if denied := (guard.Verdict{}); denied.On(host(2)).Decision != guard.Deny || denied.And(v).Decision != guard.Deny || v.And(denied).Decision != guard.Deny {
		t.Error("the zero verdict must deny with any other")
	}
}

// TestCheckLimitsProperties checks that the order of events and parts does not matter,
// and that a further part of a change never makes the decision less strict.
func TestCheckLimitsProperties(t *testing.T) {
	t.Parallel()
	event := rapid.Custom(func(r *rapid.T) guard.Event {
		few := rapid.IntRange(0, 3)
		e := past(rapid.StringMatching("[a-d]").Draw(r, "change"), int64(rapid.IntRange(0, 700).Draw(r, "age")),
			rapid.IntRange(1, 3).Draw(r, "host"), few.Draw(r, "creates"), few.Draw(r, "deletes"))
		e.Failed = rapid.Bool().Draw(r, "failed")
		return e
	})
	rapid.Check(t, func(r *rapid.T) {
		events := rapid.SliceOfN(event, 0, 8).Draw(r, "events")
		ages := map[string]int64{}
		for i := range events {
			if age, ok := ages[events[i].Change]; ok {
				events[i].AgeSeconds = age
			}
			ages[events[i].Change] = events[i].AgeSeconds
		}
		few := rapid.IntRange(0, 3)
		parts := []guard.HostIntent{
			part(1, few.Draw(r, "creates"), few.Draw(r, "deletes"), "a"), part(2, few.Draw(r, "creates"), few.Draw(r, "deletes"), "b"),
		}
		limits := small
		limits.PerChange.Creates, limits.PerWindow, limits.BreakAfter = 4, many, rapid.IntRange(1, 3).Draw(r, "break after")
		v := guard.CheckLimits(parts, events, limits)
		shuffled := guard.CheckLimits(rapid.Permutation(parts).Draw(r, "parts"), rapid.Permutation(events).Draw(r, "order"), limits)
		if v.String() != shuffled.String() {
			r.Fatalf("the order matters:\n%s\n%s", v, shuffled)
		}
		more := append(parts, part(3, 1, 1, "a"))
		if guard.CheckLimits(more, events, limits).Decision > v.Decision {
			r.Fatalf("more passes where less does not:\n%s", v)
		}
	})
}
