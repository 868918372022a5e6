package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	approvals "github.com/numaform/numaform/internal/approval"
)

// Phase returns the phase of a plan. A new plan has no phase yet and is pending.
func Phase(plan *v1alpha1.ScalePlan) v1alpha1.ScalePlanPhase {
	return cmp.Or(plan.Status.Phase, v1alpha1.ScalePlanPending)
}

// WaitsFor returns why a plan cannot begin yet, besides a missing approval, or "".
func WaitsFor(plan *v1alpha1.ScalePlan) string {
	if Phase(plan) != v1alpha1.ScalePlanPending {
		return ""
	}
	text := ""
	for _, condition := range plan.Status.Conditions {
		switch {
		case condition.Type == approvals.ConditionSufficient && condition.Status == metav1.ConditionFalse:
			return strings.ReplaceAll(condition.Message, "\n", "; ") // it also names a freeze window
		case condition.Type == approvals.ConditionFrozen && condition.Status == metav1.ConditionTrue:
			text = strings.TrimPrefix(condition.Message, "waits for ")
		}
	}
	return text
}

// BreakGlass describes the break-glass approval of a plan, or returns "".
func BreakGlass(spec *v1alpha1.ScalePlanSpec) string {
	if spec.BreakGlass == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s, until %s)", spec.BreakGlass.Reason, spec.BreakGlass.User, spec.BreakGlass.Until.UTC().Format(time.RFC3339))
}
