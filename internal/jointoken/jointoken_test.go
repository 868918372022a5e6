package jointoken_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/jointoken"
)

const jti = "f8a2a1c0-5f1d-4c2a-b4e9-4d7f8a6b1c3d"

var now = time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)

func owner() jointoken.Owner {
	return jointoken.Owner{VM: "workers-2001", Key: "5f1d0c2ab4e94d7f8a6b1c3d5e7f9012", NodeClaim: "workers-x7k2p", UID: "uid-1"}
}

func record() *jointoken.Record {
	return &jointoken.Record{Namespace: "numaform", Owner: owner(), Secret: "secret-uid", ResourceVersion: "17"}
}

// claims returns the claims in a token of the API server that is bound to record.
func claims() map[string]any {
	return map[string]any{
		"jti": jti, "iat": now.Unix() + 30, "exp": now.Unix() + 30 + 900,
		"kubernetes.io": map[string]any{
			"namespace":      "numaform",
			"secret":         map[string]any{"name": "numaform-join-uid-1", "uid": "secret-uid"},
			"serviceaccount": map[string]any{"name": "numaform-bootstrap", "uid": "account-uid"},
		},
	}
}

// answer returns the API server's response with a token that has the claims.
func answer(t *testing.T, claims any) *authenticationv1.TokenRequest {
	t.Helper()
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	token := "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString(text) + ".c2lnbmF0dXJl"
	return &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: token}}
}

