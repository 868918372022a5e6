package guard

import (
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// providerSettings are the only arguments allowed in a provider block: credentials come
// from the environment.
var providerSettings = []string{"endpoint", "insecure", "min_tls"}

// config checks the configuration that the plan was made from.
func (j *judge) config(config *tfjson.Config) {
	if config == nil || config.RootModule == nil {
		j.deny(RulePlan, "", "the plan does not say which configuration it was made from: plan again")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(config.ProviderConfigs)) {
		j.provider(key, config.ProviderConfigs[key])
	}
	root := config.RootModule
	for _, r := range root.Resources {
		if r != nil {
			j.deny(RuleConfig, r.Address, "the fleet directory declares it outside of numaform's modules: move it to a directory and a state of its own")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(root.Outputs)) {
		j.deny(RuleConfig, "output."+name, "numaform writes no outputs: remove it from the fleet directory")
	}
	j.variables("", root.Variables)
	for _, name := range slices.Sorted(maps.Keys(root.ModuleCalls)) {
		j.module("module."+name, root.ModuleCalls[name])
	}
}

func (j *judge) provider(key string, provider *tfjson.ProviderConfig) {
	if provider == nil || provider.FullName != Provider {
		j.deny(RuleConfig, key, "a provider that numaform does not use: only "+Provider+" may be configured")
		return
	}
	for _, setting := range slices.Sorted(maps.Keys(provider.Expressions)) {
		if !slices.Contains(providerSettings, setting) {
			j.deny(RuleConfig, key, "provider argument "+setting+" is set: give credentials and the like in the environment")
		}
	}
	j.expressions(key, provider.Expressions)
}

// module checks a module call of a fleet's root, and the called module.
func (j *judge) module(address string, call *tfjson.ModuleCall) {
	if call == nil || call.Module == nil {
		j.deny(RulePlan, address, "the plan does not hold the module's configuration: plan again")
		return
	}
	if !strings.HasPrefix(call.Source, "./") && !strings.HasPrefix(call.Source, "../") {
		j.deny(RuleConfig, address, "the module comes from outside of the fleet directory: call one that numaform wrote")
	}
	if call.CountExpression != nil || call.ForEachExpression != nil {
		j.deny(RuleConfig, address, "the module call uses count or for_each: write one file for each VM")
	}
	j.expressions(address, call.Expressions)
	j.variables(address, call.Module.Variables)
	for _, name := range slices.Sorted(maps.Keys(call.Module.ModuleCalls)) {
		j.deny(RuleConfig, address, "the module calls module "+name+": modules of numaform call none")
	}
	for _, r := range call.Module.Resources {
		j.declared(address, r)
	}
}

// declared checks a resource block of a module.
func (j *judge) declared(module string, r *tfjson.ConfigResource) {
	if r == nil {
		j.deny(RulePlan, module, "a resource of the configuration is null: plan again")
		return
	}
	address := module + "." + r.Address
	vm := r.Type == ResourceType && r.Name == "node"
	firewall := r.Type == FirewallType && r.Name == "security_groups"
	if r.Mode != tfjson.ManagedResourceMode || r.CountExpression != nil || r.ForEachExpression != nil || !vm && !firewall {
		j.deny(RuleConfig, address, "the module declares something else than a VM and its security groups: use the module that numaform wrote")
	}
	if len(r.Provisioners) > 0 {
		j.deny(RuleConfig, address, "the module runs provisioners: use the module that numaform wrote")
	}
	j.expressions(address, r.Expressions)
}

func (j *judge) variables(module string, variables map[string]*tfjson.ConfigVariable) {
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if v := variables[name]; v != nil {
			j.secrets(strings.TrimPrefix(module+".var."+name, "."), v.Default)
		}
	}
}

// expressions searches the constants of a block for secrets.
func (j *judge) expressions(address string, expressions map[string]*tfjson.Expression) {
	for _, name := range slices.Sorted(maps.Keys(expressions)) {
		e := expressions[name]
		if e == nil || e.ExpressionData == nil {
			continue
		}
		if e.ConstantValue != tfjson.UnknownConstantValue {
			j.secrets(address, e.ConstantValue)
		}
		for _, block := range e.NestedBlocks {
			j.expressions(address, block)
		}
	}
}
