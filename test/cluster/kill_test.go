package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/pvesim"
)

// killStep is a point at which the controller is killed.
type killStep struct {
	name string
	// withDisk also deletes the controller's disk.
	withDisk bool
	// arm sets the trap.
	arm func(s *scene) *trap
	// before runs before the step's load is created, after once the controller is killed.
	before, after func(s *scene)
}

// upSteps returns the steps of a scale-up in order.
func upSteps() []killStep {
	return []killStep{
		{name: "NodeClaim created, change not begun", arm: seen(claimWithoutChange)},
		{name: "during plan", withDisk: true, arm: holdEngine("hold", "plan")},
		{name: "change begun, not applied", arm: holdEngine("hold", "apply"), after: wantBegun},
		{name: "during clone", withDisk: true, arm: holdCall(pvesim.Fault{Method: "POST", Path: `/clone$`, After: true}, nil)},
		{name: "cloned, not started", arm: holdCall(pvesim.Fault{Method: "PUT", Path: `^/nodes/[^/]+/qemu/2\d+/config$`}, byProvider)},
		{name: "started, state not written", withDisk: true, arm: holdCall(pvesim.Fault{Method: "GET", Path: `^/nodes/[^/]+/qemu/2\d+/`}, aboutRunning)},
		{name: "applied, no outcome yet", arm: holdEngine("after", "apply"), after: wantBegun},
		{name: "outcome recorded, node not joined", withDisk: true, arm: seen(outcomeWithoutNode)},
		{name: "registered, seed not removed", withDisk: true, arm: holdCall(pvesim.Fault{Method: "PUT", Path: `^/nodes/[^/]+/qemu/2\d+/config$`}, byNumaform)},
	}
}

// downSteps returns the steps of a scale-down in order.
func downSteps() []killStep {
	return []killStep{
		{name: "node tainted", before: blockEvictions, arm: seen(nodeTainted), after: allowEvictions},
		{name: "during drain", withDisk: true, arm: seen(nodeDraining)},
		{name: "cloud provider's Delete called", arm: seen(instanceTerminating)},
		{name: "during plan of the removal", withDisk: true, arm: holdEngine("hold", "plan")},
		{name: "during destroy", arm: holdCall(pvesim.Fault{Method: "GET", Path: `^/nodes/[^/]+/tasks/[^/]*qmdestroy[^/]*/status$`}, nil)},
		{name: "destroyed, no outcome yet", withDisk: true, arm: holdEngine("after", "apply"), after: wantBegun},
	}
}

// TestKillController checks the invariants of docs/faults.md after a kill of the controller
// at each step of a scale-up and of a scale-down, with or without the loss of its disk. A
// new controller starts immediately. I6 is checked at the end.
func TestKillController(t *testing.T) {
	enginetest.Nightly(t)
	s := newScene(t, worldConfig{
		args:   []string{"--leader-elect=false"},
		delays: pvesim.Delays{Clone: time.Second, Start: 200 * time.Millisecond, Stop: 200 * time.Millisecond, Destroy: 500 * time.Millisecond},
		guests: func(c *guestsim.Config) { c.PodStop = 2 * time.Second },
	})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	downs := downSteps()
	for i, up := range upSteps() {
		app := fmt.Sprintf("up-%d", i)
		s.killAt(up, func() { s.pods(app, 1, "500m", "512Mi", apart) })
		s.running(app, 1, 3*time.Minute)
		s.settled(i + 1 - min(i, len(downs)))
		s.check()
		if i < len(downs) {
			s.killAt(downs[i], func() { s.deleteNodeOf(app) })
			s.settled(i + 1 - min(i+1, len(downs)))
			s.check()
		}
	}
	s.deleteAll()
	s.nothingIsLeft(4 * time.Minute)
	s.check()
	s.checkSecrets()
}

// killAt runs one step: do causes the change during which the controller is killed. A new
// controller starts immediately.
func (s *scene) killAt(step killStep, do func()) {
	s.t.Helper()
	if step.before != nil {
		step.before(s)
	}
	trap := step.arm(s)
	do()
	where := s.await(trap)
	s.kill(step.withDisk)
	s.t.Logf("killed at %q (disk lost: %t): %s; %s", step.name, step.withDisk, where, s.portrait())
	trap.free()
	if step.after != nil {
		step.after(s)
	}
	s.age()
	s.run()
}

// apart makes each pod require a separate node.
func apart(pod *corev1.Pod) {
	pod.Labels["group"] = "apart"
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": "apart"}},
		}},
	}}
}

// deleteNodeOf deletes the NodeClaim of the node of an app's pod, as a user would.
func (s *scene) deleteNodeOf(app string) {
	s.t.Helper()
	pod := &corev1.Pod{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: app + "-00"}, pod); err != nil {
		s.t.Fatal(err)
	}
	claim := s.claimAt(pod.Spec.NodeName)
	if claim == nil {
		s.t.Fatalf("node %q has no claim", pod.Spec.NodeName)
	}
	if err := s.api.Delete(context.Background(), claim); err != nil {
		s.t.Fatal(err)
	}
}

// claimAt returns the NodeClaim of a node, or nil.
func (s *scene) claimAt(node string) *karpv1.NodeClaim {
	s.t.Helper()
	var claims karpv1.NodeClaimList
	s.list(&claims)
	for i := range claims.Items {
		if claims.Items[i].Status.NodeName == node {
			return &claims.Items[i]
		}
	}
	return nil
}

// deleteAll deletes pods and NodeClaims.
func (s *scene) deleteAll() {
	s.t.Helper()
	if err := s.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		s.t.Fatal(err)
	}
	if err := s.api.DeleteAllOf(context.Background(), &karpv1.NodeClaim{}); err != nil {
		s.t.Fatal(err)
	}
}

