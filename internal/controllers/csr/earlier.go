package csr

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
)

// factsOfEarlier returns the facts about a bootstrap token of an earlier release, for a
// VM that joins during an upgrade. The token's Secret is in kube-system, which this
// release cannot read and does not need: the API server checked at login that the token
// exists and has not expired, and the NodeClaim with the token's ID identifies the VM.
func (c *Controller) factsOfEarlier(ctx context.Context, id string, request *certificatesv1.CertificateSigningRequest) (Facts, error) {
	if _, bootstrap := jointoken.BootstrapID(request.Spec.Username); !bootstrap {
		return Facts{}, nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.config.Live.List(ctx, claims); err != nil {
		return Facts{}, fmt.Errorf("looking for the NodeClaim of bootstrap token %s: %w", id, err)
	}
	var found []*karpv1.NodeClaim
	for i := range claims.Items {
		if claims.Items[i].Annotations[jointoken.AnnotationToken] == id {
			found = append(found, &claims.Items[i])
		}
	}
	if len(found) != 1 {
		return Facts{}, nil
	}
	claim := found[0]
	record, err := c.recordOf(ctx, claim)
	if err != nil {
		return Facts{}, err
	}
	if !record.Used() {
		if record.Use, err = c.usedBefore(ctx, request); err != nil {
			return Facts{}, err
		}
	}
	return Facts{Record: record, Grant: jointoken.Grant{ID: id}, Claim: claim}, nil
}

// recordOf returns the record of a claim, or a new one.
func (c *Controller) recordOf(ctx context.Context, claim *karpv1.NodeClaim) (*jointoken.Record, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: c.config.Account.Namespace, Name: jointoken.RecordName(claim.UID)}
	err := c.config.Live.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return &jointoken.Record{Namespace: key.Namespace, Owner: jointoken.Owner{
			VM: claim.Annotations[v1alpha1.AnnotationVM], Key: fleet.Key(claim.Annotations[v1alpha1.AnnotationKey]),
			NodeClaim: claim.Name, UID: claim.UID,
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	record, err := jointoken.Read(secret)
	return &record, err
}

// usedBefore returns what an earlier release approved for the token of a request, which
// it recorded in kube-system.
func (c *Controller) usedBefore(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (jointoken.Use, error) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := c.config.Live.List(ctx, requests); err != nil {
		return jointoken.Use{}, fmt.Errorf("looking for requests of %s: %w", request.Spec.Username, err)
	}
	for i := range requests.Items {
		other := &requests.Items[i]
		approved := decided(other, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved
		})
		if !approved || other.Spec.Username != request.Spec.Username || !c.config.Account.ours(other) {
			continue
		}
		if asked, err := parse(other.Spec.Request); err == nil {
			return jointoken.Use{Request: other.Name, PublicKey: keyOf(asked)}, nil
		}
	}
	return jointoken.Use{}, nil
}
