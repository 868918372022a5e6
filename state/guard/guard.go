// Package guard judges Terraform plans against the change that was asked for. Its
// invariants no configuration turns off: only our VMs, exactly the wanted creates,
// deletes, imports and updates, no replacement, no foreign VM, no CPU twice, no
// secret. Then come limits and the operator's policy. It does no I/O and does not
// plan or apply: start at Check for one plan, at CheckLimits for a whole change.
package guard

import (
	tfjson "github.com/hashicorp/terraform-json"
)

// ResourceType and Provider are those of a VM. A plan contains nothing besides
// but the VMs' security groups, FirewallType.
const (
	ResourceType = "proxmox_virtual_environment_vm"
	Provider     = "registry.opentofu.org/bpg/proxmox"
)

// Rules are what a person may set. The zero value counts as rules that could not
// be loaded and denies everything.
type Rules struct {
	// Limits are for CheckLimits, which judges all plans of a change together.
	Limits Limits
	// Policy are the operator's rules about each plan.
	Policy *Policy
}

// DefaultRules lets ordinary scaling pass. It compiles the shipped policy, so call
// it once.
func DefaultRules() Rules {
	policy, err := ParsePolicy(defaultPolicyName, DefaultPolicy())
	if err != nil {
		return Rules{} // denies; a test keeps it from happening
	}
	return Rules{Limits: DefaultLimits(), Policy: policy}
}

// Check judges the plan of one host. It allows only what it fully understands. How
// much changes on all hosts together is for CheckLimits.
func Check(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	return check(plan, intent, rules, false)
}

// CheckRecorded is Check without the files of the VMs, for tests of a policy on plans
// that were recorded: nothing may be applied by its verdict.
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

// operation is what an intent wants of a VM.
type operation string

const (
	opCreate operation = "create"
	opDelete operation = "delete"
	opImport operation = "import"
	opUpdate operation = "update"
)

// wish is one target of the intent and whether the plan fulfills it.
type wish struct {
	Target
	operation operation
	inputs    *inputs
	done      bool
	// served reports that the VM's security groups change, which is enough of an
	// update.
	served bool
}

// judge collects findings; its zero value without findings would allow.
type judge struct {
	intent Intent
	// recorded tells that there are no files to compare the plan with.
	recorded bool
	wanted   map[string]*wish
	findings []Finding
	// harmless are strings that look like no secret.
	harmless map[string]bool
}

func (j *judge) deny(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: Deny, Address: address, Message: message})
}

func (j *judge) ask(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: NeedsApproval, Address: address, Message: message})
}
