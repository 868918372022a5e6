// Package csr approves the certificate requests of kubelets that use one of numaform's join
// tokens, and denies requests that exceed the token's purpose: another node's name, a
// second certificate, another usage. It leaves all other requests to other approvers:
// requests by other users, for other signers, for renewals and for serving certificates. It
// does not need Proxmox. Start at NewController; Evaluate makes the decision without I/O.
package csr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
)

const (
	// workers is the maximum number of concurrent decisions. Many nodes may join at the
	// same time.
	workers = 10
	// conflictDelay is the delay before a request is checked again after a conflicting
	// write.
	conflictDelay = 100 * time.Millisecond
	// pausedDelay is the delay before a paused controller checks again.
	pausedDelay = 5 * time.Second
)

// Config configures a Controller.
type Config struct {
	// Client writes records and decisions.
	Client client.Client
	// Live bypasses every cache, because outdated information must not admit a node.
	Live client.Reader
	// Account is the ServiceAccount that nodes join as. Its namespace contains the
	// records of tokens.
	Account Account
	Events  events.Recorder
	Clock   clock.PassiveClock
	// Paused reports whether numaform is paused.
	Paused func() bool
}

// Controller approves and denies certificate requests.
type Controller struct {
	config Config
}

// NewController returns a controller for Register.
func NewController(config Config) *Controller { return &Controller{config: config} }

// Name returns the controller's name.
func (*Controller) Name() string { return "csr.approval" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	concerns := predicate.NewPredicateFuncs(func(object client.Object) bool {
		request, ok := object.(*certificatesv1.CertificateSigningRequest)
		if !ok {
			return false
		}
		return Concerns(request, c.config.Account) || Bypassed(request, c.config.Account)
	})
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(concerns)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile decides on one request, or leaves it to other approvers.
func (c *Controller) Reconcile(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	if Bypassed(request, c.config.Account) {
		log.FromContext(ctx).Info("found certificate request that another approver approved", logkey.Request, klog.KObj(request), logkey.Reason, ReasonBypassed)
		c.publish(request, request, ReasonBypassed, "another approver approved this request with a join token of numaform, so a token can be used for any node's name: "+
			"do not bind the ClusterRole system:certificates.k8s.io:certificatesigningrequests:nodeclient to the ServiceAccount that nodes join as, "+
			"to a group that contains it, to system:bootstrappers or to "+jointoken.Group)
		return reconcile.Result{}, nil
	}
	if !Concerns(request, c.config.Account) {
		return reconcile.Result{}, nil
	}
	if c.config.Paused() {
		return reconcile.Result{RequeueAfter: pausedDelay}, nil
	}
	switch err := c.decide(ctx, request); {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		// The request was deleted, or its record changed or was deleted: evaluate it again.
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("evaluating certificate request %s: %w", request.Name, err)
	}
	return reconcile.Result{}, nil
}

// decide evaluates a request with the current facts about its token, and writes the verdict.
// It records the use of a token before it approves the request, so that a second request finds
// the record.
func (c *Controller) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	var facts Facts
	var verdict Verdict
	id, err := c.config.Account.credential(request)
	if err != nil {
		verdict = deny(ReasonWrongLogin, "%s: kubelets log in only with the token in their seed", err)
	} else if facts, err = c.facts(ctx, id, request); errors.As(err, new(*jointoken.UntrustedError)) {
		verdict = deny(ReasonTokenChanged, "%s: find out who changed the secret, then delete the NodeClaim of the VM to replace the VM", err)
	} else if err != nil {
		return err
	} else {
		verdict = Evaluate(request, facts)
	}

	if verdict.Approved && !facts.Record.Used() {
		record := *facts.Record
		record.Use = jointoken.Use{Request: request.Name, PublicKey: verdict.PublicKey}
		// Of several writers that have read the same record, only one succeeds.
		if record.ResourceVersion == "" {
			err = c.config.Client.Create(ctx, record.Object())
		} else {
			err = c.config.Client.Update(ctx, record.Object())
		}
		if err != nil {
			return fmt.Errorf("recording the use of token %s: %w", facts.Grant.ID, err)
		}
	}

	now := metav1.NewTime(c.config.Clock.Now())
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: verdict.Reason, Message: verdict.Message,
		LastUpdateTime: now, LastTransitionTime: now,
	}
	if verdict.Approved {
		condition.Type = certificatesv1.CertificateApproved
	}
	decided := request.DeepCopy()
	decided.Status.Conditions = append(decided.Status.Conditions, condition)
	if err := c.config.Client.SubResource("approval").Update(ctx, decided); err != nil {
		return fmt.Errorf("writing the verdict: %w", err)
	}

	logger := log.FromContext(ctx).WithValues(logkey.Request, klog.KObj(request), logkey.Reason, verdict.Reason)
	if facts.Record != nil {
		logger = logger.WithValues(logkey.NodeClaim, klog.KRef("", facts.Record.NodeClaim), logkey.VM, facts.Record.VM, logkey.Token, facts.Grant.ID)
	}
	if verdict.Approved {
		logger.Info("approved certificate request")
		return nil
	}
	logger.Info("denied certificate request", logkey.Message, verdict.Message)
	var about client.Object = request
	if facts.Claim != nil {
		about = facts.Claim
	}
	c.publish(about, request, verdict.Reason, fmt.Sprintf("Certificate request %s denied: %s", request.Name, verdict.Message))
	return nil
}

