package scheduling

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"k8s.io/apimachinery/pkg/types"
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

// Owns reports whether a NodeClaim is the claim of a VM. all are the cluster's NodeClaims: a VM
// that was created for one of them belongs to no other.
func Owns(claim *karpv1.NodeClaim, vm *fleet.VM, all []karpv1.NodeClaim) bool {
	switch {
	case KeyOf(claim.UID) == vm.Key:
		return true
	case !names(claim, vm):
		return false
	}
	return !slices.ContainsFunc(all, func(other karpv1.NodeClaim) bool { return KeyOf(other.UID) == vm.Key })
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
