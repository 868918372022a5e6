package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
)

// tokenTries is how often a token is made until its id is free: there are 2^31.
const tokenTries = 5

// tokens returns our bootstrap tokens. Secrets with our label that cannot be relied
// on are left to people.
func (s *Seeder) tokens(ctx context.Context) ([]jointoken.Token, error) {
	secrets := &corev1.SecretList{}
	err := s.config.Cluster.Live.List(ctx, secrets,
		client.InNamespace(jointoken.Namespace), client.MatchingLabels{jointoken.Label: "true"})
	if err != nil {
		return nil, fmt.Errorf("listing bootstrap tokens: %w", err)
	}
	var found []jointoken.Token
	for i := range secrets.Items {
		token, err := jointoken.Read(&secrets.Items[i])
		var foreign *jointoken.ForeignError
		if errors.As(err, &foreign) {
			log.FromContext(ctx).V(1).Info("skipped bootstrap token", logkey.Reason, foreign.Error())
			continue
		}
		found = append(found, token)
	}
	return found, nil
}

// tokensOf returns the tokens of a claim.
func (s *Seeder) tokensOf(ctx context.Context, claim types.UID) ([]jointoken.Token, error) {
	all, err := s.tokens(ctx)
	return of(claim, all), err
}

// of returns the tokens of a claim among all.
func of(claim types.UID, all []jointoken.Token) []jointoken.Token {
	var own []jointoken.Token
	for _, token := range all {
		if token.UID == claim {
			own = append(own, token)
		}
	}
	return own
}

// token returns the token in the seed of a claim's VM, or nil if it is gone.
func (s *Seeder) token(ctx context.Context, claim *karpv1.NodeClaim) (*jointoken.Token, error) {
	id := claim.Annotations[AnnotationToken]
	if id == "" {
		return nil, nil
	}
	secret := &corev1.Secret{}
	err := s.config.Cluster.Live.Get(ctx, client.ObjectKey{Namespace: jointoken.Namespace, Name: jointoken.SecretName(id)}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading bootstrap token %s: %w", id, err)
	}
	token, err := jointoken.Read(secret)
	if err != nil || token.UID != claim.UID {
		return nil, nil //nolint:nilerr // somebody else's token is none of this claim's
	}
	return &token, nil
}

// wanted is a VM that shall get a token.
type wanted struct {
	vm    *fleet.VM
	claim *karpv1.NodeClaim
	class *materials
	// token is what issue found or made, and stale are those it takes the place of:
	// they are to be dropped once the token is in the VM's seed.
	token jointoken.Token
	stale []jointoken.Token
}

// issue gives each VM a token that it can join with.
func (s *Seeder) issue(ctx context.Context, list []wanted) error {
	s.issuing.Lock()
	defer s.issuing.Unlock()
	all, err := s.tokens(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(uploads)
	for i := range list {
		group.Go(func() error { return s.choose(ctx, &list[i], of(list[i].claim.UID, all)) })
	}
	return group.Wait()
}

// choose takes a token that the claim has, or makes one.
func (s *Seeder) choose(ctx context.Context, w *wanted, own []jointoken.Token) (err error) {
	owner := jointoken.Owner{VM: w.vm.Name, Key: w.vm.Key, NodeClaim: w.claim.Name, UID: w.claim.UID}
	for _, token := range own {
		if w.token.ID == "" && token.Owner == owner && token.Fresh(s.config.Clock.Now()) {
			w.token = token
			continue
		}
		w.stale = append(w.stale, token)
	}
	if w.token.ID == "" {
		w.token, err = s.create(ctx, owner, w.class.class.TTL())
	}
	return err
}

// create makes a token and keeps it in the cluster.
func (s *Seeder) create(ctx context.Context, owner jointoken.Owner, ttl time.Duration) (jointoken.Token, error) {
	var err error
	for range tokenTries {
		var token jointoken.Token
		if token, err = jointoken.New(owner, s.config.Clock.Now(), ttl); err != nil {
			return jointoken.Token{}, err
		}
		if err = s.config.Cluster.Client.Create(ctx, token.Object()); err == nil {
			return token, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return jointoken.Token{}, fmt.Errorf("making a bootstrap token for vm %s: %w", owner.VM, err)
}

// drop deletes tokens. One that is gone is fine.
func (s *Seeder) drop(ctx context.Context, tokens ...jointoken.Token) error {
	var errs []error
	for _, token := range tokens {
		if err := client.IgnoreNotFound(s.config.Cluster.Client.Delete(ctx, token.Object())); err != nil {
			errs = append(errs, fmt.Errorf("deleting %s: %w", token, err))
		}
	}
	return errors.Join(errs...)
}