// facts reads the record that contains a token, and its claim.
func (c *Controller) facts(ctx context.Context, id string, request *certificatesv1.CertificateSigningRequest) (Facts, error) {
	secrets := &corev1.SecretList{}
	err := c.config.Live.List(ctx, secrets, client.InNamespace(c.config.Account.Namespace), client.HasLabels{jointoken.Label, jointoken.GrantLabel(id)})
	switch {
	case err != nil:
		return Facts{}, fmt.Errorf("looking for the record of token %s: %w", id, err)
	case len(secrets.Items) == 0:
		return c.factsOfEarlier(ctx, id, request)
	case len(secrets.Items) > 1:
		return Facts{}, &jointoken.UntrustedError{Namespace: c.config.Account.Namespace, Secret: secrets.Items[1].Name, Why: "it names a token of another record"}
	}
	record, err := jointoken.Read(&secrets.Items[0])
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Record: &record}
	facts.Grant, _ = record.Grant(id)
	claim := &karpv1.NodeClaim{}
	switch err := c.config.Live.Get(ctx, client.ObjectKey{Name: record.NodeClaim}, claim); {
	case err == nil:
		facts.Claim = claim
	case !apierrors.IsNotFound(err):
		return Facts{}, err
	}
	return facts, nil
}

// publish publishes a warning event about a request.
func (c *Controller) publish(about client.Object, request *certificatesv1.CertificateSigningRequest, reason, message string) {
	c.config.Events.Publish(event.New(about, corev1.EventTypeWarning, reason, message, request.Name))
}

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
	found := slices.DeleteFunc(claims.Items, func(claim karpv1.NodeClaim) bool { return claim.Annotations[jointoken.AnnotationToken] != id })
	if len(found) != 1 {
		return Facts{}, nil
	}
	claim := &found[0]

	record := &jointoken.Record{Namespace: c.config.Account.Namespace, Owner: jointoken.Owner{
		VM: claim.Annotations[v1alpha1.AnnotationVM], Key: fleet.Key(claim.Annotations[v1alpha1.AnnotationKey]),
		NodeClaim: claim.Name, UID: claim.UID,
	}}
	secret := &corev1.Secret{}
	err := c.config.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.Name()}, secret)
	if err == nil {
		*record, err = jointoken.Read(secret)
	}
	if client.IgnoreNotFound(err) != nil {
		return Facts{}, err
	}
	facts := Facts{Record: record, Grant: jointoken.Grant{ID: id}, Claim: claim}
	if record.Used() {
		return facts, nil
	}

	// The earlier release recorded the use of a token in kube-system. An approved request
	// of the same user shows the use, too.
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := c.config.Live.List(ctx, requests); err != nil {
		return Facts{}, fmt.Errorf("looking for requests of %s: %w", request.Spec.Username, err)
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
			record.Use = jointoken.Use{Request: other.Name, PublicKey: keyOf(asked)}
			break
		}
	}
	return facts, nil
}
