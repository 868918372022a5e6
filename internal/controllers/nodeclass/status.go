package nodeclass

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// ReasonReady is the event reason of a class that has become ready.
const ReasonReady = "Ready"

// conditions returns the conditions that make up Ready, in the order in which they are
// checked.
func conditions() []string {
	return []string{
		v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady,
		v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady,
	}
}

// verdict is the reason why a condition is not true.
type verdict struct {
	scheduling.Finding
	// unknown is set if the condition may be true, but that cannot be determined now.
	unknown bool
}

// judge writes the class's status and reports changes.
func (c *Controller) judge(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := nc.DeepCopy()
	verdicts := c.look(ctx, nc)
	nc.Status.Hash = scheduling.ClassHash(nc)
	set := nc.StatusConditions(status.WithClock(c.config.Clock))
	for _, condition := range conditions() {
		v, found := verdicts[condition]
		switch {
		case !found:
			set.SetTrue(condition)
		case v.unknown:
			set.SetUnknownWithReason(condition, v.Reason, v.Message)
		default:
			set.SetFalse(condition, v.Reason, v.Message)
		}
	}
	explainReady(nc)
	if !equality.Semantic.DeepEqual(stored.Status, nc.Status) {
		// The patch replaces the whole list of conditions, so it must not overwrite
		// concurrent changes.
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.config.Client.Status().Patch(ctx, nc, patch); err != nil {
			return reconcile.Result{}, fmt.Errorf("writing the status of %s %s: %w", v1alpha1.KindProxmoxNodeClass, nc.Name, err)
		}
		c.config.Recorder.Publish(changes(stored, nc)...)
	}
	if set.Root().IsTrue() {
		return reconcile.Result{RequeueAfter: period}, nil
	}
	return reconcile.Result{RequeueAfter: impatience}, nil
}

// explainReady copies the problem to the Ready condition: kubectl's table shows no other
// condition, and NodePools and pods receive its message. By default it contains only the
// conditions' names.
func explainReady(nc *v1alpha1.ProxmoxNodeClass) {
	var said []string
	for _, condition := range nc.Status.Conditions {
		if condition.Type != status.ConditionReady && condition.IsFalse() {
			said = append(said, condition.Message)
		}
	}
	for i := range nc.Status.Conditions {
		if ready := &nc.Status.Conditions[i]; ready.Type == status.ConditionReady && ready.IsFalse() {
			ready.Message = strings.Join(said, "; ")
		}
	}
}

// look sets the status's hosts, and returns the verdict of each condition that is not
// true.
func (c *Controller) look(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) map[string]verdict {
	verdicts := map[string]verdict{}
	if err := crd.Validate(nc); err != nil {
		for _, condition := range conditions() {
			verdicts[condition] = unknown(condition, v1alpha1.ReasonInvalid, "the spec is not valid, see condition "+v1alpha1.ConditionValid)
		}
		verdicts[v1alpha1.ConditionValid] = verdict{Finding: scheduling.Finding{
			Condition: v1alpha1.ConditionValid, Reason: v1alpha1.ReasonInvalid, Message: err.Error(),
		}}
		setHosts(nc, scheduling.ClassReport{})
		return verdicts
	}
	if found := c.metadata(ctx, nc); found != nil {
		verdicts[v1alpha1.ConditionMetadataReady] = *found
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		for _, condition := range []string{v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady} {
			verdicts[condition] = unknown(condition, v1alpha1.ReasonProxmoxUnread, err.Error())
		}
		return verdicts // keep the hosts of the last check
	}
	report := scheduling.EvaluateClass(nc, snapshot, c.config.ClusterID, c.config.Types)
	setHosts(nc, report)
	for _, finding := range slices.Concat(report.Findings, c.families(nc), c.rootOnly(nc, report.Hosts)) {
		if _, first := verdicts[finding.Condition]; !first {
			verdicts[finding.Condition] = verdict{Finding: finding}
		}
	}
	return verdicts
}

// setHosts writes which hosts can take nodes of the class, and why the others cannot.
func setHosts(nc *v1alpha1.ProxmoxNodeClass, report scheduling.ClassReport) {
	var hosts []string
	for _, host := range report.Hosts {
		hosts = append(hosts, host.String())
	}
	slices.Sort(hosts)
	nc.SetHosts(hosts)
	nc.Status.Excluded = nil
	for _, excluded := range report.Excluded {
		nc.Status.Excluded = append(nc.Status.Excluded, v1alpha1.ExcludedHost{Host: excluded.Host.String(), Reason: excluded.Reason})
	}
}

func unknown(condition, reason, message string) verdict {
	return verdict{Finding: scheduling.Finding{Condition: condition, Reason: reason, Message: message}, unknown: true}
}

// families returns a finding if the class has no instance type.
func (c *Controller) families(nc *v1alpha1.ProxmoxNodeClass) []scheduling.Finding {
	if len(scheduling.OfferedBy(nc, c.config.Types)) > 0 {
		return nil
	}
	known := map[string]bool{}
	for i := range c.config.Types {
		known[c.config.Types[i].Family()] = true
	}
	message := scheduling.OnlyExtended
	if s := nc.Spec.Sizing; s != nil && len(s.Families) > 0 {
		message = "spec.sizing.families names no family of instance types that there is: write some of " +
			strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	}
	return []scheduling.Finding{{Condition: v1alpha1.ConditionPlacementReady, Reason: v1alpha1.ReasonFamilyUnknown, Message: message}}
}

// rootOnly returns findings for regions whose credential may not set the pins or huge
// pages of the class. One such region is enough, because a VM placed there could not be
// created.
func (c *Controller) rootOnly(nc *v1alpha1.ProxmoxNodeClass, hosts []topology.HostID) []scheduling.Finding {
	var checks []func(topology.RegionName) (bool, string)
	if nc.Spec.Placement.PinWith == v1alpha1.PinWithAffinity {
		checks = append(checks, c.config.CanSetAffinity)
	}
	if nc.Spec.Placement.HugePages != "" {
		checks = append(checks, c.config.CanSetHugePages)
	}
	asked := map[topology.RegionName]bool{}
	for _, host := range hosts {
		if asked[host.Region] {
			continue
		}
		asked[host.Region] = true
		for _, check := range checks {
			if allowed, why := check(host.Region); !allowed {
				return []scheduling.Finding{{
					Condition: v1alpha1.ConditionPlacementReady, Reason: v1alpha1.ReasonCredentialTooWeak, Message: why,
				}}
			}
		}
	}
	return nil
}

// changes returns events for conditions that have become untrue or have a new reason, and
// for a class that has become ready.
func changes(before, after *v1alpha1.ProxmoxNodeClass) []events.Event {
	was := map[string]status.Condition{}
	for _, condition := range before.GetConditions() {
		was[condition.Type] = condition
	}
	var found []events.Event
	for _, condition := range after.GetConditions() {
		old := was[condition.Type]
		known := old.Status == condition.Status && old.Reason == condition.Reason && old.Message == condition.Message
		switch {
		case known:
		case condition.Type == status.ConditionReady && condition.IsTrue():
			found = append(found, event(after, corev1.EventTypeNormal, ReasonReady, "nodes can be made of this class"))
		case condition.Type != status.ConditionReady && !condition.IsTrue():
			found = append(found, event(after, corev1.EventTypeWarning, condition.Reason, condition.Message))
		}
	}
	return found
}

func event(nc *v1alpha1.ProxmoxNodeClass, kind, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: nc, Type: kind, Reason: reason, Message: message,
		DedupeValues: []string{nc.Name, message},
	}
}
