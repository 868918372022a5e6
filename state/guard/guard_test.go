package guard_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// The plans in testdata were created by Terraform with the bpg provider in a directory
// with VMs 2001 and 2002 on pve-1; imported.json is the import of VM 2001 from the
// simulator, and tofu.json was created by OpenTofu. import.json was derived from one of
// them.

// vm returns the target of VM number vmid in testdata.
func vm(vmid fleet.VMID) guard.Target {
	n := strconv.Itoa(int(vmid))
	return guard.Target{
		Address: "module.workers-" + n + ".proxmox_virtual_environment_vm.node",
		VMID:    vmid, Host: "pve-1",
		Key:  fleet.Key("5f1d00000000000000000000000007d" + n[len(n)-1:]),
		Pool: "workers", Drained: true,
	}
}

var pve1 = topology.HostID{Region: "lab", Host: "pve-1"}

func intent(edit func(*guard.Intent)) guard.Intent {
	i := guard.Intent{ClusterID: "prod"}
	edit(&i)
	return i
}

func creating(vmids ...fleet.VMID) guard.Intent {
	return intent(func(i *guard.Intent) {
		for _, vmid := range vmids {
			i.Create = append(i.Create, vm(vmid))
		}
	})
}

var (
	both    = creating(2001, 2002)
	mixed   = intent(func(i *guard.Intent) { i.Create = creating(2003).Create; i.Delete = creating(2002).Create })
	update1 = intent(func(i *guard.Intent) { i.Update = creating(2001).Create })
	import2 = intent(func(i *guard.Intent) { i.Import = creating(2002).Create })
	nothing = intent(func(*guard.Intent) {})
)

// intents returns the intent for each plan that should be allowed.
func intents() map[string]guard.Intent {
	return map[string]guard.Intent{
		"create": both, "mixed": mixed, "update": update1, "import": import2, "tofu": mixed,
		"imported": intent(func(i *guard.Intent) { i.Import = creating(2001).Create }),
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// edited returns a plan of testdata with values set at paths. A path that ends in "+"
// appends; the value absent deletes.
func edited(t testing.TB, name string, edits edits) *tfjson.Plan {
	t.Helper()
	var doc any
	if err := json.Unmarshal(read(t, name), &doc); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(edits)) { // a value comes before its parts
		doc = set(t, doc, strings.Split(path, "."), edits[path])
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := guard.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

type edits map[string]any

type absentType struct{}

var absent = absentType{}

func set(t testing.TB, doc any, path []string, value any) any {
	t.Helper()
	if len(path) == 0 {
		return value
	}
	switch d := doc.(type) {
	case []any:
		return setElement(t, d, path, value)
	case map[string]any:
		if value == absent && len(path) == 1 {
			delete(d, path[0])
			return d
		}
		d[path[0]] = set(t, d[path[0]], path[1:], value)
		return d
	case nil:
		if path[0] == "+" {
			return []any{set(t, nil, path[1:], value)}
		}
		return map[string]any{path[0]: set(t, nil, path[1:], value)}
	}
	t.Fatalf("cannot go to %v", path)
	return nil
}

func setElement(t testing.TB, list []any, path []string, value any) any {
	t.Helper()
	if path[0] == "+" {
		return append(list, set(t, nil, path[1:], value))
	}
	i, err := strconv.Atoi(path[0])
	if err != nil || i >= len(list) {
		t.Fatalf("no element %s", path[0])
	}
	if value == absent && len(path) == 1 {
		return slices.Delete(list, i, i+1)
	}
	list[i] = set(t, list[i], path[1:], value)
	return list
}

func has(v guard.Verdict, d guard.Decision, rule guard.Rule, part string) bool {
	return slices.ContainsFunc(v.Findings, func(f guard.Finding) bool {
		return f.Decision == d && f.Rule == rule && strings.Contains(f.Message, part)
	})
}

func TestCheckAllowsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	for name, intent := range intents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, name, nil)
			v := guard.Check(plan, filled(plan, intent), guard.DefaultRules())
			if v.Decision != guard.Allow || len(v.Findings) > 0 {
				t.Errorf("want allowed without findings, got\n%s", v)
			}
		})
	}
}

