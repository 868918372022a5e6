package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// nodes deletes Nodes that have neither a NodeClaim nor a VM, as a cloud controller manager
// would: such a Node registered while its VM was being deleted. Karpenter deletes only the
// Nodes that exist when their NodeClaim is deleted.
type nodes struct {
	config Config
	vmless since[types.UID]
}

func (*nodes) name() string { return "nodes" }

func (*nodes) every() time.Duration { return 3 * period }

func (*nodes) concerns() bool { return true }

func (n *nodes) run(ctx context.Context, v *view) error {
	candidates := v.unclaimedNodes()
	if len(candidates) > 0 {
		snapshot, err := n.config.Snapshot(ctx)
		if err != nil {
			return fmt.Errorf("reading proxmox: %w", err)
		}
		candidates = slices.DeleteFunc(candidates, func(node *corev1.Node) bool { return !isVMlessNode(node, snapshot) })
	}
	uids := make([]types.UID, len(candidates))
	for i, node := range candidates {
		uids[i] = node.UID
	}
	lasting := n.vmless.lasting(uids, v.now, grace)

	var errs []error
	for _, node := range candidates {
		if !lasting[node.UID] {
			continue
		}
		effect := "the Node is deleted"
		if v.paused {
			effect = "numaform is paused; after numaform resume, " + effect
		}
		n.config.Recorder.Publish(warning(node, ReasonNodeLeft, fmt.Sprintf("Node %s has no NodeClaim, and its VM is neither in the fleet nor in Proxmox: %s", node.Name, effect)))
		if v.paused {
			continue
		}
		// The Node may have become ready since it was read.
		err := n.config.Client.Delete(ctx, node, client.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("deleting Node %s: %w", node.Name, err))
			continue
		}
		log.FromContext(ctx).Info("deleted a node without a VM", logkey.Node, node.Name)
	}
	return errors.Join(errs...)
}

// unclaimedNodes returns the Nodes of ProxmoxNodeClasses that are not ready, and that neither
// a NodeClaim nor a VM of the writer has, sorted by name.
func (v *view) unclaimedNodes() []*corev1.Node {
	var found []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		node := v.nodes[name]
		if node.Labels[v1alpha1.LabelNodeClass] != "" && node.DeletionTimestamp.IsZero() && !isReady(node) && !v.has(node) {
			found = append(found, node)
		}
	}
	return found
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// has reports whether a NodeClaim or a VM of the writer is, or may become, the Node.
func (v *view) has(node *corev1.Node) bool {
	for _, claim := range v.claims {
		if claim.Status.ProviderID == node.Spec.ProviderID || claim.Status.NodeName == node.Name || claim.Annotations[v1alpha1.AnnotationVM] == node.Name {
			return true
		}
	}
	for i := range v.states {
		vm := &v.states[i].VM
		if vm.Name == node.Name || fleet.ProviderID(vm.Host.Region, vm.VMID) == node.Spec.ProviderID {
			return true
		}
	}
	return false
}

// isVMlessNode reports whether Proxmox provably has no guest with the Node's VMID.
func isVMlessNode(node *corev1.Node, snapshot *topology.Snapshot) bool {
	region, vmid, err := fleet.ParseProviderID(node.Spec.ProviderID)
	if err != nil || !listsAll(snapshot, region) {
		return false
	}
	return !slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool {
		return host.Region == region && slices.ContainsFunc(host.Guests, func(g topology.Guest) bool { return g.VMID == int(vmid) })
	})
}
