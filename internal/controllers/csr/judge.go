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

	certificatesv1 "k8s.io/api/certificates/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/jointoken"
)

// Action is what to do with a certificate request.
type Action int

// The actions. The zero value touches nothing.
const (
	// Leave leaves the request to others.
	Leave Action = iota
	// Deny denies it for good, so that nobody else approves it.
	Deny
	// Approve lets the kubelet have its certificate.
	Approve
)

// The reasons of decisions, in conditions, events and logs.
const (
	ReasonApproved      = "NodeMayJoin"
	ReasonTokenGone     = "TokenGone"
	ReasonTokenChanged  = "TokenChanged"
	ReasonTokenExpired  = "TokenExpired"
	ReasonClaimGone     = "NodeClaimGone"
	ReasonOtherVM       = "NodeClaimHasOtherVM"
	ReasonAlreadyJoined = "AlreadyJoined"
	ReasonMalformed     = "MalformedRequest"
	ReasonWrongName     = "WrongNodeName"
	ReasonWrongSubject  = "WrongSubject"
	ReasonWrongUsages   = "WrongUsages"
	ReasonWeakKey       = "WeakKey"
	ReasonUsedTwice     = "TokenUsedTwice"
	// ReasonBypassed is about a request that somebody else approved.
	ReasonBypassed = "ApprovedByOthers"
)

// Facts are what the cluster says about the token that a request came with.
type Facts struct {
	// Token is nil if there is none of that id any more.
	Token *jointoken.Token
	// Claim is the NodeClaim that the token names, or nil if there is none.
	Claim *karpv1.NodeClaim
}

// Verdict is what to do with a request, and why.
type Verdict struct {
	Action  Action
	Reason  string
	Message string
	// PublicKey is the SHA-256 of the key in a request that is approved.
	PublicKey string
}

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// Concerns returns the id of the bootstrap token of ours that a request came with.
// It reports false for a request that is not ours to judge: one that is decided, of
// another signer, or of somebody who did not log in with a token of our group.
func Concerns(request *certificatesv1.CertificateSigningRequest) (id string, ours bool) {
	id, ours = withOurToken(request)
	return id, ours && len(request.Status.Certificate) == 0 && !decided(request, nil)
}

// Bypassed reports whether somebody else approved a request that came with a token of
// ours. Then tokens are as good for any node's name as for that of their VM.
func Bypassed(request *certificatesv1.CertificateSigningRequest) bool {
	_, ours := withOurToken(request)
	return ours && decided(request, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved && c.Reason != ReasonApproved
	})
}

func withOurToken(request *certificatesv1.CertificateSigningRequest) (id string, ours bool) {
	id, bootstrap := jointoken.IDOf(request.Spec.Username)
	if !bootstrap || request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
		!slices.Contains(request.Spec.Groups, jointoken.Group) {
		return "", false
	}
	return id, true
}

// decided reports whether a request has a decision of a kind; nil means any.
func decided(request *certificatesv1.CertificateSigningRequest, kind func(certificatesv1.CertificateSigningRequestCondition) bool) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		decision := c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		return decision && (kind == nil || kind(c))
	})
}

// Judge decides about a request that came with a token of ours: only the kubelet of
// the VM that the token was made for gets a certificate, for that VM's name, and
// only one key does. Ask Concerns first.
func Judge(request *certificatesv1.CertificateSigningRequest, facts Facts) Verdict {
	if verdict := judgeToken(request, facts); verdict.Action == Deny {
		return verdict
	}
	asked, err := parse(request.Spec.Request)
	if err != nil {
		return deny(ReasonMalformed, "%s", err)
	}
	for _, judge := range []func() Verdict{
		func() Verdict { return judgeSubject(asked, facts.Token) },
		func() Verdict { return judgeUsages(request.Spec.Usages) },
		func() Verdict { return judgeKey(asked) },
	} {
		if verdict := judge(); verdict.Action == Deny {
			return verdict
		}
	}
	key := sha256.Sum256(asked.RawSubjectPublicKeyInfo)
	return judgeUse(request.Name, hex.EncodeToString(key[:]), facts.Token)
}

