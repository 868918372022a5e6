package operator

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// joined returns a function that reports whether a VM became a Node: its NodeClaim is
// registered or, if it has no NodeClaim, the Node with its name has its providerID.
func joined(live client.Reader) func(ctx context.Context, vm fleet.VM) (bool, error) {
	return func(ctx context.Context, vm fleet.VM) (bool, error) {
		var claims karpv1.NodeClaimList
		if err := live.List(ctx, &claims); err != nil {
			return false, fmt.Errorf("reading nodeclaims: %w", err)
		}
		own := scheduling.OwnClaims(claims.Items, func(key fleet.Key) *fleet.VM {
			if key == vm.Key {
				return &vm
			}
			return nil
		})
		if claim := own[vm.Key]; claim != nil {
			return claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue(), nil
		}
		var node corev1.Node
		err := live.Get(ctx, client.ObjectKey{Name: vm.Name}, &node)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading node %s: %w", vm.Name, err)
		}
		return err == nil && node.Spec.ProviderID == fleet.ProviderID(vm.Host.Region, vm.VMID), nil
	}
}

// holders determines whether the holders of state locks are dead. A controller may use it
// only while it holds the fleet's Lease. A previous writer has then lost the Lease, but it
// may only have been suspended, and only the lock of a dead holder may be released.
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
		return "the holder ran on this host, where only this process runs engines, and this process holds the fleet's Lease", true
	}
	ours, theirs := podName.FindStringSubmatch(self), podName.FindStringSubmatch(host)
	if ours == nil || theirs == nil || ours[1] != theirs[1] {
		return "", false
	}
	if ended, _, err := HolderPod(ctx, h.pods, h.namespace, host); err == nil && ended != "" {
		return "the holder ran in " + ended + ", and this process holds the fleet's Lease", true
	}
	return "", false
}

// HolderPod reports whether the holder of a lock was a pod of a namespace, by the host that
// the lock names. ended describes a pod that no longer runs, and runs is set if the pod can
// still run. Both are zero if the host is not the name of a Deployment's pod.
func HolderPod(ctx context.Context, pods client.Reader, namespace, host string) (ended string, runs bool, err error) {
	if !podName.MatchString(host) {
		return "", false, nil
	}
	pod := &corev1.Pod{}
	err = pods.Get(ctx, client.ObjectKey{Namespace: namespace, Name: host}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("pod %s/%s, which no longer exists", namespace, host), false, nil
	case err != nil:
		return "", false, fmt.Errorf("reading pod %s/%s: %w", namespace, host, err)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Sprintf("pod %s/%s, which has ended (%s)", namespace, host, pod.Status.Phase), false, nil
	}
	return "", true, nil
}
