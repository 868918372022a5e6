// Package guard checks Terraform plans against the requested change. No configuration can
// disable its invariants: only our VMs, exactly the requested creates, deletes, imports,
// updates and wakes, no replacement, no unmanaged VM, no CPU assigned twice, no secret. Then it
// applies limits and the operator's policy. It does no I/O and does not plan or apply:
// start at Check for one plan, at CheckLimits for a whole change.
package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// ResourceType and Provider are the type and the provider of VMs. A plan contains no
// other resources except the VMs' security groups, FirewallType.
const (
	ResourceType = "proxmox_virtual_environment_vm"
	Provider     = "registry.opentofu.org/bpg/proxmox"
)

// ErrErrored reports a plan that the engine could not complete.
var ErrErrored = errors.New("the plan is incomplete because planning failed: fix the errors that the engine printed, then plan again")

// Decode parses the output of `show -json` for a saved plan. It returns ErrErrored for a
// plan marked as errored, which tfjson.Plan does not expose.
func Decode(raw []byte) (*tfjson.Plan, error) {
	var marks struct {
		Errored bool `json:"errored"`
	}
	var plan *tfjson.Plan
	err := json.Unmarshal(raw, &marks)
	if err == nil && marks.Errored {
		err = ErrErrored
	}
	if err == nil {
		err = json.Unmarshal(raw, &plan)
	}
	if err == nil {
		err = plan.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("reading plan: %w", err)
	}
	return plan, nil
}

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

// Check checks the plan of one host. It allows only changes that it fully understands.
// CheckLimits covers the size of a change across all hosts.
func Check(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	c := newChecker(intent, nodes)
	c.readIntent()
	return c.check(plan, rules)
}

// CheckRecorded is Check without the VMs' files, for tests of a policy on recorded plans.
// Never apply a plan because of its verdict.
func CheckRecorded(plan *tfjson.Plan, intent Intent, rules Rules) Verdict {
	c := newChecker(intent, nodes)
	c.recorded = true
	c.readIntent()
	return c.check(plan, rules)
}

// checker collects findings about one plan. A checker without findings allows the plan.
type checker struct {
	intent Intent
	// contents is what the root may contain.
	contents contents
	// recorded is set if the plan is not compared with the VMs' files.
	recorded bool
	// requests are the targets of the intent by address.
	requests map[string]*request
	// vms are the planned values of all VMs, by address.
	vms      map[string]values
	findings []Finding
	// harmless caches strings that do not look like secrets, because the VMs of a plan
	// have many values in common.
	harmless map[string]bool
}

func (c *checker) deny(rule Rule, address, message string) {
	c.findings = append(c.findings, Finding{Rule: rule, Decision: Deny, Address: address, Message: message})
}

func (c *checker) needApproval(rule Rule, address, message string) {
	c.findings = append(c.findings, Finding{Rule: rule, Decision: NeedsApproval, Address: address, Message: message})
}

func newChecker(intent Intent, contents contents) *checker {
	return &checker{intent: intent, contents: contents, requests: map[string]*request{}, vms: map[string]values{}, harmless: map[string]bool{}}
}

// check checks a plan against the requests.
func (c *checker) check(plan *tfjson.Plan, rules Rules) Verdict {
	if rules.Policy == nil {
		c.deny(RuleRules, "", "no rules are loaded: load a policy, or use the default one")
	}
	vmids := map[fleet.VMID]string{}
	for _, address := range slices.Sorted(maps.Keys(c.requests)) {
		vmid := c.requests[address].VMID
		if other, ok := vmids[vmid]; ok {
			c.deny(RuleIntent, address, fmt.Sprintf("VMID %d is also requested for %s: assign each VM its own VMID", vmid, other))
		}
		vmids[vmid] = address
	}
	if plan == nil {
		c.deny(RulePlan, "", "the plan is missing: plan again")
		return verdict(Allow, c.findings)
	}
	if err := plan.Validate(); err != nil || !strings.HasPrefix(plan.FormatVersion, "1.") {
		c.deny(RulePlan, "", fmt.Sprintf("plan format %.20q is unknown: use an engine that this numaform supports", plan.FormatVersion))
		return verdict(Allow, c.findings)
	}

	c.whole(plan)
	c.config(plan.Config)
	c.states(plan)
	for _, change := range plan.ResourceChanges {
		c.change(change)
	}
	c.drift(plan.ResourceDrift)
	c.missing()
	c.pins()
	c.addresses()
	c.policy(plan, rules.Policy)
	return verdict(Allow, c.findings)
}

