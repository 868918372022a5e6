package garbage

import (
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
)

// The reasons of events.
const (
	// ReasonFailed means that a VM could not be created.
	ReasonFailed = "VMFailed"
	// ReasonHeld means that a VM is pending approval.
	ReasonHeld = "VMHeld"
	// ReasonRemovalWaits means that a VM cannot be removed yet.
	ReasonRemovalWaits = "VMRemovalWaits"
	// ReasonNeverJoined means that a VM was created, but its Node did not join in time.
	ReasonNeverJoined = "NodeNeverJoined"
	// ReasonVMGone means that a NodeClaim's VM is no longer in Proxmox.
	ReasonVMGone = "VMGone"
	// ReasonNodeGone means that a NodeClaim's Node was deleted past its finalizer.
	ReasonNodeGone = "NodeGone"
	// ReasonClaimRestored means that the NodeClaim of a running Node was re-created.
	ReasonClaimRestored = "NodeClaimRestored"
	// ReasonPoolGone means that a Node has neither a NodeClaim nor a NodePool.
	ReasonPoolGone = "NodePoolGone"
	// ReasonOrphan means that a guest carries our marker but is not desired.
	ReasonOrphan = "OrphanedVM"
)

// maxMessage is the API server's limit for a message in bytes, with a margin.
const maxMessage = 900

// publish publishes an event about a VM on its claim and on its pool.
func (c *Config) publish(v *view, pool string, claim *karpv1.NodeClaim, reason, message string) {
	if claim != nil {
		c.Recorder.Publish(warning(claim, claim.Name, reason, message))
	}
	if np := v.pools[pool]; np != nil {
		c.Recorder.Publish(warning(np, np.Name, reason, message))
	}
}

func warning(object runtime.Object, name, reason, message string) events.Event {
	message = cut(message, maxMessage)
	return events.Event{
		InvolvedObject: object, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		DedupeValues: []string{name, message},
	}
}

// brief returns an error as one short line.
func brief(err error) string {
	if err == nil {
		return "for a reason that nobody recorded"
	}
	return cut(strings.Join(strings.Fields(err.Error()), " "), 600)
}

// cut truncates a text to most bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
