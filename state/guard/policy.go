package guard

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
)

//go:embed default-policy.yaml
var defaultPolicy []byte

// defaultPolicyName is the name of the default policy in errors and docs.
const defaultPolicyName = "default-policy.yaml"

// DefaultPolicy returns the text of the default policy.
func DefaultPolicy() []byte { return slices.Clone(defaultPolicy) }

// Policy is an operator's list of compiled rules. A rule is evaluated for each plan, or
// for each resource that a plan changes. The strictest decision of the matching rules
// applies. A change that no rule allows needs approval, and a change for which no rule
// was evaluated is denied. The invariants apply whatever the rules decide. A Policy is
// safe for concurrent use.
type Policy struct {
	rules []policyRule
}

// policyRule is one rule, compiled.
type policyRule struct {
	name     string
	decision Decision
	// each is set if the rule is evaluated for every changed resource.
	each bool
	when cel.Program
	// message is the reason, unless messageExpression is set.
	message           string
	messageExpression cel.Program
}

// Names returns the names of the rules in their order.
func (p *Policy) Names() []string {
	names := make([]string, len(p.rules))
	for i := range p.rules {
		names[i] = p.rules[i].name
	}
	return names
}

// And returns a policy with the rules of both. Their names must differ.
func (p *Policy) And(more *Policy) (*Policy, error) {
	known := p.Names()
	for _, name := range more.Names() {
		if slices.Contains(known, name) {
			return nil, fmt.Errorf("extending policy: rule %s stands in both: rename one", name)
		}
	}
	return &Policy{rules: slices.Concat(p.rules, more.rules)}, nil
}
