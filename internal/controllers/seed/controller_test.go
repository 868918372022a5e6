package seed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scheduling"
)

// attached returns a running VM with its seed, its claim, and the request for which its
// token was used. Any host but "" means pve-2.
func (w *world) attached(number fleet.VMID, host string) (fleet.VM, *karpv1.NodeClaim, *certificatesv1.CertificateSigningRequest) {
	w.t.Helper()
	vm := w.vm(number, "pve-1")
	if host != "" {
		vm.Host.Host = "pve-2"
	}
	claim := w.claim(vm)
	w.seed(w.seeder(), vm)
	w.boot(vm, true)
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr-" + vm.Name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: csrPEM(w.t), SignerName: "example.com/none", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}
	if err := w.client.Create(w.t.Context(), request); err != nil {
		w.t.Fatal(err)
	}
	w.use(vm, request.Name)
	w.proxmox.ResetCalls()
	return vm, now(w, claim), request
}

// TestJoinedNodeLosesItsSeed checks that the seed, token and request of a node that has
// joined are deleted, once.
func TestJoinedNodeLosesItsSeed(t *testing.T) {
	w := newWorld(t)
	vm, claim, request := w.attached(2201, "")
	c := w.controller()
	w.set(claim, karpv1.ConditionTypeRegistered)
	if w.mustReconcile(c, claim); len(w.writes()) > 0 || w.image(vm) == nil {
		t.Fatalf("wrote %v before the Node was ready", w.writes())
	}
	w.set(claim, karpv1.ConditionTypeInitialized)
	w.mustReconcile(c, claim)
	if w.drive(vm) != "none,media=cdrom" || w.image(vm) != nil || len(w.tokens(vm)) > 0 || !w.gone(request) {
		t.Errorf("drive %q, seed %d bytes, tokens %v, request gone %v", w.drive(vm), len(w.image(vm)), w.tokens(vm), w.gone(request))
	}
	annotations := now(w, claim).Annotations
	if _, token := annotations[jointoken.AnnotationToken]; token || annotations[seed.AnnotationSeed] != seed.Removed {
		t.Errorf("annotations %v", annotations)
	}
	want := []string{"detached seed local:iso/numaform-prod-2201-00000899.iso from VM workers-2201 (2201) and deleted it from host homelab/pve-1: the node has joined"}
	if diff := cmp.Diff(want, w.recorded); diff != "" {
		t.Error(diff)
	}
	before := len(w.proxmox.Calls())
	if w.mustReconcile(c, claim); len(w.proxmox.Calls()) != before || len(w.recorded) != 1 {
		t.Errorf("a seed that is removed was removed again: %v", w.writes())
	}
}

// TestReadyNodeLosesItsSeed checks that a ready node loses its seed before its claim is
// initialized, which startup taints can delay for long.
func TestReadyNodeLosesItsSeed(t *testing.T) {
	w := newWorld(t)
	vm, claim, _ := w.attached(2202, "")
	w.set(claim, karpv1.ConditionTypeRegistered)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: vm.Name}}
	if err := w.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	c := w.controller()
	if w.mustReconcile(c, claim); len(w.tokens(vm)) != 1 {
		t.Fatal("the token went before the Node was ready")
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := w.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	w.mustReconcile(c, claim)
	if w.image(vm) != nil || len(w.tokens(vm)) > 0 {
		t.Error("the seed of a node that is ready is still there")
	}
}

// TestRemovalIsRetried checks that failed steps are retried, and that the token is deleted
// without waiting for Proxmox.
func TestRemovalIsRetried(t *testing.T) {
	w := newWorld(t)
	vm, claim, _ := w.attached(2203, "pve-2")
	w.mu.Lock()
	w.vms[0] = vm
	w.mu.Unlock()
	w.set(claim, karpv1.ConditionTypeInitialized)
	c := w.controller()
	for _, fault := range []pvesim.Fault{
		{Method: "PUT", Path: "/config$", Status: 500, Reason: "cannot detach"},
		{Method: "DELETE", Path: "/content/", Status: 500, Reason: "cannot delete"},
	} {
		stop := w.proxmox.AddFault(fault)
		if _, err := w.reconcile(c, claim); err == nil || !strings.Contains(err.Error(), fault.Reason) {
			t.Errorf("Reconcile: %v, want %q", err, fault.Reason)
		}
		if len(w.tokens(vm)) > 0 || now(w, claim).Annotations[seed.AnnotationSeed] != seed.Attached {
			t.Errorf("%s: tokens %v, annotations %v", fault.Reason, w.tokens(vm), claim.Annotations)
		}
		stop()
	}
	w.mustReconcile(c, claim)
	if w.drive(vm) != "none,media=cdrom" || w.image(vm) != nil || now(w, claim).Annotations[seed.AnnotationSeed] != seed.Removed {
		t.Errorf("drive %q, seed %d bytes, %v", w.drive(vm), len(w.image(vm)), claim.Annotations)
	}
}

