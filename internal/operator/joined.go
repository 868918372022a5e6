package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// joined reports whether a VM had become a Node: its NodeClaim was registered, or a Node
// has its providerID.
func joined(live client.Reader) func(ctx context.Context, vm fleet.VM) (bool, error) {
	return func(ctx context.Context, vm fleet.VM) (bool, error) {
		var claims karpv1.NodeClaimList
		if err := live.List(ctx, &claims); err != nil {
			return false, fmt.Errorf("reading nodeclaims: %w", err)
		}
		for i := range claims.Items {
			claim := &claims.Items[i]
			if claim.Annotations[v1alpha1.AnnotationKey] == string(vm.Key) {
				return claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue(), nil
			}
		}
		var node corev1.Node
		err := live.Get(ctx, client.ObjectKey{Name: vm.Name}, &node)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading node %s: %w", vm.Name, err)
		}
		return err == nil && node.Spec.ProviderID == fleet.ProviderID(vm.Host.Region, vm.VMID), nil
	}
}
