package csr_test

import (
	"context"
	"crypto/elliptic"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/jointoken"
)

// TestTwoTokensOfOneVM checks that a token in an earlier seed of the same VM is valid, too,
// but that only one of the two tokens can be used.
func TestTwoTokensOfOneVM(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "seeded-twice-2010")
	again := w.login(t, w.mint(t, g).Reveal())
	ask(t, g.kube, "node-csr-seeded-1", "seeded-twice-2010", ecdsaKey(t, elliptic.P256()))
	if got := w.decision(t, "node-csr-seeded-1"); got.Type != certificatesv1.CertificateApproved {
		t.Fatalf("the earlier token: %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
	ask(t, again, "node-csr-seeded-2", "seeded-twice-2010", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-seeded-2"), csr.ReasonUsedTwice, g)
}

// TestTokenEndsWithItsRecord checks that a token cannot read Secrets, that requests with it
// are denied once its record is deleted, and that it becomes invalid soon afterwards.
func TestTokenEndsWithItsRecord(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "revoked-2011")
	eventually(t, "reading Secrets", func(ctx context.Context) error {
		if _, err := g.kube.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %w, want Forbidden", err)
		}
		return nil
	})
	if err := w.client.Delete(t.Context(), g.record.Object()); err != nil {
		t.Fatal(err)
	}
	ask(t, g.kube, "node-csr-revoked", "revoked-2011", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-revoked"), csr.ReasonTokenGone, g)
	eventually(t, "logging in with a token whose record is gone", func(ctx context.Context) error {
		if _, err := g.kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %w, want Unauthorized", err)
		}
		return nil
	})
}

// TestOtherTokensOfTheAccount checks that other tokens of the same ServiceAccount are not
// accepted: an unbound one, and one bound to a Secret that is not a record.
func TestOtherTokensOfTheAccount(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "others-2012")
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: liveAccount.Namespace, Name: "foreign"}}
	if err := w.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	free, bound := g.record.Request(time.Hour), g.record.Request(time.Hour)
	free.Spec.BoundObjectRef = nil
	bound.Spec.BoundObjectRef.Name, bound.Spec.BoundObjectRef.UID = foreign.Name, foreign.UID
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: liveAccount.Namespace, Name: liveAccount.Name}}
	for _, answer := range []*authenticationv1.TokenRequest{free, bound} {
		if err := w.client.SubResource("token").Create(t.Context(), account, answer); err != nil {
			t.Fatal(err)
		}
	}
	for name, token := range map[string]string{"free": free.Status.Token, "bound": bound.Status.Token} {
		ask(t, w.login(t, token), "node-csr-others-"+name, "others-2012", ecdsaKey(t, elliptic.P256()))
		wantDenied(t, w.decision(t, "node-csr-others-"+name), csr.ReasonTokenGone, g)
	}
}

