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
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/jointoken"
)

// Action is what to do with a certificate request.
type Action int

// The actions. The zero value changes nothing.
const (
	// Leave leaves the request to others.
	Leave Action = iota
	// Deny denies it permanently, so that no other approver can approve it.
	Deny
	// Approve approves the kubelet's certificate.
	Approve
)

// The reasons of decisions, in conditions, events and logs.
const (
	ReasonApproved = "NodeMayJoin"
	// ReasonWrongLogin is about a login that does not exactly match a join token's.
	ReasonWrongLogin   = "WrongLogin"
	ReasonTokenGone    = "TokenGone"
	ReasonTokenChanged = "TokenChanged"
	ReasonTokenExpired = "TokenExpired"
	// ReasonOlderThanToken is about a request that was created before its token.
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
	// ReasonBypassed is about a request that another client approved.
	ReasonBypassed = "ApprovedByOthers"
)

// Facts are what the cluster says about a request's token.
type Facts struct {
	// Record is nil if no NodeClaim has the token any more; Grant is the token in it.
	Record *jointoken.Record
	Grant  jointoken.Grant
	// Claim is the record's NodeClaim, or nil if it does not exist.
	Claim *karpv1.NodeClaim
}

// Verdict is what to do with a request, and why.
type Verdict struct {
	Action  Action
	Reason  string
	Message string
	// PublicKey is the SHA-256 of the key in an approved request.
	PublicKey string
}

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// Concerns reports whether numaform must decide on a request. It must not if the request
// is already decided, is for another signer, or is by a user who did not log in the way
// joining nodes do.
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

// Judge evaluates a request with one of our tokens: only the kubelet of the token's VM
// gets a certificate, for that VM's name, and for a single key. Call Concerns first.
func Judge(request *certificatesv1.CertificateSigningRequest, facts Facts) Verdict {
	if verdict := judgeToken(request, facts); verdict.Action == Deny {
		return verdict
	}
	asked, err := parse(request.Spec.Request)
	if err != nil {
		return deny(ReasonMalformed, "%s", err)
	}
	for _, judge := range []func() Verdict{
		func() Verdict { return judgeSubject(asked, facts) },
		func() Verdict { return judgeUsages(request.Spec.Usages) },
		func() Verdict { return judgeLifetime(request.Spec.ExpirationSeconds) },
		func() Verdict { return judgeKey(asked) },
	} {
		if verdict := judge(); verdict.Action == Deny {
			return verdict
		}
	}
	return judgeUse(request.Name, keyOf(asked), facts)
}

