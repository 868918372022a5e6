// Package csr approves the certificate requests of kubelets that use one of numaform's
// join tokens, and denies requests that exceed the token's purpose: another node's name,
// a second certificate, another usage. It does not need Proxmox. It leaves requests by
// other users, for other signers, and by nodes that renew a certificate or want a serving
// certificate to other approvers. Start at NewController; Judge is the decision alone.
package csr

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
)

const (
	// workers is the number of concurrent decisions, because many nodes may join
	// together.
	workers = 10
	// conflictDelay is the delay before a request is checked again after a conflicting
	// write.
	conflictDelay = 100 * time.Millisecond
	// pausedDelay is how often a paused controller checks again.
	pausedDelay = 5 * time.Second
)

// Config configures a Controller.
type Config struct {
	// Client is for writes.
	Client client.Client
	// Live bypasses every cache, because outdated information must not admit a node.
	Live client.Reader
	// Account is the ServiceAccount that nodes join as. Its namespace contains the
	// records of tokens.
	Account Account
	Events  events.Recorder
	Clock   clock.PassiveClock
	// Paused reports whether numaform must do nothing; nil means never.
	Paused func(context.Context) (bool, error)
}

// Controller decides about certificate requests.
type Controller struct {
	config Config
}

// NewController returns a controller for Register.
func NewController(config Config) *Controller {
	if config.Paused == nil {
		config.Paused = func(context.Context) (bool, error) { return false, nil }
	}
	return &Controller{config: config}
}

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

// Reconcile decides on one request, or leaves it to others.
func (c *Controller) Reconcile(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	if Bypassed(request, c.config.Account) {
		c.warn(ctx, request)
		return reconcile.Result{}, nil
	}
	if !Concerns(request, c.config.Account) {
		return reconcile.Result{}, nil
	}
	paused, err := c.config.Paused(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("judging certificate request %s: %w", request.Name, err)
	}
	if paused {
		return reconcile.Result{RequeueAfter: pausedDelay}, nil
	}
	err = c.decide(ctx, request)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case apierrors.IsNotFound(err): // the request is gone, or its record: then it is judged again
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("judging certificate request %s: %w", request.Name, err)
	}
	return reconcile.Result{}, nil
}

// decide decides on a request and writes the verdict. It records the use of a token
// before it approves the request, so that a second request finds the record.
func (c *Controller) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	facts, verdict, err := c.judge(ctx, request)
	if err != nil || verdict.Action == Leave {
		return err
	}
	if verdict.Action == Approve && !facts.Record.Used() {
		if err := c.recordUse(ctx, *facts.Record, jointoken.Use{Request: request.Name, PublicKey: verdict.PublicKey}); err != nil {
			return fmt.Errorf("recording the use of token %s: %w", facts.Grant.ID, err)
		}
	}
	if err := c.write(ctx, request, verdict); err != nil {
		return err
	}
	c.tell(ctx, request, facts, verdict)
	return nil
}

// recordUse records what the tokens of a claim are used for. Of several writers that have
// read the same record, only one succeeds.
func (c *Controller) recordUse(ctx context.Context, record jointoken.Record, use jointoken.Use) error {
	record.Use = use
	if record.ResourceVersion == "" {
		return c.config.Client.Create(ctx, record.Object())
	}
	return c.config.Client.Update(ctx, record.Object())
}

// judge reads the current facts about the token and evaluates the request.
func (c *Controller) judge(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (Facts, Verdict, error) {
	id, err := c.config.Account.credential(request)
	if err != nil {
		return Facts{}, deny(ReasonWrongLogin, "%s: kubelets log in with the token in their seed, and nothing else", err), nil
	}
	facts, err := c.facts(ctx, id, request)
	var foreign *jointoken.ForeignError
	if errors.As(err, &foreign) {
		return Facts{}, deny(ReasonTokenChanged, "%s", foreign), nil
	}
	if err != nil {
		return Facts{}, Verdict{}, err
	}
	return facts, Judge(request, facts), nil
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
		return Facts{}, &jointoken.ForeignError{Namespace: c.config.Account.Namespace, Secret: secrets.Items[1].Name, Why: "it names a token of another record"}
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

// write writes the verdict to the request.
func (c *Controller) write(ctx context.Context, request *certificatesv1.CertificateSigningRequest, verdict Verdict) error {
	kind := certificatesv1.CertificateDenied
	if verdict.Action == Approve {
		kind = certificatesv1.CertificateApproved
	}
	now := metav1.NewTime(c.config.Clock.Now())
	decided := request.DeepCopy()
	decided.Status.Conditions = append(decided.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: verdict.Reason, Message: verdict.Message,
		LastUpdateTime: now, LastTransitionTime: now,
	})
	if err := c.config.Client.SubResource("approval").Update(ctx, decided); err != nil {
		return fmt.Errorf("deciding about certificate request %s: %w", request.Name, err)
	}
	return nil
}

// tell logs the decision and, if it needs a person's attention, publishes an event on the
// object of the request.
func (c *Controller) tell(ctx context.Context, request *certificatesv1.CertificateSigningRequest, facts Facts, verdict Verdict) {
	logger := log.FromContext(ctx).WithValues(logkey.Request, klog.KObj(request), logkey.Reason, verdict.Reason)
	if facts.Record != nil {
		logger = logger.WithValues(logkey.NodeClaim, klog.KRef("", facts.Record.NodeClaim), logkey.VM, facts.Record.VM, logkey.Token, facts.Grant.ID)
	}
	if verdict.Action == Approve {
		logger.Info("approved certificate request")
		return
	}
	logger.Info("denied certificate request", logkey.Message, verdict.Message)
	var about runtime.Object = request
	if facts.Claim != nil {
		about = facts.Claim
	}
	c.config.Events.Publish(events.Event{
		InvolvedObject: about, Type: corev1.EventTypeWarning, Reason: verdict.Reason,
		Message:      fmt.Sprintf("Certificate request %s denied: %s", request.Name, verdict.Message),
		DedupeValues: []string{request.Name, verdict.Reason},
	})
}

// warn reports that another client approved a request with one of our tokens.
func (c *Controller) warn(ctx context.Context, request *certificatesv1.CertificateSigningRequest) {
	const message = "another approver approved this request of a join token of numaform's, so a token is good for any node's name: " +
		"bind the ClusterRole system:certificates.k8s.io:certificatesigningrequests:nodeclient neither to the ServiceAccount that nodes join as, " +
		"nor to a group that has it, nor to system:bootstrappers or " + jointoken.Group
	log.FromContext(ctx).Info("found certificate request approved by others", logkey.Request, klog.KObj(request), logkey.Reason, ReasonBypassed)
	c.config.Events.Publish(events.Event{
		InvolvedObject: request, Type: corev1.EventTypeWarning, Reason: ReasonBypassed, Message: message,
		DedupeValues: []string{request.Name, ReasonBypassed},
	})
}
