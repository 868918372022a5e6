package csr

import (
	"fmt"
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/numaform/numaform/internal/jointoken"
)

const (
	// credentialKey is the extra attribute in which the API server records a service
	// account's token.
	credentialKey = "authentication.kubernetes.io/credential-id"

	accountPrefix = "system:serviceaccount:"
	accountsGroup = "system:serviceaccounts"
	everyone      = "system:authenticated"
)

// Account is the ServiceAccount that nodes join as.
type Account struct {
	Namespace, Name string
}

// user returns the account's user name in the API server.
func (a Account) user() string { return accountPrefix + a.Namespace + ":" + a.Name }

// ours reports whether a request's user logged in the way joining nodes do.
func (a Account) ours(request *certificatesv1.CertificateSigningRequest) bool {
	if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return false
	}
	_, bootstrap := jointoken.BootstrapID(request.Spec.Username)
	return request.Spec.Username == a.user() || bootstrap && slices.Contains(request.Spec.Groups, jointoken.Group)
}

// credential returns the ID of the token used for a request. It returns an error for a
// login that does not exactly match one of numaform's tokens: a pod's token, an older
// kind of token, or impersonation.
func (a Account) credential(request *certificatesv1.CertificateSigningRequest) (string, error) {
	groups := []string{accountsGroup, accountsGroup + ":" + a.Namespace, everyone}
	keys := []string{credentialKey}
	id, bootstrap := jointoken.BootstrapID(request.Spec.Username)
	if bootstrap {
		groups, keys = []string{bootstrapapi.BootstrapDefaultGroup, jointoken.Group, everyone}, nil
	}
	if got := slices.Sorted(slices.Values(request.Spec.Groups)); !slices.Equal(got, slices.Sorted(slices.Values(groups))) {
		return "", fmt.Errorf("its groups are %q, and those of a join token %q", request.Spec.Groups, groups)
	}
	if got := slices.Sorted(maps.Keys(request.Spec.Extra)); !slices.Equal(got, keys) {
		return "", fmt.Errorf("its extra attributes are %q, and those of a join token %q", got, keys)
	}
	if bootstrap {
		return id, nil
	}
	credentials := request.Spec.Extra[credentialKey]
	if len(credentials) != 1 {
		return "", fmt.Errorf("it has %d values of %s", len(credentials), credentialKey)
	}
	id, ok := jointoken.JTI(credentials[0])
	if !ok {
		return "", fmt.Errorf("its %s %q names no token", credentialKey, credentials[0])
	}
	return id, nil
}