// whole checks the parts of a plan that belong to no single resource.
func (c *checker) whole(plan *tfjson.Plan) {
	// OpenTofu does not set Complete; there, the missing part of the intent reveals an
	// incomplete plan.
	if plan.Complete != nil && !*plan.Complete && !c.intent.Targeted {
		c.deny(RulePlan, "", "the plan is incomplete: plan again without -target")
	}
	if len(plan.DeferredChanges) > 0 {
		c.deny(RulePlan, "", "the plan defers changes to a later one: make their inputs known first")
	}
	if len(plan.ActionInvocations) > 0 {
		c.deny(RulePlan, "", "the plan invokes provider actions: remove them from the configuration")
	}
	for _, check := range plan.Checks {
		if check.Status == tfjson.CheckStatusFail || check.Status == tfjson.CheckStatusError {
			c.deny(RulePlan, check.Address.ToDisplay, "a check of the configuration fails: fix the condition that it reports")
		}
	}
	for name := range plan.OutputChanges {
		c.deny(RuleConfig, "output."+name, "outputs are not allowed: remove it from the fleet directory")
	}
	for name, variable := range plan.Variables {
		if variable != nil {
			c.secrets("var."+name, variable.Value)
		}
	}
}

// states checks the states before and after: only resources of the root, each entry for one
// guest, no duplicate VMID.
func (c *checker) states(plan *tfjson.Plan) {
	if plan.PriorState != nil {
		for _, r := range resources(plan.PriorState.Values) {
			switch {
			case r != nil && r.Mode == tfjson.DataResourceMode && slices.Contains(c.contents.data, r.Type+"."+r.Name):
			case !c.resource(r, "the state"):
			case r.Type == ResourceType:
				c.numbered(r.Address, r.AttributeValues, inState)
			// The provider selects the object by the IDs that are set: without a guest's ID,
			// the rules belong to a host or to the whole datacenter.
			case r.Type == FirewallType && (zero(r.AttributeValues["vm_id"]) || text(r.AttributeValues["node_name"]) == "" || !zero(r.AttributeValues["container_id"])):
				c.deny(RuleIdentity, r.Address, "the security groups in the state do not belong to a VM: "+restoreState)
			}
		}
	}

	vmids := map[int64]string{}
	for _, r := range resources(plan.PlannedValues) {
		if !c.resource(r, "the plan") {
			continue
		}
		c.secrets(r.Address, r.AttributeValues)
		if r.Type != ResourceType {
			continue
		}
		c.vms[r.Address] = r.AttributeValues
		vmid, ok := integer(r.AttributeValues["vm_id"])
		if other := vmids[vmid]; ok && other != "" && other != r.Address {
			c.deny(RuleIdentity, r.Address, fmt.Sprintf("VMID %d is also planned for %s: assign each VM its own VMID", vmid, other))
		}
		vmids[vmid] = r.Address
	}
}

// resource reports whether a resource of the state or the plan is ours, and denies the
// plan if not.
func (c *checker) resource(r *tfjson.StateResource, where string) bool {
	if r == nil {
		c.deny(RulePlan, "", "a resource of the plan is null: plan again")
		return false
	}
	_, ours := c.ours(r.Address, r.Mode, r.Type, r.Name, r.ProviderName, r.Index)
	if !ours {
		c.deny(RuleAddress, r.Address, where+" contains a resource that numaform did not create: "+
			"move it to a separate directory and state")
	}
	return ours
}