// settled waits until the given number of complete nodes without seeds exists, and no
// change is in progress.
func (s *scene) settled(nodes int) {
	s.t.Helper()
	s.eventually(3*time.Minute, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := s.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			claim := &claims.Items[i]
			ready := claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized) && claim.Annotations[seed.AnnotationSeed] == seed.Removed
			if !ready || !claim.DeletionTimestamp.IsZero() {
				return "not settled: " + claim.Name
			}
		}
		if len(claims.Items) != nodes || len(s.guestsOf(clusterID)) != nodes {
			return fmt.Sprintf("%d nodeclaims, %d VMs, want %d", len(claims.Items), len(s.guestsOf(clusterID)), nodes)
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

// seen returns a trap that springs when what, which reads the API server, returns a
// description.
func seen(what func(ctx context.Context, s *scene) string) func(*scene) *trap {
	return func(s *scene) *trap {
		return &trap{
			sprung: func(ctx context.Context) string { return what(ctx, s) },
			free:   func() {},
		}
	}
}

// fresh returns a NodeClaim without a Node, or nil.
func (s *scene) fresh() *karpv1.NodeClaim {
	var claims karpv1.NodeClaimList
	s.list(&claims)
	for i := range claims.Items {
		if claims.Items[i].Status.NodeName == "" && claims.Items[i].DeletionTimestamp.IsZero() {
			return &claims.Items[i]
		}
	}
	return nil
}

func claimWithoutChange(_ context.Context, s *scene) string {
	claim := s.fresh()
	if claim == nil {
		return ""
	}
	if last := s.newest(); last != nil && last.Outcome == nil {
		s.t.Fatal("the change has already started")
	}
	return "claim " + claim.Name + " exists"
}

// outcomeWithoutNode makes the guest of a NodeClaim without a Node boot slowly, and
// describes the last change once it has an outcome, or returns "".
func outcomeWithoutNode(_ context.Context, s *scene) string {
	claim := s.fresh()
	if claim == nil {
		return ""
	}
	name := claim.Annotations[v1alpha1.AnnotationVM]
	s.guests.SetFault(name, guestsim.Fault{BootDelay: 5 * time.Second})
	last := s.newest()
	if last == nil || last.Outcome == nil || !last.Change.Names(name) {
		return ""
	}
	return fmt.Sprintf("change %s of %s has its outcome", last.Change.ID, name)
}

// leaving returns a claim that is being deleted, and its Node. Each is nil if it does not
// exist.
func (s *scene) leaving(ctx context.Context) (*karpv1.NodeClaim, *corev1.Node) {
	var claims karpv1.NodeClaimList
	s.list(&claims)
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp.IsZero() {
			continue
		}
		node := &corev1.Node{}
		if err := s.api.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node); err != nil {
			return claim, nil
		}
		return claim, node
	}
	return nil, nil
}

func nodeTainted(ctx context.Context, s *scene) string {
	_, node := s.leaving(ctx)
	if node == nil {
		return ""
	}
	for _, taint := range node.Spec.Taints {
		if taint.MatchTaint(&karpv1.DisruptedNoScheduleTaint) {
			return "node " + node.Name + " has the taint"
		}
	}
	return ""
}

func nodeDraining(ctx context.Context, s *scene) string {
	_, node := s.leaving(ctx)
	if node == nil {
		return ""
	}
	var pods corev1.PodList
	s.list(&pods, client.InNamespace("default"))
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == node.Name && !pods.Items[i].DeletionTimestamp.IsZero() {
			return "pod " + pods.Items[i].Name + " is being evicted"
		}
	}
	return ""
}

func instanceTerminating(ctx context.Context, s *scene) string {
	claim, _ := s.leaving(ctx)
	if claim == nil || !claim.StatusConditions().IsTrue(karpv1.ConditionTypeInstanceTerminating) {
		return ""
	}
	return "claim " + claim.Name + " is InstanceTerminating"
}

// blocker returns a PDB that prevents evictions of pods.
func blocker() *policyv1.PodDisruptionBudget {
	all := intstr.FromInt32(0)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stay"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &all, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": "apart"}}},
	}
}

// blockEvictions prevents drains from progressing.
func blockEvictions(s *scene) {
	if err := s.api.Create(context.Background(), blocker()); err != nil {
		s.t.Fatal(err)
	}
	s.eventually(time.Minute, func(ctx context.Context) string {
		budget := blocker()
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(budget), budget); err != nil {
			return err.Error()
		}
		if budget.Status.ObservedGeneration == 0 {
			return "the disruption controller did not observe the budget"
		}
		return ""
	})
}

func allowEvictions(s *scene) {
	if err := s.api.Delete(context.Background(), blocker()); err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatal(err)
	}
}

// wantBegun checks that the newest change is recorded without an outcome.
func wantBegun(s *scene) {
	if last := s.newest(); last == nil || last.Outcome != nil {
		s.t.Errorf("the newest change is not in progress: %+v", last)
	}
}

// byProvider and byNumaform report whether the provider or numaform sent a call.
func byProvider(s *scene, call pvesim.Call) bool { return !byNumaform(s, call) }

func byNumaform(_ *scene, call pvesim.Call) bool { return strings.HasPrefix(call.Agent, "numaform") }

// aboutRunning reports whether the provider sent a call about a running guest of an
// unfinished change.
func aboutRunning(s *scene, call pvesim.Call) bool {
	if byNumaform(s, call) {
		return false
	}
	vmid, _ := strconv.Atoi(vmPath.FindStringSubmatch(call.Path)[1])
	guest, _ := s.proxmox.Guest(vmid)
	last := s.newest()
	return guest.Running && last != nil && last.Outcome == nil && last.Change.Names(guest.Config["name"])
}
