package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/controllers/nodeclass"
	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/controllers/template"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/redact"
	"github.com/numaform/numaform/internal/review"
)

// Notifications configure where the controller reports changes that wait, were denied or
// failed.
type Notifications struct {
	// Interval is the minimum time between two messages to a target.
	Interval time.Duration `yaml:"interval"`
	// Repeat is how long a notification is not repeated while its cause lasts.
	Repeat time.Duration `yaml:"repeat"`
	// Targets must have their secrets in files or environment variables.
	Targets []notify.Target `yaml:"targets"`
}

// checkFile returns an error for each secret in numaform.yaml, before the variables, which
// may contain secrets, are applied.
func (n *Notifications) checkFile() []error {
	var mistakes []error
	for i := range n.Targets {
		target := &n.Targets[i]
		for _, secret := range []struct {
			key string
			set bool
		}{
			{"url", target.URL != "" && target.Type == notify.Slack},
			{"token", target.Token != ""},
			{"password", target.Password != ""},
		} {
			if secret.set {
				path := fmt.Sprintf("notifications.targets[%d].%s", i, secret.key)
				mistakes = append(mistakes, fmt.Errorf("%s: is a secret, which must not be in numaform.yaml: set %s_file to a file with it, or set the variable %s",
					path, secret.key, variableOf(path)))
			}
		}
	}
	return mistakes
}

// check returns all mistakes in the notifications.
func (n *Notifications) check() []error {
	var mistakes []error
	if n.Interval < time.Second {
		mistakes = append(mistakes, fmt.Errorf("notifications.interval: %s: must be at least 1s", n.Interval))
	}
	if n.Repeat < time.Minute {
		mistakes = append(mistakes, fmt.Errorf("notifications.repeat: %s: must be at least 1m", n.Repeat))
	}
	if len(n.Targets) > notify.MaxTargets {
		mistakes = append(mistakes, fmt.Errorf("notifications.targets: %d targets: must be at most %d", len(n.Targets), notify.MaxTargets))
	}
	names := map[string]bool{}
	for i := range n.Targets {
		target := &n.Targets[i]
		found := target.Check()
		if names[target.Name] {
			found = append(found, fmt.Errorf("duplicate name %q: rename one of the two targets", target.Name))
		}
		names[target.Name] = true
		for _, err := range found {
			mistakes = append(mistakes, fmt.Errorf("notifications.targets[%d]: %w", i, err))
		}
	}
	return mistakes
}

// Redact returns a function that removes secrets from texts: those in environment variables
// and files that exist when it is called, and what looks like a secret.
func (c *Config) Redact(environ []string) func(string) string {
	return func(text string) string {
		redactor := redact.New(environ)
		for _, path := range c.SecretFiles() {
			redactor.LearnFile(path, "")
		}
		for i := range c.Clusters {
			redactor.Learn(c.Clusters[i].TokenSecret)
			redactor.Learn(c.Clusters[i].Password)
		}
		for _, target := range c.Notifications.Targets {
			for _, secret := range target.Secrets() {
				redactor.Learn(secret)
			}
		}
		return redactor.Text(text)
	}
}

// pausedNotice is the reason of a notification that is no event.
const pausedNotice = "Paused"

