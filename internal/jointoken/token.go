package jointoken

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/numaform/numaform/api/v1alpha1"
)

const (
	// BootstrapNamespace is the namespace in which Kubernetes looks for bootstrap tokens.
	BootstrapNamespace = metav1.NamespaceSystem
	// Group is the group of our bootstrap tokens, in addition to system:bootstrappers. The
	// chart grants it permission to create certificate requests.
	Group = "system:bootstrappers:numaform"

	bootstrapLabel   = v1alpha1.Group + "/bootstrap-token"
	annotationIssued = v1alpha1.Group + "/issued"

	// minSeconds is the minimum lifetime of a service-account token that the API server
	// grants.
	minSeconds = 600
	// extendedSeconds is the lifetime by which the API server recognizes tokens of old
	// clients, which it extends to a year.
	extendedSeconds = 3607
)

// Token is a token with its secret, for a seed.
type Token struct {
	Grant
	// VM is the name of the VM that the token is for.
	VM string

	// secret points to the whole token, which must not be printed. Printing functions do
	// not follow the pointer.
	secret *string
}

// Reveal returns the whole token, as kubelet presents it. Write it only to a seed or to the
// stdin of a join command.
func (t Token) Reveal() string {
	if t.secret == nil {
		return ""
	}
	return *t.secret
}

// String returns the token's ID and VM, without its secret.
func (t Token) String() string { return "token " + t.ID + " of vm " + t.VM }

// GoString returns the same as String.
func (t Token) GoString() string { return t.String() }

// Example returns an invalid token for testing templates.
func Example(form v1alpha1.TokenForm) Token {
	secret := "eyJhbGciOiJSUzI1NiJ9.eyJqdGkiOiJleGFtcGxlIn0." + strings.Repeat("x", 800)
	if form == v1alpha1.TokenBootstrap {
		secret = "abcdef.0123456789abcdef"
	}
	return Token{secret: &secret}
}

// Request returns the request for a token of the default audience, bound to the record's
// Secret, which must exist.
func (r *Record) Request(ttl time.Duration) *authenticationv1.TokenRequest {
	seconds := max(int64(ttl/time.Second), minSeconds)
	if seconds == extendedSeconds {
		seconds--
	}
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: r.Name(), UID: r.Secret},
	}}
}

// Minted returns the token in the API server's response to Request. By numaform's clock it
// expires after ttl, or earlier if the API server granted a shorter lifetime.
func (r *Record) Minted(answer *authenticationv1.TokenRequest, now time.Time, ttl time.Duration) (Token, error) {
	var claims struct {
		JTI        string `json:"jti"`
		IssuedAt   int64  `json:"iat"`
		Expires    int64  `json:"exp"`
		Kubernetes struct {
			Secret         struct{ UID types.UID }
			ServiceAccount struct{ UID types.UID }
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(answer.Status.Token, ".")
	if len(parts) != 3 {
		return Token{}, errors.New("reading the API server's token: it is not a JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &claims)
	}
	switch {
	case err != nil:
		return Token{}, errors.New("reading the API server's token: its claims are malformed")
	case !jtiPattern.MatchString(claims.JTI):
		return Token{}, errors.New("reading the API server's token: it has no jti: enable the feature gate ServiceAccountTokenJTI of kube-apiserver, " +
			"or set spec.metadata.token: Bootstrap in the ProxmoxNodeClass")
	case claims.Kubernetes.Secret.UID != r.Secret || r.Secret == "" || claims.Kubernetes.ServiceAccount.UID == "":
		return Token{}, errors.New("reading the API server's token: it is not bound to secret " + r.Namespace + "/" + r.Name())
	}
	issued := now.UTC().Truncate(time.Second)
	life := min(ttl, time.Duration(claims.Expires-claims.IssuedAt)*time.Second)
	if life <= 0 {
		return Token{}, errors.New("reading the API server's token: it expires before it is issued")
	}
	return Token{VM: r.VM, secret: &answer.Status.Token, Grant: Grant{
		ID: claims.JTI, Account: claims.Kubernetes.ServiceAccount.UID,
		Minted: time.Unix(claims.IssuedAt, 0).UTC(), Issued: issued, Expires: issued.Add(life),
	}}, nil
}

// NewBootstrap returns a bootstrap token with a random ID and secret, and its Secret for
// Kubernetes, which is garbage-collected with the owner's NodeClaim. The caller sets
// Minted after the API server has created the Secret.
func NewBootstrap(owner Owner, now time.Time, ttl time.Duration) (Token, *corev1.Secret, error) {
	random, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return Token{}, nil, fmt.Errorf("generating a bootstrap token: %w", err)
	}
	id, secret, _ := strings.Cut(random, ".")
	issued := now.UTC().Truncate(time.Second)
	token := Token{VM: owner.VM, secret: &random, Grant: Grant{ID: id, Issued: issued, Expires: issued.Add(ttl)}}
	object := BootstrapSecret(id)
	object.Labels = map[string]string{bootstrapLabel: "true"}
	// Releases without Records read these annotations.
	object.Annotations = map[string]string{
		annotationVM:        owner.VM,
		annotationKey:       string(owner.Key),
		annotationNodeClaim: owner.NodeClaim,
		annotationClaimUID:  string(owner.UID),
		annotationIssued:    issued.Format(time.RFC3339),
	}
	object.OwnerReferences = owner.owners()
	object.Type = bootstrapapi.SecretTypeBootstrapToken
	object.Data = map[string][]byte{
		bootstrapapi.BootstrapTokenIDKey:               []byte(id),
		bootstrapapi.BootstrapTokenSecretKey:           []byte(secret),
		bootstrapapi.BootstrapTokenExpirationKey:       []byte(token.Expires.Format(time.RFC3339)),
		bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
		bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(Group),
		bootstrapapi.BootstrapTokenDescriptionKey:      []byte("numaform: allows VM " + owner.VM + " to join once"),
	}
	return token, object, nil
}

// BootstrapSecret returns a Secret with the name and namespace of the bootstrap token with
// this ID, and no content.
func BootstrapSecret(id string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: BootstrapNamespace, Name: bootstraputil.BootstrapTokenSecretName(id)}}
}

// BootstrapID returns the ID of the bootstrap token with which a user authenticated, and
// false for other users.
func BootstrapID(user string) (string, bool) {
	id, ok := strings.CutPrefix(user, bootstrapapi.BootstrapUserPrefix)
	return id, ok && isBootstrapID(id)
}

// JTI returns the jti in a credential-id, which identifies a service-account token in the
// API server, and false for other credentials.
func JTI(credential string) (string, bool) {
	id, ok := strings.CutPrefix(credential, "JTI=")
	return id, ok && jtiPattern.MatchString(id)
}

func isBootstrapID(id string) bool { return bootstraputil.IsValidBootstrapTokenID(id) }
