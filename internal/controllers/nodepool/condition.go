package nodepool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/scheduling"
)

// checkInterval is the interval at which the condition of a NodePool is updated.
const checkInterval = 10 * time.Second

// updateCondition sets ConditionScaleUpReady of a NodePool, and reports why it is false.
func (c *Controller) updateCondition(ctx context.Context, pool *karpv1.NodePool, warn func(kind, reason, message, cause string)) error {
	stored := pool.DeepCopy()
	set := pool.StatusConditions(status.WithClock(c.config.Clock))
	waits := c.waits(pool)
	if len(waits) == 0 && !c.config.Known() {
		return nil // a reason from before the start may still apply
	}
	if len(waits) == 0 {
		set.SetTrue(v1alpha1.ConditionScaleUpReady)
	} else {
		var messages []string
		for _, wait := range waits {
			messages = append(messages, wait.Message)
		}
		slices.Sort(messages)
		message := event.Cut(strings.Join(slices.Compact(messages), "; "), event.MaxMessage)
		set.SetFalse(v1alpha1.ConditionScaleUpReady, waits[0].Reason, message)
		kind := corev1.EventTypeWarning
		if waits[0].Reason == v1alpha1.ReasonPendingApproval {
			kind = corev1.EventTypeNormal
		}
		warn(kind, waits[0].Reason, message, waits[0].ScalePlan+" "+waits[0].Since.String())
	}
	if equality.Semantic.DeepEqual(stored.Status, pool.Status) {
		return nil
	}
	// The patch replaces the whole list of conditions, so it must not overwrite concurrent
	// changes.
	err := c.config.Client.Status().Patch(ctx, pool, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // the next check writes it
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of NodePool %s: %w", pool.Name, err)
	}
	return nil
}

// waits returns why new nodes of a NodePool wait, the most important reason first.
func (c *Controller) waits(pool *karpv1.NodePool) []scheduling.Wait {
	waits := c.config.Waits(pool.Name)
	reason, mistake := v1alpha1.ReasonLabelInvalid, scheduling.LabelMistake(pool)
	if mistake == "" && pool.Spec.Replicas != nil {
		reason, mistake = v1alpha1.ReasonFixedSizeNotSupported, c.config.FixedSize(pool)
	}
	if mistake != "" {
		waits = append(waits, scheduling.Wait{NodePool: pool.Name, Reason: reason, Message: "no nodes are created for this NodePool: " + mistake})
	}
	for _, name := range slices.Sorted(maps.Keys(pool.Spec.Limits)) {
		limit, used := pool.Spec.Limits[name], pool.Status.Resources[name]
		if used.Cmp(limit) >= 0 && !used.IsZero() { // 0 disables a NodePool; pods that need it are reported separately
			waits = append(waits, scheduling.Wait{NodePool: pool.Name, Reason: v1alpha1.ReasonLimitReached, Message: fmt.Sprintf(
				"spec.limits.%s is %s, and its nodes have %s: raise the limit, or remove nodes", name, limit.String(), used.String(),
			)})
		}
	}
	// A mistake in the NodePool does not end by itself, and an outage blocks everything,
	// whatever an operator decides.
	rank := []string{
		v1alpha1.ReasonFixedSizeNotSupported, v1alpha1.ReasonLabelInvalid, v1alpha1.ReasonHistoryRewritten, v1alpha1.ReasonStateBackendUnreachable, v1alpha1.ReasonChangePostponed,
		v1alpha1.ReasonLimitReached, v1alpha1.ReasonPlanDenied, v1alpha1.ReasonPlanRejected,
		v1alpha1.ReasonPendingApproval,
	}
	slices.SortStableFunc(waits, func(a, b scheduling.Wait) int {
		return cmp.Or(slices.Index(rank, a.Reason)-slices.Index(rank, b.Reason), a.Since.Compare(b.Since))
	})
	return waits
}