func minted(t *testing.T) jointoken.Token {
	t.Helper()
	token, err := record().Minted(answer(t, claims()), now, 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func bootstrap(t *testing.T) (jointoken.Token, *corev1.Secret) {
	t.Helper()
	token, object, err := jointoken.NewBootstrap(owner(), now, 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	token.Minted = now.Add(time.Second).Truncate(time.Second)
	return token, object
}

func TestReadReturnsWhatWasMade(t *testing.T) {
	t.Parallel()
	token, _ := bootstrap(t)
	for _, use := range []jointoken.Use{{}, {Request: "node-csr-1", PublicKey: strings.Repeat("a", 64)}} {
		for _, grants := range [][]jointoken.Grant{nil, {minted(t).Grant}, {minted(t).Grant, token.Grant}} {
			made := record()
			made.Use, made.Grants = use, grants
			read, err := jointoken.Read(made.Object())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(made, &read); diff != "" {
				t.Error(diff)
			}
			if read.Used() != (use != jointoken.Use{}) {
				t.Errorf("used %v", read.Used())
			}
		}
	}
}

// TestObject checks that a record is deleted with its claim, is found by its tokens and
// contains no secrets.
func TestObject(t *testing.T) {
	t.Parallel()
	made := record()
	made.Add(minted(t).Grant)
	object := made.Object()
	if object.Namespace != "numaform" || object.Name != "numaform-join-uid-1" || len(object.Data)+len(object.StringData) > 0 {
		t.Errorf("secret %s/%s with data %v", object.Namespace, object.Name, object.Data)
	}
	if _, found := object.Labels["token.numaform.dev/"+jti]; !found || object.Labels["numaform.dev/join"] != "true" {
		t.Errorf("labels %v", object.Labels)
	}
	if refs := object.OwnerReferences; len(refs) != 1 || refs[0].Kind != "NodeClaim" || refs[0].Name != "workers-x7k2p" || refs[0].UID != "uid-1" {
		t.Errorf("owners %+v, want the NodeClaim", refs)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*corev1.Secret)
	}{
		{"no label", func(s *corev1.Secret) { delete(s.Labels, "numaform.dev/join") }},
		{"another name", func(s *corev1.Secret) { s.Name = "numaform-join-uid-2" }},
		{"no VM", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/vm") }},
		{"no claim", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/nodeclaim") }},
		{"another claim's UID", func(s *corev1.Secret) { s.Annotations["numaform.dev/nodeclaim-uid"] = "uid-2" }},
		{"no claim's UID", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/nodeclaim-uid") }},
		{"no key", func(s *corev1.Secret) { s.Annotations["numaform.dev/key"] = "x" }},
		{"half a use", func(s *corev1.Secret) { s.Annotations["numaform.dev/used-by"] = "node-csr-1" }},
		{"the other half", func(s *corev1.Secret) { s.Annotations["numaform.dev/used-key"] = "k" }},
		{"a label of another token", func(s *corev1.Secret) { s.Labels["token.numaform.dev/abcdef"] = "" }},
		{"no label of the token", func(s *corev1.Secret) { delete(s.Labels, "token.numaform.dev/"+jti) }},
		{"no token", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/tokens") }},
		{"tokens that are no list", func(s *corev1.Secret) { s.Annotations["numaform.dev/tokens"] = "{" }},
		{"a token that never began", func(s *corev1.Secret) {
			s.Annotations["numaform.dev/tokens"] = `[{"id":"` + jti + `","account":"a","issued":"2026-03-01T12:00:00Z","expires":"2026-03-01T12:15:00Z"}]`
		}},
		{"a token that ends before it begins", func(s *corev1.Secret) {
			s.Annotations["numaform.dev/tokens"] = strings.ReplaceAll(s.Annotations["numaform.dev/tokens"], "12:15", "11:15")
		}},
		{"nothing", func(s *corev1.Secret) { *s = corev1.Secret{} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			made := record()
			made.Add(minted(t).Grant)
			object := made.Object()
			test.change(object)
			var untrusted *jointoken.UntrustedError
			if _, err := jointoken.Read(object); !errors.As(err, &untrusted) {
				t.Errorf("Read: %v, want a *UntrustedError", err)
			}
		})
	}
}

// TestRequest checks that the requested lifetime is at least ten minutes, and never the one
// by which the API server recognizes old clients, whose tokens it makes valid for a year.
func TestRequest(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]int64{
		5 * time.Minute: 600, 10 * time.Minute: 600, 15 * time.Minute: 900, 24 * time.Hour: 86400, 3607 * time.Second: 3606,
	} {
		spec := record().Request(ttl).Spec
		bound := spec.BoundObjectRef
		if *spec.ExpirationSeconds != want || len(spec.Audiences) > 0 || bound.Kind != "Secret" || bound.Name != "numaform-join-uid-1" || bound.UID != "secret-uid" {
			t.Errorf("%s: requests %d s, audiences %v, bound to %+v", ttl, *spec.ExpirationSeconds, spec.Audiences, bound)
		}
	}
}

func TestMinted(t *testing.T) {
	t.Parallel()
	issued := now.Truncate(time.Second)
	for ttl, ends := range map[time.Duration]time.Duration{5 * time.Minute: 5 * time.Minute, 15 * time.Minute: 15 * time.Minute, time.Hour: 15 * time.Minute} {
		token, err := record().Minted(answer(t, claims()), now, ttl)
		if err != nil {
			t.Fatal(err)
		}
		want := jointoken.Grant{ID: jti, Account: "account-uid", Minted: issued.Add(30 * time.Second), Issued: issued, Expires: issued.Add(ends)}
		if diff := cmp.Diff(want, token.Grant); diff != "" {
			t.Error(diff)
		}
		if token.Form() != v1alpha1.TokenServiceAccount || token.VM != "workers-2001" {
			t.Errorf("%s of form %s", token, token.Form())
		}
		// By the API server's clock, the token has the same lifetime, starting when the API
		// server created it.
		if last := want.Minted.Add(ends); token.Ended(last) || !token.Ended(last.Add(time.Second)) {
			t.Errorf("with %s the token does not expire at %s", ttl, last)
		}
	}
}

func TestMintedRefuses(t *testing.T) {
	t.Parallel()
	inner := func(c map[string]any) map[string]any { return c["kubernetes.io"].(map[string]any) }
	for name, change := range map[string]func(map[string]any){
		"no jti":         func(c map[string]any) { delete(c, "jti") },
		"another jti":    func(c map[string]any) { c["jti"] = "x" },
		"bound to none":  func(c map[string]any) { delete(inner(c), "secret") },
		"another Secret": func(c map[string]any) { inner(c)["secret"] = map[string]any{"uid": "other"} },
		"no account":     func(c map[string]any) { delete(inner(c), "serviceaccount") },
		"no life":        func(c map[string]any) { c["exp"] = c["iat"] },
	} {
		given := claims()
		change(given)
		text := answer(t, given)
		if _, err := record().Minted(text, now, time.Minute); err == nil || strings.Contains(err.Error(), text.Status.Token) {
			t.Errorf("%s: %v, want an error without the token", name, err)
		}
	}
	for _, text := range []string{"", "a.b", "a.!.c", "a.e30.c"} {
		if _, err := record().Minted(&authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: text}}, now, time.Minute); err == nil {
			t.Errorf("%q was read as a token", text)
		}
	}
}

// TestAdd checks that Add drops expired tokens, and the oldest of too many.
func TestAdd(t *testing.T) {
	t.Parallel()
	r := record()
	for i := range 20 {
		issued := now.Add(time.Duration(i) * time.Minute)
		r.Add(jointoken.Grant{ID: fmt.Sprintf("aaaa%02d", i), Minted: issued, Issued: issued, Expires: issued.Add(5 * time.Minute)})
		if first := r.Grants[0]; first.Expires.Before(issued) || len(r.Grants) > 6 {
			t.Fatalf("after %d: %d tokens from %s", i, len(r.Grants), first.ID)
		}
	}
	if want := now.Add(24 * time.Minute); !r.Expires().Equal(want) {
		t.Errorf("the last ends at %s, want %s", r.Expires(), want)
	}
	for i := range 20 {
		r.Add(jointoken.Grant{ID: fmt.Sprintf("bbbb%02d", i), Minted: now, Issued: now, Expires: now.Add(time.Hour)})
	}
	if _, oldest := r.Grant("bbbb12"); len(r.Grants) != 8 || !oldest {
		t.Errorf("%d tokens, the oldest %s", len(r.Grants), r.Grants[0].ID)
	}
	if _, there := r.Grant("bbbb11"); there {
		t.Error("the ninth token is still valid")
	}
}

// TestBootstrapToken checks that the Secret makes Kubernetes authenticate a client with the
// token as a member of our group until the token expires.
func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	token, object := bootstrap(t)
	if object.Namespace != "kube-system" || object.Name != "bootstrap-token-"+token.ID || object.Type != "bootstrap.kubernetes.io/token" {
		t.Errorf("secret %s/%s of type %s", object.Namespace, object.Name, object.Type)
	}
	_, secret, _ := strings.Cut(token.Reveal(), ".")
	for key, want := range map[string]string{
		"usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:numaform", "expiration": "2026-03-01T12:15:00Z",
		"token-id": token.ID, "token-secret": secret,
	} {
		if got := string(object.Data[key]); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if _, signs := object.Data["usage-bootstrap-signing"]; signs {
		t.Error("the token may sign cluster-info: it must only authenticate")
	}
	if refs := object.OwnerReferences; len(refs) != 1 || refs[0].Kind != "NodeClaim" || refs[0].UID != "uid-1" {
		t.Errorf("owners %+v, want the NodeClaim", refs)
	}
	// An older release reads these annotations for a VM that is joining.
	of := owner()
	want := map[string]string{
		"numaform.dev/vm": of.VM, "numaform.dev/key": string(of.Key), "numaform.dev/nodeclaim": of.NodeClaim,
		"numaform.dev/nodeclaim-uid": string(of.UID), "numaform.dev/issued": "2026-03-01T12:00:00Z",
	}
	if diff := cmp.Diff(want, object.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if token.Form() != v1alpha1.TokenBootstrap || !jointoken.KnownID(token.ID) {
		t.Errorf("%s of form %s", token, token.Form())
	}
}

// TestExample checks that the token with which templates are tested has the form and length
// of a real one.
func TestExample(t *testing.T) {
	t.Parallel()
	if token := jointoken.Example(v1alpha1.TokenBootstrap).Reveal(); !bootstraputil.IsValidBootstrapToken(token) {
		t.Errorf("%q is not a bootstrap token", token)
	}
	if token := jointoken.Example(v1alpha1.TokenServiceAccount).Reveal(); strings.Count(token, ".") != 2 || len(token) < 800 {
		t.Errorf("%q is not a JWT", token)
	}
}

func TestNothingPrintsTheSecret(t *testing.T) {
	t.Parallel()
	plain, _ := bootstrap(t)
	for _, token := range []jointoken.Token{minted(t), plain} {
		secret := token.Reveal()[strings.LastIndex(token.Reveal(), ".")+1:]
		encoded, err := json.Marshal(token)
		if err != nil {
			t.Fatal(err)
		}
		type holder struct{ inner jointoken.Token }
		inside := holder{inner: token}
		for _, text := range []string{
			token.String(), fmt.Sprintf("%v %+v %#v %s %q", token, token, token, token, token),
			fmt.Sprintf("%v %+v %#v", &token, &token, &token), fmt.Sprintf("%v %+v %#v", inside, inside, &inside), string(encoded),
			fmt.Errorf("dropping %w: %v", errors.New("x"), token).Error(),
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%q contains the secret", text)
			}
		}
	}
}

func TestBootstrapID(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]bool{
		"system:bootstrap:abc123": true, "system:bootstrap:": false, "system:bootstrap:ABC123": false, "system:bootstrap:abc1234": false,
		"system:bootstrap:../abc": false, "abc123": false, "system:node:abc123": false,
	} {
		if id, got := jointoken.BootstrapID(user); got != want || got && id != "abc123" {
			t.Errorf("BootstrapID(%q) = %q, %v, want %v", user, id, got, want)
		}
	}
}

func TestJTI(t *testing.T) {
	t.Parallel()
	for credential, want := range map[string]bool{
		"JTI=" + jti: true, jti: false, "JTI=": false, "JTI=abcdef": false, "jti=" + jti: false, "JTI=" + jti + "x": false, "X509SHA256=" + jti: false, "JTI=../../a": false,
	} {
		if id, got := jointoken.JTI(credential); got != want || got && id != jti {
			t.Errorf("JTI(%q) = %q, %v, want %v", credential, id, got, want)
		}
	}
}
