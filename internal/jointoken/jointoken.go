// Package jointoken defines the tokens with which new nodes join, and the Records that
// store for which VM each token was issued, and the first use of a VM's tokens.
//
// A Record is a Secret in numaform's own namespace, one for each NodeClaim. It contains no
// secrets. Service-account tokens are bound to it: deleting it invalidates them. This
// package converts between Records and Secrets; internal/controllers/seed stores them in
// the cluster, and internal/controllers/csr uses them to decide on requests. It does no
// I/O. Start at Record.
package jointoken

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

const (
	// Label is set on the Secrets of Records, with the value "true".
	Label = v1alpha1.Group + "/join"
	// AnnotationToken is set on NodeClaims by releases without Records: the public half
	// of the bootstrap token in the seed of the claim's VM.
	AnnotationToken = v1alpha1.Group + "/token"

	// grantPrefix begins the label by which a Record is found from one of its tokens.
	grantPrefix = "token." + v1alpha1.Group + "/"
	namePrefix  = "numaform-join-"

	annotationVM        = v1alpha1.AnnotationVM
	annotationKey       = v1alpha1.AnnotationKey
	annotationNodeClaim = v1alpha1.Group + "/nodeclaim"
	annotationClaimUID  = v1alpha1.Group + "/nodeclaim-uid"
	annotationGrants    = v1alpha1.Group + "/tokens"
	annotationUsedBy    = v1alpha1.Group + "/used-by"
	annotationUsedKey   = v1alpha1.Group + "/used-key"

	// maxGrants is the maximum number of tokens in a Record, and so of a claim's tokens
	// that are accepted. Each attempt of an apply creates one.
	maxGrants = 8
)

// Owner identifies the VM and the NodeClaim for which tokens are issued.
type Owner struct {
	// VM is the name of the VM, and therefore the only name that a Node with these tokens
	// may have.
	VM string
	// Key is the VM's key.
	Key fleet.Key
	// NodeClaim and UID identify the claim of the VM.
	NodeClaim string
	UID       types.UID
}

// Use records the use of a claim's tokens: the first approved certificate request, and
// the SHA-256 of its public key.
type Use struct {
	Request, PublicKey string
}

// Grant is one token, without its secret.
type Grant struct {
	// ID is the jti of a service-account token, or the public half of a bootstrap token.
	ID string `json:"id"`
	// Account is the UID of the ServiceAccount; empty for a bootstrap token.
	Account types.UID `json:"account,omitempty"`
	// Minted is the time at which the API server created the token, by the API server's
	// clock.
	Minted time.Time `json:"minted"`
	// Issued and Expires are the token's validity period, by numaform's clock.
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
}

// Form returns the form of the token.
func (g Grant) Form() v1alpha1.TokenForm {
	if g.Account == "" {
		return v1alpha1.TokenBootstrap
	}
	return v1alpha1.TokenServiceAccount
}

// Ended reports whether the token had expired at a time of the API server's clock.
func (g Grant) Ended(at time.Time) bool { return at.After(g.Minted.Add(g.Expires.Sub(g.Issued))) }

// Record lists the tokens of one NodeClaim.
type Record struct {
	// Namespace is numaform's own namespace.
	Namespace string
	Owner
	// Grants are the tokens, oldest first.
	Grants []Grant
	// Use is zero until a request with any of the tokens is approved.
	Use Use
	// Secret is the UID of the record's Secret. Secret and ResourceVersion are empty
	// before the Secret is created.
	Secret          types.UID
	ResourceVersion string
}

// Name returns the name of the record's Secret.
func (r *Record) Name() string { return RecordName(r.UID) }

// RecordName returns the name of the Secret of a claim's Record.
func RecordName(claim types.UID) string { return namePrefix + string(claim) }

// GrantLabel returns a Record's label for one of its tokens.
func GrantLabel(id string) string { return grantPrefix + id }

// Used reports whether a request with one of the tokens was approved.
func (r *Record) Used() bool { return r.Use != Use{} }

// Grant returns the token with the ID, and false if the record does not list it.
func (r *Record) Grant(id string) (Grant, bool) {
	at := slices.IndexFunc(r.Grants, func(g Grant) bool { return g.ID == id })
	if at < 0 {
		return Grant{}, false
	}
	return r.Grants[at], true
}

// Expires returns the time at which the last token expires, or the zero time if there are
// no tokens.
func (r *Record) Expires() time.Time {
	var last time.Time
	for _, grant := range r.Grants {
		if grant.Expires.After(last) {
			last = grant.Expires
		}
	}
	return last
}

