package csr

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/jointoken"
)

// The reasons of decisions, in conditions, events and logs.
const (
	ReasonApproved = "NodeMayJoin"
	// ReasonWrongLogin means that the request's login does not exactly match the login of a
	// join token.
	ReasonWrongLogin   = "WrongLogin"
	ReasonTokenGone    = "TokenGone"
	ReasonTokenChanged = "TokenChanged"
	ReasonTokenExpired = "TokenExpired"
	// ReasonOlderThanToken means that the request was created before its token.
	ReasonOlderThanToken = "OlderThanToken"
	ReasonClaimGone      = "NodeClaimGone"
	ReasonOtherVM        = "NodeClaimHasOtherVM"
	ReasonAlreadyJoined  = "AlreadyJoined"
	ReasonMalformed      = "MalformedRequest"
	ReasonWrongName      = "WrongNodeName"
	ReasonWrongSubject   = "WrongSubject"
	ReasonWrongUsages    = "WrongUsages"
	ReasonWeakKey        = "WeakKey"
	ReasonTooLong        = "CertificateTooLong"
	ReasonUsedTwice      = "TokenUsedTwice"
	// ReasonBypassed means that another client approved the request.
	ReasonBypassed = "ApprovedByOthers"
)

// Facts is the state of a request's token in the cluster.
type Facts struct {
	// Record is nil if neither a record nor a NodeClaim contains the token; Grant is the
	// token in the record.
	Record *jointoken.Record
	Grant  jointoken.Grant
	// Claim is the record's NodeClaim, or nil if it does not exist.
	Claim *karpv1.NodeClaim
}

// Verdict is the decision about a request. A denial is final: no other approver can approve
// the request afterwards.
type Verdict struct {
	Approved bool
	Reason   string
	Message  string
	// PublicKey is the SHA-256 of the key in an approved request.
	PublicKey string
}

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"

	// maxLifetime is the maximum lifetime that a request may set: the default of
	// kube-controller-manager. Kubelets do not set one.
	maxLifetime = 365 * 24 * time.Hour

	// minRSA and minECDSA are the minimum key sizes, in bits.
	minRSA   = 2048
	minECDSA = 256
)

// Concerns reports whether numaform decides on a request. It ignores a request that is
// already decided, is for another signer, or is by a user who did not log in as joining
// nodes do.
func Concerns(request *certificatesv1.CertificateSigningRequest, account Account) bool {
	return account.ours(request) && len(request.Status.Certificate) == 0 && !decided(request, nil)
}

// Bypassed reports whether another client approved a request with one of our tokens. Then
// a token is valid for any node's name, not only its VM's.
func Bypassed(request *certificatesv1.CertificateSigningRequest, account Account) bool {
	return account.ours(request) && decided(request, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved && c.Reason != ReasonApproved
	})
}

// decided reports whether a request has a condition that kind selects; nil selects any.
func decided(request *certificatesv1.CertificateSigningRequest, kind func(certificatesv1.CertificateSigningRequestCondition) bool) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		decision := c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		return decision && (kind == nil || kind(c))
	})
}

// Evaluate decides on a request with one of our tokens: only the kubelet of the token's VM
// gets a certificate, for that VM's name, and for a single key. Call Concerns first.
func Evaluate(request *certificatesv1.CertificateSigningRequest, facts Facts) Verdict {
	if denied := checkToken(request, facts); denied != nil {
		return *denied
	}
	asked, err := parse(request.Spec.Request)
	if err != nil {
		return deny(ReasonMalformed, "%s", err)
	}
	if denied := checkCertificate(request, asked, facts); denied != nil {
		return *denied
	}

	// A kubelet may request a certificate for the same key again, under any request name.
	key, record := keyOf(asked), facts.Record
	if record.Used() && record.Use.PublicKey != key {
		return deny(ReasonUsedTwice, "the token of VM %s was used by request %s with another key: "+
			"the sender of this request is not the guest that joined first; if you do not know which of them is the VM, delete NodeClaim %s to replace it",
			record.VM, record.Use.Request, record.NodeClaim)
	}
	return Verdict{
		Approved: true, Reason: ReasonApproved, PublicKey: key,
		Message: fmt.Sprintf("request %s uses token %s of NodeClaim %s and requests a certificate for VM %s of this NodeClaim",
			request.Name, facts.Grant.ID, record.NodeClaim, record.VM),
	}
}

