package guard_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

// check checks a plan without the VMs' files, for tests of one rule on an edited plan.
func check(plan *tfjson.Plan, intent guard.Intent, rules guard.Rules) guard.Verdict {
	return guard.CheckRecorded(plan, intent, rules)
}

// filled returns an intent whose targets have the arguments of their files, from the
// module calls in the plan's own configuration.
func filled(plan *tfjson.Plan, intent guard.Intent) guard.Intent {
	if plan == nil || plan.Config == nil || plan.Config.RootModule == nil {
		return intent
	}
	for _, targets := range []*[]guard.Target{&intent.Create, &intent.Import, &intent.Update, &intent.Wake} {
		*targets = slices.Clone(*targets)
		for i := range *targets {
			target := &(*targets)[i]
			if target.Inputs == nil {
				target.Module, target.Inputs = modules.Hash(), argumentsOf(plan, target.Address)
			}
		}
	}
	return intent
}

// argumentsOf returns the constant arguments of the module calls of a VM.
func argumentsOf(plan *tfjson.Plan, address string) []byte {
	name := strings.TrimSuffix(strings.TrimPrefix(address, "module."), "."+guard.ResourceType+".node")
	arguments := map[string]any{}
	for _, call := range []string{name + "_security_groups", name} {
		if c := plan.Config.RootModule.ModuleCalls[call]; c != nil {
			constants := maps.Clone(c.Expressions)
			maps.DeleteFunc(constants, func(name string, e *tfjson.Expression) bool {
				return name == "record" || e == nil || e.ExpressionData == nil || e.ConstantValue == nil || e.ConstantValue == tfjson.UnknownConstantValue
			})
			for name, e := range constants {
				arguments[name] = e.ConstantValue
			}
		}
	}
	raw, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return raw
}