// Add adds a token, and drops expired tokens and, if more than maxGrants remain, the oldest
// ones.
func (r *Record) Add(grant Grant) {
	r.Grants = slices.DeleteFunc(slices.Clone(r.Grants), func(g Grant) bool { return g.Expires.Before(grant.Issued) })
	r.Grants = append(r.Grants, grant)
	r.Grants = r.Grants[max(0, len(r.Grants)-maxGrants):]
}

// Object returns the record as a Secret, which is garbage-collected with its NodeClaim.
func (r *Record) Object() *corev1.Secret {
	annotations := map[string]string{
		annotationVM:        r.VM,
		annotationKey:       string(r.Key),
		annotationNodeClaim: r.NodeClaim,
		annotationClaimUID:  string(r.UID),
	}
	labels := map[string]string{Label: "true"}
	if len(r.Grants) > 0 {
		text, err := json.Marshal(r.Grants)
		if err != nil {
			panic(err) // strings and times of years below 10000 always marshal
		}
		annotations[annotationGrants] = string(text)
	}
	for _, grant := range r.Grants {
		labels[GrantLabel(grant.ID)] = ""
	}
	if r.Used() {
		annotations[annotationUsedBy], annotations[annotationUsedKey] = r.Use.Request, r.Use.PublicKey
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Namespace, Name: r.Name(), UID: r.Secret, ResourceVersion: r.ResourceVersion,
			Labels: labels, Annotations: annotations, OwnerReferences: r.owners(),
		},
		Type: corev1.SecretTypeOpaque,
	}
}

// owners returns an owner reference to the NodeClaim, so that the objects for its join are
// deleted with it.
func (o *Owner) owners() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: o.NodeClaim, UID: o.UID}}
}

// UntrustedError reports a Secret that is not one of our records, and why. Such a Secret is
// left unchanged.
type UntrustedError struct {
	Namespace, Secret, Why string
}

// Error names the Secret and the problem.
func (e *UntrustedError) Error() string {
	return fmt.Sprintf("secret %s/%s is not a record of numaform's join tokens: %s", e.Namespace, e.Secret, e.Why)
}

var (
	// keyPattern matches a VM's key.
	keyPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)
	// jtiPattern matches the API server's jti values: UUIDs.
	jtiPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Read parses a record. It returns an *UntrustedError for a Secret that is not ours, or
// that was modified so that it is not trustworthy.
func Read(object *corev1.Secret) (Record, error) {
	r := Record{
		Namespace: object.Namespace,
		Owner: Owner{
			VM:        object.Annotations[annotationVM],
			Key:       fleet.Key(object.Annotations[annotationKey]),
			NodeClaim: object.Annotations[annotationNodeClaim],
			UID:       types.UID(object.Annotations[annotationClaimUID]),
		},
		Use:    Use{Request: object.Annotations[annotationUsedBy], PublicKey: object.Annotations[annotationUsedKey]},
		Secret: object.UID, ResourceVersion: object.ResourceVersion,
	}
	why := ""
	if text := object.Annotations[annotationGrants]; text != "" && json.Unmarshal([]byte(text), &r.Grants) != nil {
		why = "its list of tokens is malformed"
	}
	if why = cmp.Or(why, r.distrust(object)); why != "" {
		return Record{}, &UntrustedError{Namespace: object.Namespace, Secret: object.Name, Why: why}
	}
	return r, nil
}

// distrust returns the reason why the Secret of the record is not trustworthy, or "".
func (r *Record) distrust(object *corev1.Secret) string {
	labels := map[string]bool{}
	for label := range object.Labels {
		if strings.HasPrefix(label, grantPrefix) {
			labels[label] = true
		}
	}
	grants := map[string]bool{}
	malformed := false
	for _, g := range r.Grants {
		grants[GrantLabel(g.ID)] = true
		malformed = malformed || !KnownID(g.ID) || g.Minted.IsZero() || g.Issued.IsZero() || !g.Expires.After(g.Issued)
	}
	switch {
	case object.Labels[Label] != "true":
		return "the label " + Label + " is missing or not \"true\""
	case r.VM == "" || r.NodeClaim == "" || r.UID == "" || !keyPattern.MatchString(string(r.Key)):
		return "its annotations do not identify a VM and a NodeClaim"
	case object.Name != r.Name():
		return "its name does not match its NodeClaim"
	case malformed:
		return "its list of tokens is malformed"
	case !maps.Equal(labels, grants):
		return "its labels do not match its tokens"
	case (r.Use.Request == "") != (r.Use.PublicKey == ""):
		return "its record of the use of its tokens is incomplete"
	}
	return ""
}

// KnownID reports whether a text has the form of a token ID.
func KnownID(id string) bool { return jtiPattern.MatchString(id) || isBootstrapID(id) }
