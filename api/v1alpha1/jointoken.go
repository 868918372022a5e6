package v1alpha1

import "time"

// DefaultTokenTTL is the lifetime of a join token if the class does not set one.
const DefaultTokenTTL = 15 * time.Minute

// TTL returns the lifetime of a node's join token.
func (in *ProxmoxNodeClass) TTL() time.Duration {
	if in.Spec.TokenTTL == nil || in.Spec.TokenTTL.Duration == 0 {
		return DefaultTokenTTL
	}
	return in.Spec.TokenTTL.Duration
}

// MaxJoinTimeout is the time after which Karpenter deletes a NodeClaim whose Node has not
// registered: sigs.k8s.io/karpenter v1.14.1, lifecycle/liveness.go. It is a constant there.
const MaxJoinTimeout = 15 * time.Minute

// TimeToJoin returns how long a node may take to register, and then to become ready.
func (in *ProxmoxNodeClass) TimeToJoin() time.Duration {
	if in.Spec.JoinTimeout == nil || in.Spec.JoinTimeout.Duration == 0 {
		return MaxJoinTimeout
	}
	return in.Spec.JoinTimeout.Duration
}
