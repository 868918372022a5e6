// Package event creates the controllers' events. An event repeats only after an interval,
// even if its message contains values that change.
package event

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"
)

// repeat is the interval between equal events.
const repeat = 10 * time.Minute

// MaxMessage is the maximum length of a message in bytes. It leaves a margin, because the
// API server rejects events with messages longer than 1024 bytes.
const MaxMessage = 900

// New returns an event about an object. Events about one object with the same reason and
// cause are equal, whatever their messages are.
func New(object client.Object, kind, reason, message string, cause ...string) events.Event {
	id := cmp.Or(string(object.GetUID()), fmt.Sprintf("%T %s", object, client.ObjectKeyFromObject(object)))
	return events.Event{
		InvolvedObject: object,
		Type:           kind,
		Reason:         reason,
		Message:        Cut(message, MaxMessage),
		DedupeValues:   append([]string{id}, cause...),
		DedupeTimeout:  repeat,
	}
}

// Cut truncates a text that is longer than limit bytes, and appends an ellipsis to it.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
