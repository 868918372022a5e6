package nodeclass

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const (
	// ReasonReady is the event reason of a class that has become ready.
	ReasonReady = "Ready"
	// ReasonSecretUnread means that the API server did not respond, so the Secret's state is
	// unknown.
	ReasonSecretUnread = "SecretUnread"
)

// conditions returns the conditions that make up Ready, in the order in which they are
// checked.
func conditions() []string {
	return []string{
		v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady,
		v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady,
	}
}

// problem is the reason why a condition is not true.
type problem struct {
	scheduling.Finding
	// unknown is set if the condition may be true, but that cannot be determined now.
	unknown bool
}

// updateStatus writes the class's status and reports changes.
func (c *Controller) updateStatus(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := nc.DeepCopy()
	problems := c.check(ctx, nc)
	nc.Status.Hash = scheduling.ClassHash(nc)
	set := nc.StatusConditions(status.WithClock(c.config.Clock))
	for _, condition := range conditions() {
		p, found := problems[condition]
		switch {
		case !found:
			set.SetTrue(condition)
		case p.unknown:
			set.SetUnknownWithReason(condition, p.Reason, p.Message)
		default:
			set.SetFalse(condition, p.Reason, p.Message)
		}
	}

	// kubectl's table shows only the condition Ready, and NodePools and pods receive its
	// message. By default, this message contains only the names of the conditions that are
	// false.
	var messages []string
	for _, condition := range nc.Status.Conditions {
		if condition.Type != status.ConditionReady && condition.IsFalse() {
			messages = append(messages, condition.Message)
		}
	}
	for i := range nc.Status.Conditions {
		if ready := &nc.Status.Conditions[i]; ready.Type == status.ConditionReady && ready.IsFalse() {
			ready.Message = strings.Join(messages, "; ")
		}
	}

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

// check sets the status's hosts, and returns the problem of each condition that is not true.
func (c *Controller) check(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) map[string]problem {
	problems := map[string]problem{}
	if err := crd.Validate(nc); err != nil {
		for _, condition := range conditions() {
			problems[condition] = unknown(condition, v1alpha1.ReasonInvalid, "the spec is invalid: see condition "+v1alpha1.ConditionValid)
		}
		problems[v1alpha1.ConditionValid] = problem{Finding: scheduling.Finding{
			Condition: v1alpha1.ConditionValid, Reason: v1alpha1.ReasonInvalid, Message: err.Error(),
		}}
		nc.SetHosts(nil)
		nc.Status.Excluded = nil
		return problems
	}
	if err := c.config.Metadata(ctx, nc); err != nil {
		problems[v1alpha1.ConditionMetadataReady] = metadataProblem(err)
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		for _, condition := range []string{v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady} {
			problems[condition] = unknown(condition, v1alpha1.ReasonProxmoxUnread, err.Error())
		}
		return problems // keep the hosts of the last check
	}

	report := scheduling.EvaluateClass(nc, snapshot, c.config.ClusterID, c.config.Types)
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

	for _, finding := range slices.Concat(report.Findings, c.families(nc), c.rootOnly(nc, report.Hosts)) {
		if _, found := problems[finding.Condition]; !found {
			if ref := nc.Spec.Template.Ref; ref != "" && finding.Reason == v1alpha1.ReasonTemplateNotFound {
				finding.Message = cmp.Or(c.config.Template(ctx, ref), finding.Message)
			}
			problems[finding.Condition] = problem{Finding: finding, unknown: finding.Reason == v1alpha1.ReasonProxmoxUnread}
		}
	}
	return problems
}

// metadataProblem returns the problem for an error of Metadata. The condition is unknown if
// a retry can succeed without a fix by a person: the API server did not respond, or not
// properly.
func metadataProblem(err error) problem {
	var reasoned interface{ ConditionReason() string }
	reason := v1alpha1.ReasonTemplatesInvalid
	switch {
	case apierrors.IsNotFound(err):
		reason = v1alpha1.ReasonSecretNotFound
	case apierrors.IsForbidden(err):
		reason = v1alpha1.ReasonSecretForbidden
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, new(apierrors.APIStatus)), errors.As(err, new(net.Error)):
		return unknown(v1alpha1.ConditionMetadataReady, ReasonSecretUnread, err.Error())
	}
	if errors.As(err, &reasoned) {
		reason = reasoned.ConditionReason()
	}
	return problem{Finding: scheduling.Finding{Condition: v1alpha1.ConditionMetadataReady, Reason: reason, Message: err.Error()}}
}

func unknown(condition, reason, message string) problem {
	return problem{Finding: scheduling.Finding{Condition: condition, Reason: reason, Message: message}, unknown: true}
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
		message = "spec.sizing.families contains no existing family of instance types: list some of " +
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

// changes returns events for conditions that are not true and have a new status, reason or
// message, and for a class that has become ready.
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
			found = append(found, event(after, corev1.EventTypeNormal, ReasonReady, "nodes can be created from this class"))
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
