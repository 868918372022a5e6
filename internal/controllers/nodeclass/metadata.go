package nodeclass

import (
	"context"
	"errors"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// ReasonSecretUnread means that the API server did not respond, so the Secret's state is
// unknown.
const ReasonSecretUnread = "SecretUnread"

// metadata returns what is wrong with the class's join metadata, or nil.
func (c *Controller) metadata(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) *verdict {
	err := c.config.Metadata(ctx, nc)
	if err == nil {
		return nil
	}
	if transient(err) {
		found := unknown(v1alpha1.ConditionMetadataReady, ReasonSecretUnread, err.Error())
		return &found
	}
	return &verdict{Finding: scheduling.Finding{
		Condition: v1alpha1.ConditionMetadataReady, Reason: metadataReason(err), Message: err.Error(),
	}}
}

// metadataReason returns the condition reason in an error.
func metadataReason(err error) string {
	var reasoned interface{ ConditionReason() string }
	switch {
	case errors.As(err, &reasoned):
		return reasoned.ConditionReason()
	case apierrors.IsNotFound(err):
		return v1alpha1.ReasonSecretNotFound
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonSecretForbidden
	}
	return v1alpha1.ReasonTemplatesInvalid
}

// transient reports whether a retry may succeed without a fix by a person: the API server
// did not respond, or not properly.
func transient(err error) bool {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, new(apierrors.APIStatus)) || errors.As(err, new(net.Error))
}
