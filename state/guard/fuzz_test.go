package guard_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/state/guard"
)

// plain is the part of a plan that acceptable needs.
type plain struct {
	FormatVersion string `json:"format_version"`
	Changes       []struct {
		Address string `json:"address"`
		Change  struct {
			Actions []string       `json:"actions"`
			After   map[string]any `json:"after"`
		} `json:"change"`
	} `json:"resource_changes"`
}

// acceptable fails the test unless a plan creates VMs 2001 and 2002 and changes nothing
// else. It is a simple check, independent of the guard.
func acceptable(t *testing.T, raw []byte) {
	t.Helper()
	var p plain
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatalf("allowed what does not parse: %v", err)
	}
	creates := map[string]int{}
	for _, c := range p.Changes {
		switch strings.Join(c.Change.Actions, "+") {
		case "no-op":
		case "create":
			creates[c.Address]++
			if marker, _ := c.Change.After["description"].(string); !strings.Contains(marker, "numaform/1 cluster=prod key=") {
				t.Errorf("allowed a create without marker: %s", c.Address)
			}
		default:
			t.Errorf("allowed %v", c.Change.Actions)
		}
	}
	if len(creates) != 2 || creates[vm(2001).Address] != 1 || creates[vm(2002).Address] != 1 {
		t.Errorf("allowed creates %v", creates)
	}
}

func FuzzCheck(f *testing.F) {
	for _, name := range []string{"create", "mixed", "update", "import", "forget", "data"} {
		f.Add(read(f, name))
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"format_version":"1.2","configuration":{"root_module":{}}}`))
	f.Add([]byte(`{"format_version":"1.2","resource_changes":[{"change":{"actions":["create"],"after":[1]}}]}`))
	rules := guard.DefaultRules()
	f.Fuzz(func(t *testing.T, raw []byte) {
		plan, err := guard.Decode(raw)
		if err != nil {
			return
		}
		if check(plan, both, rules).Decision == guard.Allow {
			acceptable(t, raw)
		}
	})
}

// TestCheckOfHalfPlans overwrites random values of an allowed plan, and checks that each
// plan that the guard still allows is acceptable.
func TestCheckOfHalfPlans(t *testing.T) {
	t.Parallel()
	raw, rules := read(t, "create"), guard.DefaultRules()
	junk := []string{"null", "true", "false", "0", "-1.5", `""`, `"x"`, "[]", "[null]", "{}", `{"":null}`}
	rapid.Check(t, func(r *rapid.T) {
		var doc any
		if err := json.Unmarshal(raw, &doc); err != nil {
			r.Fatal(err)
		}
		for range rapid.IntRange(1, 4).Draw(r, "edits") {
			doc = mangle(r, doc, junk)
		}
		broken, err := json.Marshal(doc)
		if err != nil {
			r.Fatal(err)
		}
		plan, err := guard.Decode(broken)
		if err != nil {
			return
		}
		if check(plan, both, rules).Decision == guard.Allow {
			acceptable(t, broken)
		}
	})
}

// mangle descends at random and replaces the value where it stops.
func mangle(r *rapid.T, doc any, junk []string) any {
	if rapid.IntRange(0, 5).Draw(r, "stop") == 0 {
		return parsed(r, junk)
	}
	switch d := doc.(type) {
	case map[string]any:
		keys := sortedKeys(d)
		if len(keys) == 0 {
			return d
		}
		key := keys[rapid.IntRange(0, len(keys)-1).Draw(r, "key")]
		d[key] = mangle(r, d[key], junk)
		return d
	case []any:
		if len(d) == 0 {
			return d
		}
		i := rapid.IntRange(0, len(d)-1).Draw(r, "index")
		d[i] = mangle(r, d[i], junk)
		return d
	}
	return parsed(r, junk)
}

func parsed(r *rapid.T, junk []string) any {
	var v any
	if err := json.Unmarshal([]byte(rapid.SampledFrom(junk).Draw(r, "junk")), &v); err != nil {
		r.Fatal(err)
	}
	return v
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ raw, want string }{
		"errored":        {`{"format_version":"1.2","errored":true}`, "because planning failed"},
		"errored, maybe": {`{"format_version":"1.2","errored":"no"}`, "reading plan"},
		"not JSON":       {`{`, "reading plan"},
		"null":           {`null`, "plan is nil"},
		"no format":      {`{}`, "format version is missing"},
		"future format":  {`{"format_version":"2.0"}`, "unsupported plan format"},
		"another kind":   {`{"format_version":"1.2","resource_changes":{}}`, "cannot unmarshal object"},
		"two documents":  {`{"format_version":"1.2"}{}`, "reading plan"},
		"not an object":  {`[]`, "reading plan"},
		"broken version": {`{"format_version":"x"}`, "invalid format version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := guard.Decode([]byte(tt.raw))
			if err == nil || !strings.Contains(err.Error(), tt.want) || plan != nil {
				t.Errorf("got %v, %v, want an error with %q", plan, err, tt.want)
			}
		})
	}
	for _, plan := range []string{`{"format_version":"1.2"}`, `{"format_version":"1.2","configuration":{}}`} {
		p, err := guard.Decode([]byte(plan))
		if err != nil {
			t.Fatal(err)
		}
		if v := check(p, nothing, guard.DefaultRules()); v.Decision != guard.Deny {
			t.Errorf("%s: got\n%s", plan, v)
		}
	}
	if v := check(nil, nothing, guard.DefaultRules()); v.Decision != guard.Deny || !has(v, guard.Deny, guard.RulePlan, "the plan is missing") {
		t.Errorf("no plan: got\n%s", v)
	}
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
