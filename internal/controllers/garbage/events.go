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
	// ReasonFailed: a VM could not be made.
	ReasonFailed = "VMFailed"
	// ReasonHeld: a VM waits until a person allows it.
	ReasonHeld = "VMHeld"
	// ReasonRemovalWaits: a VM that is to go cannot be removed yet.
	ReasonRemovalWaits = "VMRemovalWaits"
	// ReasonNeverJoined: a VM was made, and its Node did not join in time.
	ReasonNeverJoined = "NodeNeverJoined"
	// ReasonVMGone: a NodeClaim's VM is not in Proxmox any more.
	ReasonVMGone = "VMGone"
	// ReasonNodeGone: a NodeClaim's Node was deleted past its finalizer.
	ReasonNodeGone = "NodeGone"
	// ReasonClaimRestored: the NodeClaim of a running Node was made again.
	ReasonClaimRestored = "NodeClaimRestored"
	// ReasonPoolGone: a Node has neither a NodeClaim nor a NodePool.
	ReasonPoolGone = "NodePoolGone"
	// ReasonOrphan: a guest has our marker, and nobody wants it.
	ReasonOrphan = "OrphanedVM"
)

// maxMessage is how much of a message the API server takes, with some to spare.
const maxMessage = 900

// publish tells of a VM, to whom looks at its claim and to whom looks at its pool.
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

// brief returns an error in one line that leaves room for more.
func brief(err error) string {
	if err == nil {
		return "for a reason that nobody recorded"
	}
	return cut(strings.Join(strings.Fields(err.Error()), " "), 600)
}

// cut shortens a text to so many bytes.
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
