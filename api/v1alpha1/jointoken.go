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
