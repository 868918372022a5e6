package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// wakeSteps returns the steps of a wake in order.
func wakeSteps() []killStep {
	return []killStep{
		{name: "NodeClaim of a wake created, change not begun", withDisk: true, arm: seen(claimWithoutChange)},
		{name: "during plan of a wake", arm: holdEngine("hold", "plan")},
		{name: "wake begun, seed not uploaded", arm: holdCall(pvesim.Fault{Method: "POST", Path: `/upload$`}, byNumaform), after: wantBegun},
		{name: "wake begun, not applied", withDisk: true, arm: holdEngine("hold", "apply"), after: wantBegun},
		{name: "configured, not started", arm: holdCall(pvesim.Fault{Method: "POST", Path: `/status/start$`}, byProvider)},
		{name: "woken, state not written", withDisk: true, arm: holdCall(pvesim.Fault{Method: "POST", Path: `/status/start$`, After: true}, byProvider)},
		{name: "woken, no outcome yet", arm: holdEngine("after", "apply"), after: wantBegun},
		{name: "wake recorded, node not joined", withDisk: true, arm: seen(wakeWithoutNode)},
	}
}

// wakeWithoutNode is like outcomeWithoutNode, but ignores the change that created the
// standby VM.
func wakeWithoutNode(ctx context.Context, s *scene) string {
	where := outcomeWithoutNode(ctx, s)
	if where == "" || s.newest().Change.Kind != audit.KindWake {
		return ""
	}
	return where
}

// standbySteps returns the steps of the creation of a standby VM in order.
func standbySteps() []killStep {
	return []killStep{
		{name: "during plan of a standby VM", arm: holdEngine("hold", "plan")},
		{name: "standby VM begun, not applied", withDisk: true, arm: holdEngine("hold", "apply"), after: wantBegun},
		{name: "during clone of a standby VM", withDisk: true, arm: holdCall(pvesim.Fault{Method: "POST", Path: `/clone$`, After: true}, nil)},
		{name: "standby VM cloned, not configured", arm: holdCall(pvesim.Fault{Method: "PUT", Path: `^/nodes/[^/]+/qemu/2\d+/config$`}, byProvider)},
		{name: "standby VM applied, no outcome yet", arm: holdEngine("after", "apply"), after: wantBegun},
	}
}

// TestKillControllerWithStandby checks the invariants of docs/faults.md after a kill of the
// controller at each step of a wake and of the creation of a standby VM. `make nightly`
// kills at every step, `make test` at one step of each.
func TestKillControllerWithStandby(t *testing.T) {
	wakes, creations := wakeSteps(), standbySteps()
	if !enginetest.EveryCase() {
		wakes, creations = wakes[5:6], creations[2:3]
	}
	s := newScene(t, worldConfig{
		args:   []string{"--leader-elect=false", "--feature-gates", "CapacityBuffer=true"},
		values: map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}},
		delays: pvesim.Delays{Clone: time.Second, Start: 200 * time.Millisecond, Stop: 200 * time.Millisecond, Destroy: 500 * time.Millisecond},
	})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	buffer := s.standbyBuffer("workers", "500m", 1)
	s.settledWithStandby(1, 0)
	for i, step := range wakes {
		app := fmt.Sprintf("wake-%d", i)
		waiting, _ := s.stopped()
		s.killAt(step, func() { s.pods(app, 1, "500m", "512Mi", apart) })
		s.running(app, 1, 3*time.Minute)
		s.settledWithStandby(1, i+1)
		s.checkWithStandby(waiting)
	}
	for i, step := range creations {
		more := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, i+2))
		s.killAt(step, func() {
			if err := s.api.Patch(context.Background(), buffer, more); err != nil {
				t.Fatal(err)
			}
		})
		s.settledWithStandby(i+2, len(wakes))
		s.checkWithStandby(nil)
	}
	s.checkSecrets()
}

// settledWithStandby waits until the given numbers of stopped, configured VMs and of complete
// nodes exist, and no change is in progress.
func (s *scene) settledWithStandby(standby, nodes int) {
	s.t.Helper()
	s.eventually(3*time.Minute, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := s.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			if claim := &claims.Items[i]; !claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized) || !claim.DeletionTimestamp.IsZero() {
				return "not settled: " + claim.Name
			}
		}
		stopped, running := s.stopped()
		if len(stopped) != standby || len(running) != nodes || len(claims.Items) != nodes {
			return fmt.Sprintf("VMs %v are stopped and %v run, with %d nodeclaims; want %d and %d", stopped, running, len(claims.Items), standby, nodes)
		}
		ours := s.ours()
		for _, name := range stopped {
			if guest, _ := s.proxmox.Guest(ours[name].VMID); guest.Config["ide2"] == "" {
				return fmt.Sprintf("standby VM %s is not configured: it has no drive for its seed", name)
			}
		}
		entries := s.history()
		if left := unfinished(entries); len(left) > 0 || slices.ContainsFunc(entries[len(entries)-1:], func(e audit.Entry) bool { return e.Outcome == nil }) {
			return fmt.Sprintf("a change is in progress: %v", left)
		}
		if locks := s.locks(); len(locks) > 0 {
			return fmt.Sprintf("locked: %v", locks)
		}
		return ""
	})
}

// checkWithStandby checks the invariants with standby VMs: no standby VM was lost, each
// recorded wake was completed, every running VM was started once and has a Node, and no
// other VM was started.
func (s *scene) checkWithStandby(waited []string) {
	s.t.Helper()
	stopped, running := s.stopped()
	for _, name := range waited {
		if !slices.Contains(slices.Concat(stopped, running), name) {
			s.t.Errorf("standby VM %s is lost: %v are stopped and %v run", name, stopped, running)
		}
	}
	for _, entry := range s.history() {
		for _, vm := range entry.Change.Woken {
			if !slices.Contains(running, vm.Name) {
				s.t.Errorf("the wake of %s is recorded, but only %v run", vm.Name, running)
			}
		}
	}
	starts := s.starts()
	if len(starts) != len(running) {
		s.t.Errorf("VMs %v run, but VMs %v were started", running, starts)
	}
	for path, times := range starts {
		if times != 1 {
			s.t.Errorf("%d calls of %s", times, path)
		}
	}
	var claims karpv1.NodeClaimList
	s.list(&claims)
	var nodes []string
	for i := range claims.Items {
		nodes = append(nodes, claims.Items[i].Status.NodeName)
	}
	slices.Sort(nodes)
	if !slices.Equal(nodes, running) {
		s.t.Errorf("VMs %v run, but the nodes are %s", running, strings.Join(nodes, ", "))
	}
	s.checkForeign()
	s.checkPins()
	s.checkDrained()
	s.checkHistory()
	s.checkStates()
}
