package seed_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/topology"
)

// csrPEM returns a certificate request.
func csrPEM(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// put creates volumes on a host's storage.
func (w *world) put(host string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.proxmox.PutISO(host, "local", name, []byte("x")); err != nil {
			w.t.Fatal(err)
		}
	}
}

// isos returns the ISO images on a host.
func (w *world) isos(host string) []string {
	var names []string
	for _, volume := range w.proxmox.Volumes(host) {
		if name, ok := strings.CutPrefix(volume, "local:iso/"); ok {
			names = append(names, name)
		}
	}
	return names
}

func TestSweep(t *testing.T) {
	w := newWorld(t)
	seeder := w.seeder()
	// Needed are the seeds of a VM of the fleet whose claim was deleted, and of a VM that
	// is not in the fleet yet.
	kept, coming := w.vm(2301, "pve-1"), w.vm(2302, "pve-1")
	w.claim(kept)
	claimed := w.claim(coming)
	w.seed(seeder, kept, coming)
	if err := w.client.Delete(t.Context(), newClaim(kept)); err != nil {
		t.Fatal(err)
	}
	w.without(coming)
	// Not needed are the seeds of a node that has joined, and of a VM that was deleted with
	// its claim.
	joined, lost := w.vm(2303, "pve-2"), w.vm(2304, "pve-2")
	w.claim(joined, func(c *karpv1.NodeClaim) { c.Annotations[seed.AnnotationSeed] = seed.Removed })
	w.put("pve-2", "numaform-prod-2303-000008ff.iso", "numaform-prod-2304-00000900.iso")
	w.without(lost)
	orphan := jointoken.Record{
		Namespace: namespace, Owner: jointoken.Owner{VM: lost.Name, Key: lost.Key, NodeClaim: "claim-gone", UID: "gone"},
		Grants: []jointoken.Grant{{ID: "abcdef", Minted: start, Issued: start, Expires: start.Add(time.Minute)}},
	}
	if err := w.client.Create(t.Context(), orphan.Object()); err != nil {
		t.Fatal(err)
	}
	// Unmanaged volumes.
	foreign := []string{"debian.iso", "numaform-prod-2-2304-00000900.iso", "numaform-prod-backup.iso", "numaform-test-2304-00000900.iso"}
	w.put("pve-1", foreign...)

	known, err := seeder.Sweep(t.Context())
	if err != nil || !known {
		t.Fatalf("Sweep: %v, %v", known, err)
	}
	want := append([]string{"numaform-prod-2301-000008fd.iso", "numaform-prod-2302-000008fe.iso"}, foreign...)
	if diff := cmp.Diff(want, w.isos("pve-1"), sortStrings()); diff != "" {
		t.Errorf("pve-1: %s", diff)
	}
	if left := w.isos("pve-2"); len(left) > 0 {
		t.Errorf("pve-2 has %v", left)
	}
	if len(w.tokens(lost)) > 0 || len(w.tokens(kept)) > 0 || len(w.tokens(coming)) != 1 {
		t.Errorf("tokens %v, %v, %v, want that of %s alone", w.tokens(lost), w.tokens(kept), w.tokens(coming), claimed.Name)
	}
	wantLines := []string{
		"deleted seed local:iso/numaform-prod-2303-000008ff.iso from host homelab/pve-2: no VM uses it",
		"deleted seed local:iso/numaform-prod-2304-00000900.iso from host homelab/pve-2: no VM uses it",
	}
	if diff := cmp.Diff(wantLines, w.recorded); diff != "" {
		t.Error(diff)
	}
}

func sortStrings() cmp.Option {
	return cmp.Transformer("set", func(list []string) map[string]bool {
		set := map[string]bool{}
		for _, one := range list {
			set[one] = true
		}
		return set
	})
}

// TestSweepOfAnUnreadFleet checks that Proxmox is not queried and no seed is deleted before
// the fleet has been read, or while numaform is paused.
func TestSweepOfAnUnreadFleet(t *testing.T) {
	w := newWorld(t)
	w.unread = true
	w.put("pve-1", "numaform-prod-2305-00000901.iso")
	w.proxmox.ResetCalls()
	garbage := seed.NewGarbage(w.seeder(), running)
	result, err := garbage.Reconcile(t.Context(), reconcile.Request{})
	if err != nil || result.RequeueAfter == 0 || len(w.isos("pve-1")) != 1 {
		t.Errorf("Reconcile: %v, again after %s, left %v", err, result.RequeueAfter, w.isos("pve-1"))
	}
	if calls := w.proxmox.Calls(); len(calls) > 0 {
		t.Errorf("%d requests to Proxmox for a fleet that has not been read, the first %s %s", len(calls), calls[0].Method, calls[0].Path)
	}
	w.unread = false
	paused := seed.NewGarbage(w.seeder(), func() bool { return true })
	if _, err := paused.Reconcile(t.Context(), reconcile.Request{}); err != nil || len(w.isos("pve-1")) != 1 {
		t.Errorf("paused: %v, left %v", err, w.isos("pve-1"))
	}
	if _, err := garbage.Reconcile(t.Context(), reconcile.Request{}); err != nil || len(w.isos("pve-1")) != 0 {
		t.Errorf("Reconcile: %v, left %v", err, w.isos("pve-1"))
	}
}

// TestSweepWithAHostDown checks that a host that is down does not prevent the sweep of
// other hosts.
func TestSweepWithAHostDown(t *testing.T) {
	w := newWorld(t)
	w.put("pve-1", "numaform-prod-2306-00000902.iso")
	w.put("pve-2", "numaform-prod-2307-00000903.iso")
	snapshot, err := w.api.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.config.Snapshot = func(context.Context) (*topology.Snapshot, error) { return snapshot, nil }
	w.proxmox.SetHostOnline("pve-1", false) // a moment after the snapshot
	if _, err := w.seeder().Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "pve-1") {
		t.Errorf("Sweep: %v, want an error about pve-1", err)
	}
	if left := w.isos("pve-2"); len(left) > 0 {
		t.Errorf("pve-2 has %v", left)
	}
}
