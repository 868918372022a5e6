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

// ecdsaKey returns a key as kubelets make it.
func ecdsaKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// kubelet returns what the kubelet of a node asks with.
func kubelet(node string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
}

// encode signs a request with its key.
func encode(t testing.TB, template x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func token(t testing.TB) *jointoken.Token {
	t.Helper()
	made, err := jointoken.New(jointoken.Owner{VM: vmName, Key: vmKey, NodeClaim: "workers-x7k2p", UID: "uid-1"}, issued, 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return &made
}

func claim() *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "workers-x7k2p", UID: "uid-1",
		Annotations: map[string]string{v1alpha1.AnnotationVM: vmName, v1alpha1.AnnotationKey: string(vmKey)},
	}}
}

func request(id string, text []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr-1", CreationTimestamp: metav1.NewTime(issued.Add(time.Minute))},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: text, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username: "system:bootstrap:" + id,
			Groups:   []string{"system:bootstrappers", jointoken.Group, "system:authenticated"},
			Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// judged is a request with what is known of its token, both as they should be.
type judged struct {
	request *certificatesv1.CertificateSigningRequest
	facts   csr.Facts
	ask     x509.CertificateRequest
}

func TestJudge(t *testing.T) {
	t.Parallel()
	p256 := func(t *testing.T) crypto.Signer { return ecdsaKey(t, elliptic.P256()) }
	for _, test := range []struct {
		name   string
		key    func(*testing.T) crypto.Signer
		before func(*judged) // the request is signed
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
		{name: "a weak RSA key", want: csr.ReasonWeakKey, key: func(t *testing.T) crypto.Signer { return rsaKey(t, 1024) }},
		{name: "a weak curve", want: csr.ReasonWeakKey, key: func(t *testing.T) crypto.Signer { return ecdsaKey(t, elliptic.P224()) }},

		{name: "no PEM", want: csr.ReasonMalformed, after: func(j *judged) { j.request.Spec.Request = []byte("x") }},
		{name: "two requests", want: csr.ReasonMalformed, after: func(j *judged) {
			j.request.Spec.Request = append(j.request.Spec.Request, j.request.Spec.Request...)
		}},
		{name: "somebody else's key", want: csr.ReasonMalformed, after: func(j *judged) {
			block, _ := pem.Decode(j.request.Spec.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1 // the signature's end
			j.request.Spec.Request = pem.EncodeToMemory(block)
		}},

		{name: "the token was used with another key", want: csr.ReasonUsedTwice, after: func(j *judged) {
			j.facts.Token.Use = jointoken.Use{Request: "node-csr-0", PublicKey: strings.Repeat("0", 64)}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := &judged{facts: csr.Facts{Token: token(t), Claim: claim()}, ask: kubelet(vmName)}
			if test.before != nil {
				test.before(j)
			}
			newKey := p256
			if test.key != nil {
				newKey = test.key
			}
			j.request = request(j.facts.Token.ID, encode(t, j.ask, newKey(t)))
			secret := j.facts.Token.Reveal()
			if test.after != nil {
				test.after(j)
			}
			got := csr.Judge(j.request, j.facts)
			action := csr.Deny
			if test.want == csr.ReasonApproved {
				action = csr.Approve
			}
			if got.Reason != test.want || got.Action != action {
				t.Errorf("Judge = %d %s (%s), want %d %s", got.Action, got.Reason, got.Message, action, test.want)
			}
			if got.Message == "" || strings.Contains(got.Message, secret[7:]) {
				t.Errorf("message %q: want one without the token's secret", got.Message)
			}
		})
	}
}

// A kubelet that lost the answer asks again with the same key, under any name.
func TestJudgeSameKeyAgain(t *testing.T) {
	t.Parallel()
	owned := token(t)
	facts := csr.Facts{Token: owned, Claim: claim()}
	asked := request(owned.ID, encode(t, kubelet(vmName), ecdsaKey(t, elliptic.P256())))
	first := csr.Judge(asked, facts)
	owned.Use = jointoken.Use{Request: asked.Name, PublicKey: first.PublicKey}
	for _, name := range []string{asked.Name, "node-csr-2"} {
		asked.Name = name
		if again := csr.Judge(asked, facts); again.Action != csr.Approve {
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
		{name: "a renewal", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username, r.Spec.Groups = "system:node:"+vmName, []string{"system:nodes"}
		}},
		{name: "kubeadm's token", change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Groups = []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}
		}},
		{name: "a person in our group", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "jane" }},
		{name: "no id", change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "system:bootstrap:../../a" }},
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
			asked := request("abc123", nil)
			if test.change != nil {
				test.change(asked)
			}
			if id, got := csr.Concerns(asked); got != test.want || got && id != "abc123" {
				t.Errorf("Concerns = %q, %v, want %v", id, got, test.want)
			}
		})
	}
}

func TestBypassed(t *testing.T) {
	t.Parallel()
	approved := func(reason string) *certificatesv1.CertificateSigningRequest {
		asked := request("abc123", nil)
		asked.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Reason: reason}}
		return asked
	}
	if !csr.Bypassed(approved("AutoApproved")) {
		t.Error("a request that kube-controller-manager approved was not noticed")
	}
	kubeadm := approved("AutoApproved")
	kubeadm.Spec.Groups = []string{"system:bootstrappers"}
	for name, asked := range map[string]*certificatesv1.CertificateSigningRequest{
		"our own approval": approved(csr.ReasonApproved), "no decision": request("abc123", nil), "another's token": kubeadm,
	} {
		if csr.Bypassed(asked) {
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
