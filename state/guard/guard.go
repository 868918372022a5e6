// Package guard judges a Terraform plan against the change that was asked for.
// It holds the invariants that no configuration turns off: only our VMs, exactly
// the wanted creates, deletes, imports and updates, no replacement, no foreign
// VM, no secret. It does no I/O and does not plan or apply: start at Check.
package guard

import (
	"cmp"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// ResourceType and Provider are those of a VM. A plan contains nothing besides
// but the VMs' security groups, FirewallType.
const (
	ResourceType = "proxmox_virtual_environment_vm"
	Provider     = "registry.opentofu.org/bpg/proxmox"
)

// Target is one VM of an intent, and how to know it.
type Target struct {
	// Address is the resource's: module.<name>.proxmox_virtual_environment_vm.node.
	Address string
	VMID    fleet.VMID
	Key     fleet.Key
	Host    topology.HostName
	// Incomplete tells an import of a VM whose create was cut off before it ever
	// ran: it may be given any attribute that its file says.
	Incomplete bool
}

// ImportID returns what the provider imports the VM by: "<host>/<vmid>".
func (t Target) ImportID() string { return importID(t.Host, t.VMID) }

// Intent is the change that was asked for. A plan must contain all of it and
// nothing besides.
type Intent struct {
	// ClusterID is the one in the markers of our VMs.
	ClusterID string
	Create    []Target
	Delete    []Target
	Import    []Target
	Update    []Target
	// Targeted tells a plan that was restricted to the targets: it can change nothing
	// else, so that it does not show the rest is no fault.
	Targeted bool
}

// Rules are the limits of one plan; beyond them a person must approve. The zero
// value counts as rules that could not be loaded and denies everything.
type Rules struct {
	MaxCreates int
	MaxDeletes int
	MaxUpdates int
	MaxImports int
	// MaxCreatesPerHost and MaxDeletesPerHost count by the targets' host.
	MaxCreatesPerHost int
	MaxDeletesPerHost int
}

// DefaultRules lets ordinary scaling of one host pass.
func DefaultRules() Rules {
	return Rules{
		MaxCreates: 64, MaxDeletes: 32, MaxUpdates: 256, MaxImports: 64,
		MaxCreatesPerHost: 64, MaxDeletesPerHost: 32,
	}
}

// Check judges a plan. It allows only what it fully understands.
func Check(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	j := &judge{intent: intent, wanted: map[string]*wish{}}
	if rules == (Rules{}) {
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
		j.limits(rules)
	}
	return j.verdict()
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
	done      bool
	// served reports that the VM's security groups change, which is enough of an
	// update.
	served bool
}

// judge collects findings; its zero value without findings would allow.
type judge struct {
	intent   Intent
	wanted   map[string]*wish
	findings []Finding
}

func (j *judge) deny(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: Deny, Address: address, Message: message})
}

func (j *judge) ask(rule Rule, address, message string) {
	j.findings = append(j.findings, Finding{Rule: rule, Decision: NeedsApproval, Address: address, Message: message})
}

// verdict is as strict as the strictest finding.
func (j *judge) verdict() Verdict {
	v := Verdict{Decision: Allow, Findings: j.findings}
	for _, f := range v.Findings {
		v.Decision = min(v.Decision, f.Decision)
	}
	slices.SortFunc(v.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Decision, b.Decision), cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	v.Findings = slices.Compact(v.Findings)
	return v
}
