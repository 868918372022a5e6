package approval

import (
	"context"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Mode says what of a NodePool's changes waits for a person.
type Mode string

// The modes of a NodePool, for each direction.
const (
	// ModeAuto lets pass what the guard allows and what it wants approved.
	ModeAuto Mode = "auto"
	// ModePolicy lets pass what the guard allows; what it wants approved waits.
	ModePolicy Mode = "policy"
	// ModeManual makes every change wait.
	ModeManual Mode = "manual"
)

// ReasonUnknownMode is the reason of the event on a NodePool whose mode is none.
const ReasonUnknownMode = "UnknownApprovalMode"

// ModeError says that a NodePool's annotation names no mode.
type ModeError struct{ NodePool, Annotation, Value string }

func (e *ModeError) Error() string {
	return fmt.Sprintf("nodepool %s: annotation %s: %q is no mode: want auto, policy or manual; until then it is manual",
		e.NodePool, e.Annotation, e.Value)
}

// ModeOf returns a NodePool's mode in a direction: policy without an annotation, and
// manual, with a ModeError, if the annotation says what nobody understands.
func ModeOf(pool *karpv1.NodePool, direction v1alpha1.ScaleDirection) (Mode, error) {
	annotation := v1alpha1.AnnotationScaleUp
	if direction == v1alpha1.ScaleDown {
		annotation = v1alpha1.AnnotationScaleDown
	}
	value, set := pool.Annotations[annotation]
	switch mode := Mode(value); {
	case !set:
		return ModePolicy, nil
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

// mode returns the mode of a pool. One that does not exist any more is manual:
// nobody can say how its VMs were to be treated.
func (a *Approvals) mode(known pools, name string, direction v1alpha1.ScaleDirection) Mode {
	pool, ok := known[name]
	if !ok {
		return ModeManual
	}
	return a.modeOf(pool, direction)
}

// modeOf is ModeOf with an event instead of the error.
func (a *Approvals) modeOf(pool *karpv1.NodePool, direction v1alpha1.ScaleDirection) Mode {
	mode, err := ModeOf(pool, direction)
	if err != nil {
		a.warn(pool, ReasonUnknownMode, err.Error())
	}
	return mode
}
