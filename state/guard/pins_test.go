package guard_test

import (
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// pinnedPlan returns edits of the plan "create" that pin VM 2001 by its affinity and,
// unless pins is empty, VM 2002 by its marker.
func pinnedPlan(affinity, pins string) edits {
	e := edits{after + "cpu.0.affinity": affinity}
	if pins != "" {
		e["resource_changes.1.change.after.description"] = "numaform/1 cluster=prod key=" + string(vm(2002).Key) + " pins=" + pins
	}
	return e
}

func claim(vmid fleet.VMID, host topology.HostName, list string) guard.Claim {
	return guard.Claim{Host: host, CPUs: cpus(list), Guest: "db", VMID: vmid}
}

func cpus(list string) topology.CPUSet {
	set, err := topology.ParseCPUSet(list)
	if err != nil {
		panic(err)
	}
	return set
}

func TestCheckPins(t *testing.T) {
	t.Parallel()
	update := edits{after + "description": "numaform/1 cluster=prod key=" + string(vm(2001).Key) + " pins=4,5,6,7"}
	tests := []struct {
		name   string
		plan   string
		edits  edits
		claims []guard.Claim
		part   string
	}{
		{"free", "create", pinnedPlan("0-3", "4,5"), []guard.Claim{claim(100, "pve-1", "6-9")}, ""},
		{"on another host", "create", pinnedPlan("0-3", "4,5"), []guard.Claim{claim(100, "pve-2", "0-9")}, ""},
		{"its own", "create", pinnedPlan("0-3", ""), []guard.Claim{claim(2001, "pve-1", "0-3")}, ""},
		{"held by a guest", "create", pinnedPlan("0-3", ""), []guard.Claim{claim(100, "pve-1", "3,9")}, `CPUs 3 of host pve-1 belong to guest 100 ("db")`},
		{"held by a guest, by marker", "create", pinnedPlan("", "4,5"), []guard.Claim{claim(100, "pve-1", "5")}, "CPUs 5 of host pve-1 belong to guest 100"},
		{"of two VMs of the plan", "create", pinnedPlan("0-3", "3,4"), nil, "CPUs 3 of host pve-1 are also planned for " + vm(2002).Address},
		{"of no list", "create", pinnedPlan("0-3;evil", ""), nil, "is not a list of CPUs"},
		{"unknown", "create", edits{unknown + "cpu.0.affinity": true}, nil, "not known before the apply"},
		{"all of the block unknown", "create", edits{unknown + "cpu": true}, nil, "not known before the apply"},
		{"an update to free ones", "update", update, []guard.Claim{claim(2001, "pve-1", "2,3")}, ""},
		{"an update to held ones", "update", update, []guard.Claim{claim(100, "pve-1", "4")}, "CPUs 4 of host pve-1 belong to guest 100"},
		{"an update to fewer", "update", edits{after + "description": "numaform/1 cluster=prod key=" + string(vm(2001).Key) + " pins=4,5"}, nil, "its description has pins for 2 vCPUs, but cpu.sockets is 1 and cpu.cores is 4: replace the node instead"},
		{"an update to none", "update", edits{
			first + "change.before.description": "numaform/1 cluster=prod key=" + string(vm(2001).Key) + " pins=4,5,6,7",
			after + "description":               "numaform/1 cluster=prod key=" + string(vm(2001).Key),
		}, nil, ""},
		{"an update beside an affinity", "update", edits{
			after + "description":    "numaform/1 cluster=prod key=" + string(vm(2001).Key) + " pins=4,5,6,7",
			after + "cpu.0.affinity": "4-7", first + "change.before.cpu.0.affinity": "4-7",
		}, nil, "which only root may change: replace the node instead"},
		{"a delete among VMs that share", "mixed", edits{
			first + "change.after.cpu.0.affinity": "0-3", first + "change.before.cpu.0.affinity": "0-3",
		}, []guard.Claim{claim(100, "pve-1", "0-9")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			i := intents()[tt.plan]
			i.Claims = tt.claims
			v := check(edited(t, tt.plan, tt.edits), i, guard.DefaultRules())
			if tt.part == "" && v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
			if tt.part != "" && (v.Decision != guard.Deny || !has(v, guard.Deny, guard.RulePins, tt.part)) {
				t.Errorf("want denied because of %q, got\n%s", tt.part, v)
			}
		})
	}
}

func TestCheckPinsOfAVMThatStays(t *testing.T) {
	t.Parallel()
	affinity := "resource_changes.2.change.after.cpu.0.affinity"
	stays := edits{first + "change.after.cpu.0.affinity": "0-3", first + "change.before.cpu.0.affinity": "0-3", affinity: "3-6"}
	v := check(edited(t, "mixed", stays), mixed, guard.DefaultRules())
	if v.Decision != guard.Deny || !has(v, guard.Deny, guard.RulePins, "CPUs 3 of host pve-1 are also planned for "+vm(2001).Address) {
		t.Errorf("want denied, got\n%s", v)
	}
	stays[first+"change.after.node_name"], stays[first+"change.before.node_name"] = "pve-2", "pve-2"
	if v := check(edited(t, "mixed", stays), mixed, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("the other moved away: want allowed, got\n%s", v)
	}
}

// TestCheckPinsOfAVMWithoutAChange checks that a plan is denied if it assigns CPUs of a VM
// that is only in the planned state, because a plan of some VMs has no change for it.
func TestCheckPinsOfAVMWithoutAChange(t *testing.T) {
	t.Parallel()
	plan := edited(t, "mixed", edits{"resource_changes.2.change.after.cpu.0.affinity": "3-6"})
	if got := plan.ResourceChanges[0].Address; got != vm(2001).Address {
		t.Fatalf("the first change is of %s, want %s", got, vm(2001).Address)
	}
	plan.ResourceChanges = plan.ResourceChanges[1:]
	if v := check(plan, mixed, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("without pins of its own: want allowed, got\n%s", v)
	}
	for _, module := range plan.PlannedValues.RootModule.ChildModules {
		for _, r := range module.Resources {
			if r.Address == vm(2001).Address {
				r.AttributeValues["cpu"].([]any)[0].(map[string]any)["affinity"] = "0-3"
			}
		}
	}
	if v := check(plan, mixed, guard.DefaultRules()); v.Decision != guard.Deny || !has(v, guard.Deny, guard.RulePins, "CPUs 3 of host pve-1 are also planned for "+vm(2001).Address) {
		t.Errorf("want denied, got\n%s", v)
	}
}

func TestCheckDrained(t *testing.T) {
	t.Parallel()
	deleting := func(edit func(*guard.Target)) guard.Intent {
		i := mixed
		d := vm(2002)
		edit(&d)
		i.Delete = []guard.Target{d}
		return i
	}
	for name, tt := range map[string]struct {
		edit func(*guard.Target)
		part string
	}{
		"nobody says so":     {func(d *guard.Target) { d.Drained = false }, "cannot be deleted until its Node is drained: drain Node workers-2002"},
		"blocked":            {func(d *guard.Target) { d.Drained, d.Blocked = false, "pod web-0 is kept by budget web" }, "cannot be deleted until its Node is drained: pod web-0 is kept by budget web"},
		"drained or blocked": {func(d *guard.Target) { d.Blocked = "pod web-0 is kept by budget web" }, "pod web-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, "mixed", nil), deleting(tt.edit), guard.DefaultRules())
			if v.Decision != guard.Deny || len(v.Findings) != 1 || !has(v, guard.Deny, guard.RuleDrained, tt.part) {
				t.Errorf("want denied because of %q only, got\n%s", tt.part, v)
			}
			if v.Findings[0].Address != vm(2002).Address || strings.Contains(v.Findings[0].Message, string(vm(2002).Key)) {
				t.Errorf("got finding %+v", v.Findings[0])
			}
		})
	}
	// A VM that no longer exists runs no pods.
	plan := edited(t, "mixed", nil)
	plan.ResourceDrift = append(plan.ResourceDrift, plan.ResourceChanges[1])
	plan.ResourceChanges = append(plan.ResourceChanges[:1:1], plan.ResourceChanges[2])
	if v := check(plan, deleting(func(d *guard.Target) { d.Drained = false }), guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("VM gone: got\n%s", v)
	}
}

