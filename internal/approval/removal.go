package approval

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	podutil "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/state/guard"
)

// keyOf returns the key of a candidate's VM, or "" if its NodeClaim has none.
func keyOf(candidate *disruption.Candidate) string {
	if candidate.NodeClaim == nil {
		return ""
	}
	return candidate.NodeClaim.Annotations[v1alpha1.AnnotationKey]
}

// nameOf returns the name of a candidate's VM, or of its Node if its NodeClaim names no VM.
func nameOf(candidate *disruption.Candidate) string {
	name := ""
	if candidate.NodeClaim != nil {
		name = candidate.NodeClaim.Annotations[v1alpha1.AnnotationVM]
	}
	return cmp.Or(name, candidate.Name())
}

// draft returns a draft of a command, without the dry plan.
func (m *method) draft(command *disruption.Command, reasons []string) (*draft, error) {
	d := &draft{
		direction: v1alpha1.ScaleDown, requestedBy: m.requestedBy(), reasons: reasons,
		why: strings.ToLower(string(m.Reason())) + " nodes can be removed", verdict: guard.Verdict{Decision: guard.Allow},
	}
	for _, candidate := range command.Candidates {
		if keyOf(candidate) == "" {
			return nil, fmt.Errorf("the NodeClaim of Node %s has no annotation %s, so its VM is unknown: set the annotation to the key in the VM's fleet file", candidate.Name(), v1alpha1.AnnotationKey)
		}
		labels := candidate.Labels()
		d.pools = append(d.pools, candidate.NodePool.Name)
		d.vms = append(d.vms, v1alpha1.ScalePlanVM{
			Action: v1alpha1.ScalePlanDelete, Name: nameOf(candidate), Key: keyOf(candidate), NodePool: candidate.NodePool.Name,
			Host:         labels[corev1.LabelTopologyRegion] + "/" + labels[corev1.LabelTopologyZone],
			InstanceType: labels[corev1.LabelInstanceTypeStable], Reason: strings.ToLower(string(m.Reason())),
		})
	}
	for _, replacement := range command.Replacements {
		size := ""
		if len(replacement.InstanceTypeOptions) > 0 {
			size = replacement.InstanceTypeOptions[0].Name
		}
		change, err := digest([]string{"replacement", replacement.NodePoolName, size})
		if err != nil {
			return nil, err
		}
		d.vms = append(d.vms, v1alpha1.ScalePlanVM{
			Action: v1alpha1.ScalePlanCreate, NodePool: replacement.NodePoolName, InstanceType: size, Change: change,
			Reason: "replaces removed nodes; its placement is decided when it is created",
		})
	}
	slices.Sort(d.pools)
	d.pools = slices.Compact(d.pools)
	var err error
	d.hash, err = hashOf(d.direction, d.vms)
	return d, err
}

// planRemoval adds the dry plan of the removal to a draft, and the pods that must be
// rescheduled.
func (a *Approvals) planRemoval(ctx context.Context, d *draft, command *disruption.Command) error {
	snapshot, err := a.config.Snapshot(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(command.Candidates))
	for i, candidate := range command.Candidates {
		names[i] = nameOf(candidate)
		pods, err := candidate.Pods(ctx, a.config.Client)
		if err != nil {
			return fmt.Errorf("reading the pods of Node %s: %w", candidate.Name(), err)
		}
		var moving []string
		for _, pod := range pods {
			if podutil.IsReschedulable(pod) {
				moving = append(moving, pod.Namespace+"/"+pod.Name)
			}
		}
		for j := range d.vms {
			if d.vms[j].Key == keyOf(candidate) && d.vms[j].Action == v1alpha1.ScalePlanDelete {
				d.vms[j].Pods = few(moving)
			}
		}
	}

	proposing, cancel := context.WithTimeout(ctx, proposeWithin)
	defer cancel()
	change, err := a.config.Scaler.ProposeRemoval(proposing, snapshot, names)
	if err != nil {
		return err
	}
	for i := range change.Removed {
		// The name may now belong to another VM.
		if vm := &change.Removed[i]; !deletes(d.vms)[string(vm.Key)] {
			return fmt.Errorf("VM %s has the key %s, but its NodeClaim has another key: the next attempt reads both again; "+
				"if this persists, restore the annotation %s of the NodeClaim", vm.Name, vm.Key, v1alpha1.AnnotationKey)
		}
	}
	change.Narrow()
	plans, err := a.config.Scaler.Plan(ctx, change)
	if err != nil {
		return err
	}
	// The nodes are not drained yet, so ignore findings about that. The guard checks it
	// again before anything is deleted.
	plans = slices.Clone(plans)
	for i := range plans {
		verdict := guard.Verdict{Decision: guard.Allow}
		for _, finding := range plans[i].Verdict.Findings {
			if finding.Rule != guard.RuleDrained {
				verdict = verdict.And(guard.Verdict{Decision: finding.Decision, Findings: []guard.Finding{finding}})
			}
		}
		if len(plans[i].Verdict.Findings) > 0 {
			plans[i].Verdict = verdict
		}
	}
	return d.addPlans(plans)
}
