package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Decision determines whether a plan may be applied. The zero value denies.
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

// Rule is the name of the check that returned a finding.
type Rule string

// PolicyRule returns the Rule for findings by the policy's rule with that name.
func PolicyRule(name string) Rule { return RulePolicy + "/" + Rule(name) }

// The rules. An operator can approve the findings of RuleLimit, RuleBreaker, RuleMoved and
// RuleForget, some of RuleUpdate, RuleDrift and RuleImport, and the policy's findings that
// need approval. All other findings deny.
const (
	RulePlan       Rule = "plan"       // the plan is complete and of a known format
	RuleRules      Rule = "rules"      // rules and limits are loaded
	RuleIntent     Rule = "intent"     // the intent does not contradict itself
	RuleConfig     Rule = "config"     // the configuration contains our modules and nothing else
	RuleAddress    Rule = "address"    // only our addresses, resource type and provider
	RuleAction     Rule = "action"     // only known actions
	RuleReplace    Rule = "replace"    // no VM is replaced
	RuleSurplus    Rule = "surplus"    // every change in the plan was requested
	RuleMissing    Rule = "missing"    // every requested change is in the plan
	RuleIdentity   Rule = "identity"   // VMID, host, key and name match the intent
	RuleExpected   Rule = "expected"   // every planned value matches the modules' result for the VM's file
	RuleFixed      Rule = "fixed"      // attributes that protect unmanaged VMs and prevent restarts
	RulePrivileged Rule = "privileged" // no attribute that gives a guest power over its host
	RuleUpdate     Rule = "update"     // only attributes that are safe to change on a running VM
	RuleSecret     Rule = "secret"     // no secret in the plan
	RuleDrift      Rule = "drift"      // VMs are still the ones that were created
	RuleImport     Rule = "import"     // only VMs with our marker are imported
	RuleMoved      Rule = "moved"      // addresses that change
	RuleForget     Rule = "forget"     // VMs that leave the state and remain in Proxmox
	RuleDrained    Rule = "drained"    // only VMs whose Node is drained are deleted
	RulePins       Rule = "pins"       // no CPU is assigned to two guests
	RuleAddresses  Rule = "addresses"  // no static address is assigned to two VMs
	RuleLimit      Rule = "limit"      // how much may change at once and within the window
	RuleBreaker    Rule = "breaker"    // creates need approval after repeated failures
	// RulePolicy is about the policy as a whole; a finding by one of its rules has that
	// rule's PolicyRule.
	RulePolicy Rule = "policy"
)

// Finding is one reason against a plan. Message states the problem and the fix, and never
// repeats a value that might be secret.
type Finding struct {
	Rule     Rule     `json:"rule"`
	Decision Decision `json:"decision"`
	Address  string   `json:"address,omitempty"`
	// Host is set if the finding is about a host rather than an address.
	Host    topology.HostID `json:"host,omitzero"`
	Message string          `json:"message"`
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

// decisionWords are the decisions by their names in policies.
var decisionWords = map[string]Decision{"allow": Allow, "approve": NeedsApproval, "deny": Deny}

// UnmarshalText parses the output of MarshalText and the words used in policies.
func (d *Decision) UnmarshalText(text []byte) error {
	if decision, ok := decisionWords[string(text)]; ok {
		*d = decision
		return nil
	}
	for _, decision := range decisionWords {
		if string(text) == decision.String() {
			*d = decision
			return nil
		}
	}
	return fmt.Errorf("reading decision: %.40q is unknown: use allow, approve or deny", text)
}

// And returns the verdict of both: all findings, and the stricter decision.
func (v Verdict) And(other Verdict) Verdict {
	return verdict(min(v.Decision, other.Decision), slices.Concat(v.Findings, other.Findings))
}

// On returns the part of a change's verdict that applies to one host: the findings about
// that host and the findings about no particular host.
func (v Verdict) On(host topology.HostID) Verdict {
	var findings []Finding
	for _, f := range v.Findings {
		if f.Host == (topology.HostID{}) || f.Host == host {
			findings = append(findings, f)
		}
	}
	if len(findings) == len(v.Findings) {
		return v
	}
	return verdict(Allow, findings)
}

// verdict returns the verdict with the stricter of decision and the strictest finding. It
// sorts the findings and removes duplicates.
func verdict(decision Decision, findings []Finding) Verdict {
	for _, f := range findings {
		decision = min(decision, f.Decision)
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Decision, b.Decision), cmp.Compare(a.Address, b.Address), a.Host.Compare(b.Host),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	return Verdict{Decision: decision, Findings: slices.Compact(findings)}
}
