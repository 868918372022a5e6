package garbage_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

func TestNeverJoined(t *testing.T) {
	stopped := func(g *topology.Guest) { g.Running = false }
	tests := []struct {
		name string
		set  func(w *world, vm fleet.VM)
		says string
	}{
		{"unknown", func(*world, fleet.VM) {}, "its VM is no longer in the fleet"},
		{"making", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMaking, nil) }, "still being created on lab/pve-1"},
		{"waiting", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseRemoving, errors.New("PDB default/db")) }, "PDB default/db"},
		{"vanished", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil) }, "no longer exists in Proxmox"},
		{"vanished, but not its clone", func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.runs(vm, func(g *topology.Guest) { g.VMID = 150 })
		}, "no longer exists in Proxmox"},
		{"stopped", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm, stopped) }, "is not running"},
		{"silent", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm) }, "qm terminal 2000"},
		{"silent beside a clone", func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.runs(vm, stopped, func(g *topology.Guest) { g.VMID = 150 })
			w.runs(vm)
		}, "qm terminal 2000"},
		{"unreadable", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.unread = errors.New("595") }, "595"},
		{"other id", func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.runs(vm)
			vm.VMID = 7000
			w.node(vm)
		}, `has providerID "proxmox://lab/7000" instead of proxmox://lab/2000`},
		{"not taken", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm); w.node(vm) }, "condition Registered"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.pool("batch", "class")
			test.set(w, vm)
			w.claim(vm)
			w.look("joins")
			// The claim's creation time is from the API server's clock, not this test's.
			w.after(14 * time.Minute)
			w.look("joins")
			w.wantEvents()
			w.after(2 * time.Minute)
			w.look("joins")
			said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: ")
			if !strings.Contains(strings.Join(said, "\n"), test.says) {
				t.Errorf("says %q, want %s", said, test.says)
			}
			until := w.clock.Now().Add(time.Minute)
			want := []unavailableOffering{{scheduling.OfferingSelector{NodePool: "batch"}, until}, {scheduling.OfferingSelector{NodePool: "workers"}, until}}
			if diff := cmp.Diff(want, w.unavailable.take()); diff != "" {
				t.Errorf("closed differs:\n%s", diff)
			}
			w.after(time.Minute)
			w.look("joins")
			w.wantEvents()
			w.wantFate(vm.Name, "there") // Karpenter deletes it
		})
	}
}

// TestJoinedOrNotWaitedFor checks that claims that registered, were never launched or were
// deleted early are not reported.
func TestJoinedOrNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.claim(newVM(2000), registered)
	w.claim(newVM(2001), unlaunched)
	early := w.claim(newVM(2002))
	w.look("joins")
	if err := w.Delete(t.Context(), early); err != nil {
		t.Fatal(err)
	}
	w.after(20 * time.Minute)
	w.look("joins")
	w.wantEvents()
}

// TestNeverJoinedAndGone checks that a claim that Karpenter deleted between two passes is
// reported once.
func TestNeverJoinedAndGone(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	claim := w.claim(vm)
	w.look("joins")
	w.wipe(claim)
	w.after(16 * time.Minute)
	w.look("joins")
	w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ")
	w.look("joins")
	w.wantEvents()
}

// TestAboutToFail checks that the cause is found, and the class is unavailable, before the
// timeout: Karpenter may delete the claim and its VM before the next pass, and the pods would
// get another claim of the class at once.
func TestAboutToFail(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.wants(vm, scaler.PhaseMade, nil)
	w.runs(vm, func(g *topology.Guest) { g.Running = false })
	claim := w.claim(vm)
	timeout := claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).LastTransitionTime.Add(15 * time.Minute)
	w.clock.SetTime(timeout.Add(-21 * time.Second))
	w.look("joins")
	if closed := w.unavailable.take(); len(closed) > 0 {
		t.Errorf("closed %v", closed)
	}
	w.clock.SetTime(timeout.Add(-20 * time.Second))
	w.look("joins")
	w.wantEvents()
	want := []unavailableOffering{{scheduling.OfferingSelector{NodePool: "workers"}, timeout.Add(20 * time.Second)}}
	if diff := cmp.Diff(want, w.unavailable.take()); diff != "" {
		t.Errorf("closed differs:\n%s", diff)
	}
	w.writer.states = nil
	w.wipe(claim)
	w.clock.SetTime(timeout.Add(5 * time.Second))
	w.look("joins")
	said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: ")
	if !strings.Contains(said[0], "its VM workers-2000 on lab/pve-1 is not running") {
		t.Errorf("says %q", said[0])
	}
}

