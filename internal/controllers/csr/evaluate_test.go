package csr_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/jointoken"
)

const (
	vmName           = "workers-2001"
	vmKey  fleet.Key = "5f1d0c2ab4e94d7f8a6b1c3d5e7f9012"
)

var issued = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ecdsaKey returns a key like a kubelet's.
func ecdsaKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// kubelet returns a kubelet's certificate request for a node.
func kubelet(node string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
}

// encode returns a request in PEM, signed with the key.
func encode(t testing.TB, template x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

const jti = "f8a2a1c0-5f1d-4c2a-b4e9-4d7f8a6b1c3d"

var account = csr.Account{Namespace: "numaform", Name: "numaform-bootstrap"}

// facts returns the facts about a valid token.
func facts() csr.Facts {
	grant := jointoken.Grant{ID: jti, Account: "account-uid", Minted: issued, Issued: issued, Expires: issued.Add(15 * time.Minute)}
	return csr.Facts{
		Record: &jointoken.Record{
			Namespace: account.Namespace, Grants: []jointoken.Grant{grant},
			Owner: jointoken.Owner{VM: vmName, Key: vmKey, NodeClaim: "workers-x7k2p", UID: "uid-1"},
		},
		Grant: grant, Claim: claim(),
	}
}

func seconds(n int32) *int32 { return &n }

func claim() *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "workers-x7k2p", UID: "uid-1",
		Annotations: map[string]string{v1alpha1.AnnotationVM: vmName, v1alpha1.AnnotationKey: string(vmKey)},
	}}
}

// request returns a request by the ServiceAccount that nodes join as, with one of our
// tokens.
func request(text []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr-1", CreationTimestamp: metav1.NewTime(issued.Add(time.Minute))},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: text, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username: "system:serviceaccount:numaform:numaform-bootstrap", UID: "account-uid",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:numaform", "system:authenticated"},
			Extra:  map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=" + jti}},
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// bootstrapRequest returns a request with one of our bootstrap tokens.
func bootstrapRequest(id string) *certificatesv1.CertificateSigningRequest {
	asked := request(nil)
	asked.Spec.Username, asked.Spec.UID, asked.Spec.Extra = "system:bootstrap:"+id, "", nil
	asked.Spec.Groups = []string{"system:bootstrappers", jointoken.Group, "system:authenticated"}
	return asked
}

