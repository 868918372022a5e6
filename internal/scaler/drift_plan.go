package scaler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
)

// evidence is what a refreshed plan says about one VM.
type evidence struct {
	vm *tfjson.ResourceChange
	// gone is set if the refresh did not find the VM.
	gone        bool
	differences []DriftDifference
	// refused are the guard's reasons against reverting the differences in place.
	refused []guard.Finding
	// failed is why the provider could not read the VM.
	failed string
}

// compare plans the VMs of a host that exist and are ours, with a full refresh, and
// records the result. If the provider cannot read a VM, compare plans the others again
// without it. The plan is never applied.
func (s *Scaler) compare(ctx context.Context, change *Change, at places, shard fleet.Shard, look *looker) (err error) {
	vms := byAddress(change.After.VMs, shard)
	maps.DeleteFunc(vms, func(_ string, vm fleet.VM) bool { return !look.readable(vm) })
	if len(vms) == 0 {
		return nil
	}
	s.config.Progress(shard, "looking for drift")
	workspace, err := s.workspace(change, at, shard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, workspace.Close()) }()
	for len(vms) > 0 {
		plan, err := s.planWith(ctx, workspace, state.PlanOptions{Refresh: true, Unlocked: true, Targets: compared(vms, look.guests)})
		if err == nil {
			look.read(plan.JSON, vms, s.config.Rules)
			return nil
		}
		if !look.leaveOut(err, vms) {
			return err
		}
	}
	return nil
}

// compared returns the addresses of the VMs' module calls to refresh, sorted. It omits
// the security groups of a moved VM, which the provider would look for on the old host.
func compared(vms map[string]fleet.VM, guests map[guestID]located) []string {
	var calls []string
	for _, vm := range vms {
		all := generator.Calls(&vm)
		if guests[guestID{vm.Host.Region, vm.VMID}].host != vm.Host {
			all = all[:1]
		}
		calls = append(calls, all...)
	}
	slices.Sort(calls)
	return calls
}

// leaveOut removes the VMs that an error of the engine names from the VMs to plan, and
// reports whether there were any.
func (l *looker) leaveOut(err error, vms map[string]fleet.VM) bool {
	var failed *state.CommandError
	if !errors.As(err, &failed) {
		return false
	}
	named := false
	for address, vm := range vms {
		if slices.ContainsFunc(generator.Addresses(&vm), func(a string) bool { return strings.Contains(failed.Text, a) }) {
			reason, _, _ := strings.Cut(failed.Text, "\n")
			l.planned[vm.Key] = &evidence{failed: strings.TrimPrefix(reason, "Error: ")}
			delete(vms, address)
			named = true
		}
	}
	return named
}

// read extracts the evidence from a refreshed plan of the VMs. The guard decides what may
// change in place.
func (l *looker) read(plan *tfjson.Plan, vms map[string]fleet.VM, rules guard.Rules) {
	byAddress := map[string]*evidence{}
	for _, vm := range vms {
		found := &evidence{}
		l.planned[vm.Key] = found
		for _, address := range generator.Addresses(&vm) {
			byAddress[address] = found
		}
	}
	for _, change := range plan.ResourceChanges {
		if found := byAddress[change.Address]; found != nil && change.Change != nil {
			found.add(change)
		}
	}
	for _, change := range plan.ResourceDrift {
		if found := byAddress[change.Address]; found != nil && change.Type == guard.ResourceType {
			found.gone = change.Change.Actions.Delete()
		}
	}
	refusals := guard.Check(plan, l.updates(vms), rules).Findings
	for address, found := range byAddress {
		found.refuse(address, refusals)
	}
}

// refuse records the guard's denials about an address, and about the plan as a whole.
func (e *evidence) refuse(address string, findings []guard.Finding) {
	for _, finding := range findings {
		if finding.Decision == guard.Deny && (finding.Address == address || finding.Address == "") {
			e.refused = append(e.refused, finding)
		}
	}
}

// updates returns the intent to revert all differences in place.
func (l *looker) updates(vms map[string]fleet.VM) guard.Intent {
	intent := guard.Intent{ClusterID: l.clusterID, Targeted: true}
	for _, address := range slices.Sorted(maps.Keys(vms)) {
		if vm := vms[address]; len(l.planned[vm.Key].differences) > 0 {
			intent.Update = append(intent.Update, targetOf(l.clusterID, &vm))
		}
	}
	return intent
}

// add records what a plan says about one of the VM's resources.
func (e *evidence) add(change *tfjson.ResourceChange) {
	isVM := change.Type == guard.ResourceType
	if isVM {
		e.vm = change
	}
	actions := change.Change.Actions
	if !actions.NoOp() && (!isVM || actions.Update() || actions.Replace()) {
		e.differences = append(e.differences, resourceDifferences(change)...)
	}
}

// outside reports whether the VM is missing or incorrect in the state.
func (e *evidence) outside() bool {
	return e.vm == nil || e.gone || e.vm.Change.Actions.Create() || e.vm.ActionReason == tfjson.ActionReasonReplaceBecauseTainted
}

// refusedFor returns the first refusal that satisfies is, or nil.
func (e *evidence) refusedFor(is func(guard.Finding) bool) *guard.Finding {
	if i := slices.IndexFunc(e.refused, is); i >= 0 {
		return &e.refused[i]
	}
	return nil
}
