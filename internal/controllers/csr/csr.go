// Package csr approves the certificate requests of kubelets that come with one of
// numaform's join tokens, and denies those that ask for more than their token
// is for: another node's name, a second certificate, another use. It needs nothing
// of Proxmox. Requests of other users, of other signers, and of nodes that renew
// their certificate or want a serving one, are left to whoever else decides about
// them. Start at NewController; Judge is the decision alone.
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
	// workers decide about requests at once: many nodes may join together.
	workers = 10
	// conflictDelay passes before a request is judged again because somebody else
	// wrote what it depends on.
	conflictDelay = 100 * time.Millisecond
	// pausedDelay passes before a paused controller looks again.
	pausedDelay = 5 * time.Second
)

// Config is what a Controller works with.
type Config struct {
	// Client writes.
	Client client.Client
	// Live reads past every cache: what was true a moment ago lets nobody in.
	Live client.Reader
	// Account is the ServiceAccount that nodes join as. Its namespace has the records of
	// tokens.
	Account Account
	Events  events.Recorder
	Clock   clock.PassiveClock
	// Paused reports whether numaform is to do nothing; nil means never.
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

// Reconcile decides about one request, or leaves it.
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

// decide judges a request and writes the verdict. The use of a token is on record
// before its request is approved: whoever comes second finds it.
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

// recordUse writes what the tokens of a claim are used for. Only one writer of those
// that read the same record can do that.
func (c *Controller) recordUse(ctx context.Context, record jointoken.Record, use jointoken.Use) error {
	record.Use = use
	if record.ResourceVersion == "" {
		return c.config.Client.Create(ctx, record.Object())
	}
	return c.config.Client.Update(ctx, record.Object())
}

// judge gathers what is known of the token now and judges the request by it.
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

// facts reads the record that has a token, and its claim.
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

// write puts the verdict on the request.
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

// tell writes the decision to the log and, if it needs a person, as an event on
// whatever the request was about.
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

// warn reports that someone else approves requests of our tokens.
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
