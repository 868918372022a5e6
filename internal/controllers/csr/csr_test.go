package csr_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/testenv"
)

// patience is how long a decision may take on a busy machine.
const patience = time.Minute

// published records events.
type published struct {
	// mu guards list.
	mu   sync.Mutex
	list []events.Event
}

func (p *published) Publish(list ...events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, list...)
}

// of returns the events about an object.
func (p *published) of(name string) []events.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []events.Event
	for _, event := range p.list {
		if object, ok := event.InvolvedObject.(client.Object); ok && object.GetName() == name {
			found = append(found, event)
		}
	}
	return found
}

// liveAccount is the ServiceAccount that nodes join as in these tests.
var liveAccount = csr.Account{Namespace: "default", Name: "numaform-bootstrap"}

// world is a control plane with the running controller.
type world struct {
	cluster *testenv.Cluster
	client  client.Client
	events  published
	paused  atomic.Bool
	stop    func() error
}

// shared holds the world of all tests. The first test that needs it starts it.
type shared struct {
	once  sync.Once
	world *world
	err   error
}

var control shared

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if control.world != nil {
		if err := control.world.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func theWorld(t *testing.T) *world {
	t.Helper()
	enginetest.Long(t, "a control plane")
	crds := testenv.CRDs(t)
	control.once.Do(func() { control.world, control.err = startWorld(crds) })
	if control.err != nil {
		t.Fatal(control.err)
	}
	return control.world
}

func startWorld(crds []string) (w *world, err error) {
	w = &world{}
	if w.cluster, err = testenv.StartFullControlPlane(filepath.Join("..", "..", "..", ".tools", "bin")); err != nil {
		return nil, err
	}
	w.stop = w.cluster.Close
	if err := w.cluster.InstallCRDs(crds[0]); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	manager, err := controllerruntime.NewManager(w.cluster.Config, controllerruntime.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	controller := csr.NewController(csr.Config{
		Client: manager.GetClient(), Live: manager.GetAPIReader(), Events: &w.events, Clock: clock.RealClock{}, Account: liveAccount,
		Paused: w.paused.Load,
	})
	if w.client, err = client.New(w.cluster.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: liveAccount.Namespace, Name: liveAccount.Name}}
	if err := errors.Join(
		controller.Register(context.Background(), manager), w.client.Create(context.Background(), object), w.bind("system:node-bootstrapper"),
	); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	w.stop = func() error {
		cancel()
		return errors.Join(<-ended, w.cluster.Close())
	}
	return w, nil
}

// bind grants joining nodes a role, as the chart does.
func (w *world) bind(role string) error {
	return w.client.Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "numaform-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Namespace: liveAccount.Namespace, Name: liveAccount.Name},
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: jointoken.Group},
		},
	})
}

// guest is the VM of a claim, with the token in its seed.
type guest struct {
	claim  *karpv1.NodeClaim
	record *jointoken.Record
	token  jointoken.Token
	// kube logs in with the token.
	kube kubernetes.Interface
}

// claim creates the NodeClaim of a VM.
func (w *world) claim(t *testing.T, name string, key fleet.Key) *karpv1.NodeClaim {
	t.Helper()
	made := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "claim-of-" + name,
			Annotations: map[string]string{v1alpha1.AnnotationVM: name, v1alpha1.AnnotationKey: string(key)},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		},
	}
	if err := w.client.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	return made
}

// guest creates a claim with its token.
func (w *world) guest(t *testing.T, name string) *guest {
	t.Helper()
	key := fleet.Key(fmt.Sprintf("%032x", len(name)))
	g := &guest{claim: w.claim(t, name, key)}
	g.record = &jointoken.Record{
		Namespace: liveAccount.Namespace, Owner: jointoken.Owner{VM: name, Key: key, NodeClaim: g.claim.Name, UID: g.claim.UID},
	}
	object := g.record.Object()
	if err := w.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	g.record.Secret, g.record.ResourceVersion = object.UID, object.ResourceVersion
	g.token = w.mint(t, g)
	g.kube = w.login(t, g.token.Reveal())
	return g
}

