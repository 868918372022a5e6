package event_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/internal/controllers/event"
)

func pod(name, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
}

// TestEqualEventsAreNotRepeated checks which events Karpenter's recorder drops.
func TestEqualEventsAreNotRepeated(t *testing.T) {
	t.Parallel()
	fake := record.NewFakeRecorder(100)
	recorder := events.NewRecorder(fake)
	for i := range 3 {
		message := fmt.Sprintf("message %d", i)
		recorder.Publish(
			event.New(pod("a", "1"), corev1.EventTypeWarning, "Failed", message),
			event.New(pod("a", "2"), corev1.EventTypeWarning, "Failed", message),
			event.New(pod("a", "1"), corev1.EventTypeWarning, "Waits", message),
			event.New(pod("a", "1"), corev1.EventTypeWarning, "Waits", message, "cause"),
			event.New(pod("b", ""), corev1.EventTypeWarning, "Failed", message),
			event.New(pod("c", ""), corev1.EventTypeWarning, "Failed", message),
			event.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, corev1.EventTypeWarning, "Failed", message),
		)
	}
	close(fake.Events)
	var published []string
	for line := range fake.Events {
		published = append(published, line)
	}
	if len(published) != 7 || strings.Contains(strings.Join(published, "\n"), "message 1") {
		t.Errorf("%d events, want 7 of the first round:\n%s", len(published), strings.Join(published, "\n"))
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	t.Parallel()
	for _, letter := range []string{"a", "ä", "€"} {
		got := event.New(pod("a", "1"), corev1.EventTypeWarning, "Failed", strings.Repeat(letter, 2000)).Message
		if len(got) > 1024 || len(got) < 800 || !utf8.ValidString(got) || !strings.HasSuffix(got, letter+"…") {
			t.Errorf("message of %d bytes ends with %q", len(got), got[len(got)-10:])
		}
	}
	if got := event.Cut("four", 4); got != "four" {
		t.Errorf("got %q", got)
	}
}