func TestCheckNothingChanges(t *testing.T) {
	t.Parallel()
	plan := edited(t, "mixed", edits{"resource_changes.1.change.actions": []any{"no-op"}, "resource_changes.2": absent})
	if v := check(plan, nothing, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("want an empty change allowed, got\n%s", v)
	}
}

func TestCheckRefusesOtherIntents(t *testing.T) {
	t.Parallel()
	other := func(edit func(*guard.Target)) []guard.Target {
		target := vm(2001)
		edit(&target)
		return []guard.Target{target, vm(2002)}
	}
	with := func(edit func(*guard.Target)) guard.Intent {
		return guard.Intent{ClusterID: "prod", Create: other(edit)}
	}
	tests := []struct {
		name     string
		plan     string
		intent   guard.Intent
		wantRule guard.Rule
		wantPart string
	}{
		{"a create nobody asked for", "create", creating(2001), guard.RuleSurplus, "create was not requested"},
		{"a delete nobody asked for", "mixed", creating(2003), guard.RuleSurplus, "delete was not requested"},
		{"an update nobody asked for", "update", nothing, guard.RuleSurplus, "update was not requested"},
		{"a create left out", "create", creating(2001, 2002, 2003), guard.RuleMissing, "does not create"},
		{"a delete left out", "create", intent(func(i *guard.Intent) { i.Create = both.Create; i.Delete = creating(2003).Create }), guard.RuleMissing, "does not delete"},
		{"an update left out", "create", intent(func(i *guard.Intent) { i.Create = both.Create; i.Update = creating(2003).Create }), guard.RuleMissing, "does not update"},
		{"an import left out", "create", intent(func(i *guard.Intent) { i.Create = both.Create; i.Import = creating(2003).Create }), guard.RuleMissing, "does not import"},
		{"a create for an import", "create", intent(func(i *guard.Intent) { i.Create = creating(2001).Create; i.Import = creating(2002).Create }), guard.RuleSurplus, "create"},
		{"another VMID", "create", with(func(t *guard.Target) { t.VMID = 2009 }), guard.RuleIdentity, "VMID in the plan is 2001, but 2009 was requested"},
		{"another key", "create", with(func(t *guard.Target) { t.Key = vm(2003).Key }), guard.RuleIdentity, "this is another VM"},
		{"another host", "create", with(func(t *guard.Target) { t.Host = "pve-2" }), guard.RuleIdentity, `requested on "pve-2"`},
		{"another cluster", "create", guard.Intent{ClusterID: "test", Create: both.Create}, guard.RuleIdentity, "this is another VM"},
		{"a delete of another key", "mixed", intent(func(i *guard.Intent) {
			i.Create = mixed.Create
			d := vm(2002)
			d.Key = vm(2001).Key
			i.Delete = []guard.Target{d}
		}), guard.RuleIdentity, "marker in the state"},
		{"a delete of another VMID", "mixed", intent(func(i *guard.Intent) {
			i.Create = mixed.Create
			d := vm(2002)
			d.VMID = 2001
			i.Delete = []guard.Target{d}
		}), guard.RuleIdentity, "VMID in the state"},
		{"an update of another key", "update", intent(func(i *guard.Intent) { u := vm(2001); u.Key = vm(2002).Key; i.Update = []guard.Target{u} }), guard.RuleIdentity, "marker in the state"},
		{"one VM wanted twice", "mixed", intent(func(i *guard.Intent) { i.Create = mixed.Create; i.Delete = mixed.Delete; i.Update = mixed.Delete }), guard.RuleIntent, "request one operation"},
		{"one VMID wanted twice", "create", with(func(t *guard.Target) { t.VMID = 2002 }), guard.RuleIntent, "VMID 2002 is also requested for"},
		{"an intent without key", "create", with(func(t *guard.Target) { t.Key = "" }), guard.RuleIntent, "lacks"},
		{"an intent without host", "create", with(func(t *guard.Target) { t.Host = "" }), guard.RuleIntent, "lacks"},
		{"an intent without cluster", "create", guard.Intent{Create: both.Create}, guard.RuleIntent, "lacks"},
		{"an intent with VMID 0", "create", with(func(t *guard.Target) { t.VMID = 0 }), guard.RuleIntent, "VMID 0"},
		{"an intent with VMID 10^9", "create", with(func(t *guard.Target) { t.VMID = 1000000000 }), guard.RuleIntent, "VMID 1000000000"},
		{"an intent with a foreign address", "create", with(func(t *guard.Target) { t.Address = "proxmox_virtual_environment_vm.node" }), guard.RuleIntent, "not the address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, tt.plan, nil), tt.intent, guard.DefaultRules())
			if v.Decision != guard.Deny || !has(v, guard.Deny, tt.wantRule, tt.wantPart) {
				t.Errorf("want denied by %s with %q, got\n%s", tt.wantRule, tt.wantPart, v)
			}
		})
	}
}