// judged is the input of Evaluate: by default a valid request with a valid token.
type judged struct {
	request *certificatesv1.CertificateSigningRequest
	facts   csr.Facts
	ask     x509.CertificateRequest
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	p256 := func(t *testing.T) crypto.Signer { return ecdsaKey(t, elliptic.P256()) }
	for _, test := range []struct {
		name   string
		key    func(*testing.T) crypto.Signer
		before func(*judged) // runs before the request is signed
		after  func(*judged)
		want   string
	}{
		{name: "the VM's own kubelet", want: csr.ReasonApproved},
		{
			name: "an old kubelet with an RSA key", want: csr.ReasonApproved,
			key: func(t *testing.T) crypto.Signer { return rsaKey(t, 2048) },
			after: func(j *judged) {
				j.request.Spec.Usages = append(j.request.Spec.Usages, certificatesv1.UsageKeyEncipherment)
			},
		},
		{name: "an Ed25519 key", want: csr.ReasonApproved, key: func(t *testing.T) crypto.Signer {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			return key
		}},

		{name: "the token is gone", want: csr.ReasonTokenGone, after: func(j *judged) { j.facts = csr.Facts{} }},
		{name: "the token had ended", want: csr.ReasonTokenExpired, after: func(j *judged) {
			j.request.CreationTimestamp = metav1.NewTime(issued.Add(time.Hour))
		}},
		{name: "the request is as old as the token", want: csr.ReasonApproved, after: func(j *judged) {
			j.request.CreationTimestamp = metav1.NewTime(issued)
		}},
		{name: "the request is older than the token", want: csr.ReasonOlderThanToken, after: func(j *judged) {
			j.request.CreationTimestamp = metav1.NewTime(issued.Add(-time.Second))
		}},
		{name: "another user's UID", want: csr.ReasonWrongLogin, after: func(j *judged) { j.request.Spec.UID = "other" }},
		{name: "someone who impersonates without a UID", want: csr.ReasonWrongLogin, after: func(j *judged) { j.request.Spec.UID = "" }},
		{name: "a bootstrap token of an earlier release", want: csr.ReasonApproved, after: func(j *judged) {
			j.request.Spec.UID, j.facts.Grant = "", jointoken.Grant{ID: "abc123"}
		}},
		{name: "the claim is gone", want: csr.ReasonClaimGone, after: func(j *judged) { j.facts.Claim = nil }},
		{name: "another claim has its name", want: csr.ReasonClaimGone, after: func(j *judged) { j.facts.Claim.UID = "uid-2" }},
		{name: "the claim is going", want: csr.ReasonClaimGone, after: func(j *judged) {
			now := metav1.NewTime(issued)
			j.facts.Claim.DeletionTimestamp = &now
		}},
		{name: "the claim has another VM", want: csr.ReasonOtherVM, after: func(j *judged) {
			j.facts.Claim.Annotations[v1alpha1.AnnotationVM] = "workers-2002"
		}},
		{name: "the claim has a later VM of that name", want: csr.ReasonOtherVM, after: func(j *judged) {
			j.facts.Claim.Annotations[v1alpha1.AnnotationKey] = strings.Repeat("0", 32)
		}},
		{name: "the node joined", want: csr.ReasonAlreadyJoined, after: func(j *judged) {
			j.facts.Claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		}},

		{name: "another node's name", want: csr.ReasonWrongName, before: func(j *judged) { j.ask = kubelet("control-plane-1") }},
		{name: "a longer name", want: csr.ReasonWrongName, before: func(j *judged) { j.ask = kubelet(vmName + "0") }},
		{name: "another case", want: csr.ReasonWrongName, before: func(j *judged) { j.ask = kubelet(strings.ToUpper(vmName)) }},
		{name: "an administrator's name", want: csr.ReasonWrongName, before: func(j *judged) { j.ask.Subject.CommonName = "kubernetes-admin" }},
		{name: "no name", want: csr.ReasonWrongName, before: func(j *judged) { j.ask.Subject.CommonName = "" }},
		{name: "two names", want: csr.ReasonWrongSubject, before: func(j *judged) {
			j.ask.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:" + vmName}}
			j.ask.Subject.ExtraNames = append(j.ask.Subject.ExtraNames, j.ask.Subject.ExtraNames[0])
			j.ask.Subject.CommonName = ""
		}},
		{name: "no group", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.Subject.Organization = nil }},
		{name: "administrators' group", want: csr.ReasonWrongSubject, before: func(j *judged) {
			j.ask.Subject.Organization = []string{"system:nodes", "system:masters"}
		}},
		{name: "another attribute", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.Subject.SerialNumber = "1" }},
		{name: "a DNS name", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.DNSNames = []string{"kubernetes.default"} }},
		{name: "an address", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }},
		{name: "a mail address", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.EmailAddresses = []string{"a@example"} }},
		{name: "a URI", want: csr.ReasonWrongSubject, before: func(j *judged) { j.ask.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }},
		{name: "another extension", want: csr.ReasonWrongSubject, before: func(j *judged) {
			j.ask.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
		}},

		{name: "a server's usage", want: csr.ReasonWrongUsages, after: func(j *judged) {
			j.request.Spec.Usages = append(j.request.Spec.Usages, certificatesv1.UsageServerAuth)
		}},
		{name: "too few usages", want: csr.ReasonWrongUsages, after: func(j *judged) { j.request.Spec.Usages = j.request.Spec.Usages[:1] }},
		{name: "a usage twice", want: csr.ReasonWrongUsages, after: func(j *judged) {
			j.request.Spec.Usages = append(j.request.Spec.Usages, certificatesv1.UsageClientAuth)
		}},
		{name: "a year", want: csr.ReasonApproved, after: func(j *judged) { j.request.Spec.ExpirationSeconds = seconds(365 * 24 * 3600) }},
		{name: "more than a year", want: csr.ReasonTooLong, after: func(j *judged) { j.request.Spec.ExpirationSeconds = seconds(365*24*3600 + 1) }},
		{name: "the longest time there is", want: csr.ReasonTooLong, after: func(j *judged) { j.request.Spec.ExpirationSeconds = seconds(1<<31 - 1) }},
		{name: "a weak RSA key", want: csr.ReasonWeakKey, key: func(t *testing.T) crypto.Signer { return rsaKey(t, 1024) }},
		{name: "a weak curve", want: csr.ReasonWeakKey, key: func(t *testing.T) crypto.Signer { return ecdsaKey(t, elliptic.P224()) }},

		{name: "no PEM", want: csr.ReasonMalformed, after: func(j *judged) { j.request.Spec.Request = []byte("x") }},
		{name: "two requests", want: csr.ReasonMalformed, after: func(j *judged) {
			j.request.Spec.Request = append(j.request.Spec.Request, j.request.Spec.Request...)
		}},
		{name: "somebody else's key", want: csr.ReasonMalformed, after: func(j *judged) {
			block, _ := pem.Decode(j.request.Spec.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1 // the end of the signature
			j.request.Spec.Request = pem.EncodeToMemory(block)
		}},

		{name: "the token was used with another key", want: csr.ReasonUsedTwice, after: func(j *judged) {
			j.facts.Record.Use = jointoken.Use{Request: "node-csr-0", PublicKey: strings.Repeat("0", 64)}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := &judged{facts: facts(), ask: kubelet(vmName)}
			if test.before != nil {
				test.before(j)
			}
			newKey := p256
			if test.key != nil {
				newKey = test.key
			}
			j.request = request(encode(t, j.ask, newKey(t)))
			if test.after != nil {
				test.after(j)
			}
			got := csr.Evaluate(j.request, j.facts)
			if got.Reason != test.want || got.Approved != (test.want == csr.ReasonApproved) {
				t.Errorf("Evaluate = %t %s (%s), want %s", got.Approved, got.Reason, got.Message, test.want)
			}
			if got.Message == "" {
				t.Error("want a message")
			}
		})
	}
}