// notable returns the kinds of notifications by the reason of an event on objects other than
// pods. docs/notifications.md lists them.
func notable() map[string]notify.Kind {
	kinds := map[string]notify.Kind{}
	for kind, reasons := range map[notify.Kind][]string{
		notify.Waiting: {
			v1alpha1.ReasonPendingApproval, v1alpha1.ReasonStateBackendUnreachable, v1alpha1.ReasonChangePostponed, v1alpha1.ReasonLimitReached,
			v1alpha1.ReasonFixedSizeNotSupported, v1alpha1.ReasonLabelInvalid,
			approval.ReasonProposed, approval.ReasonBreakGlass, approval.ReasonFrozen, approval.ReasonThawed, garbage.ReasonRemovalWaits,
		},
		notify.Denied: {
			v1alpha1.ReasonPlanDenied, v1alpha1.ReasonPlanRejected,
			csr.ReasonWrongLogin, csr.ReasonTokenGone, csr.ReasonTokenChanged, csr.ReasonTokenExpired, csr.ReasonOlderThanToken,
			csr.ReasonClaimGone, csr.ReasonOtherVM, csr.ReasonAlreadyJoined, csr.ReasonMalformed, csr.ReasonWrongName,
			csr.ReasonWrongSubject, csr.ReasonWrongUsages, csr.ReasonWeakKey, csr.ReasonTooLong, csr.ReasonUsedTwice, csr.ReasonBypassed,
		},
		notify.Failed: {
			approval.ReasonFinished, approval.ReasonUnknownMode,
			garbage.ReasonFailed, garbage.ReasonNeverJoined, garbage.ReasonVMGone, garbage.ReasonNodeGone, garbage.ReasonPoolGone, garbage.ReasonOrphan,
			nodepool.ReasonAnnotation, nodepool.ReasonMinNodes, nodeclass.ReasonPoolKept,
			seed.ReasonJoinFailed, template.ReasonTemplateFailed, template.ReasonTemplateForgotten, reasonDrifted,
			v1alpha1.ReasonHistoryRewritten, reasonHistoryForged, reasonHistoryPutBack, review.ReasonFailed,
			v1alpha1.ReasonInvalid, v1alpha1.ReasonProxmoxUnread, v1alpha1.ReasonTemplateNotFound, v1alpha1.ReasonTemplateAmbiguous,
			v1alpha1.ReasonTemplateUnusable, v1alpha1.ReasonTemplatesFailed, v1alpha1.ReasonNoHosts, v1alpha1.ReasonHostUnknown,
			v1alpha1.ReasonHostUnavailable, v1alpha1.ReasonStorageNotFound, v1alpha1.ReasonStorageFull, v1alpha1.ReasonPoolNotFound,
			v1alpha1.ReasonAddressPoolNotFound, v1alpha1.ReasonVMIDsOutside, v1alpha1.ReasonNoHost, v1alpha1.ReasonPlacementImpossible,
			v1alpha1.ReasonHugePagesMissing, v1alpha1.ReasonPCIDeviceMissing, v1alpha1.ReasonHostAgentNotReady, v1alpha1.ReasonCredentialTooWeak,
			v1alpha1.ReasonFamilyUnknown, v1alpha1.ReasonSeedStorageNotFound, v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonSecretForbidden,
			v1alpha1.ReasonTemplatesInvalid, v1alpha1.ReasonBootstrapTokenNeeded, v1alpha1.ReasonBootstrapTokensOff,
			v1alpha1.ReasonServiceAccountNotFound, seed.ReasonClusterUnknown, nodeclass.ReasonSecretUnread,
		},
	} {
		for _, reason := range reasons {
			kinds[reason] = kind
		}
	}
	return kinds
}

// notifyingEvents publishes events, and hands those that are worth a notification to a
// Notifier.
type notifyingEvents struct {
	events.Recorder
	kinds   map[string]notify.Kind
	publish func(notify.Notice)
}

// Publish publishes events. It waits for no target.
func (r notifyingEvents) Publish(published ...events.Event) {
	for _, event := range published {
		if notice, notable := r.noticeOf(&event); notable {
			r.publish(notice)
		}
	}
	r.Recorder.Publish(published...)
}

// noticeOf returns the notification for an event. Events with the same cause have the same
// key: a plan has an event on its ScalePlan when it is proposed, and repeated ones on its
// NodePool while it is pending.
func (r notifyingEvents) noticeOf(event *events.Event) (notice notify.Notice, notable bool) {
	kind, found := r.kinds[event.Reason]
	object, isObject := event.InvolvedObject.(client.Object)
	if !found || !isObject {
		return notify.Notice{}, false
	}
	kindOf, cause := "", strings.Join(event.DedupeValues, "\x00")
	if kind == notify.Failed {
		cause = event.Message // a NodeClaim and its NodePool have the same event
	}
	switch object := object.(type) {
	case *corev1.Pod:
		return notify.Notice{}, false // its NodePool has an event with the same reason
	case *v1alpha1.ScalePlan:
		kindOf, cause = "ScalePlan", "plan "+object.Name
		switch phase := object.Status.Phase; {
		case event.Reason == approval.ReasonBreakGlass: // the change waits for a review
			cause = "break glass " + object.Name
		case event.Reason == approval.ReasonFrozen, event.Reason == approval.ReasonThawed: // it waits for longer than an approval
			cause = event.Reason + " " + object.Name
		case event.Reason == approval.ReasonProposed && phase == v1alpha1.ScalePlanFailed, phase == v1alpha1.ScalePlanRejected:
			kind = notify.Denied
		case event.Reason == approval.ReasonProposed:
		case phase != v1alpha1.ScalePlanFailed && phase != v1alpha1.ScalePlanExpired:
			return notify.Notice{}, false // finished as approved, or superseded
		}
	case *karpv1.NodePool:
		kindOf = "NodePool"
		switch event.Reason {
		case v1alpha1.ReasonPendingApproval, v1alpha1.ReasonPlanDenied, v1alpha1.ReasonPlanRejected:
			plan, _, _ := strings.Cut(strings.Join(event.DedupeValues[min(1, len(event.DedupeValues)):], " "), " ")
			if plan == "" {
				return notify.Notice{}, false // the ScalePlan has its own event
			}
			cause = "plan " + plan
		}
	case *v1alpha1.ProxmoxNodeClass:
		kindOf, cause = v1alpha1.KindProxmoxNodeClass, object.Name // texts about an outage differ each time
	case *v1alpha1.ProxmoxTemplate:
		kindOf, cause = v1alpha1.KindProxmoxTemplate, strings.Join(event.DedupeValues, "\x00")
	default:
		kindOf = strings.TrimPrefix(fmt.Sprintf("%T", object), "*")
		kindOf = kindOf[strings.LastIndex(kindOf, ".")+1:]
	}
	name := object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	reason := event.Reason
	if strings.HasPrefix(cause, "plan ") {
		reason = "" // the events of a plan have several reasons
	}
	return notify.Notice{
		Kind: kind, Reason: event.Reason, Object: kindOf + " " + name, Message: event.Message,
		Key: string(kind) + "\x00" + reason + "\x00" + cause,
	}, true
}