// TestRemovalTouchesNothingElse checks that other media in the drive, and other guests with
// the VMID, remain unchanged.
func TestRemovalTouchesNothingElse(t *testing.T) {
	w := newWorld(t)
	vm, claim, _ := w.attached(2204, "")
	w.set(claim, karpv1.ConditionTypeInitialized)
	err := w.proxmox.PutGuest(pvesim.Guest{
		VMID: 2204, Host: "pve-1", Config: map[string]string{"name": "foreign", "memory": "512", "ide2": "local:iso/debian.iso,media=cdrom"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.mustReconcile(w.controller(), claim)
	if w.drive(vm) != "local:iso/debian.iso,media=cdrom" || w.image(vm) != nil {
		t.Errorf("drive %q, seed %d bytes", w.drive(vm), len(w.image(vm)))
	}
	want := []string{"deleted seed local:iso/numaform-prod-2204-0000089c.iso of VM workers-2204 (2204) from host homelab/pve-1: the node has joined"}
	if diff := cmp.Diff(want, w.recorded); diff != "" {
		t.Error(diff)
	}
}

// TestClaimThatGoesLosesItsToken checks that the token of a claim being deleted is deleted
// at once, and that the seed remains as long as the VM.
func TestClaimThatGoesLosesItsToken(t *testing.T) {
	w := newWorld(t)
	vm := w.vm(2205, "pve-1")
	claim := w.claim(vm, func(c *karpv1.NodeClaim) { c.Finalizers = []string{"karpenter.sh/termination"} })
	w.seed(w.seeder(), vm)
	if err := w.client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	w.mustReconcile(w.controller(), claim)
	if len(w.tokens(vm)) > 0 || w.image(vm) == nil {
		t.Errorf("tokens %v, seed %d bytes, want the seed alone", w.tokens(vm), len(w.image(vm)))
	}
}

// TestRenewal checks that a VM that was not started before its token expired gets a new
// seed in the same volume.
func TestRenewal(t *testing.T) {
	w := newWorld(t)
	vm := w.vm(2206, "pve-1")
	claim := w.claim(vm)
	c := w.controller()
	if after := w.mustReconcile(c, claim); after != 0 || len(w.writes()) > 0 {
		t.Fatalf("before the seed: %v, again after %s", w.writes(), after)
	}
	w.seed(w.seeder(), vm)
	first := w.onlyToken(vm)
	w.clock.Step(4 * time.Minute)
	if after := w.mustReconcile(c, claim); after != 10*time.Minute {
		t.Errorf("with 11 minutes left: again after %s, want 10m", after)
	}
	w.clock.Step(10 * time.Minute)
	if after := w.mustReconcile(c, claim); after != 14*time.Minute {
		t.Errorf("after a renewal: again after %s, want 14m", after)
	}
	second := w.tokens(vm)[1]
	if second.ID == first.ID || !second.Expires.Equal(start.Add(29*time.Minute)) {
		t.Errorf("%s until %s, want a new token", second, second.Expires)
	}
	w.wantSeed(vm, second)
	if len(w.recorded) != 1 || !strings.Contains(w.recorded[0], "the token was renewed because the VM had not been started") {
		t.Errorf("recorded %q", w.recorded)
	}
	noSecret(t, w.recorded...)

	// While it is being cloned, the VM has the template's description.
	err := w.proxmox.PutGuest(pvesim.Guest{VMID: 2206, Host: "pve-1", Config: map[string]string{"name": vm.Name, "memory": "512"}})
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Step(time.Hour)
	w.mustReconcile(c, claim)
	third := w.onlyToken(vm)
	if third.ID == second.ID {
		t.Error("no new token while the VM is being cloned")
	}

	// The record is deleted, and the token with it.
	record := w.records(vm)[0]
	if err := w.client.Delete(t.Context(), record.Object()); err != nil {
		t.Fatal(err)
	}
	w.boot(vm, false)
	w.mustReconcile(c, claim)
	fourth := w.onlyToken(vm)
	w.wantSeed(vm, fourth)

	// The VM runs and has read its seed, so a new token would be useless.
	w.boot(vm, true)
	w.proxmox.ResetCalls()
	w.clock.Step(14*time.Minute + 30*time.Second)
	if after := w.mustReconcile(c, claim); after != 30*time.Second || len(w.writes()) > 0 || w.onlyToken(vm).ID != fourth.ID {
		t.Errorf("a guest that runs got another seed: %v; again after %s", w.writes(), after)
	}
	w.clock.Step(30 * time.Second)
	if after := w.mustReconcile(c, claim); after != 0 || len(w.writes()) > 0 || len(w.records(vm)) > 0 {
		t.Errorf("a token that has ended is still bound to %v; wrote %v", w.records(vm), w.writes())
	}
	if after := w.mustReconcile(c, claim); after != 0 || len(w.writes()) > 0 || len(w.records(vm)) > 0 {
		t.Errorf("a guest that runs got another seed: %v", w.writes())
	}
}

// TestNoRenewalAfterUse checks that a used token is never renewed, because the guest has
// already read its seed.
func TestNoRenewalAfterUse(t *testing.T) {
	w := newWorld(t)
	vm, claim, _ := w.attached(2207, "")
	w.boot(vm, false)
	w.clock.Step(time.Hour)
	if w.mustReconcile(w.controller(), claim); len(w.writes()) > 0 {
		t.Errorf("wrote %v", w.writes())
	}
}

// TestControllerWaits checks that nothing is written while numaform is paused, or before
// the fleet has been read.
func TestControllerWaits(t *testing.T) {
	w := newWorld(t)
	vm, claim, _ := w.attached(2208, "")
	w.set(claim, karpv1.ConditionTypeInitialized)
	paused := true
	c := seed.NewController(w.seeder(), func() bool { return paused })
	if after := w.mustReconcile(c, claim); after == 0 || len(w.tokens(vm)) == 0 || len(w.writes()) > 0 {
		t.Errorf("paused: again after %s, wrote %v", after, w.writes())
	}
	paused, w.unread = false, true
	if after := w.mustReconcile(c, claim); after == 0 || len(w.tokens(vm)) == 0 || len(w.writes()) > 0 {
		t.Errorf("with an unread fleet: again after %s, wrote %v", after, w.writes())
	}
	w.unread = false
	if w.mustReconcile(c, claim); w.image(vm) != nil {
		t.Error("the seed is still there")
	}
}

// TestControllerLeavesOthersAlone checks that claims of other providers, and of VMs without
// a seed, are ignored.
func TestControllerLeavesOthersAlone(t *testing.T) {
	w := newWorld(t)
	c := w.controller()
	other := w.vm(2209, "pve-1")
	foreign := w.claim(other, func(c *karpv1.NodeClaim) { c.Spec.NodeClassRef.Group = "karpenter.proxmox.sinextra.dev" })
	w.set(foreign, karpv1.ConditionTypeInitialized)
	w.mustReconcile(c, foreign)
	baked := w.vm(2210, "pve-1")
	w.mu.Lock()
	w.vms[1].Seed = ""
	w.mu.Unlock()
	claim := w.claim(baked)
	w.set(claim, karpv1.ConditionTypeInitialized)
	w.mustReconcile(c, claim)
	if calls := w.proxmox.Calls(); len(calls) > 0 {
		t.Errorf("asked Proxmox: %v", calls)
	}
	if got := now(w, claim).Annotations[seed.AnnotationSeed]; got != "" {
		t.Errorf("annotated as %s", got)
	}
}

// TestControllersOnAManager checks that events of the API server drive the controllers: one
// node joins and loses its seed, and one claim and its VM are deleted.
func TestControllersOnAManager(t *testing.T) {
	w := newWorld(t)
	manager, err := controllerruntime.NewManager(w.cluster.Config, controllerruntime.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = manager.GetFieldIndexer().IndexField(t.Context(), &karpv1.NodeClaim{}, scheduling.FieldKeyOfUID, func(o client.Object) []string {
		return []string{scheduling.IndexKeyOfUID(o)}
	})
	if err != nil {
		t.Fatal(err)
	}
	w.config.Cluster.Client, w.config.Cluster.Live = manager.GetClient(), manager.GetAPIReader()
	// Secrets are only read without the cache, which would watch all of them.
	seeder := w.seeder()
	err = errors.Join(seed.NewController(seeder, running).Register(t.Context(), manager), seed.NewGarbage(seeder, running).Register(t.Context(), manager))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	joins, vanishes := w.vm(2211, "pve-1"), w.vm(2212, "pve-2")
	joining, vanishing := w.claim(joins), w.claim(vanishes)
	// The seeder would wait for a claim that its cache lacks until the test advances the
	// clock.
	eventually(t, "waiting until the cache has both claims", func() error {
		for _, claim := range []*karpv1.NodeClaim{joining, vanishing} {
			if err := manager.GetClient().Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{}); err != nil {
				return errors.Join(err, errNotYet)
			}
		}
		return nil
	})
	w.seed(seeder, joins, vanishes)
	w.boot(joins, true)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: joins.Name}}
	w.set(now(w, joining), karpv1.ConditionTypeRegistered)
	if err := w.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := w.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	w.without(vanishes)
	if err := w.client.Delete(t.Context(), vanishing); err != nil {
		t.Fatal(err)
	}
	for _, vm := range []fleet.VM{joins, vanishes} {
		eventually(t, "waiting until nothing is left of the seed of "+vm.Name, func() error {
			if w.image(vm) != nil || len(w.tokens(vm)) > 0 {
				return errNotYet
			}
			return nil
		})
	}
	if w.drive(joins) != "none,media=cdrom" {
		t.Errorf("drive %q", w.drive(joins))
	}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(joining), joining); err != nil {
		t.Error(err)
	}
}
