package jointoken_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/internal/jointoken"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)

func owner() jointoken.Owner {
	return jointoken.Owner{VM: "workers-2001", Key: "5f1d0c2ab4e94d7f8a6b1c3d5e7f9012", NodeClaim: "workers-x7k2p", UID: "uid-1"}
}

func made(t *testing.T) jointoken.Token {
	t.Helper()
	token, err := jointoken.New(owner(), now, 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestReadReturnsWhatWasMade(t *testing.T) {
	t.Parallel()
	token := made(t)
	for _, use := range []jointoken.Use{{}, {Request: "node-csr-1", PublicKey: strings.Repeat("a", 64)}} {
		token.Use, token.ResourceVersion = use, "17"
		read, err := jointoken.Read(token.Object())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(token, read, cmpopts.IgnoreUnexported(jointoken.Token{})); diff != "" {
			t.Error(diff)
		}
		if read.Reveal() != token.Reveal() || read.Used() != (use != jointoken.Use{}) {
			t.Errorf("read %s, used %v", read, read.Used())
		}
	}
}

// Kubernetes logs in whoever comes with the token, with our group and until its end.
func TestObjectIsABootstrapToken(t *testing.T) {
	t.Parallel()
	token := made(t)
	object := token.Object()
	if object.Namespace != "kube-system" || object.Name != "bootstrap-token-"+token.ID || object.Type != "bootstrap.kubernetes.io/token" {
		t.Errorf("secret %s/%s of type %s", object.Namespace, object.Name, object.Type)
	}
	for key, want := range map[string]string{
		"usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:numaform", "expiration": "2026-03-01T12:15:00Z",
	} {
		if got := string(object.Data[key]); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if _, signs := object.Data["usage-bootstrap-signing"]; signs {
		t.Error("the token may sign cluster-info: it must only log in")
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
		{"no label", func(s *corev1.Secret) { s.Labels = nil }},
		{"another namespace", func(s *corev1.Secret) { s.Namespace = "default" }},
		{"another name", func(s *corev1.Secret) { s.Name = "bootstrap-token-aaaaaa" }},
		{"another type", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }},
		{"no secret", func(s *corev1.Secret) { delete(s.Data, "token-secret") }},
		{"no id", func(s *corev1.Secret) { delete(s.Data, "token-id") }},
		{"no end", func(s *corev1.Secret) { delete(s.Data, "expiration") }},
		{"no beginning", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/issued") }},
		{"no VM", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/vm") }},
		{"no claim", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/nodeclaim") }},
		{"no claim's UID", func(s *corev1.Secret) { delete(s.Annotations, "numaform.dev/nodeclaim-uid") }},
		{"no key", func(s *corev1.Secret) { s.Annotations["numaform.dev/key"] = "x" }},
		{"nothing", func(s *corev1.Secret) { *s = corev1.Secret{} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			object := made(t).Object()
			test.change(object)
			var foreign *jointoken.ForeignError
			if _, err := jointoken.Read(object); !errors.As(err, &foreign) {
				t.Errorf("Read: %v, want a *ForeignError", err)
			}
		})
	}
}

func TestNothingPrintsTheSecret(t *testing.T) {
	t.Parallel()
	token := made(t)
	_, secret, _ := strings.Cut(token.Reveal(), ".")
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
			t.Errorf("%q holds the secret", text)
		}
	}
}

func TestFresh(t *testing.T) {
	t.Parallel()
	token := made(t)
	for after, want := range map[time.Duration]bool{0: true, 7 * time.Minute: true, 8 * time.Minute: false, time.Hour: false} {
		if got := token.Fresh(now.Add(after)); got != want {
			t.Errorf("after %s of 15m: fresh = %v, want %v", after, got, want)
		}
	}
	token.Use = jointoken.Use{Request: "node-csr-1", PublicKey: "k"}
	if token.Fresh(now) {
		t.Error("a used token is fresh")
	}
}

func TestIDOf(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]bool{
		"system:bootstrap:abc123": true, "system:bootstrap:": false, "system:bootstrap:ABC123": false, "system:bootstrap:abc1234": false,
		"system:bootstrap:../abc": false, "abc123": false, "system:node:abc123": false,
	} {
		if id, got := jointoken.IDOf(user); got != want || got && id != "abc123" {
			t.Errorf("IDOf(%q) = %q, %v, want %v", user, id, got, want)
		}
	}
}