// deny is a verdict with a message for whoever reads the request's conditions.
func deny(reason, format string, args ...any) Verdict {
	return Verdict{Action: Deny, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// judgeToken denies a request whose token is no longer good for its claim.
func judgeToken(request *certificatesv1.CertificateSigningRequest, facts Facts) Verdict {
	token, claim := facts.Token, facts.Claim
	if token == nil {
		return deny(ReasonTokenGone, "the bootstrap token of %s is gone: its node joined or was given up", request.Spec.Username)
	}
	switch {
	case request.CreationTimestamp.After(token.Expires):
		return deny(ReasonTokenExpired, "bootstrap token %s ended before this request was made", token.ID)
	case claim == nil || claim.UID != token.UID || !claim.DeletionTimestamp.IsZero():
		return deny(ReasonClaimGone, "NodeClaim %s, which bootstrap token %s is for, is gone or going", token.NodeClaim, token.ID)
	case claim.Annotations[v1alpha1.AnnotationVM] != token.VM || claim.Annotations[v1alpha1.AnnotationKey] != string(token.Key):
		return deny(ReasonOtherVM, "NodeClaim %s is not backed by VM %s, which bootstrap token %s is for", claim.Name, token.VM, token.ID)
	case claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		return deny(ReasonAlreadyJoined, "node %s joined already and renews its certificate with the one it has: "+
			"delete NodeClaim %s if the node lost it", token.VM, claim.Name)
	}
	return Verdict{}
}

// parse reads exactly one certificate request whose sender holds the key in it.
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

// judgeSubject denies any name but that of the token's VM.
func judgeSubject(asked *x509.CertificateRequest, token *jointoken.Token) Verdict {
	want := nodePrefix + token.VM
	switch {
	case asked.Subject.CommonName != want:
		return deny(ReasonWrongName, "it asks for %q with bootstrap token %s, which is for %q only: "+
			"if nobody tries that on purpose, somebody copied the seed of VM %s; delete NodeClaim %s to replace the VM",
			asked.Subject.CommonName, token.ID, want, token.VM, token.NodeClaim)
	case !slices.Equal(asked.Subject.Organization, []string{nodesGroup}) || len(asked.Subject.Names) != 2:
		return deny(ReasonWrongSubject, "want exactly the organization %s beside the common name %s in the subject, got %q",
			nodesGroup, want, asked.Subject.String())
	case len(asked.DNSNames)+len(asked.IPAddresses)+len(asked.EmailAddresses)+len(asked.URIs) > 0 || len(asked.Extensions) > 0:
		return deny(ReasonWrongSubject, "want no alternative names and no other extensions in a kubelet's client certificate")
	}
	return Verdict{}
}

// judgeUsages denies anything but what kubelets ask for: with RSA keys, old ones
// want to encipher keys too.
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

// The least sizes of keys, in bits.
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

// judgeUse denies a second key. A kubelet that asks again with the key it had may
// have its certificate, whatever the request's name.
func judgeUse(request, key string, token *jointoken.Token) Verdict {
	if token.Used() && token.Use.PublicKey != key {
		return deny(ReasonUsedTwice, "bootstrap token %s was used by request %s with another key: "+
			"whoever sent this one is not the guest that joined first; delete NodeClaim %s to replace VM %s if you do not know which of them it is",
			token.ID, token.Use.Request, token.NodeClaim, token.VM)
	}
	return Verdict{
		Action: Approve, Reason: ReasonApproved, PublicKey: key,
		Message: fmt.Sprintf("request %s comes with bootstrap token %s of NodeClaim %s and asks for the name of its VM %s",
			request, token.ID, token.NodeClaim, token.VM),
	}
}