// TestEvaluateSameKeyAgain checks that a kubelet that lost the response can request a
// certificate for the same key again, under any request name.
func TestEvaluateSameKeyAgain(t *testing.T) {
	t.Parallel()
	known := facts()
	asked := request(encode(t, kubelet(vmName), ecdsaKey(t, elliptic.P256())))
	first := csr.Evaluate(asked, known)
	known.Record.Use = jointoken.Use{Request: asked.Name, PublicKey: first.PublicKey}
	for _, name := range []string{asked.Name, "node-csr-2"} {
		asked.Name = name
		if again := csr.Evaluate(asked, known); !again.Approved {
			t.Errorf("request %s with the first key: %s", name, again.Message)
		}
	}
}

func TestConcerns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*certificatesv1.CertificateSigningRequest)
		want   bool
	}{
		{name: "a token of ours", want: true},
		{name: "one that gives more than a token of ours", want: true, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Extra["authentication.kubernetes.io/pod-name"] = certificatesv1.ExtraValue{"thief"}
		}},
		{name: "a bootstrap token of ours", want: true, change: func(r *certificatesv1.CertificateSigningRequest) { *r = *bootstrapRequest("abc123") }},
		{name: "a renewal", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username, r.Spec.Groups = "system:node:"+vmName, []string{"system:nodes"}
		}},
		{name: "another service account", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username = "system:serviceaccount:numaform:numaform"
		}},
		{name: "one of the same name elsewhere", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username = "system:serviceaccount:default:numaform-bootstrap"
		}},
		{name: "kubeadm's token", change: func(r *certificatesv1.CertificateSigningRequest) {
			*r = *bootstrapRequest("abc123")
			r.Spec.Groups = []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}
		}},
		{name: "a person in our group", change: func(r *certificatesv1.CertificateSigningRequest) {
			*r = *bootstrapRequest("abc123")
			r.Spec.Username = "jane"
		}},
		{name: "no id", change: func(r *certificatesv1.CertificateSigningRequest) { *r = *bootstrapRequest("../../a") }},
		{name: "a serving certificate", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = certificatesv1.KubeletServingSignerName
		}},
		{name: "approved", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}}
		}},
		{name: "denied", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied}}
		}},
		{name: "issued", change: func(r *certificatesv1.CertificateSigningRequest) { r.Status.Certificate = []byte("x") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			asked := request(nil)
			if test.change != nil {
				test.change(asked)
			}
			if got := csr.Concerns(asked, account); got != test.want {
				t.Errorf("Concerns = %v, want %v", got, test.want)
			}
		})
	}
}

