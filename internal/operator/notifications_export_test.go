package operator

import (
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/internal/notify"
)

// Notifying returns a recorder that hands notifications to publish.
func Notifying(recorder events.Recorder, publish func(notify.Notice)) events.Recorder {
	return notifyingEvents{Recorder: recorder, kinds: notable(), publish: publish}
}

// Notable returns the kinds of notifications by the reason of their event.
func Notable() map[string]notify.Kind { return notable() }

// NotificationMemory returns the memory of what was sent.
func NotificationMemory(client kubernetes.Interface, namespace string) notify.Memory {
	return notificationMemory{client.CoreV1().ConfigMaps(namespace)}
}
