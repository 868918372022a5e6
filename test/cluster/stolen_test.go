package cluster_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/jointoken"
)

// stolen is the data that a thief extracts from a seed.
type stolen struct {
	volume string
	join   *guestsim.Join
}

// steal waits until a host has a seed whose volume is not in before, and reads the seed.
func (w *world) steal(before ...string) stolen {
	w.t.Helper()
	var loot stolen
	w.eventually(2*time.Minute, func(context.Context) string {
		for _, host := range []string{"pve-1", "pve-2"} {
			for _, volume := range w.proxmox.Volumes(host) {
				if !strings.Contains(volume, ":iso/numaform-"+clusterID+"-") || strings.Contains(strings.Join(before, " "), volume) {
					continue
				}
				image, _ := w.proxmox.VolumeData(host, volume)
				documents, err := guestsim.ReadSeed(image)
				if err != nil {
					return err.Error()
				}
				if loot.join, err = guestsim.NewJoin(documents); err != nil {
					return err.Error()
				}
				loot.volume = volume
				return ""
			}
		}
		return "no seed on any host"
	})
	return loot
}

// ask requests a node's certificate with a stolen token.
func (w *world) ask(loot stolen, node string) (tls.Certificate, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var request *guestsim.Request
	w.eventually(time.Minute, func(ctx context.Context) string { // until the API server accepts the token
		var err error
		if request, err = loot.join.RequestCertificate(ctx, node); err != nil {
			return err.Error()
		}
		return ""
	})
	defer request.Close()
	return request.Wait(ctx)
}

// login returns a client whose only credential is the token or certificate that change
// sets.
func (w *world) login(change func(*rest.Config)) kubernetes.Interface {
	w.t.Helper()
	config := rest.AnonymousClientConfig(w.plane.Config)
	change(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return kube
}

// forbidden checks that a stolen token, and numaform itself, may not perform certain
// requests.
func (w *world) forbidden(loot stolen) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	numaform, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	if err != nil {
		w.t.Fatal(err)
	}
	thief := w.login(func(c *rest.Config) { c.BearerToken = loot.join.Token })
	own := w.login(func(c *rest.Config) { c.BearerToken = numaform.BearerToken })
	got := map[string]error{}
	for who, kube := range map[string]kubernetes.Interface{"the thief": thief, "numaform": own} {
		_, got[who+" lists Secrets of kube-system"] = kube.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
		_, got[who+" lists all Secrets"] = kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		_, got[who+" makes a Secret in kube-system"] = kube.CoreV1().Secrets("kube-system").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
		_, got[who+" makes a token of numaform"] = kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "numaform",
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	}
	_, got["the thief lists Secrets of numaform"] = thief.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	_, got["the thief makes another token"] = thief.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "numaform-bootstrap",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	_, got["the thief lists Nodes"] = thief.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	for what, err := range got {
		if !apierrors.IsForbidden(err) {
			w.t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}

// TestStolenSeed checks that a thief who reads the seed of a booting VM cannot get a
// certificate for another node's name, and that numaform detects a thief who is faster than
// the VM.
func TestStolenSeed(t *testing.T) {
	const boot = 15 * time.Second // the thief is faster
	w := newWorld(t, worldConfig{guests: func(c *guestsim.Config) { c.Boot = boot }})
	w.may = []string{csr.ReasonUsedTwice}
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "500m", "512Mi")

	loot := w.steal()
	for _, name := range []string{"control-plane-1", "workers-2999"} {
		if _, err := w.ask(loot, name); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonWrongName) {
			t.Errorf("requesting %s: %v, want it denied as %s", name, err, csr.ReasonWrongName)
		}
	}
	w.forbidden(loot)
	certificate, err := w.ask(loot, loot.join.NodeName)
	if err != nil {
		t.Errorf("requesting the VM's own name before the VM does: %v, want a certificate: numaform cannot tell them apart", err)
	}
	if _, err := w.ask(loot, loot.join.NodeName); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonUsedTwice) {
		t.Errorf("requesting a second time: %v, want it denied as %s", err, csr.ReasonUsedTwice)
	}

	w.renews(loot.join.NodeName, certificate)

	// The VM's own request is the second: the VM does not join, and an event on its claim
	// reports why.
	var claim karpv1.NodeClaim
	w.eventually(2*time.Minute, func(ctx context.Context) string { return w.robbed(ctx, loot.join.NodeName, &claim) })
	if claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		t.Error("the claim of the VM whose seed was stolen is registered")
	}
	if err := w.api.Delete(context.Background(), &claim); err != nil {
		t.Fatal(err)
	}
	w.running("web", 1, 4*time.Minute)
	thief := w.login(func(c *rest.Config) { c.BearerToken = loot.join.Token })
	w.eventually(time.Minute, func(ctx context.Context) string { // the API server caches authentications for a while
		if _, err := thief.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Sprintf("the token of a deleted claim: %v, want it unauthorized", err)
		}
		return ""
	})
	w.eventually(time.Minute, func(context.Context) string { // the VM of the stolen seed may be deleted last
		if again := w.ours(); len(again) != 1 || again[loot.join.NodeName].VMID != 0 {
			return fmt.Sprintf("VMs %v, want one with a name other than %s", again, loot.join.NodeName)
		}
		return ""
	})
}