// deny returns a verdict with a message for the request's conditions.
func deny(reason, format string, args ...any) Verdict {
	return Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// keyOf returns the SHA-256 of the public key in a request.
func keyOf(asked *x509.CertificateRequest) string {
	sum := sha256.Sum256(asked.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// checkToken denies a request whose token is no longer valid, was not valid yet or belongs
// to another account, or whose claim is not waiting for a node. It returns nil for any
// other request.
func checkToken(request *certificatesv1.CertificateSigningRequest, facts Facts) *Verdict {
	record, token, claim := facts.Record, facts.Grant, facts.Claim
	// The validity period of tokens of an earlier release is unknown here.
	known := !token.Minted.IsZero()
	var denied Verdict
	switch {
	case record == nil:
		denied = deny(ReasonTokenGone, "no NodeClaim is waiting for the token of this request: its node has joined, or was given up")
	case request.Spec.UID != string(token.Account):
		denied = deny(ReasonWrongLogin, "its user has UID %q, but token %s is for UID %q", request.Spec.UID, token.ID, token.Account)
	case known && request.CreationTimestamp.Time.Before(token.Minted):
		denied = deny(ReasonOlderThanToken, "this request is older than token %s: a kubelet cannot have sent it", token.ID)
	case known && token.Ended(request.CreationTimestamp.Time):
		denied = deny(ReasonTokenExpired, "token %s expired before this request was created", token.ID)
	case claim == nil || claim.UID != record.UID || !claim.DeletionTimestamp.IsZero():
		denied = deny(ReasonClaimGone, "NodeClaim %s of token %s is being deleted or no longer exists", record.NodeClaim, token.ID)
	case claim.Annotations[v1alpha1.AnnotationVM] != record.VM || claim.Annotations[v1alpha1.AnnotationKey] != string(record.Key):
		denied = deny(ReasonOtherVM, "NodeClaim %s does not belong to VM %s of token %s", claim.Name, record.VM, token.ID)
	case claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		denied = deny(ReasonAlreadyJoined, "node %s has already joined, and renews its certificate with its current one: "+
			"if the node has lost it, delete NodeClaim %s", record.VM, claim.Name)
	default:
		return nil
	}
	return &denied
}

// checkCertificate denies a request for anything but the client certificate of the VM's
// kubelet. It returns nil for any other request.
func checkCertificate(request *certificatesv1.CertificateSigningRequest, asked *x509.CertificateRequest, facts Facts) *Verdict {
	name := nodePrefix + facts.Record.VM
	// With RSA keys, old kubelets also request key encipherment.
	usages := slices.DeleteFunc(slices.Sorted(slices.Values(request.Spec.Usages)), func(usage certificatesv1.KeyUsage) bool {
		return usage == certificatesv1.UsageKeyEncipherment
	})
	seconds := request.Spec.ExpirationSeconds
	bits, weak := 0, true
	switch key := asked.PublicKey.(type) {
	case *ecdsa.PublicKey:
		bits = key.Curve.Params().BitSize
		weak = bits < minECDSA
	case *rsa.PublicKey:
		bits = key.N.BitLen()
		weak = bits < minRSA
	case ed25519.PublicKey:
		weak = false
	}

	var denied Verdict
	switch {
	case asked.Subject.CommonName != name:
		denied = deny(ReasonWrongName, "it requests the name %q with token %s, which is only valid for %q: "+
			"unless this is a test, the seed of VM %s was copied; delete NodeClaim %s to replace the VM",
			asked.Subject.CommonName, facts.Grant.ID, name, facts.Record.VM, facts.Record.NodeClaim)
	case !slices.Equal(asked.Subject.Organization, []string{nodesGroup}) || len(asked.Subject.Names) != 2:
		denied = deny(ReasonWrongSubject, "the subject must consist of organization %s and common name %s, got %q",
			nodesGroup, name, asked.Subject.String())
	case len(asked.Extensions) > 0: // including alternative names
		denied = deny(ReasonWrongSubject, "a kubelet's client certificate must not have alternative names or other extensions")
	case !slices.Equal(usages, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}) || len(request.Spec.Usages) > len(usages)+1:
		denied = deny(ReasonWrongUsages, "the usages must be digital signature and client auth, as kubelets request, got %q", request.Spec.Usages)
	case seconds != nil && time.Duration(*seconds)*time.Second > maxLifetime:
		// A stolen certificate cannot be revoked.
		denied = deny(ReasonTooLong, "it requests a lifetime of %d seconds: must be at most a year, or unset as kubelets leave it", *seconds)
	case weak:
		denied = deny(ReasonWeakKey, "the key must be ECDSA with at least %d bits, RSA with at least %d bits, or Ed25519, got %s with %d bits",
			minECDSA, minRSA, asked.PublicKeyAlgorithm, bits)
	default:
		return nil
	}
	return &denied
}

// parse parses exactly one certificate request and verifies its signature, which proves
// that its sender has the private key.
func parse(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("spec.request must contain exactly one CERTIFICATE REQUEST in PEM")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate request: %w", err)
	}
	if err := asked.CheckSignature(); err != nil {
		return nil, fmt.Errorf("checking the certificate request's signature: %w", err)
	}
	return asked, nil
}

const (
	// credentialKey is the extra attribute in which the API server records the ID of a
	// service account's token.
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

// ours reports whether a request is for a client certificate of a kubelet, by a user who
// logged in as joining nodes do.
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
		return "", fmt.Errorf("its groups are %q, but a join token has %q", request.Spec.Groups, groups)
	}
	if got := slices.Sorted(maps.Keys(request.Spec.Extra)); !slices.Equal(got, keys) {
		return "", fmt.Errorf("its extra attributes are %q, but a join token has %q", got, keys)
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
		return "", fmt.Errorf("its %s %q is not the ID of a token", credentialKey, credentials[0])
	}
	return id, nil
}
