package operator

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// holders determines whether the holders of state locks are dead. A controller may ask
// only while it holds the fleet's Lease: a previous writer has lost the Lease, by death
// or by a pause, and the question is which.
type holders struct {
	pods      client.Reader
	namespace string
	// host returns the name of this machine.
	host func() (string, error)
}

// podName matches the name of a Deployment's pod.
var podName = regexp.MustCompile(`^(.+)-[0-9a-z]{6,10}-[0-9a-z]{5}$`)

// gone returns the proof that no engine on a host is alive: the host is this machine,
// where the caller has found none, or the host was a pod of the controller's own
// Deployment that has ended.
func (h holders) gone(ctx context.Context, host string) (proof string, gone bool) {
	self, err := h.host()
	if err != nil {
		return "", false
	}
	if host == self {
		return "that is this host, on which no engine is left but those of this process, which holds the fleet's Lease", true
	}
	ours, theirs := podName.FindStringSubmatch(self), podName.FindStringSubmatch(host)
	if ours == nil || theirs == nil || ours[1] != theirs[1] {
		return "", false
	}
	pod := &corev1.Pod{}
	err = h.pods.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: host}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("that was pod %s/%s, which is gone, and this process holds the fleet's Lease", h.namespace, host), true
	case err == nil && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed):
		return fmt.Sprintf("that was pod %s/%s, which has ended (%s), and this process holds the fleet's Lease", h.namespace, host, pod.Status.Phase), true
	}
	return "", false
}
