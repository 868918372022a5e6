package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// ErrErrored reports a plan that failed while it was made.
var ErrErrored = errors.New("planning failed halfway: mend the errors that the engine printed and plan again")

// Decode parses the output of `show -json` for a saved plan. It returns ErrErrored for a
// plan marked as errored, which tfjson.Plan does not expose.
func Decode(raw []byte) (*tfjson.Plan, error) {
	var marks struct {
		Errored bool `json:"errored"`
	}
	if err := json.Unmarshal(raw, &marks); err != nil {
		return nil, fmt.Errorf("reading plan: %w", err)
	}
	if marks.Errored {
		return nil, fmt.Errorf("reading plan: %w", ErrErrored)
	}
	var plan *tfjson.Plan
	if err := json.Unmarshal(raw, &plan); err != nil {
		return nil, fmt.Errorf("reading plan: %w", err)
	}
	if err := plan.Validate(); err != nil {
		return nil, fmt.Errorf("reading plan: %w", err)
	}
	return plan, nil
}

// plan checks everything in a plan that is not about one resource. It reports whether the
// rest can be checked at all.
func (j *judge) plan(plan *tfjson.Plan) bool {
	if plan == nil {
		j.deny(RulePlan, "", "there is no plan: plan again")
		return false
	}
	if err := plan.Validate(); err != nil || !strings.HasPrefix(plan.FormatVersion, "1.") {
		j.deny(RulePlan, "", fmt.Sprintf("plan format %.20q is unknown: use an engine that this numaform supports", plan.FormatVersion))
		return false
	}
	// OpenTofu does not set it; there, the missing part of the intent reveals an
	// incomplete plan.
	if plan.Complete != nil && !*plan.Complete && !j.intent.Targeted {
		j.deny(RulePlan, "", "the plan is incomplete: plan again without -target")
	}
	if len(plan.DeferredChanges) > 0 {
		j.deny(RulePlan, "", "the plan defers changes to a later one: make their inputs known first")
	}
	if len(plan.ActionInvocations) > 0 {
		j.deny(RulePlan, "", "the plan invokes provider actions: remove them from the configuration")
	}
	for _, name := range slices.Sorted(maps.Keys(plan.OutputChanges)) {
		j.deny(RuleConfig, "output."+name, "numaform writes no outputs: remove it from the fleet directory")
	}
	j.checks(plan.Checks)
	return true
}

func (j *judge) checks(checks []tfjson.CheckResultStatic) {
	for _, check := range checks {
		if check.Status == tfjson.CheckStatusFail || check.Status == tfjson.CheckStatusError {
			j.deny(RulePlan, check.Address.ToDisplay, "a check of the configuration fails: mend what it checks")
		}
	}
}

// values checks the states before and after: only our VMs, no duplicate VMID.
func (j *judge) values(plan *tfjson.Plan) {
	if plan.PriorState != nil {
		for _, r := range resources(plan.PriorState.Values) {
			j.resource(r)
			j.stored(r)
		}
	}
	vmids := map[int64]string{}
	for _, r := range resources(plan.PlannedValues) {
		j.resource(r)
		if r == nil {
			continue
		}
		j.secrets(r.Address, r.AttributeValues)
		if r.Type != ResourceType {
			continue
		}
		vmid, ok := integer(r.AttributeValues["vm_id"])
		if other := vmids[vmid]; ok && other != "" && other != r.Address {
			j.deny(RuleIdentity, r.Address, fmt.Sprintf("VMID %d is also planned for %s: give each VM its own", vmid, other))
		}
		vmids[vmid] = r.Address
	}
	for _, name := range slices.Sorted(maps.Keys(plan.Variables)) {
		if v := plan.Variables[name]; v != nil {
			j.secrets("var."+name, v.Value)
		}
	}
}

// resource checks one resource of a state.
func (j *judge) resource(r *tfjson.StateResource) {
	if r == nil {
		j.deny(RulePlan, "", "a resource of the plan is null: plan again")
		return
	}
	vm := r.Type == ResourceType && r.Index == nil && label(r.Address) != ""
	firewall := r.Type == FirewallType && VMOf(r.Address) != ""
	if r.Mode != tfjson.ManagedResourceMode || r.ProviderName != Provider || !vm && !firewall {
		j.deny(RuleAddress, r.Address, "the state holds something that numaform did not make: "+
			"keep it in a directory and a state of its own")
	}
}

// stored checks that a state entry refers to one guest, and not to a host or all of
// Proxmox: the provider chooses by ID, and for a firewall by whichever ID is set.
func (j *judge) stored(r *tfjson.StateResource) {
	switch {
	case r == nil:
	case r.Type == ResourceType:
		j.numbered(r.Address, r.AttributeValues, "in the state")
	case r.Type == FirewallType && (zero(r.AttributeValues["vm_id"]) || text(r.AttributeValues["node_name"]) == "" || !zero(r.AttributeValues["container_id"])):
		j.deny(RuleIdentity, r.Address, "the security groups in the state are not those of a VM: "+mendState)
	}
}

// resources returns all resources of a state, in module order.
func resources(values *tfjson.StateValues) []*tfjson.StateResource {
	if values == nil || values.RootModule == nil {
		return nil
	}
	var all []*tfjson.StateResource
	modules := []*tfjson.StateModule{values.RootModule}
	for len(modules) > 0 {
		module := modules[0]
		modules = modules[1:]
		if module == nil {
			all = append(all, nil)
			continue
		}
		all = append(all, module.Resources...)
		modules = append(modules, module.ChildModules...)
	}
	return all
}
