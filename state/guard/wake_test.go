package guard_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

// wake is the intent that starts the VM in the plan "update".
var wake = intent(func(i *guard.Intent) { i.Wake = update1.Update })

// wakePlan returns the edits that turn the plan "update" into one that starts a standby
// VM, with further edits.
func wakePlan(t *testing.T, more edits) edits {
	t.Helper()
	var doc struct {
		Changes []struct {
			Change struct{ After map[string]any }
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal(read(t, "update"), &doc); err != nil {
		t.Fatal(err)
	}
	before := maps.Clone(doc.Changes[0].Change.After)
	before["on_boot"] = false
	before["started"] = false
	all := edits{"resource_changes.0.change.before": before}
	maps.Copy(all, more)
	return all
}

// TestWake checks that a wake starts a standby VM, and does nothing else.
func TestWake(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		intent guard.Intent
		edits  edits
		rule   guard.Rule // "" means allowed
		part   string
	}{
		{"it starts", wake, nil, "", ""},
		{"it runs already, since a wake that was interrupted", wake, edits{"resource_changes.0.change.before.started": true}, "", ""},
		{"its addresses are not known yet", wake, edits{
			"resource_changes.0.change.after.ipv4_addresses": absent,
			"resource_changes.0.change.after_unknown":        map[string]any{"ipv4_addresses": true},
		}, "", ""},
		{"it was not requested", nothing, nil, guard.RuleSurplus, "update was not requested"},
		{"an update was requested", update1, nil, guard.RuleUpdate, "started would change in place"},
		{"it would stop", wake, edits{
			"resource_changes.0.change.before.started": true, "resource_changes.0.change.after.started": false,
		}, guard.RuleUpdate, "started would change to false"},
		{"tags change, too", wake, edits{"resource_changes.0.change.before.tags": []any{"old"}}, guard.RuleUpdate, "tags would change when the standby VM starts"},
		{"the memory changes, too", wake, edits{"resource_changes.0.change.before.memory.0.dedicated": 4096}, guard.RuleUpdate, "memory.dedicated would change"},
		{"a value is unknown", wake, edits{"resource_changes.0.change.after_unknown": map[string]any{"name": true}}, guard.RuleUpdate, "name would change"},
		{"it is another VM", wake, edits{"resource_changes.0.change.before.vm_id": 2009}, guard.RuleIdentity, "VMID in the state"},
		{"it does not boot with its host", wake, edits{"resource_changes.0.change.after.on_boot": false}, guard.RuleExpected, "on_boot is false"},
		{"nothing starts", wake, edits{"resource_changes.0.change.actions": []any{"no-op"}}, guard.RuleMissing, "does not wake"},
		{"its CPUs belong to another guest", intent(func(i *guard.Intent) {
			i.Wake = update1.Update
			i.Claims = []guard.Claim{claim(101, "pve-1", "4")}
		}), nil, guard.RulePins, "belong to guest 101"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, "update", wakePlan(t, tt.edits))
			v := guard.Check(plan, filled(plan, tt.intent), guard.DefaultRules())
			switch {
			case tt.rule == "" && (v.Decision != guard.Allow || len(v.Findings) > 0):
				t.Errorf("want allowed without findings, got\n%s", v)
			case tt.rule != "" && (v.Decision != guard.Deny || !has(v, guard.Deny, tt.rule, tt.part)):
				t.Errorf("want denied by %s: %s, got\n%s", tt.rule, tt.part, v)
			}
		})
	}
}

// TestStandbyNeedsItsModule checks that the file of a VM from an older release cannot
// declare standby.
func TestStandbyNeedsItsModule(t *testing.T) {
	t.Parallel()
	plan := edited(t, "update", nil)
	request := filled(plan, update1)
	request.Update[0].Module = "c62bcf5233d88919"
	var arguments map[string]any
	if err := json.Unmarshal(request.Update[0].Inputs, &arguments); err != nil {
		t.Fatal(err)
	}
	arguments["standby"] = true
	request.Update[0].Inputs, _ = json.Marshal(arguments)
	if v := guard.Check(plan, request, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleExpected, "which the modules") {
		t.Errorf("got\n%s", v)
	}
}

// TestOptionsNeedTheirModule checks that the file of a VM from an older release cannot set
// options that its module would ignore.
func TestOptionsNeedTheirModule(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(arguments map[string]any){
		"flags":  func(arguments map[string]any) { arguments["cpu"].(map[string]any)["flags"] = []string{"+aes"} },
		"tablet": func(arguments map[string]any) { arguments["hardware"] = map[string]any{"tablet": false} },
		"watchdog": func(arguments map[string]any) {
			arguments["hardware"] = map[string]any{"watchdog": map[string]any{"model": "ib700"}}
		},
		"rate": func(arguments map[string]any) {
			arguments["network_devices"] = []any{map[string]any{"bridge": "a", "rate_limit": 1}}
		},
		"queues": func(arguments map[string]any) {
			arguments["network_devices"] = []any{map[string]any{"bridge": "a", "queues": 1}}
		},
		"trunks": func(arguments map[string]any) {
			arguments["network_devices"] = []any{map[string]any{"bridge": "a", "trunks": []int{1}}}
		},
		"link": func(arguments map[string]any) {
			arguments["network_devices"] = []any{map[string]any{"bridge": "a", "disconnected": true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, "update", nil)
			request := filled(plan, update1)
			request.Update[0].Module = "2eb0b7e97a74c03e"
			var arguments map[string]any
			if err := json.Unmarshal(request.Update[0].Inputs, &arguments); err != nil {
				t.Fatal(err)
			}
			change(arguments)
			request.Update[0].Inputs, _ = json.Marshal(arguments)
			if v := guard.Check(plan, request, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleExpected, "sets options of hardware or network devices, which the modules") {
				t.Errorf("got\n%s", v)
			}
		})
	}
}

// TestWakeInPolicy checks the values of the variables about wakes.
func TestWakeInPolicy(t *testing.T) {
	t.Parallel()
	for when, each := range map[string]bool{
		"change.wakes == 1 && change.updates == 0 && intent.wake[0].vmid == 2001": false,
		"resource.action == 'wake' && !before.started && after.started":           true,
	} {
		rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policyOf(t, allowAll+deny(each, when))}
		if v := check(edited(t, "update", wakePlan(t, nil)), wake, rules); !has(v, guard.Deny, guard.PolicyRule("no"), "not so") {
			t.Errorf("%s: want denied by the rule, got\n%s", when, v)
		}
	}
}
