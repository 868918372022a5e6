package cloudprovider

import (
	"errors"
	"fmt"

	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// ReasonClassUnknown is the reason on a NodeClaim whose class has not been validated yet.
const ReasonClassUnknown = "NodeClassReadinessUnknown"

// unusableError reports why a NodeClaim's VM will not become its node.
type unusableError struct{ nodeClaim, vm, reason string }

func (e *unusableError) Error() string {
	return fmt.Sprintf("NodeClaim %q: its VM %s %s: its pods get another", e.nodeClaim, e.vm, e.reason)
}

// classUnknownError reports that it is unknown whether a class is ready.
type classUnknownError struct{ class string }

func (e *classUnknownError) Error() string {
	return fmt.Sprintf("ProxmoxNodeClass %q has not been judged yet: look at its conditions if this stays", e.class)
}

// goneError reports that a VM certainly does not exist.
type goneError struct{ vm string }

func (e *goneError) Error() string {
	return fmt.Sprintf("vm %s: neither the fleet nor Proxmox has it", e.vm)
}

// translate converts an error to the type on which Karpenter acts: for a VM that cannot
// be created, Karpenter deletes the NodeClaim and reschedules its pods; a missing VM
// completes a deletion; everything else is retried.
func translate(err error) error {
	var room *scheduling.NoRoomError
	var unusable *unusableError
	var exhausted *fleet.RangeExhaustedError
	var notReady *scheduling.ClassNotReadyError
	var unknown *classUnknownError
	var gone *goneError
	switch {
	case errors.As(err, &room), errors.As(err, &unusable), errors.As(err, &exhausted):
		return karpenter.NewInsufficientCapacityError(err)
	case errors.As(err, &notReady):
		return karpenter.NewNodeClassNotReadyError(err)
	case errors.As(err, &unknown):
		return karpenter.NewCreateError(err, ReasonClassUnknown, unknown.Error())
	case errors.As(err, &gone):
		return karpenter.NewNodeClaimNotFoundError(err)
	}
	return err
}