// notificationsConfigMap is the ConfigMap in numaform's namespace with what was sent, as
// hashes. It contains no text of notifications.
const notificationsConfigMap = "numaform-notifications"

// notificationMemory stores what was sent in a ConfigMap, with a key for each target.
type notificationMemory struct {
	configMaps typedcorev1.ConfigMapInterface
}

// Load returns what was stored for a target.
func (m notificationMemory) Load(ctx context.Context, target string) (string, error) {
	stored, err := m.configMaps.Get(ctx, notificationsConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading ConfigMap %s: %w", notificationsConfigMap, err)
	}
	return stored.Data[target], nil
}

// Save stores what was sent to a target. It does not change the keys of other targets.
func (m notificationMemory) Save(ctx context.Context, target, sent string) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{target: sent}})
	if err != nil {
		return err
	}
	_, err = m.configMaps.Patch(ctx, notificationsConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = m.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: notificationsConfigMap}, Data: map[string]string{target: sent},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // another target was first
			_, err = m.configMaps.Patch(ctx, notificationsConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", notificationsConfigMap, err)
	}
	return nil
}

// newNotifier returns the Notifier of the controller, or nil without targets.
func (c *Controller) newNotifier() *notify.Notifier {
	targets := c.config.Notifications.Targets
	if len(targets) == 0 || c.settings.Observe {
		return nil
	}
	logger := c.settings.Logger.WithName("notifications")
	return notify.New(notify.Config{
		ClusterID: c.config.ClusterID,
		Targets:   targets,
		Interval:  c.config.Notifications.Interval,
		Repeat:    c.config.Notifications.Repeat,
		Redact:    c.config.Redact(c.settings.Environ),
		Memory:    notificationMemory{c.kube.CoreV1().ConfigMaps(c.settings.Namespace)},
		Unsent: func(target string, err error) {
			logger.Error(err, "could not send notifications, retrying", logkey.Target, target)
		},
		Memorizing: func(target string, err error) {
			if !errors.Is(err, context.Canceled) {
				logger.V(1).Info("could not store what was sent, so a restart may repeat it", logkey.Target, target, logkey.Reason, err.Error())
			}
		},
		Clock: c.clock,
	})
}

// recording returns a recorder that also sends notifications.
func (c *Controller) recording(recorder events.Recorder) events.Recorder {
	if c.notifier == nil {
		return recorder
	}
	return notifyingEvents{Recorder: recorder, kinds: notable(), publish: c.notifier.Publish}
}

// attempts returns the number of attempts to send notifications, or nil without targets.
func (c *Controller) attempts() map[notify.Attempt]int {
	if c.notifier == nil {
		return nil
	}
	return c.notifier.Attempts()
}

// notifyPause reports that an operator paused numaform, if this process was the leader.
func (c *Controller) notifyPause(elected <-chan struct{}) {
	select {
	case <-elected:
	default:
		return
	}
	paused, by := c.control.pausedBy()
	if c.notifier == nil || !paused {
		return
	}
	c.notifier.Publish(notify.Notice{
		Kind: notify.Waiting, Reason: pausedNotice, Object: "numaform",
		Message: fmt.Sprintf("paused by %s: no change starts until numaform resume", cmp.Or(by, "an unknown user")),
		Key:     pausedNotice + c.clock.Now().String(), // each pause
	})
}
