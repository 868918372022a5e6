// Package jointoken is the form of the bootstrap tokens that numaform gives to new
// VMs: Secrets by which Kubernetes knows them, with marks that say whom each is for
// and who used it. It makes and reads them; internal/controllers/seed keeps them in
// the cluster, and internal/controllers/csr judges who comes with one. It reaches
// nothing. Start at New and Read.
package jointoken

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

const (
	// Namespace is where Kubernetes looks for bootstrap tokens.
	Namespace = metav1.NamespaceSystem
	// Group is the group that our tokens log in with beside system:bootstrappers.
	// The right to ask for certificates hangs on it.
	Group = "system:bootstrappers:numaform"
	// Label stands on the Secrets of our tokens, with the value "true".
	Label = v1alpha1.Group + "/bootstrap-token"

	annotationVM        = v1alpha1.AnnotationVM
	annotationKey       = v1alpha1.AnnotationKey
	annotationNodeClaim = v1alpha1.Group + "/nodeclaim"
	annotationClaimUID  = v1alpha1.Group + "/nodeclaim-uid"
	annotationIssued    = v1alpha1.Group + "/issued"
	annotationUsedBy    = v1alpha1.Group + "/used-by"
	annotationUsedKey   = v1alpha1.Group + "/used-key"
)

// Owner says whom a token is for.
type Owner struct {
	// VM is the name of the VM, and so the only name that a Node may take with it.
	VM string
	// Key is the VM's.
	Key fleet.Key
	// NodeClaim is the name of the claim that the VM backs, and UID the claim's.
	NodeClaim string
	UID       types.UID
}

// Use says what a token was used for: the certificate request that was approved
// first, and the SHA-256 of the public key in it.
type Use struct {
	Request, PublicKey string
}

// Token is a bootstrap token of ours.
type Token struct {
	// ID is the public half, and names the Secret.
	ID string
	Owner
	// Issued and Expires have whole seconds.
	Issued, Expires time.Time
	// Use is zero while no request with it was approved.
	Use Use
	// ResourceVersion is that of the Secret it was read from.
	ResourceVersion string

	// secret is the half that nobody may see. No printer follows the pointer.
	secret *string
}

// New makes a token with a random id and secret.
func New(owner Owner, now time.Time, ttl time.Duration) (Token, error) {
	random, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return Token{}, fmt.Errorf("making a bootstrap token for vm %s: %w", owner.VM, err)
	}
	id, secret, _ := strings.Cut(random, ".")
	issued := now.UTC().Truncate(time.Second)
	return Token{ID: id, Owner: owner, Issued: issued, Expires: issued.Add(ttl), secret: &secret}, nil
}

// Reveal returns the whole token, as a kubelet sends it. Write it into a seed and
// nowhere else.
func (t Token) Reveal() string { return t.ID + "." + t.half() }

// half returns the secret half; the zero Token has none.
func (t Token) half() string {
	if t.secret == nil {
		return ""
	}
	return *t.secret
}

// String names the token by its public half.
func (t Token) String() string { return "bootstrap token " + t.ID + " of vm " + t.VM }

// GoString is String.
func (t Token) GoString() string { return t.String() }

// Used reports whether a request with the token was approved.
func (t Token) Used() bool { return t.Use != Use{} }

// Fresh reports whether a guest that is about to be made can join with the token:
// it was not used and more than half of its life is left.
func (t Token) Fresh(now time.Time) bool {
	return !t.Used() && t.Expires.Sub(now) > t.Expires.Sub(t.Issued)/2
}

// Name returns the name of the token's Secret in Namespace.
func (t Token) Name() string { return SecretName(t.ID) }

// SecretName returns the name of the Secret of the token with this id.
func SecretName(id string) string { return bootstraputil.BootstrapTokenSecretName(id) }

