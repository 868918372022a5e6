package approval

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Mode selects which of a NodePool's changes need approval.
type Mode string

// The modes of a NodePool, for each direction.
const (
	// ModeAuto allows changes that the guard allows, and changes that it requires
	// approval for.
	ModeAuto Mode = "auto"
	// ModePolicy allows changes that the guard allows; changes that need approval wait.
	ModePolicy Mode = "policy"
	// ModeManual makes every change wait for approval.
	ModeManual Mode = "manual"
)

// ReasonUnknownMode is the reason of the event on a NodePool with an invalid mode.
const ReasonUnknownMode = "UnknownApprovalMode"

// ModeError reports an invalid mode in a NodePool's annotation.
type ModeError struct{ NodePool, Annotation, Value string }

func (e *ModeError) Error() string {
	return fmt.Sprintf("nodepool %s: annotation %s: unknown mode %q: set auto, policy or manual; until then, the mode is manual",
		e.NodePool, e.Annotation, e.Value)
}

// ModeOf returns a NodePool's mode in a direction: unset without an annotation, and manual
// with a ModeError if the annotation is invalid.
func ModeOf(pool *karpv1.NodePool, direction v1alpha1.ScaleDirection, unset Mode) (Mode, error) {
	annotation := v1alpha1.AnnotationScaleUp
	if direction == v1alpha1.ScaleDown {
		annotation = v1alpha1.AnnotationScaleDown
	}
	value, set := pool.Annotations[annotation]
	switch mode := Mode(value); {
	case !set:
		return unset, nil
	case mode == ModeAuto || mode == ModePolicy || mode == ModeManual:
		return mode, nil
	}
	return ModeManual, &ModeError{NodePool: pool.Name, Annotation: annotation, Value: value}
}

// pools are the cluster's NodePools by name.
type pools map[string]*karpv1.NodePool

// readPools reads the NodePools.
func (a *Approvals) readPools(ctx context.Context) (pools, error) {
	var list karpv1.NodePoolList
	if err := a.config.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading nodepools: %w", err)
	}
	found := pools{}
	for i := range list.Items {
		found[list.Items[i].Name] = &list.Items[i]
	}
	return found, nil
}

// mode returns the mode of a pool. A pool that no longer exists is manual, because its
// mode is unknown.
func (a *Approvals) mode(known pools, name string, direction v1alpha1.ScaleDirection) Mode {
	pool, ok := known[name]
	if !ok {
		return ModeManual
	}
	return a.modeOf(pool, direction)
}

// modeOf is ModeOf with an event instead of the error. In a freeze window, every mode is
// manual.
func (a *Approvals) modeOf(pool *karpv1.NodePool, direction v1alpha1.ScaleDirection) Mode {
	mode, err := ModeOf(pool, direction, a.config.Unset)
	if err != nil {
		a.publish(pool, corev1.EventTypeWarning, ReasonUnknownMode, err.Error())
	}
	if a.frozen(direction) != nil {
		return ModeManual
	}
	return mode
}