func TestCheckWithoutRules(t *testing.T) {
	t.Parallel()
	for _, rules := range []guard.Rules{{}, {Limits: guard.DefaultLimits()}} {
		v := check(edited(t, "create", nil), both, rules)
		if v.Decision != guard.Deny || !has(v, guard.Deny, guard.RuleRules, "no rules are loaded") {
			t.Errorf("empty rules: got\n%s", v)
		}
	}
	v := check(edited(t, "create", nil), both, guard.Rules{Limits: guard.DefaultLimits(), Policy: &guard.Policy{}})
	if v.Decision != guard.Deny || !has(v, guard.Deny, guard.RulePolicy, "has no rules") {
		t.Errorf("empty policy: got\n%s", v)
	}
}

func TestZeroVerdictDenies(t *testing.T) {
	t.Parallel()
	var v guard.Verdict
	if v.Decision != guard.Deny || v.String() != "guard: denied" {
		t.Errorf("zero verdict is %q", v)
	}
}

func TestVerdictString(t *testing.T) {
	t.Parallel()
	v := check(edited(t, "create", edits{"resource_changes.0.change.after.template": true}), both, guard.DefaultRules())
	limits := guard.DefaultLimits()
	limits.PerChange.Creates = 1
	v = v.And(guard.CheckLimits([]guard.HostIntent{{Host: pve1, Intent: both}}, nil, limits))
	want := `guard: denied
  denied         [fixed] module.workers-2001.proxmox_virtual_environment_vm.node: the VM would become a template: use the module that numaform wrote
  needs approval [limit] 2 creates in one change exceed the limit of 1: approve the change, or raise policy.limits in numaform.yaml`
	if v.String() != want {
		t.Errorf("got\n%s\nwant\n%s", v, want)
	}
}

func TestDecisionIsReadBack(t *testing.T) {
	t.Parallel()
	want := guard.Verdict{Decision: guard.NeedsApproval, Findings: []guard.Finding{
		{Rule: guard.RuleLimit, Decision: guard.NeedsApproval, Host: pve1, Message: "x"},
		{Rule: guard.PolicyRule("a"), Decision: guard.Allow, Address: "y", Message: "z"},
	}}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got guard.Verdict
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for word, want := range map[string]guard.Decision{"allow": guard.Allow, "approve": guard.NeedsApproval, "deny": guard.Deny} {
		var d guard.Decision = -1
		if err := d.UnmarshalText([]byte(word)); err != nil || d != want {
			t.Errorf("%s: got %v, %v", word, d, err)
		}
	}
	d := guard.Deny
	if err := d.UnmarshalText([]byte("maybe")); err == nil || d != guard.Deny {
		t.Errorf("maybe: got %v, %v", d, err)
	}
}
