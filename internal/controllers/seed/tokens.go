package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
)

// tokenTries limits the attempts to find a free bootstrap token ID out of 2^31.
const tokenTries = 5

// records returns the records of all claims. It skips Secrets with our label that are not
// trustworthy, and does not delete them.
func (s *Seeder) records(ctx context.Context) ([]jointoken.Record, error) {
	secrets := &corev1.SecretList{}
	err := s.config.Cluster.Live.List(ctx, secrets,
		client.InNamespace(s.config.Cluster.Namespace), client.MatchingLabels{jointoken.Label: "true"})
	if err != nil {
		return nil, fmt.Errorf("listing join tokens: %w", err)
	}
	var found []jointoken.Record
	for i := range secrets.Items {
		record, err := jointoken.Read(&secrets.Items[i])
		if err != nil {
			log.FromContext(ctx).V(1).Info("skipped join tokens", logkey.Reason, err.Error())
			continue
		}
		found = append(found, record)
	}
	return found, nil
}

// record returns the record of a claim, or nil if it has none.
func (s *Seeder) record(ctx context.Context, claim *karpv1.NodeClaim) (*jointoken.Record, error) {
	key := client.ObjectKey{Namespace: s.config.Cluster.Namespace, Name: jointoken.RecordName(claim.UID)}
	secret := &corev1.Secret{}
	err := s.config.Cluster.Live.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the join tokens of NodeClaim %s: %w", claim.Name, err)
	}
	record, err := jointoken.Read(secret)
	if err != nil {
		return nil, fmt.Errorf("reading the join tokens of NodeClaim %s: %w: delete that Secret", claim.Name, err)
	}
	return &record, nil
}

// guest is a VM that joins with a token.
type guest struct {
	vm    *fleet.VM
	claim *karpv1.NodeClaim
	class *materials
	// token is set by issue.
	token jointoken.Token
}

// issue creates a token for a VM to join with, and adds it to the claim's record. Tokens in
// earlier seeds of the same VM stay valid until they expire, because its guest may have read
// one of them. Only the first of them that is used is accepted.
func (s *Seeder) issue(ctx context.Context, g *guest) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("creating a join token for vm %s: %w", g.vm.Name, err)
		}
	}()

	record, err := s.recordFor(ctx, g)
	if err != nil {
		return err
	}

	ttl := g.class.class.TTL()
	if g.class.class.TokenForm() == v1alpha1.TokenBootstrap {
		g.token, err = s.bootstrapToken(ctx, record, ttl)
	} else {
		account := s.account()
		answer := record.Request(ttl)
		if err := s.config.Cluster.Client.SubResource("token").Create(ctx, account, answer); err != nil {
			return accountError(account, err)
		}
		g.token, err = record.Minted(answer, s.config.Clock.Now(), ttl)
	}
	if err != nil {
		return err
	}

	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record.Add(g.token.Grant)
		err := s.config.Cluster.Client.Update(ctx, record.Object())
		if !apierrors.IsConflict(err) {
			return err
		}
		current, readErr := s.record(ctx, g.claim)
		if readErr != nil || current == nil {
			return errors.Join(readErr, err)
		}
		record = current
		return err
	})
}

// recordFor returns the record for a VM's new token. If earlier tokens were used, because
// the guest is being re-created, or were for another VM, recordFor deletes them first.
func (s *Seeder) recordFor(ctx context.Context, g *guest) (*jointoken.Record, error) {
	owner := jointoken.Owner{VM: g.vm.Name, Key: g.vm.Key, NodeClaim: g.claim.Name, UID: g.claim.UID}
	record, err := s.record(ctx, g.claim)
	if err != nil {
		return nil, err
	}
	if record != nil && (record.Used() || record.Owner != owner) {
		if err := s.drop(ctx, record); err != nil {
			return nil, err
		}
		record = nil
	}
	if record != nil {
		return record, nil
	}
	record = &jointoken.Record{Namespace: s.config.Cluster.Namespace, Owner: owner}
	object := record.Object()
	err = s.config.Cluster.Client.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) { // csr or another call of Seed has just created it
		return s.record(ctx, g.claim)
	}
	record.Secret, record.ResourceVersion = object.UID, object.ResourceVersion
	return record, err
}

// account returns the ServiceAccount that nodes join as.
func (s *Seeder) account() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.config.Cluster.Namespace, Name: s.config.Cluster.Account}}
}

// accountError returns an error with a hint about a ServiceAccount that nodes cannot join
// as.
func accountError(account *corev1.ServiceAccount, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("nodes join as ServiceAccount %s/%s, which does not exist (%w): install it with the chart, or set another one with "+
			"--bootstrap-service-account", account.Namespace, account.Name, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("nodes join as ServiceAccount %s/%s, which numaform has no permission to use (%w): grant numaform the verb get on this ServiceAccount, and the verb create on its token subresource, as the chart does",
			account.Namespace, account.Name, err)
	}
	return err
}

// bootstrapToken creates a bootstrap token in kube-system.
func (s *Seeder) bootstrapToken(ctx context.Context, record *jointoken.Record, ttl time.Duration) (jointoken.Token, error) {
	var err error
	for range tokenTries {
		token, object, made := jointoken.NewBootstrap(record.Owner, s.config.Clock.Now(), ttl)
		if made != nil {
			return jointoken.Token{}, made
		}
		if err = s.config.Cluster.Client.Create(ctx, object); err == nil {
			token.Minted = object.CreationTimestamp.UTC()
			return token, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return jointoken.Token{}, err
}

// drop deletes the tokens of a record. Missing tokens are not an error, but a record that
// changed after it was read is a conflict.
func (s *Seeder) drop(ctx context.Context, record *jointoken.Record) error {
	for _, grant := range record.Grants {
		if grant.Form() == v1alpha1.TokenBootstrap {
			if err := s.dropBootstrap(ctx, grant.ID); err != nil {
				return err
			}
		}
	}
	// Delete the record last, because it lists the other objects to delete.
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Name()}}
	unchanged := client.Preconditions{UID: &record.Secret, ResourceVersion: &record.ResourceVersion}
	if err := client.IgnoreNotFound(s.config.Cluster.Client.Delete(ctx, object, unchanged)); err != nil {
		return fmt.Errorf("deleting the join tokens of vm %s: %w", record.VM, err)
	}
	return nil
}

// dropBootstrap deletes a bootstrap token. Without permission, it leaves the token to
// Kubernetes, which deletes it when it expires, or with its NodeClaim.
func (s *Seeder) dropBootstrap(ctx context.Context, id string) error {
	if !s.config.Cluster.BootstrapTokens {
		return nil
	}
	if err := client.IgnoreNotFound(s.config.Cluster.Client.Delete(ctx, jointoken.BootstrapSecret(id))); err != nil {
		return fmt.Errorf("deleting bootstrap token %s: %w", id, err)
	}
	return nil
}

// revoke deletes the tokens of a claim, including one created by an earlier release.
func (s *Seeder) revoke(ctx context.Context, claim *karpv1.NodeClaim) error {
	if id := claim.Annotations[jointoken.AnnotationToken]; jointoken.KnownID(id) {
		if err := s.dropBootstrap(ctx, id); err != nil {
			return err
		}
	}
	record, err := s.record(ctx, claim)
	if err != nil || record == nil {
		return err
	}
	if err := s.drop(ctx, record); err != nil {
		return err
	}
	log.FromContext(ctx).V(1).Info("deleted join tokens")
	return nil
}
