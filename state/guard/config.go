package guard

import (
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// providerSettings are the only arguments allowed in a provider block: credentials come
// from the environment.
var providerSettings = []string{"endpoint", "insecure", "min_tls"}

// config checks the configuration of the plan.
func (c *checker) config(config *tfjson.Config) {
	if config == nil || config.RootModule == nil {
		c.deny(RulePlan, "", "the plan does not contain its configuration: plan again")
		return
	}
	for key, provider := range config.ProviderConfigs {
		if provider == nil || provider.FullName != Provider {
			c.deny(RuleConfig, key, "numaform does not use this provider: configure only "+Provider+"")
			continue
		}
		for setting := range provider.Expressions {
			if !slices.Contains(providerSettings, setting) {
				c.deny(RuleConfig, key, "provider argument "+setting+" is set: remove it, and set credentials in the environment")
			}
		}
		c.expressions(key, provider.Expressions)
	}

	root := config.RootModule
	for _, r := range root.Resources {
		if r != nil {
			c.deny(RuleConfig, r.Address, "the fleet directory declares it outside numaform's modules: move it to a separate directory and state")
		}
	}
	for name := range root.Outputs {
		c.deny(RuleConfig, "output."+name, "outputs are not allowed: remove it from the fleet directory")
	}
	c.defaults("", root.Variables)
	for name, call := range root.ModuleCalls {
		c.module("module."+name, call)
	}
}

// module checks a module call of a fleet's root, and the called module.
func (c *checker) module(address string, call *tfjson.ModuleCall) {
	if call == nil || call.Module == nil {
		c.deny(RulePlan, address, "the plan does not contain the module's configuration: plan again")
		return
	}
	if !strings.HasPrefix(call.Source, "./") && !strings.HasPrefix(call.Source, "../") {
		c.deny(RuleConfig, address, "the module is outside the fleet directory: use the module that numaform wrote")
	}
	if call.CountExpression != nil || call.ForEachExpression != nil {
		c.deny(RuleConfig, address, "the module call uses count or for_each: write one file for each VM")
	}
	c.expressions(address, call.Expressions)
	c.defaults(address+".", call.Module.Variables)
	for name := range call.Module.ModuleCalls {
		c.deny(RuleConfig, address, "the module calls module "+name+": remove the call, because numaform's modules call no modules")
	}

	for _, r := range call.Module.Resources {
		if r == nil {
			c.deny(RulePlan, address, "a resource of the configuration is null: plan again")
			continue
		}
		at := address + "." + r.Address
		vm := r.Type == ResourceType && r.Name == "node"
		firewall := r.Type == FirewallType && r.Name == "security_groups"
		if r.Mode != tfjson.ManagedResourceMode || r.CountExpression != nil || r.ForEachExpression != nil || !vm && !firewall {
			c.deny(RuleConfig, at, "the module declares more than a VM and its security groups: use the module that numaform wrote")
		}
		if len(r.Provisioners) > 0 {
			c.deny(RuleConfig, at, "the module runs provisioners: use the module that numaform wrote")
		}
		c.expressions(at, r.Expressions)
	}
}

// defaults searches the defaults of variables for secrets. prefix is prepended to their
// addresses.
func (c *checker) defaults(prefix string, variables map[string]*tfjson.ConfigVariable) {
	for name, variable := range variables {
		if variable != nil {
			c.secrets(prefix+"var."+name, variable.Default)
		}
	}
}

// expressions searches the constants of a block for secrets.
func (c *checker) expressions(address string, expressions map[string]*tfjson.Expression) {
	for _, e := range expressions {
		if e == nil || e.ExpressionData == nil {
			continue
		}
		if e.ConstantValue != tfjson.UnknownConstantValue {
			c.secrets(address, e.ConstantValue)
		}
		for _, block := range e.NestedBlocks {
			c.expressions(address, block)
		}
	}
}