// TestImpersonatedLogin checks that a user who may impersonate the ServiceAccount and knows
// a token's jti is not accepted as the holder of that token. Only a user who may also
// impersonate the UID, the groups and the extra attributes could be accepted.
func TestImpersonatedLogin(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "played-2013")
	user := "system:serviceaccount:" + liveAccount.Namespace + ":" + liveAccount.Name
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + liveAccount.Namespace, "system:authenticated"}
	extra := map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=" + g.token.ID}}
	pod := map[string][]string{"authentication.kubernetes.io/pod-name": {"thief"}, "authentication.kubernetes.io/credential-id": {"JTI=" + g.token.ID}}
	uid := string(g.token.Account)
	for i, play := range []rest.ImpersonationConfig{
		{UserName: user},
		{UserName: user, UID: uid},
		{UserName: user, Extra: extra},
		{UserName: user, UID: "other", Extra: extra},
		{UserName: user, UID: uid, Extra: pod},
		{UserName: user, UID: uid, Extra: extra, Groups: append([]string{"example:other"}, groups...)},
		{UserName: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", jointoken.Group}, Extra: extra},
		{UserName: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", jointoken.Group, "example:other"}},
	} {
		config := rest.CopyConfig(w.cluster.Config)
		config.Impersonate = play
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("node-csr-played-%d", i)
		ask(t, kube, name, "played-2013", ecdsaKey(t, elliptic.P256()))
		wantDenied(t, w.decision(t, name), csr.ReasonWrongLogin, g)
	}
	ask(t, g.kube, "node-csr-played", "played-2013", ecdsaKey(t, elliptic.P256()))
	if got := w.decision(t, "node-csr-played"); got.Type != certificatesv1.CertificateApproved {
		t.Errorf("the VM itself: %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
}

// TestRecordThatWasChanged checks that a record that was modified manually admits no node.
func TestRecordThatWasChanged(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "changed-2014")
	changed := g.record.Object()
	delete(changed.Annotations, "numaform.dev/vm")
	if err := w.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	ask(t, g.kube, "node-csr-changed", "changed-2014", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-changed"), csr.ReasonTokenChanged, g)
}

// earlier creates a claim with a bootstrap token as releases without records did.
func (w *world) earlier(t *testing.T, name string) (*karpv1.NodeClaim, kubernetes.Interface) {
	t.Helper()
	claim := w.claim(t, name, fleet.Key(fmt.Sprintf("%032x", len(name))))
	owner := jointoken.Owner{VM: name, Key: "0123456789abcdef0123456789abcdef", NodeClaim: claim.Name, UID: claim.UID}
	token, object, err := jointoken.NewBootstrap(owner, time.Now(), 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	claim.Annotations[jointoken.AnnotationToken] = token.ID
	if err := errors.Join(w.client.Create(t.Context(), object), w.client.Update(t.Context(), claim)); err != nil {
		t.Fatal(err)
	}
	return claim, w.login(t, token.Reveal())
}

// TestTokenOfAnEarlierRelease checks that a VM that began to join before an upgrade can
// join after it, with a token whose Secret numaform can no longer read. The token is still
// valid only for the VM's name and for one key.
func TestTokenOfAnEarlierRelease(t *testing.T) {
	w := theWorld(t)
	claim, kube := w.earlier(t, "earlier-2015")
	g := &guest{token: jointoken.Example("")}
	ask(t, kube, "node-csr-earlier-thief", "control-plane-1", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-earlier-thief"), csr.ReasonWrongName, g)
	key := ecdsaKey(t, elliptic.P256())
	ask(t, kube, "node-csr-earlier", "earlier-2015", key)
	if got := w.decision(t, "node-csr-earlier"); got.Type != certificatesv1.CertificateApproved {
		t.Fatalf("decision %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
	secret := &corev1.Secret{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: liveAccount.Namespace, Name: jointoken.RecordName(claim.UID)}, secret); err != nil {
		t.Fatal(err)
	}
	if record, err := jointoken.Read(secret); err != nil || record.Use.Request != "node-csr-earlier" {
		t.Errorf("used by %+v (%v), want node-csr-earlier", record.Use, err)
	}
	ask(t, kube, "node-csr-earlier-2", "earlier-2015", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-earlier-2"), csr.ReasonUsedTwice, g)
	ask(t, kube, "node-csr-earlier-3", "earlier-2015", key)
	if got := w.decision(t, "node-csr-earlier-3"); got.Type != certificatesv1.CertificateApproved {
		t.Errorf("the same kubelet again: %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
}

// TestTokenThatAnEarlierReleaseSawUsed checks that a token counts as used if an earlier
// release approved a request with it.
func TestTokenThatAnEarlierReleaseSawUsed(t *testing.T) {
	w := theWorld(t)
	_, kube := w.earlier(t, "seen-2016")
	w.paused.Store(true)
	ask(t, kube, "node-csr-seen-1", "seen-2016", ecdsaKey(t, elliptic.P256()))
	approved := &certificatesv1.CertificateSigningRequest{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "node-csr-seen-1"}, approved); err != nil {
		t.Fatal(err)
	}
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: csr.ReasonApproved,
	}}
	err := w.client.SubResource("approval").Update(t.Context(), approved)
	w.paused.Store(false)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, kube, "node-csr-seen-2", "seen-2016", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-seen-2"), csr.ReasonUsedTwice, &guest{token: jointoken.Example("")})
}

// TestTokenOfNoClaim checks that a bootstrap token that no NodeClaim names is denied: its
// node has joined or was given up.
func TestTokenOfNoClaim(t *testing.T) {
	w := theWorld(t)
	claim, kube := w.earlier(t, "lost-2017")
	delete(claim.Annotations, jointoken.AnnotationToken)
	if err := w.client.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	ask(t, kube, "node-csr-lost", "lost-2017", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-lost"), csr.ReasonTokenGone, &guest{token: jointoken.Example("")})
}

var errBroken = errors.New("the connection broke")

// breaking is a transport that fails requests of one method for one path.
type breaking struct {
	http.RoundTripper
	method, path string
}

func (b breaking) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == b.method && strings.Contains(request.URL.Path, b.path) {
		return nil, errBroken
	}
	return b.RoundTripper.RoundTrip(request)
}

// TestCallsThatFail checks that a request is evaluated again if a call fails, instead of
// being decided with incomplete facts.
func TestCallsThatFail(t *testing.T) {
	w := theWorld(t)
	w.paused.Store(true)
	defer w.paused.Store(false)
	g := w.guest(t, "broken-2018")
	_, kube := w.earlier(t, "broken-2019")
	ask(t, g.kube, "node-csr-broken", "broken-2018", ecdsaKey(t, elliptic.P256()))
	ask(t, kube, "node-csr-broken-earlier", "broken-2019", ecdsaKey(t, elliptic.P256()))
	for _, tt := range []struct{ request, method, path string }{
		{"node-csr-broken", http.MethodGet, "/secrets"},
		{"node-csr-broken", http.MethodGet, "/nodeclaims/"},
		{"node-csr-broken", http.MethodPut, "/secrets/"},
		{"node-csr-broken", http.MethodPut, "/approval"},
		{"node-csr-broken-earlier", http.MethodGet, "/nodeclaims"},
		{"node-csr-broken-earlier", http.MethodGet, "/secrets/"},
		{"node-csr-broken-earlier", http.MethodGet, "/certificatesigningrequests"},
		{"node-csr-broken-earlier", http.MethodPost, "/secrets"},
		{"node-csr-broken-earlier", http.MethodPut, "/approval"},
		{"node-csr-broken", "", ""},
		{"node-csr-broken-earlier", "", ""},
	} {
		config := rest.CopyConfig(w.cluster.Config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return breaking{next, tt.method, tt.path} })
		through, err := client.New(config, client.Options{Scheme: scheme.Scheme})
		if err != nil {
			t.Fatal(err)
		}
		request := &certificatesv1.CertificateSigningRequest{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Name: tt.request}, request); err != nil {
			t.Fatal(err)
		}
		controller := csr.NewController(csr.Config{
			Client: through, Live: through, Events: &w.events, Clock: clock.RealClock{}, Account: liveAccount, Paused: func() bool { return false },
		})
		_, err = controller.Reconcile(t.Context(), request)
		if breaks := tt.method != ""; errors.Is(err, errBroken) != breaks {
			t.Errorf("%s, %s of %s fails: %v", tt.request, tt.method, tt.path, err)
		}
		if err := w.client.Get(t.Context(), client.ObjectKey{Name: tt.request}, request); err != nil {
			t.Fatal(err)
		}
		if decided := len(request.Status.Conditions) > 0; decided != (tt.method == "") {
			t.Errorf("%s, %s of %s fails: decided %+v", tt.request, tt.method, tt.path, request.Status.Conditions)
		}
	}
}