// deny returns a verdict with a message for the request's conditions.
func deny(reason, format string, args ...any) Verdict {
	return Verdict{Action: Deny, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// keyOf returns the SHA-256 of the public key in a request.
func keyOf(asked *x509.CertificateRequest) string {
	sum := sha256.Sum256(asked.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// judgeToken denies a request whose token is no longer valid, or was not valid yet.
func judgeToken(request *certificatesv1.CertificateSigningRequest, facts Facts) Verdict {
	if facts.Record == nil {
		return deny(ReasonTokenGone, "no NodeClaim waits for the token of this request: its node joined, or was given up")
	}
	token := facts.Grant
	// For tokens of an earlier release, only the API server knows the validity period.
	known := !token.Minted.IsZero()
	switch {
	case request.Spec.UID != string(token.Account):
		return deny(ReasonWrongLogin, "it is of a user with UID %q, and token %s is of one with UID %q", request.Spec.UID, token.ID, token.Account)
	case known && request.CreationTimestamp.Time.Before(token.Minted):
		return deny(ReasonOlderThanToken, "this request was made before token %s was: a kubelet cannot have sent it", token.ID)
	case known && token.Ended(request.CreationTimestamp.Time):
		return deny(ReasonTokenExpired, "token %s ended before this request was made", token.ID)
	}
	return judgeClaim(facts)
}

// judgeClaim denies a request whose token's claim is not waiting for a node.
func judgeClaim(facts Facts) Verdict {
	record, token, claim := facts.Record, facts.Grant, facts.Claim
	switch {
	case claim == nil || claim.UID != record.UID || !claim.DeletionTimestamp.IsZero():
		return deny(ReasonClaimGone, "NodeClaim %s, which token %s is for, is gone or going", record.NodeClaim, token.ID)
	case claim.Annotations[v1alpha1.AnnotationVM] != record.VM || claim.Annotations[v1alpha1.AnnotationKey] != string(record.Key):
		return deny(ReasonOtherVM, "NodeClaim %s is not backed by VM %s, which token %s is for", claim.Name, record.VM, token.ID)
	case claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		return deny(ReasonAlreadyJoined, "node %s joined already and renews its certificate with the one it has: "+
			"delete NodeClaim %s if the node lost it", record.VM, claim.Name)
	}
	return Verdict{}
}

// parse parses exactly one certificate request and verifies that its sender has the key
// in it.
func parse(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("want one CERTIFICATE REQUEST in PEM")
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

// judgeSubject denies any other name than the VM's.
func judgeSubject(asked *x509.CertificateRequest, facts Facts) Verdict {
	want := nodePrefix + facts.Record.VM
	switch {
	case asked.Subject.CommonName != want:
		return deny(ReasonWrongName, "it asks for %q with token %s, which is for %q only: "+
			"unless this is a test, the seed of VM %s was copied; delete NodeClaim %s to replace the VM",
			asked.Subject.CommonName, facts.Grant.ID, want, facts.Record.VM, facts.Record.NodeClaim)
	case !slices.Equal(asked.Subject.Organization, []string{nodesGroup}) || len(asked.Subject.Names) != 2:
		return deny(ReasonWrongSubject, "want exactly the organization %s beside the common name %s in the subject, got %q",
			nodesGroup, want, asked.Subject.String())
	case len(asked.DNSNames)+len(asked.IPAddresses)+len(asked.EmailAddresses)+len(asked.URIs) > 0 || len(asked.Extensions) > 0:
		return deny(ReasonWrongSubject, "want no alternative names and no other extensions in a kubelet's client certificate")
	}
	return Verdict{}
}

// judgeUsages denies usages that kubelets do not request: with RSA keys, old kubelets
// also request key encipherment.
func judgeUsages(usages []certificatesv1.KeyUsage) Verdict {
	got := slices.Compact(slices.Sorted(slices.Values(usages)))
	if len(got) == len(usages) &&
		(slices.Equal(got, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}) ||
			slices.Equal(got, []certificatesv1.KeyUsage{
				certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment,
			})) {
		return Verdict{}
	}
	return deny(ReasonWrongUsages, "want the usages of a kubelet's client certificate, got %q", usages)
}

// maxLifetime is the maximum lifetime that a request may ask for: the default of
// kube-controller-manager. Kubelets do not ask for one.
const maxLifetime = 365 * 24 * time.Hour

// judgeLifetime denies a certificate with a longer lifetime than kubelets' own, because a
// stolen one cannot be revoked.
func judgeLifetime(seconds *int32) Verdict {
	if seconds == nil || time.Duration(*seconds)*time.Second <= maxLifetime {
		return Verdict{}
	}
	return deny(ReasonTooLong, "it asks for a certificate of %d seconds: want a year at most, or no expirationSeconds, as kubelets do", *seconds)
}

// The minimum key sizes, in bits.
const (
	minRSA   = 2048
	minECDSA = 256
)

func judgeKey(asked *x509.CertificateRequest) Verdict {
	bits := 0
	switch key := asked.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if bits = key.Curve.Params().BitSize; bits >= minECDSA {
			return Verdict{}
		}
	case *rsa.PublicKey:
		if bits = key.N.BitLen(); bits >= minRSA {
			return Verdict{}
		}
	case ed25519.PublicKey:
		return Verdict{}
	}
	return deny(ReasonWeakKey, "want an ECDSA key of %d bits, an RSA key of %d or an Ed25519 key, got %s of %d bits",
		minECDSA, minRSA, asked.PublicKeyAlgorithm, bits)
}

// judgeUse denies a second key. A kubelet may request a certificate for the same key
// again, whatever the request's name.
func judgeUse(request, key string, facts Facts) Verdict {
	record, token := facts.Record, facts.Grant
	if record.Used() && record.Use.PublicKey != key {
		return deny(ReasonUsedTwice, "the token of VM %s was used by request %s with another key: "+
			"whoever sent this one is not the guest that joined first; delete NodeClaim %s to replace the VM if you do not know which of them it is",
			record.VM, record.Use.Request, record.NodeClaim)
	}
	return Verdict{
		Action: Approve, Reason: ReasonApproved, PublicKey: key,
		Message: fmt.Sprintf("request %s comes with token %s of NodeClaim %s and asks for the name of its VM %s",
			request, token.ID, record.NodeClaim, record.VM),
	}
}
