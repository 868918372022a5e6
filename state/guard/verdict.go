package guard

import (
	"fmt"
	"strings"
)

// Decision says what may be done with a plan. The zero value denies.
type Decision int

// The decisions, strictest first.
const (
	Deny Decision = iota
	NeedsApproval
	Allow
)

// String returns the decision in words.
func (d Decision) String() string {
	switch d {
	case Allow:
		return "allowed"
	case NeedsApproval:
		return "needs approval"
	default:
		return "denied"
	}
}

// Rule names what a finding is about.
type Rule string

// The rules. All of them are invariants but RuleLimit, RuleMoved and RuleForget,
// which a person may approve.
const (
	RulePlan       Rule = "plan"       // the plan is whole and of a known format
	RuleRules      Rule = "rules"      // there are rules
	RuleIntent     Rule = "intent"     // the intent does not contradict itself
	RuleConfig     Rule = "config"     // the configuration holds our modules and nothing else
	RuleAddress    Rule = "address"    // only our addresses, resource type and provider
	RuleAction     Rule = "action"     // only known actions
	RuleReplace    Rule = "replace"    // no VM is replaced
	RuleSurplus    Rule = "surplus"    // nothing is changed that was not asked for
	RuleMissing    Rule = "missing"    // everything that was asked for is changed
	RuleIdentity   Rule = "identity"   // VMID, host, key and name are those of the intent
	RuleFixed      Rule = "fixed"      // the attributes that keep foreign VMs safe
	RulePrivileged Rule = "privileged" // nothing that gives a guest power over its host
	RuleUpdate     Rule = "update"     // only attributes that a running VM takes without harm
	RuleSecret     Rule = "secret"     // no secret in what is planned
	RuleDrift      Rule = "drift"      // VMs are still the ones that were made
	RuleImport     Rule = "import"     // imports of VMs that carry our marker
	RuleMoved      Rule = "moved"      // addresses that change
	RuleForget     Rule = "forget"     // VMs that leave the state and stay in Proxmox
	RuleLimit      Rule = "limit"      // how much one plan may change
)

// Finding is one reason against a plan. Message says what is wrong and how to
// mend it, and never repeats a value that might be secret.
type Finding struct {
	Rule     Rule     `json:"rule"`
	Decision Decision `json:"decision"`
	Address  string   `json:"address,omitempty"`
	Message  string   `json:"message"`
}

// String returns the finding in one line.
func (f Finding) String() string {
	if f.Address == "" {
		return fmt.Sprintf("[%s] %s", f.Rule, f.Message)
	}
	return fmt.Sprintf("[%s] %s: %s", f.Rule, f.Address, f.Message)
}

// Verdict is a decision and the reasons for it, strictest first. The zero value
// denies.
type Verdict struct {
	Decision Decision  `json:"decision"`
	Findings []Finding `json:"findings,omitempty"`
}

// String returns the verdict for a terminal: the decision, then one line for
// each finding.
func (v Verdict) String() string {
	var b strings.Builder
	b.WriteString("guard: " + v.Decision.String())
	for _, f := range v.Findings {
		fmt.Fprintf(&b, "\n  %-14s %s", f.Decision, f)
	}
	return b.String()
}

// MarshalText returns the decision in words.
func (d Decision) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
