package guard

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
)

//go:embed default-policy.yaml
var defaultPolicy []byte

// defaultPolicyName is what errors and docs call the shipped policy.
const defaultPolicyName = "default-policy.yaml"

// DefaultPolicy returns the text of the shipped policy.
func DefaultPolicy() []byte { return slices.Clone(defaultPolicy) }

// Policy is a list of compiled rules, which an operator writes. A rule is asked
// about each plan, or about each resource that a plan changes. The strictest
// decision of the rules that hold counts. A change that no rule allows needs
// approval, and one that no rule was asked about is denied. Whatever the rules say,
// the invariants stand. A Policy may be used by several goroutines.
type Policy struct {
	rules []policyRule
}

// policyRule is one rule, compiled.
type policyRule struct {
	name     string
	decision Decision
	// each tells a rule that is asked about every changed resource.
	each bool
	when cel.Program
	// message is the reason, unless messageExpression makes it.
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

// And returns a policy with the rules of both. Names must differ.
func (p *Policy) And(more *Policy) (*Policy, error) {
	known := p.Names()
	for _, name := range more.Names() {
		if slices.Contains(known, name) {
			return nil, fmt.Errorf("extending policy: rule %s stands in both: rename one", name)
		}
	}
	return &Policy{rules: slices.Concat(p.rules, more.rules)}, nil
}
