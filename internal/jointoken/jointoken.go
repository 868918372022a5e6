// Package jointoken is the form of what new nodes join with: the tokens, and the
// Records by which numaform knows whom each token is for and who used it.
//
// A Record is a Secret in numaform's own namespace, one for each NodeClaim. It holds
// nothing secret. Service-account tokens are bound to it: deleting it makes them
// invalid. Package jointoken makes and reads these objects;
// internal/controllers/seed keeps them in the cluster, and internal/controllers/csr
// decides about requests by them. It reaches nothing. Start at Record.
package jointoken

import (
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
	// AnnotationToken is set on NodeClaims by releases that knew no Records: the public
	// half of the bootstrap token in the seed of the claim's VM.
	AnnotationToken = v1alpha1.Group + "/token"

	// grantPrefix begins the label of each token of a Record, by which it is found.
	grantPrefix = "token." + v1alpha1.Group + "/"
	namePrefix  = "numaform-join-"

	annotationVM        = v1alpha1.AnnotationVM
	annotationKey       = v1alpha1.AnnotationKey
	annotationNodeClaim = v1alpha1.Group + "/nodeclaim"
	annotationClaimUID  = v1alpha1.Group + "/nodeclaim-uid"
	annotationGrants    = v1alpha1.Group + "/tokens"
	annotationUsedBy    = v1alpha1.Group + "/used-by"
	annotationUsedKey   = v1alpha1.Group + "/used-key"

	// maxGrants is how many tokens of a claim are good at the same time. Each try of an
	// apply makes one.
	maxGrants = 8
)

// Owner says whom tokens are for.
type Owner struct {
	// VM is the name of the VM, and so the only name that a Node may take with them.
	VM string
	// Key is the VM's.
	Key fleet.Key
	// NodeClaim is the name of the claim that the VM backs, and UID the claim's.
	NodeClaim string
	UID       types.UID
}

// Use says what the tokens of a claim were used for: the certificate request that was
// approved first, and the SHA-256 of the public key in it.
type Use struct {
	Request, PublicKey string
}

// Grant is one token, without its secret.
type Grant struct {
	// ID is the jti of a service-account token, or the public half of a bootstrap token.
	ID string `json:"id"`
	// Account is the UID of the ServiceAccount; a bootstrap token has none.
	Account types.UID `json:"account,omitempty"`
	// Minted is when the API server made it, by the API server's clock.
	Minted time.Time `json:"minted"`
	// Issued and Expires are when it begins and ends, by numaform's clock.
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

// Ended reports whether the token had ended at a time of the API server's clock.
func (g Grant) Ended(at time.Time) bool { return at.After(g.Minted.Add(g.Expires.Sub(g.Issued))) }

// Record is what numaform knows of the tokens of one NodeClaim.
type Record struct {
	// Namespace is numaform's own.
	Namespace string
	Owner
	// Grants are the tokens, oldest first.
	Grants []Grant
	// Use is zero while no request with any of the tokens was approved.
	Use Use
	// Secret is the UID of the record's Secret. It and ResourceVersion are empty
	// before the Secret is created.
	Secret          types.UID
	ResourceVersion string
}

// Name returns the name of the record's Secret.
func (r *Record) Name() string { return RecordName(r.UID) }

// RecordName returns the name of the Secret of a claim's Record.
func RecordName(claim types.UID) string { return namePrefix + string(claim) }

// GrantLabel returns the label that a Record has for one of its tokens.
func GrantLabel(id string) string { return grantPrefix + id }

// Used reports whether a request with one of the tokens was approved.
func (r *Record) Used() bool { return r.Use != Use{} }

// Grant returns the token with this ID.
func (r *Record) Grant(id string) (Grant, bool) {
	at := slices.IndexFunc(r.Grants, func(g Grant) bool { return g.ID == id })
	if at < 0 {
		return Grant{}, false
	}
	return r.Grants[at], true
}

// Expires returns when the last of the tokens ends, or the zero time without any.
func (r *Record) Expires() time.Time {
	var last time.Time
	for _, grant := range r.Grants {
		if grant.Expires.After(last) {
			last = grant.Expires
		}
	}
	return last
}

// Add adds a token and forgets those that have ended, and the oldest of too many.
func (r *Record) Add(grant Grant) {
	r.Grants = slices.DeleteFunc(slices.Clone(r.Grants), func(g Grant) bool { return g.Expires.Before(grant.Issued) })
	r.Grants = append(r.Grants, grant)
	r.Grants = r.Grants[max(0, len(r.Grants)-maxGrants):]
}

// Object returns the record as Kubernetes keeps it. It goes with its NodeClaim.
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

// owners names the NodeClaim: what is left of its join goes with it.
func (o *Owner) owners() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: o.NodeClaim, UID: o.UID}}
}

// ForeignError says why a Secret is no record of ours. Such a Secret is left alone.
type ForeignError struct {
	Namespace, Secret, Why string
}

// Error names the Secret.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("secret %s/%s is no record of numaform's join tokens: %s", e.Namespace, e.Secret, e.Why)
}

var (
	// keyPattern is what a VM's key looks like.
	keyPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)
	// jtiPattern is what the API server's jti look like: UUIDs.
	jtiPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Read reads a record. It returns a *ForeignError for a Secret that is not ours, or
// that was changed so that it cannot be relied on.
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
	if text := object.Annotations[annotationGrants]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.Grants); err != nil {
			return Record{}, r.foreign(object, "its list of tokens is malformed")
		}
	}
	if why := r.distrust(object); why != "" {
		return Record{}, r.foreign(object, why)
	}
	return r, nil
}

func (r *Record) foreign(object *corev1.Secret, why string) error {
	return &ForeignError{Namespace: object.Namespace, Secret: object.Name, Why: why}
}

// distrust says why the Secret that the record was read from cannot be relied on, or
// nothing.
func (r *Record) distrust(object *corev1.Secret) string {
	switch {
	case object.Labels[Label] != "true":
		return "it has no label " + Label
	case r.VM == "" || r.NodeClaim == "" || r.UID == "" || !keyPattern.MatchString(string(r.Key)):
		return "it does not say whom it is for"
	case object.Name != r.Name():
		return "its name is another"
	case slices.ContainsFunc(r.Grants, Grant.malformed):
		return "its list of tokens is malformed"
	case !r.labeled(object):
		return "its labels do not name its tokens"
	case (r.Use.Request == "") != (r.Use.PublicKey == ""):
		return "it says half of what its tokens were used for"
	}
	return ""
}

func (g Grant) malformed() bool {
	return !KnownID(g.ID) || g.Minted.IsZero() || g.Issued.IsZero() || !g.Expires.After(g.Issued)
}

// labeled reports whether the labels of a Secret name the record's tokens and no more.
func (r *Record) labeled(object *corev1.Secret) bool {
	want, got := map[string]bool{}, map[string]bool{}
	for _, grant := range r.Grants {
		want[GrantLabel(grant.ID)] = true
	}
	for label := range object.Labels {
		if strings.HasPrefix(label, grantPrefix) {
			got[label] = true
		}
	}
	return maps.Equal(want, got)
}

// KnownID reports whether a text can be the ID of a token of ours.
func KnownID(id string) bool { return jtiPattern.MatchString(id) || isBootstrapID(id) }
