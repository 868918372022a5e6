package guard_test

import (
	"fmt"
	"maps"
	"strconv"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// hostOf returns a plan for a host with a number of VMs, and the intent for it. act returns
// the action for each VM.
func hostOf(tb testing.TB, vms int, act func(i int) tfjson.Action) (*tfjson.Plan, guard.Intent) {
	tb.Helper()
	plan := edited(tb, "create", nil)
	model, call := plan.ResourceChanges[0], plan.Config.RootModule.ModuleCalls["workers-2001"]
	prior, planned := &tfjson.StateModule{}, &tfjson.StateModule{}
	plan.ResourceChanges, plan.Config.RootModule.ModuleCalls = nil, map[string]*tfjson.ModuleCall{}
	plan.PriorState = &tfjson.State{FormatVersion: "1.0", Values: &tfjson.StateValues{RootModule: prior}}
	plan.PlannedValues.RootModule = planned
	asked := guard.Intent{ClusterID: "prod"}
	for i := range vms {
		target := guard.Target{
			VMID: fleet.VMID(2000 + i), Host: "pve-1", Pool: "workers", Drained: true,
			Key: fleet.Key(fmt.Sprintf("5f1d%028x", i)), Address: fmt.Sprintf("module.workers-%d.%s.node", 2000+i, guard.ResourceType),
		}
		name := fmt.Sprintf("workers-%d", target.VMID)
		values := maps.Clone(model.Change.After.(map[string]any))
		values["vm_id"], values["name"] = float64(target.VMID), name
		values["smbios"] = []any{map[string]any{"product": "m.4", "serial": fmt.Sprintf("%s/%d", name, target.VMID)}}
		values["description"] = fmt.Sprintf("numaform/1 cluster=prod key=%s pins=%d,%d\nwhy", target.Key, 2*i, 2*i+1)
		if act(i) != tfjson.ActionCreate {
			values["id"] = strconv.Itoa(int(target.VMID))
		}
		rc := *model
		rc.Address, rc.ModuleAddress = target.Address, "module."+name
		rc.Change = &tfjson.Change{Actions: tfjson.Actions{act(i)}, Before: values, After: values}
		module := &tfjson.StateModule{Address: rc.ModuleAddress, Resources: []*tfjson.StateResource{{
			Address: rc.Address, Mode: rc.Mode, Type: rc.Type, Name: rc.Name, ProviderName: rc.ProviderName, AttributeValues: values,
		}}}
		switch act(i) {
		case tfjson.ActionCreate:
			rc.Change.Before = nil
			asked.Create = append(asked.Create, target)
		case tfjson.ActionDelete:
			rc.Change.After = nil
			asked.Delete = append(asked.Delete, target)
		}
		if rc.Change.Before != nil {
			prior.ChildModules = append(prior.ChildModules, module)
			asked.Claims = append(asked.Claims, guard.Claim{Host: "pve-1", CPUs: topology.CPUs(2*i, 2*i+1), VMID: target.VMID})
		}
		if rc.Change.After != nil {
			planned.ChildModules = append(planned.ChildModules, module)
			plan.Config.RootModule.ModuleCalls[name] = callWith(call, map[string]any{
				"name": name, "vm_id": values["vm_id"], "description": []any{values["description"]},
			})
		}
		plan.ResourceChanges = append(plan.ResourceChanges, &rc)
	}
	return plan, asked
}

// callWith returns a module call with other constant arguments.
func callWith(call *tfjson.ModuleCall, constants map[string]any) *tfjson.ModuleCall {
	other := *call
	other.Expressions = maps.Clone(call.Expressions)
	for name, value := range constants {
		other.Expressions[name] = &tfjson.Expression{ExpressionData: &tfjson.ExpressionData{ConstantValue: value}}
	}
	return &other
}

// large returns a plan that creates 20 VMs and leaves 20 unchanged, and its intent.
func large(tb testing.TB) (*tfjson.Plan, guard.Intent) {
	tb.Helper()
	return hostOf(tb, 40, func(i int) tfjson.Action {
		if i < 20 {
			return tfjson.ActionNoop
		}
		return tfjson.ActionCreate
	})
}

// leaving returns a plan that deletes VMs and leaves others unchanged, and its intent.
func leaving(tb testing.TB, leave, stay int) (*tfjson.Plan, guard.Intent) {
	tb.Helper()
	return hostOf(tb, leave+stay, func(i int) tfjson.Action {
		if i < leave {
			return tfjson.ActionDelete
		}
		return tfjson.ActionNoop
	})
}

func TestCheckLargePlan(t *testing.T) {
	t.Parallel()
	plan, asked := large(t)
	if v := check(plan, asked, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("want allowed, got\n%s", v)
	}
}

func BenchmarkCheck(b *testing.B) {
	plan, asked := large(b)
	asked = filled(plan, asked)
	reader, err := guard.ParsePolicy("reads-the-plan.yaml", []byte("rules:\n- name: all\n  decision: allow\n  when: size(plan.resource_changes) > 0\n"))
	if err != nil {
		b.Fatal(err)
	}
	rules := guard.DefaultRules()
	for _, bench := range []struct {
		name   string
		policy *guard.Policy
	}{{"shipped", rules.Policy}, {"whole-plan", reader}} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if v := guard.Check(plan, asked, guard.Rules{Limits: rules.Limits, Policy: bench.policy}); v.Decision != guard.Allow {
					b.Fatal(v)
				}
			}
		})
	}
}

func BenchmarkParsePolicy(b *testing.B) {
	for b.Loop() {
		if _, err := guard.ParsePolicy("p", guard.DefaultPolicy()); err != nil {
			b.Fatal(err)
		}
	}
}