// TestCheckUpdatesPerKind checks that the attributes that may change in place on a VM may
// not change on its security groups, and vice versa.
func TestCheckUpdatesPerKind(t *testing.T) {
	t.Parallel()
	updating := intent(func(i *guard.Intent) { i.Update = creating(2003).Create; i.Delete = mixed.Delete })
	for attribute, allowed := range map[string]bool{"rule": true, "vm_id": false, "node_name": false, "description": false, "enabled": false} {
		plan := edited(t, "firewall", edits{groupsCome + "change.actions": []any{"update"}})
		groups, node := plan.ResourceChanges[4].Change, plan.ResourceChanges[3].Change
		before := map[string]any{}
		for name, value := range groups.After.(map[string]any) {
			before[name] = value
		}
		before[attribute] = []any{map[string]any{"security_group": "other"}}
		groups.Before, groups.AfterUnknown = before, nil
		node.Actions, node.Before, node.AfterUnknown = []tfjson.Action{"no-op"}, node.After, nil
		v := check(plan, updating, guard.DefaultRules())
		denied := has(v, guard.Deny, guard.RuleUpdate, attribute+" would change in place")
		if denied == allowed || allowed && has(v, guard.Deny, guard.RuleUpdate, "") {
			t.Errorf("%s: got\n%s", attribute, v)
		}
	}
	for _, attribute := range []string{"description", "on_boot", "pool_id", "tags"} {
		v := check(edited(t, "update", edits{first + "change.before." + attribute: "x"}), update1, guard.DefaultRules())
		if has(v, guard.Deny, guard.RuleUpdate, "") {
			t.Errorf("%s of a VM: got\n%s", attribute, v)
		}
	}
	v := check(edited(t, "update", edits{after + "rule": "x"}), update1, guard.DefaultRules())
	if !has(v, guard.Deny, guard.RuleUpdate, "rule would change") {
		t.Errorf("a VM's rule: got\n%s", v)
	}
}
