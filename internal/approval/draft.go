package approval

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state/guard"
)

// The maximum lengths of a ScalePlan's lists.
const (
	maxVMs     = 512
	maxPods    = 32
	maxRules   = 128
	maxReasons = 64
)

// draft is a ScalePlan before it is written.
type draft struct {
	direction   v1alpha1.ScaleDirection
	pools       []string
	requestedBy string
	why         string
	vms         []v1alpha1.ScalePlanVM
	// created are the VMs of vms that are created, if they are not in the fleet yet.
	created []fleet.VM
	hosts   []v1alpha1.ScalePlanHost
	verdict guard.Verdict
	// reasons are the reasons why approval is needed, in addition to the guard's
	// findings.
	reasons []string
	diff    string
	hash    string
	cost    string
}

// addCreates adds the new VMs of a change and their dry plans.
func (d *draft) addCreates(change *scaler.Change, plans []scaler.RootPlan, placed []scheduling.Placed) error {
	// Similar VMs share their pods.
	pods := map[string][]string{}
	for i := range placed {
		id := likeness(&placed[i].Spec, &placed[i].Placement)
		for _, pod := range placed[i].Pods {
			pods[id] = append(pods[id], pod.String())
		}
	}
	for i := range change.Added {
		vm := &change.Added[i]
		at := slices.IndexFunc(plans, func(plan scaler.RootPlan) bool { return plan.Host == vm.Host })
		if at < 0 {
			return fmt.Errorf("host %s has no plan: numaform plans again at the next attempt", vm.Host)
		}
		if err := plans[at].Err; err != nil {
			return fmt.Errorf("planning %s: %w", vm.Host, err)
		}
		target := guard.Target{Address: generator.Address(vm), VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host, Pool: vm.Pool}
		hash, err := changeOf(plans[at].Plan.JSON, target)
		if err != nil {
			return err
		}
		if hash == "" {
			return fmt.Errorf("the plan of host %s does not create VM %s: numaform plans again at the next attempt", vm.Host, vm.Name)
		}
		d.vms = append(d.vms, v1alpha1.ScalePlanVM{
			Action: v1alpha1.ScalePlanCreate, Host: vm.Host.String(), NodePool: vm.Pool, InstanceType: vm.InstanceType,
			Reason: clip(vm.Reason, 512), Pods: few(pods[likeness(&vm.Spec, &vm.Placement)]), Change: hash,
		})
	}
	d.created = change.Added
	return d.addPlans(plans)
}

// costOf returns the cost of a draft, or "" if it costs and saves nothing.
func (a *Approvals) costOf(ctx context.Context, d *draft) (string, error) {
	if a.config.Cost == nil {
		return "", nil
	}
	states := a.fleet.VMs()
	var before []fleet.VM
	after := slices.Clone(d.created)
	for i := range d.vms {
		line := &d.vms[i]
		// A replacement is not placed yet.
		vm := fleet.VM{Spec: fleet.Spec{Pool: line.NodePool, InstanceType: line.InstanceType}}
		at := slices.IndexFunc(states, func(s scaler.VMState) bool { return line.Key != "" && string(s.VM.Key) == line.Key })
		if at >= 0 {
			vm = states[at].VM
		}
		switch {
		case line.Action == v1alpha1.ScalePlanCreate && len(d.created) == 0:
			after = append(after, vm)
		case line.Action == v1alpha1.ScalePlanDelete:
			before = append(before, vm)
		case line.Action == v1alpha1.ScalePlanWake && at >= 0:
			vm.Standby = false
			after = append(after, vm)
			vm.Standby = true
			before = append(before, vm)
		}
	}
	cost, err := a.config.Cost(ctx, before, after)
	if err != nil {
		return "", fmt.Errorf("computing the cost of the change: %w", err)
	}
	return cost.String(), nil
}

// addPlans adds the dry plans of the hosts that the change affects, and computes the
// draft's hash.
func (d *draft) addPlans(plans []scaler.RootPlan) (err error) {
	var diff strings.Builder
	d.verdict = guard.Verdict{Decision: guard.Allow}
	for i := range plans {
		plan := &plans[i]
		if !plan.Touched {
			continue
		}
		if plan.Err != nil {
			return fmt.Errorf("planning %s: %w", plan.Host, plan.Err)
		}
		d.hosts = append(d.hosts, v1alpha1.ScalePlanHost{
			Host: plan.Host.String(), PlanSHA256: plan.Plan.SHA256, PlanDigest: plan.Plan.Digest,
			Lineage: plan.Plan.Lineage, Serial: plan.Plan.Serial,
		})
		d.verdict = d.verdict.And(plan.Verdict)
		fmt.Fprintf(&diff, "# Host %s\n%s\n\n%s\n\n", plan.Host, plan.Verdict, plan.Plan.Text)
	}
	d.diff = diff.String()
	d.hash, err = hashOf(d.direction, d.vms)
	return err
}

// likeness returns a string that is equal for VMs with the same pool, instance type, labels
// and placement, whatever their names.
func likeness(spec *fleet.Spec, placement *fleet.Placement) string {
	return fmt.Sprint(spec.Pool, spec.InstanceType, placement.Host, placement.CPUs, placement.Cells, spec.Labels)
}

// few returns the pods, sorted. If there are more pods than a ScalePlan can list, the last
// element states how many are omitted.
func few(pods []string) []string {
	pods = slices.Sorted(slices.Values(pods))
	if len(pods) <= maxPods {
		return pods
	}
	return append(pods[:maxPods-1], fmt.Sprintf("and %d more", len(pods)-maxPods+1))
}

// summary returns the number of VMs for each action, and their hosts, in one line.
func (d *draft) summary() string {
	counts, hosts := map[v1alpha1.ScalePlanAction]int{}, []string{}
	for i := range d.vms {
		counts[d.vms[i].Action]++
		if d.vms[i].Host != "" {
			hosts = append(hosts, d.vms[i].Host)
		}
	}
	slices.Sort(hosts)
	var parts []string
	for _, action := range []struct {
		action v1alpha1.ScalePlanAction
		word   string
	}{
		{v1alpha1.ScalePlanCreate, "create"},
		{v1alpha1.ScalePlanWake, "wake"},
		{v1alpha1.ScalePlanUpdate, "change"},
		{v1alpha1.ScalePlanReplace, "replace"},
		{v1alpha1.ScalePlanDelete, "delete"},
	} {
		if n := counts[action.action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d to %s", n, action.word))
		}
	}
	text := cmp.Or(strings.Join(parts, ", "), "no numaform VM changes")
	if hosts = slices.Compact(hosts); len(hosts) > 0 {
		text += " on " + strings.Join(hosts, ", ")
	}
	return clip(text, 256)
}

// decisionOf converts a decision of the guard to the API's type.
func decisionOf(decision guard.Decision) v1alpha1.VerdictDecision {
	switch decision {
	case guard.Allow:
		return v1alpha1.VerdictAllow
	case guard.NeedsApproval:
		return v1alpha1.VerdictNeedsApproval
	case guard.Deny:
	}
	return v1alpha1.VerdictDeny
}

// clip truncates a text that is longer than its field allows.
func clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}
