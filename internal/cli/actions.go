package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Actions on a VM, in the order in which they are printed.
const (
	actionDestroy  = "destroy"
	actionRecreate = "re-create"
	actionCreate   = "create"
	actionImport   = "import"
	actionUpdate   = "update"
	actionWake     = "wake"
)

var actionOrder = []string{actionDestroy, actionRecreate, actionCreate, actionImport, actionUpdate, actionWake}

// actionReport describes the action of a change on one VM, and its reason.
type actionReport struct {
	Action string          `json:"action"`
	Name   string          `json:"name"`
	VMID   fleet.VMID      `json:"vmid"`
	Host   topology.HostID `json:"host"`
	Reason string          `json:"reason"`
	// requested is set for the new VMs of this change, which are printed in a separate
	// table.
	requested bool
}

// actions returns the actions of the change on each VM: the planned ones, or without an
// engine the requested ones.
func (p *proposal) actions() []actionReport {
	actions := []actionReport{}
	if p.plans == nil {
		for i := range p.change.Added {
			actions = append(actions, actionOn(actionCreate, &p.change.Added[i], p.change.Added[i].Reason, true))
		}
		for i := range p.change.Removed {
			actions = append(actions, actionOn(actionDestroy, &p.change.Removed[i], reasonRemoved, false))
		}
		return actions
	}
	for i := range p.plans {
		actions = append(actions, p.plannedActions(&p.plans[i])...)
	}
	slices.SortStableFunc(actions, func(a, b actionReport) int {
		return slices.Index(actionOrder, a.Action) - slices.Index(actionOrder, b.Action)
	})
	return actions
}

// Reasons for actions that the placement does not explain.
const (
	reasonRemoved  = "this change removes it"
	reasonTakenOut = "its file was deleted from the fleet"
	reasonMissing  = "its file is in the fleet, but the VM no longer exists in Proxmox"
	reasonMade     = "an earlier change or a manual commit added its file"
	reasonImport   = "it exists in Proxmox with this fleet's marker, but not in the state"
	reasonRepair   = "it differs from its file"
	reasonUpdate   = "its file changes; the VM keeps running"
	reasonComplete = "its creation was interrupted"
	reasonWake     = "pending pods fit on this standby VM"
)

// plannedActions returns the actions of one host's plan.
func (p *proposal) plannedActions(plan *scaler.RootPlan) []actionReport {
	var actions []actionReport
	has := func(vms []fleet.VM, t *guard.Target) bool {
		return slices.ContainsFunc(vms, func(vm fleet.VM) bool { return vm.Key == t.Key })
	}
	each := func(targets []guard.Target, describe func(t *guard.Target, vm *fleet.VM) (action, reason string)) {
		for i := range targets {
			t := &targets[i]
			vm := p.vm(plan, t)
			action, reason := describe(t, &vm)
			actions = append(actions, actionOn(action, &vm, reason, action == actionCreate && has(p.change.Added, t)))
		}
	}
	each(plan.Intent.Delete, func(t *guard.Target, _ *fleet.VM) (action, reason string) {
		if has(plan.TakenOut, t) {
			return actionDestroy, reasonTakenOut
		}
		return actionDestroy, reasonRemoved
	})
	each(plan.Intent.Create, func(t *guard.Target, vm *fleet.VM) (action, reason string) {
		switch {
		case has(p.change.Added, t):
			return actionCreate, vm.Reason
		case slices.Contains(plan.Missing, t.Address):
			return actionRecreate, reasonMissing
		}
		return actionCreate, reasonMade
	})
	each(plan.Intent.Import, func(*guard.Target, *fleet.VM) (action, reason string) { return actionImport, reasonImport })
	each(plan.Intent.Update, func(t *guard.Target, _ *fleet.VM) (action, reason string) {
		switch {
		case has(p.change.Repaired, t):
			return actionUpdate, reasonRepair
		case has(p.change.Updated, t):
			return actionUpdate, reasonUpdate
		}
		return actionUpdate, reasonComplete
	})
	each(plan.Intent.Wake, func(*guard.Target, *fleet.VM) (action, reason string) { return actionWake, reasonWake })
	return actions
}

// vm returns the VM of a plan's target.
func (p *proposal) vm(plan *scaler.RootPlan, target *guard.Target) fleet.VM {
	for _, vms := range [][]fleet.VM{p.change.After.VMs, p.change.Before.VMs, plan.TakenOut} {
		for i := range vms {
			if vms[i].Key == target.Key && vms[i].Host == plan.Host {
				return vms[i]
			}
		}
	}
	// The state contains a VM without a file, so only the name of its module is known.
	name, _, _ := strings.Cut(strings.TrimPrefix(target.Address, "module."), ".")
	vm := fleet.VM{Name: name, VMID: target.VMID}
	vm.Host = plan.Host
	return vm
}

func actionOn(action string, vm *fleet.VM, reason string, requested bool) actionReport {
	return actionReport{Action: action, Name: vm.Name, VMID: vm.VMID, Host: vm.Host, Reason: reason, requested: requested}
}

// actions prints the VMs other than the new VMs of this change, by action and reason.
func (w *printer) actions(actions []actionReport) {
	actions = slices.DeleteFunc(slices.Clone(actions), func(a actionReport) bool { return a.requested })
	if len(actions) == 0 {
		return
	}
	w.heading("Other VMs")
	var totals []string
	for _, action := range actionOrder {
		n := 0
		for i := range actions {
			if actions[i].Action == action {
				n++
			}
		}
		if n > 0 {
			totals = append(totals, fmt.Sprintf("%d to %s", n, action))
		}
	}
	w.printf("  %s\n", strings.Join(totals, ", "))
	w.table(func(table io.Writer) {
		fmt.Fprint(table, "  ACTION\tVM\tVMID\tHOST\n")
		for i := range actions {
			fmt.Fprintf(table, "  %s\t%s\t%d\t%s\n", actions[i].Action, actions[i].Name, actions[i].VMID, actions[i].Host)
		}
	})
	// Each reason once, with the VMs that it applies to.
	for i := range actions {
		a := &actions[i]
		same := func(b actionReport) bool { return b.Action == a.Action && b.Reason == a.Reason }
		if slices.IndexFunc(actions, same) != i {
			continue
		}
		var names []string
		for _, b := range actions {
			if same(b) {
				names = append(names, b.Name)
			}
		}
		if len(names) > mostNames {
			names = append(names[:mostNames-1], fmt.Sprintf("%d more", len(names)-mostNames+1))
		}
		w.printf("  %s %s: %s\n", a.Action, strings.Join(names, ", "), a.Reason)
	}
}