// TestNeverJoinedDuringAnOutage checks that a claim whose VM waits for the state backend
// does not make its class unavailable, whether or not the VM still exists at the timeout.
func TestNeverJoinedDuringAnOutage(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.wants(vm, scaler.PhaseReserved, fmt.Errorf("planning: %w", &state.CommandError{Backend: "kubernetes", Text: "connection refused"}))
			w.claim(vm)
			w.look("joins")
			if gone {
				w.writer.states = nil
			}
			w.after(16 * time.Minute)
			w.look("joins")
			w.wantEvents("NodeClaim/workers-2000 StateBackendUnreachable: ", "NodePool/workers StateBackendUnreachable: ")
			if closed := w.unavailable.take(); len(closed) > 0 {
				t.Errorf("closed %v", closed)
			}
		})
	}
}

// TestNeverReady checks that a claim whose Node has registered, but has not been ready for 15
// minutes, is reported and deleted, unless the Node was initialized or is ready.
func TestNeverReady(t *testing.T) {
	stopped := func(g *topology.Guest) { g.Running = false }
	tests := []struct {
		name string
		// ready is the Node's condition, whose last transition was before the current time by
		// changed.
		ready       corev1.NodeCondition
		changed     time.Duration
		guest       func(*topology.Guest)
		initialized bool
		paused      bool
		// says is "" if the claim is not reported.
		says, fate string
	}{
		{
			name: "stopped", ready: corev1.NodeCondition{Status: corev1.ConditionUnknown}, changed: 15 * time.Minute, guest: stopped,
			says: "has registered, but was not ready within 15m0s: its VM workers-2000 on lab/pve-1 is not running", fate: "deleting",
		},
		{
			name: "silent", ready: corev1.NodeCondition{Status: corev1.ConditionUnknown}, changed: 15 * time.Minute,
			says: "its kubelet no longer responds: on lab/pve-1, run `qm terminal 2000`", fate: "deleting",
		},
		{
			name: "no network", ready: corev1.NodeCondition{Status: corev1.ConditionFalse, Message: "cni plugin not initialized"}, changed: 20 * time.Minute,
			says: `kubelet reports "cni plugin not initialized"`, fate: "deleting",
		},
		{
			name: "paused", ready: corev1.NodeCondition{Status: corev1.ConditionFalse}, changed: 20 * time.Minute, paused: true,
			says: "numaform is paused; after numaform resume, the NodeClaim is deleted", fate: "there",
		},
		{
			name: "clock of the guest is ahead", ready: corev1.NodeCondition{Status: corev1.ConditionFalse, Message: "cni plugin not initialized"}, changed: -100 * time.Hour,
			says: `kubelet reports "cni plugin not initialized"`, fate: "deleting",
		},
		{name: "not yet", ready: corev1.NodeCondition{Status: corev1.ConditionUnknown}, changed: 14 * time.Minute, fate: "there"},
		{name: "ready", ready: corev1.NodeCondition{Status: corev1.ConditionTrue}, changed: 20 * time.Minute, fate: "there"},
		{name: "initialized", ready: corev1.NodeCondition{Status: corev1.ConditionUnknown}, changed: time.Hour, initialized: true, fate: "there"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.wants(vm, scaler.PhaseMade, nil)
			if test.guest == nil {
				test.guest = func(*topology.Guest) {}
			}
			w.runs(vm, test.guest)
			claim := w.claim(vm, registered)
			w.after(time.Hour)
			w.paused = test.paused
			if test.initialized {
				claim.StatusConditions(status.WithClock(realClock{w.clock})).SetTrue(karpv1.ConditionTypeInitialized)
				if err := w.Status().Update(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}
			node := w.node(vm)
			test.ready.Type, test.ready.LastTransitionTime = corev1.NodeReady, metav1.NewTime(w.clock.Now().Add(-test.changed))
			node.Status.Conditions = []corev1.NodeCondition{test.ready}
			if err := w.Status().Update(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			w.look("joins")
			if test.says == "" {
				w.wantEvents()
			} else if said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: "); !strings.Contains(said[0], test.says) {
				t.Errorf("says %q, want %s", said[0], test.says)
			}
			if closed := w.unavailable.take(); (len(closed) == 1) != (test.says != "") {
				t.Errorf("closed %v", closed)
			}
			w.wantFate(vm.Name, test.fate)
			w.look("joins")
			w.wantEvents()
		})
	}
}

