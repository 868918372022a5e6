package guard_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

const allowAll = "- name: all\n  when: \"true\"\n  decision: allow\n"

// deny returns the text of a rule that denies.
func deny(each bool, when string) string {
	text := "- name: no\n  decision: deny\n  message: not so\n  when: |-\n    " + when + "\n"
	if each {
		text += "  each: resource\n"
	}
	return text
}

// TestPolicyVariables checks the values of the variables that rules can use.
func TestPolicyVariables(t *testing.T) {
	t.Parallel()
	tests := []struct {
		plan string
		each bool
		when string
	}{
		{"create", false, "change.creates == 2 && change.deletes == 0 && change.nodes == 0 && change.hosts == 1"},
		{"mixed", false, "change.creates == 1 && change.deletes == 1 && change.nodes == 2 && change.updates + change.imports == 0"},
		{"create", false, "intent.create[0].vmid == 2001 && intent.create[0].name == 'workers-2001' && intent.create[1].host == 'pve-1'"},
		{"create", false, "intent.create.all(t, t.pool == 'workers' && t.key.startsWith('5f1d')) && intent.cluster_id == 'prod'"},
		{"mixed", false, "intent.delete.exists_one(t, t.drained && t.address == 'module.workers-2002.proxmox_virtual_environment_vm.node')"},
		{"create", false, "pools == ['workers']"},
		{"create", false, "plan.resource_changes.size() == 2 && plan.resource_changes[0].change.after.vm_id == 2001"},
		{"create", false, "plan.configuration.root_module.module_calls['workers-2001'].source.startsWith('.')"},
		{"mixed", false, "plan.prior_state.values.root_module.child_modules.size() == 2"},
		{"create", true, "resource.name == 'workers-2001' && resource.kind == 'vm' && resource.action == 'create' && resource.vmid == 2001"},
		{"create", true, "resource.pool == 'workers' && resource.host == 'pve-1' && size(before) == 0 && after.cpu[0].cores * 2 == 8"},
		{"mixed", true, "resource.action == 'delete' && before.memory[0].dedicated >= 8192 && size(after) == 0"},
		{"firewall", true, "resource.kind == 'firewall' && resource.action == 'create' && resource.name == 'workers-2003' && resource.vmid == 2003"},
		{"imported", true, "resource.action == 'import'"},
		{"moved", true, "resource.action == 'move' && resource.name == 'workers-2004'"},
		{"update", true, "resource.action == 'update' && before.description != after.description || before.tags != after.tags"},
		{"create", false, "change.creates > 1 && intent.create[0].vmid % 2 == 1 && math.greatest(change.creates, 1) == 2"},
		{"create", false, "sets.contains(['workers', 'batch'], pools) && 'a,b'.split(',').size() == 2"},
	}
	for _, tt := range tests {
		t.Run(tt.when, func(t *testing.T) {
			t.Parallel()
			i := intents()[tt.plan]
			if tt.plan == "firewall" {
				i = mixed
			}
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(tt.each, tt.when))}
			v := check(edited(t, tt.plan, nil), i, rules)
			if v.Decision != guard.Deny || !has(v, guard.Deny, guard.PolicyRule("no"), "not so") {
				t.Errorf("want denied by the rule, got\n%s", v)
			}
			if named := v.Findings[0].Address != ""; named != tt.each {
				t.Errorf("the finding is %s", v.Findings[0])
			}
		})
	}
}