// mint creates another token for a guest.
func (w *world) mint(t *testing.T, g *guest) jointoken.Token {
	t.Helper()
	answer := g.record.Request(15 * time.Minute)
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: liveAccount.Namespace, Name: liveAccount.Name}}
	if err := w.client.SubResource("token").Create(t.Context(), object, answer); err != nil {
		t.Fatal(err)
	}
	token, err := g.record.Minted(answer, time.Now(), 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g.record.Add(token.Grant)
	updated := g.record.Object()
	if err := w.client.Update(t.Context(), updated); err != nil {
		t.Fatal(err)
	}
	g.record.ResourceVersion = updated.ResourceVersion
	return token
}

// login returns a client that authenticates with the token.
func (w *world) login(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: w.cluster.Config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: w.cluster.CA}, BearerToken: token, QPS: 100, Burst: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// ask requests a certificate for a node's name, as kubelet does. It retries, because the
// API server may not accept a new token at once.
func ask(t *testing.T, kube kubernetes.Interface, request, node string, key crypto.Signer) {
	t.Helper()
	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: request},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: encode(t, kubelet(node), key), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	eventually(t, "asking for a certificate", func(ctx context.Context) error {
		_, err := kube.CertificatesV1().CertificateSigningRequests().Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// eventually repeats try until it succeeds.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

var errWait = errors.New("not yet")

// decision waits for the decision on a request: its first condition.
func (w *world) decision(t *testing.T, request string) certificatesv1.CertificateSigningRequestCondition {
	t.Helper()
	object := &certificatesv1.CertificateSigningRequest{}
	eventually(t, "waiting for a decision about "+request, func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKey{Name: request}, object); err != nil {
			return err
		}
		if len(object.Status.Conditions) == 0 {
			return errWait
		}
		return nil
	})
	return object.Status.Conditions[0]
}

// certificate waits for the certificate of an approved request.
func (w *world) certificate(t *testing.T, request string) *x509.Certificate {
	t.Helper()
	object := &certificatesv1.CertificateSigningRequest{}
	eventually(t, "waiting for the certificate of "+request, func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKey{Name: request}, object); err != nil {
			return err
		}
		if len(object.Status.Certificate) == 0 {
			return errWait
		}
		return nil
	})
	block, _ := pem.Decode(object.Status.Certificate)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// secret returns the part of the token that no message may contain.
func (g *guest) secret() string { return g.token.Reveal()[strings.LastIndex(g.token.Reveal(), ".")+1:] }

func wantDenied(t *testing.T, got certificatesv1.CertificateSigningRequestCondition, reason string, g *guest) {
	t.Helper()
	if got.Type != certificatesv1.CertificateDenied || got.Reason != reason {
		t.Errorf("decision %s %s (%s), want Denied %s", got.Type, got.Reason, got.Message, reason)
	}
	if strings.Contains(got.Message, g.secret()) {
		t.Errorf("message %q holds the token's secret", got.Message)
	}
}

func TestGuestJoins(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "joins-2001")
	ask(t, g.kube, "node-csr-joins", "joins-2001", ecdsaKey(t, elliptic.P256()))
	if got := w.decision(t, "node-csr-joins"); got.Type != certificatesv1.CertificateApproved || got.Reason != csr.ReasonApproved {
		t.Fatalf("decision %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
	if name := w.certificate(t, "node-csr-joins").Subject.String(); name != "CN=system:node:joins-2001,O=system:nodes" {
		t.Errorf("certificate for %s", name)
	}
	secret := &corev1.Secret{}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(g.record.Object()), secret); err != nil {
		t.Fatal(err)
	}
	if record, err := jointoken.Read(secret); err != nil || record.Use.Request != "node-csr-joins" || len(record.Use.PublicKey) != 64 {
		t.Errorf("the token is used by %+v (%v), want node-csr-joins and its key", record.Use, err)
	}
}

// TestStolenTokenForAnotherNode checks that a stolen token is not valid for another name,
// that its use is reported, and that the VM itself can still join.
func TestStolenTokenForAnotherNode(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "robbed-2002")
	for i, name := range []string{"control-plane-1", "joins-2001", "robbed-20020"} {
		request := fmt.Sprintf("node-csr-thief-%d", i)
		ask(t, g.kube, request, name, ecdsaKey(t, elliptic.P256()))
		wantDenied(t, w.decision(t, request), csr.ReasonWrongName, g)
	}
	var told []events.Event
	eventually(t, "waiting for events", func(context.Context) error {
		if told = w.events.of(g.claim.Name); len(told) < 3 {
			return errWait
		}
		return nil
	})
	for _, event := range told {
		if event.Type != corev1.EventTypeWarning || event.Reason != csr.ReasonWrongName || strings.Contains(event.Message, g.secret()) {
			t.Errorf("event %s %s %q: want a warning without the secret", event.Type, event.Reason, event.Message)
		}
	}
	ask(t, g.kube, "node-csr-robbed", "robbed-2002", ecdsaKey(t, elliptic.P256()))
	if got := w.decision(t, "node-csr-robbed"); got.Type != certificatesv1.CertificateApproved {
		t.Errorf("the VM itself: %s %s (%s), want Approved: denials use no token up", got.Type, got.Reason, got.Message)
	}
}

