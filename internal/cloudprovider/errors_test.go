package cloudprovider_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// TestTranslate checks the types of translated errors, which alone determine Karpenter's
// reaction. It lists every error that deletes a NodeClaim or completes a deletion; all
// others are retried.
func TestTranslate(t *testing.T) {
	t.Parallel()
	const capacity, class, create, gone, retry = "insufficient capacity", "class not ready", "create", "not found", "retry"
	tests := []struct {
		err  error
		want string
	}{
		{&scheduling.NoRoomError{NodeClaim: "c", Reason: "full"}, capacity},
		{cloudprovider.Unusable(), capacity},
		{&fleet.RangeExhaustedError{Region: "lab"}, capacity},
		{&fleet.RangeOutsideError{Region: "lab"}, capacity},
		{&scheduling.ClassNotReadyError{NodePool: "p", Reason: "missing"}, class},
		{cloudprovider.Unknown(), create},
		{cloudprovider.Gone(), gone},
		{scaler.ErrNotRead, retry},
		{&scaler.HostDownError{Host: pve1, Problem: "is down"}, retry},
		{&scaler.PendingApprovalError{Host: pve1}, retry},
		{context.DeadlineExceeded, retry},
		{errors.New("anything else"), retry},
	}
	for _, test := range tests {
		err := cloudprovider.Translate(fmt.Errorf("doing it: %w", test.err))
		var createErr *karpenter.CreateError
		got := retry
		switch {
		case karpenter.IsInsufficientCapacityError(err):
			got = capacity
		case karpenter.IsNodeClassNotReadyError(err):
			got = class
		case karpenter.IsNodeClaimNotFoundError(err):
			got = gone
		case errors.As(err, &createErr):
			got = create
		}
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%T is %q, want %q", test.err, got, test.want)
		}
	}
	if cloudprovider.Translate(nil) != nil {
		t.Error("no error is one")
	}
}
