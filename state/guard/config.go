package guard

import (
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// providerSettings are the only arguments allowed in a provider block: credentials come
// from the environment.
var providerSettings = []string{"endpoint", "insecure", "min_tls"}

// builtProvider is the provider that is built into the engines.
const builtProvider = "terraform.io/builtin/terraform"

// contents is what the root of a host may contain.
type contents struct {
	// kind is the singular of what the root contains, and vmids the range of its VMIDs, for
	// messages.
	kind, vmids string
	// vm is the resource of a VM, as TYPE.NAME.
	vm string
	// managed maps the resources of the modules, as TYPE.NAME, to the suffixes of the labels
	// of their module calls. data are the data sources.
	managed map[string]string
	data    []string
	// bounded is set if an intent must have a range of VMIDs.
	bounded bool
	// moves is set if an operator may approve that a resource moves to another address.
	moves bool
	// change checks the change of one of these resources.
	change func(*checker, *tfjson.ResourceChange)
}

// partPattern matches the addresses of the resources of our modules: the label of the module
// call, the suffix of the label, and the resource.
var partPattern = regexp.MustCompile(`^module\.` + labelPattern + `(_security_groups)?\.([a-z_]+\.[a-z_]+)$`)

// ours reports whether a resource is one of the root's, by every field that names it, and
// returns the address of its module call.
func (c *checker) ours(address string, mode tfjson.ResourceMode, kind, name, provider string, index any) (module string, ours bool) {
	match := partPattern.FindStringSubmatch(address)
	if match == nil || match[3] != kind+"."+name || mode != tfjson.ManagedResourceMode || index != nil {
		return "", false
	}
	suffix, known := c.contents.managed[match[3]]
	want := Provider
	if kind == madeOfType {
		want = builtProvider
	}
	return "module." + match[1] + match[2], known && suffix == match[2] && provider == want
}

// isOurs reports whether a change is about one of the root's resources.
func (c *checker) isOurs(rc *tfjson.ResourceChange) bool {
	module, ours := c.ours(rc.Address, rc.Mode, rc.Type, rc.Name, rc.ProviderName, rc.Index)
	return ours && rc.ModuleAddress == module
}

// config checks the configuration of the plan: calls of our modules, and nothing else.
func (c *checker) config(config *tfjson.Config) {
	if config == nil || config.RootModule == nil {
		c.deny(RulePlan, "", "the plan does not contain its configuration: plan again")
		return
	}
	_, builtIn := c.contents.managed[madeOf]
	for key, provider := range config.ProviderConfigs {
		if builtIn && provider != nil && provider.FullName == builtProvider && len(provider.Expressions) == 0 {
			continue
		}
		if provider == nil || provider.FullName != Provider {
			c.deny(RuleConfig, key, "numaform does not use this provider: configure only "+Provider)
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
	if !strings.HasPrefix(call.Source, "../") {
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
		_, managed := c.contents.managed[r.Type+"."+r.Name]
		known := managed && r.Mode == tfjson.ManagedResourceMode || r.Mode == tfjson.DataResourceMode && slices.Contains(c.contents.data, r.Type+"."+r.Name)
		if !known || r.CountExpression != nil || r.ForEachExpression != nil {
			c.deny(RuleConfig, at, "the module declares more than a "+c.contents.kind+" and its parts: use the module that numaform wrote")
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