func TestTokenUsedTwice(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "twice-2003")
	key := ecdsaKey(t, elliptic.P256())
	ask(t, g.kube, "node-csr-twice-1", "twice-2003", key)
	if got := w.decision(t, "node-csr-twice-1"); got.Type != certificatesv1.CertificateApproved {
		t.Fatalf("first use: %s %s (%s)", got.Type, got.Reason, got.Message)
	}
	ask(t, g.kube, "node-csr-twice-2", "twice-2003", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-twice-2"), csr.ReasonUsedTwice, g)
	ask(t, g.kube, "node-csr-twice-3", "twice-2003", key)
	if got := w.decision(t, "node-csr-twice-3"); got.Type != certificatesv1.CertificateApproved {
		t.Errorf("the same kubelet again: %s %s (%s), want Approved", got.Type, got.Reason, got.Message)
	}
}

// TestTokenUsedTwiceAtOnce checks that of many concurrent requests with one token, exactly
// one gets a certificate.
func TestTokenUsedTwiceAtOnce(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "race-2004")
	const thieves = 8
	w.paused.Store(true) // so that all requests wait
	for i := range thieves {
		ask(t, g.kube, fmt.Sprintf("node-csr-race-%d", i), "race-2004", ecdsaKey(t, elliptic.P256()))
	}
	w.paused.Store(false)
	approved := 0
	for i := range thieves {
		got := w.decision(t, fmt.Sprintf("node-csr-race-%d", i))
		if got.Type == certificatesv1.CertificateApproved {
			approved++
			continue
		}
		wantDenied(t, got, csr.ReasonUsedTwice, g)
	}
	if approved != 1 {
		t.Errorf("%d of %d requests with different keys were approved, want 1", approved, thieves)
	}
}

func TestTokenOfRegisteredNode(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "joined-2005")
	g.claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	if err := w.client.Status().Update(t.Context(), g.claim); err != nil {
		t.Fatal(err)
	}
	ask(t, g.kube, "node-csr-joined", "joined-2005", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-joined"), csr.ReasonAlreadyJoined, g)
}

func TestTokenOfClaimThatIsGone(t *testing.T) {
	w := theWorld(t)
	g := w.guest(t, "gone-2006")
	// The garbage collector would delete the record with its claim.
	orphan := g.record.Object()
	orphan.OwnerReferences = nil
	if err := errors.Join(w.client.Update(t.Context(), orphan), w.client.Delete(t.Context(), g.claim)); err != nil {
		t.Fatal(err)
	}
	ask(t, g.kube, "node-csr-gone", "gone-2006", ecdsaKey(t, elliptic.P256()))
	wantDenied(t, w.decision(t, "node-csr-gone"), csr.ReasonClaimGone, g)
}

// TestApprovalByOthers checks that a warning is published if kube-controller-manager
// approves requests with join tokens, because such tokens are valid for any node's name.
func TestApprovalByOthers(t *testing.T) {
	w := theWorld(t)
	const nodeclient = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	w.paused.Store(true)
	if err := w.bind(nodeclient); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.paused.Store(false)
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "numaform-" + nodeclient}}
		if err := w.client.Delete(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
	g := w.guest(t, "bypassed-2008")
	ask(t, g.kube, "node-csr-bypassed", "control-plane-2", ecdsaKey(t, elliptic.P256()))
	if got := w.decision(t, "node-csr-bypassed"); got.Type != certificatesv1.CertificateApproved || got.Reason == csr.ReasonApproved {
		t.Fatalf("decision %s %s: want kube-controller-manager's approval", got.Type, got.Reason)
	}
	eventually(t, "waiting for a warning", func(context.Context) error {
		for _, event := range w.events.of("node-csr-bypassed") {
			if event.Reason == csr.ReasonBypassed && event.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return errWait
	})
}