// renews checks that a client with a node's certificate can renew it, as kubelet does, but
// cannot get one for another name. numaform is not involved.
func (w *world) renews(node string, certificate tls.Certificate) {
	w.t.Helper()
	key, err := keyutil.MarshalPrivateKeyToPEM(certificate.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	kube := w.login(func(c *rest.Config) {
		c.KeyData = key
		for _, one := range certificate.Certificate {
			c.CertData = append(c.CertData, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one})...)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ask := func(name string) error {
		text, err := certutil.MakeCSR(certificate.PrivateKey, &pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}, nil, nil)
		if err != nil {
			return err
		}
		_, err = kube.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "renewal-" + name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: text, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
		return err
	}
	if err := ask("control-plane-1"); !apierrors.IsForbidden(err) {
		w.t.Errorf("node %s requests another node's name: %v, want NodeRestriction to forbid it", node, err)
	}
	if err := ask(node); err != nil {
		w.t.Fatal(err)
	}
	w.eventually(time.Minute, func(ctx context.Context) string {
		var request certificatesv1.CertificateSigningRequest
		if err := w.api.Get(ctx, client.ObjectKey{Name: "renewal-" + node}, &request); err != nil {
			return err.Error()
		}
		if len(request.Status.Conditions) == 0 {
			return "the renewal of node " + node + " is neither approved nor denied"
		}
		if got := request.Status.Conditions[0]; got.Type != certificatesv1.CertificateApproved || got.Reason == csr.ReasonApproved {
			return fmt.Sprintf("the renewal of node %s: %s %s, want it approved by kube-controller-manager", node, got.Type, got.Reason)
		}
		return ""
	})
}

// TestUpgradeDuringAJoin checks that, after an upgrade while a VM joins, the bootstrap
// token of the earlier release works with the chart's default permissions, and that the
// VM's newer token is then refused. Earlier releases stored the token in kube-system and
// its name on the NodeClaim.
func TestUpgradeDuringAJoin(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{guests: func(c *guestsim.Config) { c.Boot = time.Hour }}) // the test acts as the VM's kubelet
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "500m", "512Mi")
	loot := w.steal()
	var claims karpv1.NodeClaimList
	if err := w.api.List(context.Background(), &claims); err != nil || len(claims.Items) != 1 {
		t.Fatalf("%d NodeClaims: %v", len(claims.Items), err)
	}
	claim := &claims.Items[0]
	owner := jointoken.Owner{VM: loot.join.NodeName, Key: fleet.Key(claim.Annotations[v1alpha1.AnnotationKey]), NodeClaim: claim.Name, UID: claim.UID}
	token, object, err := jointoken.NewBootstrap(owner, time.Now(), 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before := claim.DeepCopy()
	claim.Annotations[jointoken.AnnotationToken] = token.ID
	if err := errors.Join(w.api.Create(context.Background(), object), w.api.Patch(context.Background(), claim, client.MergeFrom(before))); err != nil {
		t.Fatal(err)
	}
	earlier := stolen{join: loot.join}
	mine := loot.join.Token
	earlier.join.Token = token.Reveal()
	if _, err := w.ask(earlier, "control-plane-1"); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonWrongName) {
		t.Errorf("requesting another name with the earlier token: %v, want it denied as %s", err, csr.ReasonWrongName)
	}
	if _, err := w.ask(earlier, loot.join.NodeName); err != nil {
		t.Errorf("joining with the token of the earlier release: %v", err)
	}
	loot.join.Token = mine
	if _, err := w.ask(loot, loot.join.NodeName); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonUsedTwice) {
		t.Errorf("a second join, with the token of this release: %v, want it denied as %s", err, csr.ReasonUsedTwice)
	}
}

// robbed returns "" if the kubelet of the VM was refused because its token was already
// used, and an event on the VM's claim reports it.
func (w *world) robbed(ctx context.Context, vm string, claim *karpv1.NodeClaim) string {
	var claims karpv1.NodeClaimList
	var events corev1.EventList
	if err := errors.Join(w.api.List(ctx, &claims), w.api.List(ctx, &events, client.InNamespace("default"))); err != nil {
		return err.Error()
	}
	refused := false
	for _, problem := range w.guests.Problems() {
		refused = refused || problem.VM == vm && strings.Contains(problem.String(), csr.ReasonUsedTwice)
	}
	if !refused || len(claims.Items) != 1 {
		return fmt.Sprintf("%d claims; the kubelet of %s was not refused: %v", len(claims.Items), vm, w.guests.Problems())
	}
	*claim = claims.Items[0]
	for i := range events.Items {
		event := &events.Items[i]
		if event.Reason == csr.ReasonUsedTwice && event.InvolvedObject.Name == claim.Name && event.Type == corev1.EventTypeWarning {
			return ""
		}
	}
	return "no event on NodeClaim " + claim.Name
}
