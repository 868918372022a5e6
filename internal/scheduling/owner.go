package scheduling

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// A NodeClaim names its VM by annotations, which whoever may create NodeClaims can copy. So the
// annotations prove nothing: a VM belongs to the NodeClaim with the UID from which its key is
// derived, or else to the NodeClaim with the name that numaform gives to the VM's claim.

// KeyOf returns the key of the VM for a NodeClaim that Karpenter created. It is the same
// for repeated requests.
func KeyOf(claim types.UID) fleet.Key {
	sum := sha256.Sum256([]byte("nodeclaim " + claim))
	return fleet.Key(hex.EncodeToString(sum[:16]))
}

// ClaimName returns the name of the NodeClaim that numaform creates for a VM. The name of an
// adopted VM may be the name of the NodeClaim of the tool that created it.
func ClaimName(vm *fleet.VM) string {
	if vm.Adopted() {
		return fleet.NodeName(vm.Pool, vm.VMID)
	}
	return vm.Name
}

// FieldKeyOfUID is the index of NodeClaims by the key that is derived from their UID. The cache
// that Owns reads needs it, with IndexKeyOfUID.
const FieldKeyOfUID = "metadata.uid.key"

// IndexKeyOfUID returns the value of FieldKeyOfUID for a NodeClaim.
func IndexKeyOfUID(claim client.Object) string { return string(KeyOf(claim.GetUID())) }

// Owns reports whether a NodeClaim is the claim of a VM. A VM that was created for a NodeClaim of
// the cluster belongs to no other.
func Owns(ctx context.Context, cache client.Reader, claim *karpv1.NodeClaim, vm *fleet.VM) (bool, error) {
	switch {
	case KeyOf(claim.UID) == vm.Key:
		return true, nil
	case !names(claim, vm):
		return false, nil
	}
	others := &karpv1.NodeClaimList{}
	if err := cache.List(ctx, others, client.MatchingFields{FieldKeyOfUID: string(vm.Key)}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("finding the NodeClaim of vm %s: listing NodeClaims: %w", vm.Name, err)
	}
	return len(others.Items) == 0, nil
}

// OwnClaims returns the claims of VMs among the cluster's NodeClaims, by key. find returns the
// VM with a key, or nil.
func OwnClaims(all []karpv1.NodeClaim, find func(fleet.Key) *fleet.VM) map[fleet.Key]*karpv1.NodeClaim {
	own := map[fleet.Key]*karpv1.NodeClaim{}
	for i := range all {
		claim := &all[i]
		if key := KeyOf(claim.UID); find(key) != nil {
			own[key] = claim
			continue
		}
		key := fleet.Key(claim.Annotations[v1alpha1.AnnotationKey])
		if vm := find(key); vm != nil && own[key] == nil && names(claim, vm) {
			own[key] = claim
		}
	}
	return own
}

// names reports whether a NodeClaim names a VM, and has the name of the VM's claim.
func names(claim *karpv1.NodeClaim, vm *fleet.VM) bool {
	return claim.Annotations[v1alpha1.AnnotationKey] == string(vm.Key) && claim.Name == ClaimName(vm)
}
