package guard_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

// policyOf compiles valid rules.
func policyOf(t testing.TB, rules string) *guard.Policy {
	t.Helper()
	policy, err := guard.ParsePolicy("rules.yaml", []byte("rules:\n"+rules))
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func TestParsePolicyRefuses(t *testing.T) {
	t.Parallel()
	const ok = "- name: a\n  when: \"true\"\n  decision: allow\n"
	tests := []struct{ name, text, want string }{
		{"an empty file", "", "rules.yaml: the file is empty"},
		{"a comment", "# rules:\n", "rules.yaml: the file is empty"},
		{"no rules", "rules: []\n", "rules.yaml:1: the file has no rules"},
		{"rules that are none", "rules: all\n", "rules.yaml:1: the file has no rules"},
		{"another key", "rules:\n" + ok + "rule: []\n", `rules.yaml:5: key "rule" is unknown: use rules`},
		{"a list", "- rules\n", "rules.yaml:1: the value must be an object"},
		{"no YAML", "rules: [\n", "rules.yaml: yaml: line"},
		{"two documents", "rules:\n" + ok + "---\nrules: []\n", "the file has a second document"},
		{"a rule that is none", "rules:\n- allow\n", "rules.yaml:2: rule number 1: the value must be an object"},
		{"a rule of another key", "rules:\n- name: a\n  when: \"true\"\n  decision: allow\n  unless: x\n", `rules.yaml:5: rule a: key "unless" is unknown`},
		{"a key twice", "rules:\n- name: a\n  when: \"true\"\n  when: \"true\"\n  decision: allow\n", "rules.yaml:4: rule a: duplicate key when"},
		{"a name twice", "rules:\n" + ok + ok, "rules.yaml:5: rule a: line 2 already has a rule of that name"},
		{"no name", "rules:\n- when: \"true\"\n  decision: allow\n", "rules.yaml:2: rule number 1: the name is missing or invalid"},
		{"a name with blanks", "rules:\n- name: A b\n  when: \"true\"\n  decision: allow\n", "rules.yaml:2: rule number 1: the name is missing or invalid"},
		{"no condition", "rules:\n- name: a\n  decision: allow\n", "rules.yaml:2: rule a: when is missing"},
		{"an empty condition", "rules:\n- name: a\n  when: \"\"\n  decision: allow\n", "rules.yaml:3: rule a: when is empty"},
		{"a condition that is no text", "rules:\n- name: a\n  when: true\n  decision: allow\n", "rules.yaml:3: rule a: when is not a string: put it in quotes"},
		{"no decision", "rules:\n- name: a\n  when: \"true\"\n", "rules.yaml:2: rule a: decision is missing"},
		{"another decision", "rules:\n- name: a\n  when: \"true\"\n  decision: warn\n", `rules.yaml:4: rule a: decision "warn" is unknown: set`},
		{"another each", "rules:\n- name: a\n  each: vm\n  when: \"true\"\n  decision: allow\n", `rules.yaml:3: rule a: each "vm" is unknown`},
		{"no message", "rules:\n- name: a\n  when: \"true\"\n  decision: deny\n", "rules.yaml:2: rule a: message is missing"},
		{"two messages", "rules:\n- name: a\n  when: \"true\"\n  decision: deny\n  message: x\n  messageExpression: '\"x\"'\n", "rules.yaml:6: rule a: message and messageExpression are both set"},
		{"CEL that does not parse", "rules:\n- name: a\n  when: change.creates >\n  decision: allow\n", "rules.yaml:3: rule a: when: Syntax error"},
		{"CEL in the third line", "rules:\n- name: a\n  when: |\n    true &&\n    change.nope > 1\n  decision: allow\n", "rules.yaml:5: rule a: when: undefined field 'nope'"},
		{"an unknown variable", "rules:\n- name: a\n  when: changes.creates > 1\n  decision: allow\n", "undeclared reference to 'changes'"},
		{"a regular expression that is none", "rules:\n- name: a\n  when: \"'a'.matches('(')\"\n  decision: allow\n", "missing closing )"},
		{"a resource of a plan", "rules:\n- name: a\n  when: resource.kind == 'vm'\n  decision: allow\n", "undeclared reference to 'resource'"},
		{"a condition that is a number", "rules:\n- name: a\n  when: change.creates\n  decision: allow\n", "rules.yaml:3: rule a: when: the result is int, but must be bool"},
		{"a message that is a number", "rules:\n- name: a\n  when: \"true\"\n  decision: deny\n  messageExpression: change.creates\n", "rules.yaml:5: rule a: messageExpression: the result is int, but must be string"},
		{"an alias", "rules:\n- name: a\n  when: &w \"true\"\n  decision: allow\n- name: b\n  when: *w\n  decision: allow\n", "rules.yaml:6: rule b: when is not a string"},
		{"a huge file", strings.Repeat("#", 1<<20+1), "but the limit is 1048576"},
		{"thousands of rules", "rules: [" + strings.Repeat("{},", 1001) + "]", "the policy has 1001 rules"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			policy, err := guard.ParsePolicy("rules.yaml", []byte(tt.text))
			if err == nil || policy != nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want an error with %q", policy, err, tt.want)
			}
		})
	}
}

func TestParsePolicyTellsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := guard.ParsePolicy("rules.yaml", []byte("rules:\n- name: a\n  when: x\n  decision: allow\n- name: b\n  when: y\n  decision: allow\n"))
	if err == nil || !strings.Contains(err.Error(), "rule a") || !strings.Contains(err.Error(), "rule b") {
		t.Errorf("got %v", err)
	}
}

func TestDefaultPolicyParses(t *testing.T) {
	t.Parallel()
	policy, err := guard.ParsePolicy("default", guard.DefaultPolicy())
	if err != nil || len(policy.Names()) == 0 {
		t.Fatalf("got %v, %v", policy, err)
	}
	if rules := guard.DefaultRules(); rules.Policy == nil || rules.Limits != guard.DefaultLimits() {
		t.Errorf("got %+v", rules)
	}
	guard.DefaultPolicy()[0] = 'x'
	if guard.DefaultPolicy()[0] == 'x' {
		t.Error("the shipped policy can be changed")
	}
}

func TestPolicyAnd(t *testing.T) {
	t.Parallel()
	a := policyOf(t, "- name: a\n  when: \"true\"\n  decision: allow\n")
	b := policyOf(t, "- name: b\n  when: change.creates > 1\n  decision: deny\n  message: no\n")
	both, err := a.And(b)
	if err != nil || strings.Join(both.Names(), " ") != "a b" || len(a.Names()) != 1 {
		t.Errorf("got %v, %v", both, err)
	}
	if _, err := both.And(a); err == nil || !strings.Contains(err.Error(), "rule a is in both") {
		t.Errorf("a name twice: got %v", err)
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add(guard.DefaultPolicy())
	f.Add([]byte("rules:\n- name: a\n  each: resource\n  when: after.x[0] > 1\n  decision: deny\n  messageExpression: string(after)\n"))
	f.Add([]byte("rules: &a [*a]"))
	f.Add([]byte("? [a]\n: b"))
	f.Fuzz(func(t *testing.T, text []byte) {
		policy, err := guard.ParsePolicy("rules.yaml", text)
		if (policy == nil) == (err == nil) {
			t.Fatalf("got %v, %v", policy, err)
		}
		if err != nil && !strings.Contains(err.Error(), "rules.yaml") {
			t.Errorf("the error does not name the file: %v", err)
		}
		if err == nil && len(policy.Names()) == 0 {
			t.Error("a policy without rules passed")
		}
	})
}