// TestJoinTimeout checks that a class can allow less time than Karpenter: its claim is
// reported and deleted then, unless numaform is paused or the VM waited for the state backend.
func TestJoinTimeout(t *testing.T) {
	const message = "no Node joined within 3m0s"
	lost := fmt.Errorf("planning: %w", &state.CommandError{Backend: "kubernetes", Text: "connection refused"})
	tests := []struct {
		name    string
		class   string
		after   time.Duration
		paused  bool
		waited  error
		says    string
		fate    string
		changed func(*karpv1.NodeClaim)
	}{
		{name: "silent", class: "quick", after: 3*time.Minute + 10*time.Second, says: message, fate: "deleting"},
		{name: "not yet", class: "quick", after: 2 * time.Minute, fate: "there"},
		{name: "other class", class: "class", after: 10 * time.Minute, fate: "there"},
		{name: "paused", class: "quick", after: 4 * time.Minute, paused: true, says: message + " (numaform is paused; after", fate: "there"},
		{name: "state backend", class: "quick", after: 10 * time.Minute, waited: lost, fate: "there"},
		{name: "registered", class: "quick", after: 10 * time.Minute, changed: registered, fate: "there"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.create(&v1alpha1.ProxmoxNodeClass{
				ObjectMeta: metav1.ObjectMeta{Name: "quick"},
				Spec: v1alpha1.ProxmoxNodeClassSpec{
					Template: v1alpha1.TemplateReference{Name: "t"}, JoinTimeout: &metav1.Duration{Duration: 3 * time.Minute},
				},
			})
			vm := newVM(2000)
			vm.NodeClass = test.class
			w.pool("workers", test.class)
			if test.waited != nil {
				w.wants(vm, scaler.PhaseReserved, test.waited)
			} else {
				w.wants(vm, scaler.PhaseMade, nil)
				w.runs(vm)
			}
			if test.changed == nil {
				test.changed = func(*karpv1.NodeClaim) {}
			}
			w.claim(vm, test.changed)
			w.look("joins")
			w.wantFate(vm.Name, "there")
			w.after(test.after)
			w.paused = test.paused
			w.look("joins")
			if test.says == "" {
				w.wantEvents()
			} else if said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: "); !strings.Contains(said[0], test.says) {
				t.Errorf("says %q, want %s", said[0], test.says)
			}
			if closed := w.unavailable.take(); (len(closed) == 1) != (test.says != "") {
				t.Errorf("closed %v", closed)
			}
			w.wantFate(vm.Name, test.fate)
			w.paused = false
			w.look("joins")
			w.wantEvents()
			if test.paused {
				w.wantFate(vm.Name, "deleting")
			}
		})
	}
}

// TestNeverReadyInTime checks that the timeout of a class also limits the time from the
// registration of a Node until it is ready.
func TestNeverReadyInTime(t *testing.T) {
	w := newWorld(t)
	w.create(&v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "class"},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			Template: v1alpha1.TemplateReference{Name: "t"}, JoinTimeout: &metav1.Duration{Duration: 3 * time.Minute},
		},
	})
	vm := newVM(2000)
	w.pool("workers", "class")
	w.wants(vm, scaler.PhaseMade, nil)
	w.runs(vm)
	w.claim(vm, registered)
	w.node(vm)
	w.after(2 * time.Minute)
	w.look("joins")
	w.wantEvents()
	w.after(2 * time.Minute)
	w.look("joins")
	if said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: "); !strings.Contains(said[0], "was not ready within 3m0s") {
		t.Errorf("says %q", said[0])
	}
	w.wantFate(vm.Name, "deleting")
}

// TestNeverReadyWithoutCondition checks the time limit for a Node whose kubelet has never
// reported whether it is ready.
func TestNeverReadyWithoutCondition(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.wants(vm, scaler.PhaseMade, nil)
	w.runs(vm)
	w.claim(vm, registered)
	w.node(vm)
	w.after(14 * time.Minute)
	w.look("joins")
	w.wantEvents()
	w.wantFate(vm.Name, "there")
	w.after(2 * time.Minute)
	w.look("joins")
	w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: ")
	w.wantFate(vm.Name, "deleting")
}