// resources returns all resources of a state, in module order.
func resources(state *tfjson.StateValues) []*tfjson.StateResource {
	if state == nil || state.RootModule == nil {
		return nil
	}
	var all []*tfjson.StateResource
	modules := []*tfjson.StateModule{state.RootModule}
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

// pins denies a VM whose CPUs belong to another guest, or to another VM of the plan. It
// checks only VMs that the plan creates, updates or wakes: an existing overlap of two VMs must
// not prevent the deletion of a third.
func (c *checker) pins() {
	type pinned struct {
		host topology.HostName
		cpus topology.CPUSet
	}
	addresses := slices.Sorted(maps.Keys(c.vms))
	vms := map[string]pinned{}
	for _, address := range addresses {
		vm := c.vms[address]
		affinity := text(single(vm["cpu"])["affinity"])
		cpus, err := topology.ParseCPUSet(affinity)
		if err != nil && c.placed(address) {
			c.deny(RulePins, address, fmt.Sprintf("its affinity %.40q is not a list of CPUs: plan again", affinity))
		}
		if marker, ok := fleet.ParseMarker(text(vm["description"])); ok {
			cpus = cpus.Union(topology.CPUs(marker.Pins...))
		}
		vms[address] = pinned{host: topology.HostName(text(vm["node_name"])), cpus: cpus}
	}

	for _, address := range addresses {
		if !c.placed(address) {
			continue
		}
		vm := vms[address]
		vmid, _ := integer(c.vms[address]["vm_id"])
		for _, claim := range c.intent.Claims {
			if taken := claim.CPUs.Intersection(vm.cpus); claim.Host == vm.host && claim.VMID != fleet.VMID(vmid) && !taken.IsEmpty() {
				c.deny(RulePins, address, fmt.Sprintf("CPUs %s of host %s belong to guest %d (%.80q): plan again, so that the VM is placed elsewhere",
					taken, vm.host, claim.VMID, claim.Guest))
			}
		}
		for _, other := range addresses {
			if both := vms[other].cpus.Intersection(vm.cpus); other != address && vms[other].host == vm.host && !both.IsEmpty() {
				c.deny(RulePins, address, fmt.Sprintf("CPUs %s of host %s are also planned for %s: plan again", both, vm.host, other))
			}
		}
	}
}

// addresses denies a VM with a static address that another VM of the fleet has, or that its
// pool does not assign. Like pins, it checks only VMs that the plan creates, updates or wakes.
func (c *checker) addresses() {
	claims := slices.Clone(c.intent.Addresses)
	addresses := slices.Sorted(maps.Keys(c.requests))
	for _, address := range addresses {
		r := c.requests[address]
		for _, ip := range r.Addresses {
			claims = append(claims, AddressClaim{Address: ip, Key: r.Key, VM: r.Name()})
		}
	}
	for _, address := range addresses {
		r := c.requests[address]
		if !c.placed(address) {
			continue
		}
		if r.AddressProblem != "" {
			c.deny(RuleAddresses, address, r.AddressProblem+": restore the VM's file, or remove the VM")
		}
		for _, ip := range r.Addresses {
			taken := func(claim AddressClaim) bool { return claim.Address == ip && claim.Key != r.Key }
			if i := slices.IndexFunc(claims, taken); i >= 0 {
				c.deny(RuleAddresses, address, fmt.Sprintf("its address %s belongs to VM %.80q: plan again, so that it gets another one", ip, claims[i].VM))
			}
		}
	}
}

// placed reports whether the intent creates, updates or wakes the VM at an address, so
// that the plan may assign its CPUs.
func (c *checker) placed(address string) bool {
	r := c.requests[address]
	return r != nil && r.operation != opDelete && r.operation != opImport
}
