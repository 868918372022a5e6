package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/guestsim"
)

// stolen is what a thief makes of a seed.
type stolen struct {
	volume string
	join   *guestsim.Join
}

// steal reads a seed off a host's storage as soon as there is one, besides those
// that were stolen before.
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

// ask asks for the certificate of a node with what was stolen.
func (w *world) ask(loot stolen, node string) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var request *guestsim.Request
	w.eventually(time.Minute, func(ctx context.Context) string { // until the API server knows the token
		var err error
		if request, err = loot.join.RequestCertificate(ctx, node); err != nil {
			return err.Error()
		}
		return ""
	})
	defer request.Close()
	_, err := request.Wait(ctx)
	return err
}

// TestStolenSeed lets a thief read the seed of a VM while that boots. No other node's
// name is his; and if he is faster than the VM, the VM is told from him.
func TestStolenSeed(t *testing.T) {
	const boot = 15 * time.Second // which the thief needs less of
	w := newWorld(t, worldConfig{guests: func(c *guestsim.Config) { c.Boot = boot }})
	w.may = []string{csr.ReasonUsedTwice}
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "500m", "512Mi")

	loot := w.steal()
	for _, name := range []string{"control-plane-1", "workers-2999"} {
		if err := w.ask(loot, name); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonWrongName) {
			t.Errorf("asking for %s: %v, want it denied as %s", name, err, csr.ReasonWrongName)
		}
	}
	if err := w.ask(loot, loot.join.NodeName); err != nil {
		t.Errorf("asking for the VM's own name, before the VM did: %v, want a certificate: nobody can tell them apart", err)
	}
	if err := w.ask(loot, loot.join.NodeName); !errors.Is(err, guestsim.ErrDenied) || !strings.Contains(err.Error(), csr.ReasonUsedTwice) {
		t.Errorf("asking a second time: %v, want it denied as %s", err, csr.ReasonUsedTwice)
	}

	// The VM comes second: it does not join, and its claim says why.
	var claim karpv1.NodeClaim
	w.eventually(2*time.Minute, func(ctx context.Context) string { return w.robbed(ctx, loot.join.NodeName, &claim) })
	if claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		t.Error("the claim of the VM that was robbed is registered")
	}
	if err := w.api.Delete(context.Background(), &claim); err != nil {
		t.Fatal(err)
	}
	w.running("web", 1, 4*time.Minute)
	w.eventually(time.Minute, func(context.Context) string { // the robbed VM may go last
		if again := w.ours(); len(again) != 1 || again[loot.join.NodeName].VMID != 0 {
			return fmt.Sprintf("VMs %v, want one, of another name than %s", again, loot.join.NodeName)
		}
		return ""
	})
}

// robbed waits for the event on the claim of a VM whose kubelet came second, and for
// the kubelet to have met it.
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
