package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/term"
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
}

// actions returns the actions of the change on each VM: the planned ones or, without an
// engine, the requested ones.
func (p *proposal) actions() []actionReport {
	actions := []actionReport{}
	if p.plans == nil {
		for i := range p.change.Added {
			actions = append(actions, actionOn(actionCreate, &p.change.Added[i], p.change.Added[i].Reason))
		}
		for i := range p.change.Removed {
			actions = append(actions, actionOn(actionDestroy, &p.change.Removed[i], reasonRemoved))
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
	reasonAdopt    = "another tool created it; it gets this fleet's marker, and nothing else about it changes"
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
			actions = append(actions, actionOn(action, &vm, reason))
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
	each(plan.Intent.Import, func(t *guard.Target, _ *fleet.VM) (action, reason string) {
		if has(p.change.Foreign, t) {
			return actionImport, reasonAdopt
		}
		return actionImport, reasonImport
	})
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

// sizes returns the VMs that the change creates, deletes, updates or wakes: before as they
// are, and after as they will be. Imported VMs stay as they are.
func (p *proposal) sizes() (before, after []fleet.VM) {
	if p.plans == nil {
		return p.change.Removed, p.change.Added
	}
	for i := range p.plans {
		plan := &p.plans[i]
		for j := range plan.Intent.Delete {
			before = append(before, p.vm(plan, &plan.Intent.Delete[j]))
		}
		for j := range plan.Intent.Create {
			after = append(after, p.vm(plan, &plan.Intent.Create[j]))
		}
		updated := slices.Concat(plan.Intent.Update, plan.Intent.Wake)
		for j := range updated {
			vm := p.vm(plan, &updated[j])
			after = append(after, vm)
			if at := slices.IndexFunc(p.change.Before.VMs, func(b fleet.VM) bool { return b.Key == vm.Key }); at >= 0 {
				vm = p.change.Before.VMs[at]
			}
			// Its size in Proxmox may differ from its file.
			host := p.change.Snapshot.Host(vm.Host)
			for k := 0; host != nil && k < len(host.Guests); k++ {
				if g := &host.Guests[k]; fleet.VMID(g.VMID) == vm.VMID && fleet.Key(g.Key) == vm.Key && g.VCPUs > 0 {
					vm.VCPUs, vm.MemoryMiB = g.VCPUs, g.MemoryMiB
				}
			}
			before = append(before, vm)
		}
	}
	return before, after
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
	vm := fleet.VM{Name: target.Name(), VMID: target.VMID}
	vm.Host = plan.Host
	return vm
}

func actionOn(action string, vm *fleet.VM, reason string) actionReport {
	return actionReport{Action: action, Name: vm.Name, VMID: vm.VMID, Host: vm.Host, Reason: reason}
}

// signs are the signs that mark actions in tables, in the colors that engines use.
var signs = map[string]struct {
	sign  string
	color term.Color
}{
	actionDestroy:  {"-", term.Red},
	actionRecreate: {"-/+", term.Magenta},
	actionCreate:   {"+", term.Green},
	actionImport:   {"~", term.Yellow},
	actionUpdate:   {"~", term.Yellow},
	actionWake:     {"~", term.Yellow},
}

// totals counts actions in words, such as "create 2 VMs, destroy 1 VM".
func totals(actions []actionReport) string {
	var parts []string
	for _, action := range actionOrder {
		n := 0
		for i := range actions {
			if actions[i].Action == action {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, action+" "+topology.Count(n, "VM"))
		}
	}
	return strings.Join(parts, ", ")
}

// mostCreates is the maximum number of new VMs that are listed individually by default.
const mostCreates = 20

// actions prints one table of the VMs that change. A reason that applies to several VMs is
// printed once. By default, more than mostCreates new VMs are grouped.
func (w *printer) actions(r *report, verbose bool) {
	if len(r.Actions) == 0 {
		return
	}
	w.heading("VMs")
	rows := [][]string{{"", "VM", "HOST", "CHANGE"}}
	add := func(action, name, host, change string) {
		rows = append(rows, []string{w.Paint(signs[action].color, signs[action].sign), name, host, change})
	}
	requested := map[string]*vmReport{}
	for i := range r.VMs {
		requested[r.VMs[i].Name] = &r.VMs[i]
	}
	folded := !verbose && len(requested) > mostCreates
	reason := ""
	actions := slices.Clone(r.Actions)
	// Requested VMs come first and have no reason in the table; others are sorted by reason.
	wanted := func(a *actionReport) bool { return a.Action == actionCreate && requested[a.Name] != nil }
	slices.SortStableFunc(actions, func(a, b actionReport) int {
		order := cmp.Compare(slices.Index(actionOrder, a.Action), slices.Index(actionOrder, b.Action))
		switch {
		case order != 0 || wanted(&a) && wanted(&b):
			return order
		case wanted(&a):
			return -1
		case wanted(&b):
			return 1
		}
		return cmp.Compare(a.Reason, b.Reason)
	})
	for i := range actions {
		a := &actions[i]
		if wanted(a) {
			if !folded {
				add(a.Action, a.Name, a.Host.String(), requested[a.Name].String())
				reason = "" // the last reason is no longer directly above
			}
			continue
		}
		change := a.Action + ": " + a.Reason
		if change == reason {
			change = "as above"
		} else {
			reason = change
		}
		add(a.Action, a.Name, a.Host.String(), change)
	}
	if folded {
		for _, group := range groupVMs(r.VMs) {
			add(actionCreate, topology.Count(len(group), "VM"), topology.Count(countHosts(group), "host"), fmt.Sprintf("%s of NodePool %s, %s", group[0].InstanceType, group[0].Pool, group[0].Policy))
		}
	}
	w.raw(w.Table(2, rows))
	switch {
	case verbose:
		for i := range r.VMs {
			w.printf("  %s: %s\n", r.VMs[i].Name, r.VMs[i].Reason)
		}
	case folded:
		w.printf("  --verbose lists each new VM\n")
	}
}

// String describes a new VM and its place.
func (vm *vmReport) String() string {
	text := fmt.Sprintf("%s for %s, %s", vm.InstanceType, topology.Count(vm.Pods, "pod"), vm.Policy)
	if !vm.CPUs.IsEmpty() {
		text += ", CPUs " + vm.CPUs.String()
	}
	if !vm.NUMANodes.IsEmpty() {
		text += ", NUMA " + vm.NUMANodes.String()
	}
	return text
}

// groupVMs returns the VMs of each NodePool, type and policy, in order of first occurrence.
func groupVMs(vms []vmReport) [][]vmReport {
	var groups [][]vmReport
	for i := range vms {
		vm := &vms[i]
		at := slices.IndexFunc(groups, func(g []vmReport) bool {
			return g[0].Pool == vm.Pool && g[0].InstanceType == vm.InstanceType && g[0].Policy == vm.Policy
		})
		if at < 0 {
			groups = append(groups, nil)
			at = len(groups) - 1
		}
		groups[at] = append(groups[at], *vm)
	}
	return groups
}

// countHosts returns the number of hosts of VMs.
func countHosts(vms []vmReport) int {
	hosts := map[topology.HostID]bool{}
	for i := range vms {
		hosts[vms[i].Host] = true
	}
	return len(hosts)
}