func TestPolicyDecides(t *testing.T) {
	t.Parallel()
	const (
		allowCreates = "- name: creates\n  each: resource\n  when: resource.action == 'create'\n  decision: allow\n"
		allowFirst   = "- name: first\n  each: resource\n  when: resource.vmid == 2001\n  decision: allow\n"
		never        = "- name: never\n  when: \"false\"\n  decision: allow\n"
		ask          = "- name: two\n  when: change.creates >= 2\n  decision: approve\n  messageExpression: >-\n    string(change.creates) +\n    ' at once'\n"
	)
	tests := []struct {
		name, rules, plan string
		want              guard.Decision
		findings          []string
	}{
		{"all are allowed", allowAll, "create", guard.Allow, nil},
		{"each is allowed", allowCreates, "create", guard.Allow, nil},
		{"one is allowed", allowFirst, "create", guard.NeedsApproval, []string{"[policy] " + vm(2002).Address + ": no rule of the policy allows it"}},
		{"creates are allowed, a delete is not", allowCreates, "mixed", guard.NeedsApproval, []string{"[policy] " + vm(2002).Address}},
		{"none is allowed", never, "create", guard.NeedsApproval, []string{"[policy] " + vm(2001).Address, "[policy] " + vm(2002).Address}},
		{"the strictest wins", allowAll + ask, "create", guard.NeedsApproval, []string{"[policy/two] 2 at once"}},
		{"whatever comes last", ask + allowAll + deny(false, "change.creates == 2"), "create", guard.Deny, []string{"[policy/no] not so", "[policy/two] 2 at once"}},
		{"what does not hold says nothing", allowAll + ask + deny(true, "resource.action == 'delete'"), "update", guard.Allow, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, tt.rules)}
			v := check(edited(t, tt.plan, nil), intents()[tt.plan], rules)
			if v.Decision != tt.want || len(v.Findings) != len(tt.findings) {
				t.Fatalf("want %s with %d findings, got\n%s", tt.want, len(tt.findings), v)
			}
			for i, want := range tt.findings {
				if !strings.HasPrefix(v.Findings[i].String(), want) {
					t.Errorf("want %s, got %s", want, v.Findings[i])
				}
			}
		})
	}
}

// TestPolicyLiftsNoInvariant checks that no rule can allow what the guard denies.
func TestPolicyLiftsNoInvariant(t *testing.T) {
	t.Parallel()
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+"- name: each\n  each: resource\n  when: \"true\"\n  decision: allow\n")}
	for _, name := range []string{"tainted", "resize", "deposed", "data", "output", "target"} {
		if v := check(edited(t, name, nil), update1, rules); v.Decision != guard.Deny {
			t.Errorf("%s: want denied, got\n%s", name, v)
		}
	}
	if v := check(edited(t, "import", nil), nothing, rules); v.Decision != guard.NeedsApproval {
		t.Errorf("an import that was not requested: got\n%s", v)
	}
}

// TestPolicyFailsClosed checks that a rule that cannot be evaluated denies the plan, and
// that the finding has the rule's name.
func TestPolicyFailsClosed(t *testing.T) {
	t.Parallel()
	const message = "- name: no\n  decision: approve\n  when: \"true\"\n  messageExpression: string(plan.nope)\n"
	for name, tt := range map[string]struct{ rules, want string }{
		"a missing key":              {deny(true, "after.nope == 1"), "no such key: nope"},
		"a missing element":          {deny(true, "after.cpu[7].cores == 1"), "index out of bounds"},
		"an overload that is none":   {deny(true, "after.name > 3"), "no such overload"},
		"a message that cannot be":   {message, "no such key: nope"},
		"a division by zero":         {deny(false, "1 / change.deletes == 1"), "division by zero"},
		"too much work":              {deny(false, "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, a+b+c+d+e+f > 0))))))"), "cost limit exceeded"},
		"an allow that cannot be":    {"- name: no\n  when: plan.nope == 1\n  decision: allow\n", "no such key: nope"},
		"a number where a word is":   {deny(true, "after.name.startsWith(after.vm_id)"), "no such overload"},
		"a condition that is a list": {deny(true, "after.tags[0] ? true : false"), "no such overload"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+tt.rules)}
			v := check(edited(t, "create", nil), both, rules)
			if v.Decision != guard.Deny || !has(v, guard.Deny, guard.PolicyRule("no"), tt.want) {
				t.Errorf("want denied with %q, got\n%s", tt.want, v)
			}
		})
	}
}

