// Package guard checks Terraform plans against the requested change. No configuration can
// disable its invariants: only our VMs, exactly the requested creates, deletes, imports
// and updates, no replacement, no unmanaged VM, no CPU assigned twice, no secret. Then it
// applies limits and the operator's policy. It does no I/O and does not plan or apply:
// start at Check for one plan, at CheckLimits for a whole change.
package guard

import (
	tfjson "github.com/hashicorp/terraform-json"
)

// ResourceType and Provider are the VM's. A plan contains no other resources except the
// VMs' security groups, FirewallType.
const (
	ResourceType = "proxmox_virtual_environment_vm"
	Provider     = "registry.opentofu.org/bpg/proxmox"
)

// Rules are the configurable part of the checks. The zero value means that the rules
// could not be loaded, and denies everything.
type Rules struct {
	// Limits are for CheckLimits, which checks all plans of a change together.
	Limits Limits
	// Policy holds the operator's rules for each plan.
	Policy *Policy
}

// DefaultRules allows ordinary scaling. It compiles the default policy, so call it once.
func DefaultRules() Rules {
	policy, err := ParsePolicy(defaultPolicyName, DefaultPolicy())
	if err != nil {
		return Rules{} // denies everything; a test ensures that this does not happen
	}
	return Rules{Limits: DefaultLimits(), Policy: policy}
}

// Check checks the plan of one host. It allows only what it fully understands.
// CheckLimits covers the size of a change across all hosts.
func Check(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	return check(plan, intent, rules, false)
}

// CheckRecorded is Check without the VMs' files, for tests of a policy on recorded plans.
// Never apply a plan because of its verdict.
func CheckRecorded(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	return check(plan, intent, rules, true)
}

func check(plan *tfjson.Plan, intent Intent, rules Rules, recorded bool) Verdict {
	j := &judge{intent: intent, recorded: recorded, wanted: map[string]*wish{}, harmless: map[string]bool{}}
	if rules.Policy == nil {
		j.deny(RuleRules, "", "the rules are empty: load them, or use the shipped ones")
	}
	j.readIntent()
	if j.plan(plan) {
		j.config(plan.Config)
		j.values(plan)
		for _, change := range plan.ResourceChanges {
			j.change(change)
		}
		j.drift(plan.ResourceDrift)
		j.missing()
		j.pins(plan)
		j.policy(plan, rules.Policy)
	}
	return verdict(Allow, j.findings)
}

// operation is what an intent requests for a VM.
type operation string

const (
	opCreate operation = "create"
	opDelete operation = "delete"
	opImport operation = "import"
	opUpdate operation = "update"
)

// wish is one target of the intent, and whether the plan fulfills it.
type wish struct {
	Target
	operation operation
	inputs    *inputs
	done      bool
	// served is set if the VM's security groups change, which is sufficient for an
	// update.
	served bool
}

// judge collects findings. Without findings, its zero value would allow a plan.
type judge struct {
	intent Intent
	// recorded is set if there are no files to compare the plan with.
	recorded bool
	wanted   map[string]*wish
	findings []Finding
	// harmless caches strings that do not look like secrets.
	harmless map[string]bool
}

func (j *judge) deny(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: Deny, Address: address, Message: message})
}

func (j *judge) ask(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: NeedsApproval, Address: address, Message: message})
}