// IDOf returns the id of the token that a user logged in with. It reports false for
// users who did not log in with a bootstrap token.
func IDOf(user string) (string, bool) {
	id, ok := strings.CutPrefix(user, bootstrapapi.BootstrapUserPrefix)
	return id, ok && bootstraputil.IsValidBootstrapTokenID(id)
}

// Object returns the token as Kubernetes keeps it. It goes with its NodeClaim.
func (t Token) Object() *corev1.Secret {
	annotations := map[string]string{
		annotationVM:        t.VM,
		annotationKey:       string(t.Key),
		annotationNodeClaim: t.NodeClaim,
		annotationClaimUID:  string(t.UID),
		annotationIssued:    t.Issued.Format(time.RFC3339),
	}
	if t.Used() {
		annotations[annotationUsedBy], annotations[annotationUsedKey] = t.Use.Request, t.Use.PublicKey
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: t.Name(), ResourceVersion: t.ResourceVersion,
			Labels: map[string]string{Label: "true"}, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: t.NodeClaim, UID: t.UID,
			}},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:               []byte(t.ID),
			bootstrapapi.BootstrapTokenSecretKey:           []byte(t.half()),
			bootstrapapi.BootstrapTokenExpirationKey:       []byte(t.Expires.Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(Group),
			bootstrapapi.BootstrapTokenDescriptionKey:      []byte("numaform: lets VM " + t.VM + " join, once"),
		},
	}
}

// ForeignError says why a Secret is no token of ours. Such a Secret is left alone.
type ForeignError struct {
	Secret, Why string
}

// Error names the Secret.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("secret %s/%s is no bootstrap token of numaform: %s", Namespace, e.Secret, e.Why)
}

// keyPattern is what a VM's key looks like.
var keyPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Read reads a token. It returns a *ForeignError for a Secret that is not ours, or
// that somebody changed so that it cannot be relied on.
func Read(object *corev1.Secret) (Token, error) {
	secret := string(object.Data[bootstrapapi.BootstrapTokenSecretKey])
	t := Token{
		ID: string(object.Data[bootstrapapi.BootstrapTokenIDKey]),
		Owner: Owner{
			VM:        object.Annotations[annotationVM],
			Key:       fleet.Key(object.Annotations[annotationKey]),
			NodeClaim: object.Annotations[annotationNodeClaim],
			UID:       types.UID(object.Annotations[annotationClaimUID]),
		},
		Use:             Use{Request: object.Annotations[annotationUsedBy], PublicKey: object.Annotations[annotationUsedKey]},
		ResourceVersion: object.ResourceVersion,
		secret:          &secret,
	}
	if why := t.distrust(object); why != "" {
		return Token{}, &ForeignError{Secret: object.Name, Why: why}
	}
	var err error
	if t.Expires, err = time.Parse(time.RFC3339, string(object.Data[bootstrapapi.BootstrapTokenExpirationKey])); err != nil {
		return Token{}, &ForeignError{Secret: object.Name, Why: "it does not say when it ends"}
	}
	if t.Issued, err = time.Parse(time.RFC3339, object.Annotations[annotationIssued]); err != nil {
		return Token{}, &ForeignError{Secret: object.Name, Why: "it does not say since when it is valid"}
	}
	return t, nil
}

// distrust says why the Secret that the token was read from cannot be relied on, or
// nothing.
func (t *Token) distrust(object *corev1.Secret) string {
	switch {
	case object.Labels[Label] != "true":
		return "it has no label " + Label
	case object.Namespace != Namespace || object.Name != t.Name() || object.Type != bootstrapapi.SecretTypeBootstrapToken:
		return "its name, namespace or type is another"
	case !bootstraputil.IsValidBootstrapToken(t.Reveal()):
		return "its id or secret is malformed"
	case t.VM == "" || t.NodeClaim == "" || t.UID == "" || !keyPattern.MatchString(string(t.Key)):
		return "it does not say whom it is for"
	}
	return ""
}
