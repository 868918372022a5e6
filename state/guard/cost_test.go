package guard_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

// TestPolicyWork checks that rules whose functions repeatedly scan a long string of the
// plan exceed the cost limit: CEL itself counts the calls, not the length of their
// arguments.
func TestPolicyWork(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64<<10)
	for name, when := range map[string]string{
		"regular expression": "after.description.matches('(.{0,100}){9}y')",
		"texts":              "[1,2,3,4,5,6,7,8,9].all(x, [1,2,3,4,5,6,7,8,9].all(y, [1,2,3,4,5,6,7,8,9].all(z, after.description.upperAscii().size() > z)))",
		"splits":             "[1,2,3,4,5,6,7,8,9].all(x, [1,2,3,4,5,6,7,8,9].all(y, after.description.split('').size() > y))",
		"formats":            "[1,2,3,4,5,6,7,8,9].all(x, [1,2,3,4,5,6,7,8,9].all(y, [1,2,3].all(z, '%s'.format([after.description]).size() > y)))",
		"sets":               "sets.contains(after.description.split(''), after.description.split(''))",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long := long
			if name == "sets" {
				long = long[:4000]
			}
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(true, when))}
			v := check(edited(t, "create", edits{after + "description": long}), both, rules)
			if !has(v, guard.Deny, guard.PolicyRule("no"), "cost limit exceeded") {
				t.Errorf("want denied for its work, got\n%.600s", v)
			}
		})
	}
}

// TestPolicyWorkOnShortTexts checks that functions on strings of at most one byte stay
// within the cost limit.
func TestPolicyWorkOnShortTexts(t *testing.T) {
	t.Parallel()
	for _, when := range []string{
		"''.matches('(.{0,100}){9}y')", "'a'.matches('(.{0,100}){9}y')", "'a'.matches('') && false", "''.upperAscii() != ''", "''.split('').size() > 1",
	} {
		rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(true, when))}
		if v := check(edited(t, "create", nil), both, rules); has(v, guard.Deny, guard.PolicyRule("no"), "") {
			t.Errorf("%s: got\n%.600s", when, v)
		}
	}
}

// TestPolicyWorkOfAllRules evaluates 200 rules, each within its own cost limit. It checks
// that the last rule denies the plan, because all rules together exceed their limit, and
// that the first does not.
func TestPolicyWorkOfAllRules(t *testing.T) {
	t.Parallel()
	text := allowAll
	for i := range 200 {
		text += strings.Replace(deny(true, "!after.description.matches('(.{0,2}){9}y') && false"), "name: no", fmt.Sprintf("name: no-%d", i), 1)
	}
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, text)}
	v := check(edited(t, "create", edits{after + "description": strings.Repeat("a", 64<<10)}), both, rules)
	if !has(v, guard.Deny, guard.PolicyRule("no-199"), "all rules together exceed the cost limit") || has(v, guard.Deny, guard.PolicyRule("no-0"), "") {
		t.Errorf("want only the last rules denied, got\n%.600s", v)
	}
}

// TestPolicyMemory evaluates rules whose functions would return far longer strings than
// their arguments. It checks that they fail before they allocate these strings, and that
// functions with short results are unaffected.
func TestPolicyMemory(t *testing.T) { //nolint:paralleltest // it measures memory
	const most = 64 << 20
	for name, when := range map[string]string{
		"replace":         "after.description.replace('', after.description).size() > 0",
		"replace some":    "after.description.replace('a', after.description, 16000).size() > 0",
		"join":            "after.description.split('').map(x, after.description).join().size() > 0",
		"join with":       "after.description.split('').join(after.description).size() > 0",
		"format of lists": "'%s'.format([after.description.split('').map(x, after.description)]).size() > 0",
	} {
		t.Run(name, func(t *testing.T) {
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(true, when))}
			plan := edited(t, "create", edits{after + "description": strings.Repeat("a", 16<<10)})
			var before, now runtime.MemStats
			runtime.ReadMemStats(&before)
			v := check(plan, both, rules)
			runtime.ReadMemStats(&now)
			if !has(v, guard.Deny, guard.PolicyRule("no"), "would return a string of more than 10000000 bytes") {
				t.Errorf("want denied for its size, got\n%.600s", v)
			}
			if took := now.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("it took %d MiB", took>>20)
			}
		})
	}
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(true,
		"'abc'.replace('b', '--') != 'a--c' || 'abc'.replace('', '-', 2) != '-a-bc' || 'aa'.replace('a', 'b', -1) != 'bb' || "+
			"['a', 'b'].join('-') != 'a-b' || ['a', 'b'].join() != 'ab' || '%s %d %s'.format(['a', 7, ['b']]) != 'a 7 [b]'"))}
	if v := check(edited(t, "create", edits{}), both, rules); has(v, guard.Deny, guard.PolicyRule("no"), "") {
		t.Errorf("functions within the limit have other results: %.600s", v)
	}
}