// TestCredential checks that a login identifies a token only if it exactly matches the
// login of a join token.
func TestCredential(t *testing.T) {
	t.Parallel()
	const key = "authentication.kubernetes.io/credential-id"
	for _, test := range []struct {
		name   string
		change func(*certificatesv1.CertificateSigningRequest)
		want   string
	}{
		{name: "a token of ours", want: jti},
		{name: "groups in another order", want: jti, change: func(r *certificatesv1.CertificateSigningRequest) { slices.Reverse(r.Spec.Groups) }},
		{name: "a bootstrap token of ours", want: "abc123", change: func(r *certificatesv1.CertificateSigningRequest) { *r = *bootstrapRequest("abc123") }},
		{name: "a pod", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Extra["authentication.kubernetes.io/pod-name"] = certificatesv1.ExtraValue{"thief"}
			r.Spec.Extra["authentication.kubernetes.io/pod-uid"] = certificatesv1.ExtraValue{"uid"}
		}},
		{name: "a node's token", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Extra["authentication.kubernetes.io/node-name"] = certificatesv1.ExtraValue{"n"}
		}},
		{name: "an old token without a jti", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Extra = nil }},
		{name: "two tokens", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Extra[key] = append(r.Spec.Extra[key], "JTI="+jti)
		}},
		{name: "no value", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Extra[key] = nil }},
		{name: "no jti", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Extra[key] = certificatesv1.ExtraValue{jti} }},
		{name: "a certificate", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Extra[key] = certificatesv1.ExtraValue{"X509SHA256=" + strings.Repeat("0", 64)}
		}},
		{name: "another group", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Groups = append(r.Spec.Groups, "system:masters")
		}},
		{name: "a group twice", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Groups = append(r.Spec.Groups, r.Spec.Groups[0])
		}},
		{name: "no groups", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Groups = nil }},
		{name: "a bootstrap token of another group too", change: func(r *certificatesv1.CertificateSigningRequest) {
			*r = *bootstrapRequest("abc123")
			r.Spec.Groups = append(r.Spec.Groups, "system:bootstrappers:kubeadm:default-node-token")
		}},
		{name: "a bootstrap token with a jti", change: func(r *certificatesv1.CertificateSigningRequest) {
			extra := r.Spec.Extra
			*r = *bootstrapRequest("abc123")
			r.Spec.Extra = extra
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			asked := request(nil)
			if test.change != nil {
				test.change(asked)
			}
			if got, err := csr.Credential(account, asked); got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("credential %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestBypassed(t *testing.T) {
	t.Parallel()
	approved := func(asked *certificatesv1.CertificateSigningRequest, reason string) *certificatesv1.CertificateSigningRequest {
		asked.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Reason: reason}}
		return asked
	}
	for _, asked := range []*certificatesv1.CertificateSigningRequest{request(nil), bootstrapRequest("abc123")} {
		if !csr.Bypassed(approved(asked, "AutoApproved"), account) {
			t.Errorf("a request of %s that kube-controller-manager approved was not noticed", asked.Spec.Username)
		}
	}
	kubeadm := approved(bootstrapRequest("abc123"), "AutoApproved")
	kubeadm.Spec.Groups = []string{"system:bootstrappers"}
	for name, asked := range map[string]*certificatesv1.CertificateSigningRequest{
		"our own approval": approved(request(nil), csr.ReasonApproved), "no decision": request(nil), "another's token": kubeadm,
	} {
		if csr.Bypassed(asked, account) {
			t.Errorf("%s was taken for a bypass", name)
		}
	}
}

func rsaKey(t testing.TB, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
