package approval

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/freeze"
)

// ConditionFrozen is true while a ScalePlan waits because of a freeze window.
const ConditionFrozen = "Frozen"

// The reasons of the events on a ScalePlan that waits because of a freeze window, and on one
// that no longer does.
const (
	ReasonFrozen = "ChangeFrozen"
	ReasonThawed = "FreezeEnded"
)

// frozen returns the freeze window that blocks changes in a direction now, or nil.
func (a *Approvals) frozen(direction v1alpha1.ScaleDirection) *freeze.Active {
	return a.config.Freezes.Active(a.config.Clock.Now(), string(direction))
}

// Frozen reports whether a freeze window blocks changes in a direction now.
func (a *Approvals) Frozen(direction v1alpha1.ScaleDirection) bool { return a.frozen(direction) != nil }

// Freeze returns the freeze window that blocks a change now, with its end; empty if none does.
// up and down are set if the change has parts in these directions.
func (a *Approvals) Freeze(up, down bool) string {
	for _, part := range []struct {
		direction v1alpha1.ScaleDirection
		has       bool
	}{{v1alpha1.ScaleUp, up}, {v1alpha1.ScaleDown, down}} {
		if active := a.frozen(part.direction); part.has && active != nil {
			return active.String()
		}
	}
	return ""
}

// setFrozen sets the condition of a plan that waits, or waited, because of a freeze window. It
// does not write the plan. It returns the event to publish once the plan is written, or an
// empty reason.
func (a *Approvals) setFrozen(plan *v1alpha1.ScalePlan) (reason, message string) {
	condition := metav1.Condition{
		Type: ConditionFrozen, Status: metav1.ConditionFalse, Reason: "FreezeEnded", LastTransitionTime: metav1.NewTime(a.config.Clock.Now()),
	}
	known := meta.FindStatusCondition(plan.Status.Conditions, ConditionFrozen)
	was := known != nil && known.Status == metav1.ConditionTrue
	active := a.frozen(plan.Spec.Direction)
	switch {
	case active != nil && pending(plan):
		condition.Status, condition.Reason = metav1.ConditionTrue, "FreezeWindow"
		condition.Message = fmt.Sprintf("waits for the end of %s: in an emergency, run numaform approve %s --break-glass REASON", active, plan.Name)
		if was && known.Message == condition.Message {
			return "", ""
		}
		reason = ReasonFrozen
	case !was:
		return "", ""
	case active != nil:
		condition.Message = "the plan no longer waits, although the freeze window has not ended"
	default:
		condition.Message = "the freeze window has ended: the change continues as its approval and the modes of its NodePools allow"
		reason = ReasonThawed
	}
	meta.SetStatusCondition(&plan.Status.Conditions, condition)
	return reason, condition.Message
}

// noteFreeze records in a pending plan whether it waits because of a freeze window.
func (a *Approvals) noteFreeze(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	reason, message := a.setFrozen(plan)
	if reason == "" {
		return nil
	}
	if err := a.update(ctx, plan); err != nil {
		return fmt.Errorf("recording the freeze of scaleplan %s: %w", plan.Name, err)
	}
	a.publishFreeze(plan, reason, message)
	return nil
}

func (a *Approvals) publishFreeze(plan *v1alpha1.ScalePlan, reason, message string) {
	if reason != "" {
		a.publish(plan, corev1.EventTypeNormal, reason, message)
	}
}