// TestPolicySeesWhatBlocks checks that drained is false in rules for a target with a
// reason in Blocked, even if the target is marked as drained.
func TestPolicySeesWhatBlocks(t *testing.T) {
	t.Parallel()
	asked := mixed
	target := vm(2002)
	target.Blocked = "pod web-0 is kept by budget web"
	asked.Delete = []guard.Target{target}
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(false, "intent.delete.exists(t, t.drained)"))}
	if v := check(edited(t, "mixed", nil), asked, rules); has(v, guard.Deny, guard.PolicyRule("no"), "") {
		t.Errorf("the rule takes it for drained:\n%s", v)
	}
}

func TestPolicyWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, deny(false, "plan.nope == 1"))}
	v := check(edited(t, "create", nil), both, rules)
	if !has(v, guard.Deny, guard.RulePolicy, "no rule of the policy was evaluated") || has(v, guard.NeedsApproval, guard.RulePolicy, "") {
		t.Errorf("no rule answers: got\n%s", v)
	}
	rules.Policy = policyOf(t, "- name: each\n  each: resource\n  when: \"true\"\n  decision: allow\n")
	unchanged := edited(t, "mixed", edits{"resource_changes.1.change.actions": []any{"no-op"}, "resource_changes.2": absent})
	if v := check(unchanged, nothing, rules); v.Decision != guard.Allow {
		t.Errorf("nothing to decide: got\n%s", v)
	}
}

// TestPolicyMessagesAreHarmless checks that a message that contains values of the plan is
// one line without secrets.
func TestPolicyMessagesAreHarmless(t *testing.T) {
	t.Parallel()
	rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t,
		allowAll+"- name: tell\n  each: resource\n  when: resource.vmid == 2001\n  decision: deny\n  messageExpression: string(after.tags[0])\n")}
	for value, want := range map[string]string{
		"PVEAPIToken=canary":         "the reason is hidden because it looks like a Proxmox API token",
		"a\x1b[31m\nb\r\n  c":        "a [31m b c",
		strings.Repeat("ä", 400):     strings.Repeat("ä", 250) + " …",
		"x" + strings.Repeat("ä", 9): "x" + strings.Repeat("ä", 9),
	} {
		v := check(edited(t, "create", edits{after + "tags.0": value}), both, rules)
		found := false
		for _, f := range v.Findings {
			if f.Rule == guard.PolicyRule("tell") {
				found = f.Message == want
			}
		}
		if !found || strings.Contains(v.String(), "canary") {
			t.Errorf("want %q, got\n%s", want, v)
		}
	}
}

// TestShippedPolicy checks that all drained nodes of a host may be deleted, and that
// deleting most VMs of a large host needs approval if many of their Nodes are gone.
func TestShippedPolicy(t *testing.T) {
	t.Parallel()
	rules := guard.DefaultRules()
	for _, tt := range []struct {
		leave, gone, stay int
		want              guard.Decision
	}{
		{leave: 1, gone: 1, want: guard.Allow},
		{leave: 9, gone: 9, want: guard.Allow},
		{leave: 10, gone: 10, stay: 10, want: guard.Allow},
		{leave: 10, gone: 10, stay: 9, want: guard.NeedsApproval},
		{leave: 20, gone: 20, want: guard.NeedsApproval},
		{leave: 20, gone: 11, want: guard.NeedsApproval},
		{leave: 20, gone: 10, want: guard.Allow},
		{leave: 20, want: guard.Allow},
		{leave: 10, stay: 9, want: guard.Allow},
	} {
		plan, asked := leaving(t, tt.leave, tt.stay)
		for i := range tt.gone {
			asked.Delete[i].Gone = true
		}
		v := check(plan, asked, rules)
		if v.Decision != tt.want {
			t.Errorf("%d leave, %d of them gone, %d stay: want %s, got\n%s", tt.leave, tt.gone, tt.stay, tt.want, v)
		}
		if tt.want == guard.NeedsApproval && !has(v, tt.want, guard.PolicyRule("host-nearly-emptied"), "nodes of the host would be deleted at once") {
			t.Errorf("%d leave, %d of them gone, %d stay: got\n%s", tt.leave, tt.gone, tt.stay, v)
		}
	}
}
