package approval_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	corestate "sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// emptiness is a method that removes every candidate, within the budgets.
type emptiness struct {
	asked  int
	totals map[string]disruption.NodePoolTotals
	// replacement is the NodePool of the node that each command creates, or "".
	replacement string
}

func (*emptiness) ShouldDisrupt(context.Context, *disruption.Candidate) bool { return true }
func (*emptiness) Reason() karpv1.DisruptionReason                           { return karpv1.DisruptionReasonEmpty }

func (*emptiness) Class() string             { return disruption.GracefulDisruptionClass }
func (*emptiness) ConsolidationType() string { return "empty" }

func (e *emptiness) SetNodePoolTotals(totals map[string]disruption.NodePoolTotals) { e.totals = totals }

func (e *emptiness) ComputeCommands(_ context.Context, budgets map[string]int, candidates ...*disruption.Candidate) ([]disruption.Command, error) {
	e.asked++
	command := disruption.Command{Method: e}
	for _, candidate := range candidates {
		if budgets[candidate.NodePool.Name] > 0 {
			budgets[candidate.NodePool.Name]--
			command.Candidates = append(command.Candidates, candidate)
		}
	}
	if e.replacement != "" {
		command.Replacements = append(command.Replacements, &disruption.Replacement{NodeClaim: &scheduling.NodeClaim{
			NodeClaimTemplate: scheduling.NodeClaimTemplate{
				NodePoolName: e.replacement, InstanceTypeOptions: cloudprovider.InstanceTypes{{Name: "s1.1VCPU-2GB"}},
			},
		}})
	}
	return []disruption.Command{command}, nil
}

// shop is a bench with one disruption method, wrapped for NodePools that need no approval
// (free) and for NodePools that do (held).
type shop struct {
	*bench

	free, held           disruption.Method
	freeInner, heldInner *emptiness
}

func newShop(t *testing.T) *shop {
	s := &shop{bench: newBench(t, guard.DefaultRules())}
	s.scaler.plan = func(change *scaler.Change) []scaler.RootPlan {
		plan := removal(change.Removed...)
		plan.Verdict = guard.Verdict{Decision: guard.Deny, Findings: []guard.Finding{{Rule: guard.RuleDrained, Decision: guard.Deny, Message: "not drained"}}}
		return []scaler.RootPlan{*plan}
	}
	return s
}

// stock sets the fleet's VMs and creates the methods.
func (s *shop) stock(vms ...fleet.VM) {
	s.Helper()
	plan := s.scaler.plan
	s.plant(guard.DefaultRules(), vms...)
	s.scaler.plan = plan
	s.vms = nil
	for _, vm := range vms {
		s.vms = append(s.vms, scaler.VMState{VM: vm, Phase: scaler.PhaseMade})
	}
	s.build()
}

func (s *shop) build() {
	s.Helper()
	var inner []*emptiness
	free, held := s.approvals.Methods(func() []disruption.Method {
		inner = append(inner, &emptiness{})
		return []disruption.Method{inner[len(inner)-1]}
	})
	if len(free) != 1 || len(held) != 1 {
		s.Fatalf("%d and %d methods", len(free), len(held))
	}
	s.free, s.held, s.freeInner, s.heldInner = free[0], held[0], inner[0], inner[1]
}

// worker returns a VM of a pool.
func worker(pool string, id fleet.VMID) fleet.VM {
	vm := other(id)
	vm.Pool, vm.Name, vm.Host = pool, fleet.NodeName(pool, id), pve1
	vm.Key = fleet.Key(strings.Repeat(string(rune('a'+int(id)%6)), 32))
	return vm
}

// candidate returns the node of a VM as a candidate for disruption.
func (s *shop) candidate(pool *karpv1.NodePool, vm fleet.VM) *disruption.Candidate {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: vm.Name, Labels: map[string]string{
		karpv1.NodePoolLabelKey: pool.Name, corev1.LabelTopologyRegion: "lab", corev1.LabelTopologyZone: string(vm.Host.Host),
		corev1.LabelInstanceTypeStable: vm.InstanceType, karpv1.NodeRegisteredLabelKey: "true",
	}}}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: vm.Name, Labels: node.Labels, Annotations: map[string]string{
		v1alpha1.AnnotationKey: string(vm.Key), v1alpha1.AnnotationVM: vm.Name,
	}}}
	return &disruption.Candidate{StateNode: &corestate.StateNode{Node: node, NodeClaim: claim}, NodePool: pool}
}

// compute passes candidates to a method as Karpenter does, and returns the removed nodes.
func (s *shop) compute(method disruption.Method, budget int, candidates ...*disruption.Candidate) []string {
	s.Helper()
	var offered []*disruption.Candidate
	budgets := map[string]int{}
	for _, candidate := range candidates {
		budgets[candidate.NodePool.Name] = budget
		if method.ShouldDisrupt(s.Context(), candidate) {
			offered = append(offered, candidate)
		}
	}
	commands, err := method.ComputeCommands(s.Context(), budgets, offered...)
	if err != nil {
		s.Fatal(err)
	}
	names := []string{}
	for i := range commands {
		names = append(names, commands[i].SourceNodeNames()...)
	}
	return names
}

func (s *shop) later(after time.Duration) { s.clock.SetTime(s.clock.Now().Add(after)) }

func TestNodesOfFreePoolsGoUnasked(t *testing.T) {
	s := newShop(t)
	free, slow := s.pool("free", "", ""), s.pool("slow", "", "manual")
	s.stock(worker("free", 2000), worker("slow", 2001))
	both := []*disruption.Candidate{s.candidate(free, worker("free", 2000)), s.candidate(slow, worker("slow", 2001))}
	if got := s.compute(s.free, 9, both...); !slices.Equal(got, []string{"free-2000"}) {
		t.Errorf("%q go", got)
	}
	s.paused = true
	if got := s.compute(s.free, 9, both...); len(got) != 0 {
		t.Errorf("%q go although numaform is paused", got)
	}
	s.free.(disruption.NodePoolTotalsSetter).SetNodePoolTotals(map[string]disruption.NodePoolTotals{"free": {TotalCost: 3}})
	if s.freeInner.totals["free"].TotalCost != 3 {
		t.Error("the totals did not arrive")
	}
	if s.free.Reason() != karpv1.DisruptionReasonEmpty || s.free.Class() != "graceful" || s.free.ConsolidationType() != "empty" {
		t.Error("the method is not what it wraps")
	}
}

func TestNodesOfManualPoolsWait(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one, two := worker("slow", 2000), worker("slow", 2001)
	s.stock(one, two)
	s.runPod("slow-2000")
	all := []*disruption.Candidate{s.candidate(slow, one), s.candidate(slow, two)}
	if got := s.compute(s.held, 9, all...); len(got) != 0 {
		t.Fatalf("%q go unasked", got)
	}
	plan := s.plan(v1alpha1.ScalePlanPending)
	if plan.Spec.Summary != "2 to delete on lab/pve-1" || plan.Spec.RequestedBy != "disruption/empty/empty" ||
		plan.Spec.Verdict.Decision != v1alpha1.VerdictAllow || !strings.Contains(plan.Spec.Diff, "will be destroyed") {
		t.Errorf("plan is %+v", plan.Spec)
	}
	if want := "-0.050 EUR/h (about -36.21 EUR/month): -4 vCPUs, -4 GiB memory, -16 GiB disk"; plan.Spec.Cost != want {
		t.Errorf("the cost is %q, want %q", plan.Spec.Cost, want)
	}
	if got := plan.Spec.VMs[0].Pods; !slices.Equal(got, []string{"default/on-slow-2000"}) {
		t.Errorf("pods that move are %q", got)
	}
	s.settle()
	if diff := cmp.Diff(map[v1alpha1.ScaleDirection]int{v1alpha1.ScaleDown: 1}, s.approvals.Pending()); diff != "" {
		t.Errorf("pending plans (-want +got):\n%s", diff)
	}
	// Karpenter is not called again at once, and each plan is proposed once.
	s.compute(s.held, 9, all...)
	s.later(2 * time.Minute)
	s.compute(s.held, 9, all...)
	if s.heldInner.asked != 2 || len(s.plans("")) != 1 {
		t.Errorf("asked %d times, %d plans", s.heldInner.asked, len(s.plans("")))
	}
	s.approve(plan)
	s.settle()
	if pending := s.approvals.Pending(); len(pending) != 0 {
		t.Errorf("after the approval, %v plans are pending", pending)
	}
	// The approved removal does not start if one of its nodes is needed again, or if the
	// budget allows only one.
	if got := s.compute(s.held, 9, all[:1]...); len(got) != 0 {
		t.Errorf("%q go of two that were approved", got)
	}
	if s.heldInner.asked != 2 {
		t.Error("Karpenter was asked about one of two that were approved: that uses the budget of others")
	}
	if got := s.compute(s.held, 1, all...); len(got) != 0 {
		t.Errorf("%q go beyond the budget", got)
	}
	if plans := s.plans(""); len(plans) != 1 {
		t.Errorf("%d plans: a part of what was approved is asked about again", len(plans))
	}
	s.restart()
	s.build()
	if got := s.compute(s.held, 9, all...); !slices.Equal(got, []string{"slow-2000", "slow-2001"}) {
		t.Errorf("%q go", got)
	}
	if plan = s.plan(v1alpha1.ScalePlanApproved); plan.Status.Approver != "alice" {
		t.Errorf("the approver is %q", plan.Status.Approver)
	}
	s.vms = s.vms[:1]
	s.settle()
	s.plan(v1alpha1.ScalePlanApproved)
	s.vms = nil
	s.settle()
	s.plan(v1alpha1.ScalePlanApplied)
}

// TestRemovalKeepsOtherFindings proposes to remove a node that is not drained yet, by a
// plan for which another rule requires approval. It checks that the ScalePlan contains only
// that rule.
func TestRemovalKeepsOtherFindings(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	vm := worker("slow", 2000)
	s.scaler.plan = func(change *scaler.Change) []scaler.RootPlan {
		plan := removal(change.Removed...)
		plan.Verdict = guard.Verdict{Decision: guard.Deny, Findings: []guard.Finding{
			{Rule: guard.RuleDrained, Decision: guard.Deny, Message: "not drained"},
			{Rule: guard.RuleLimit, Decision: guard.NeedsApproval, Message: "too many"},
		}}
		return []scaler.RootPlan{*plan}
	}
	s.stock(vm)
	if got := s.compute(s.held, 9, s.candidate(slow, vm)); len(got) != 0 {
		t.Fatalf("%q go unasked", got)
	}

	verdict := s.plan(v1alpha1.ScalePlanPending).Spec.Verdict
	if verdict.Decision != v1alpha1.VerdictNeedsApproval || len(verdict.Rules) != 1 || verdict.Rules[0].Rule != string(guard.RuleLimit) {
		t.Errorf("verdict is %+v, want that %s asks", verdict, guard.RuleLimit)
	}
}

// TestRemovalNamesTheVM proposes to remove a Node whose name differs from its VM's, and
// checks that the plan names the NodeClaim's VM.
func TestRemovalNamesTheVM(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	vm := worker("slow", 2000)
	s.stock(vm)
	candidate := s.candidate(slow, vm)
	candidate.Node.Name = "renamed"
	if got := s.compute(s.held, 9, candidate); len(got) != 0 {
		t.Fatalf("%q go unasked", got)
	}
	if vms := s.plan(v1alpha1.ScalePlanPending).Spec.VMs; len(vms) != 1 || vms[0].Name != vm.Name || vms[0].Key != string(vm.Key) {
		t.Errorf("the plan removes %+v, want %s", vms, vm.Name)
	}
}

// runPod runs a pod on a node.
func (s *shop) runPod(node string) {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "on-" + node},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "app", Image: "app", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
	if err := s.client.Create(s.Context(), pod); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := s.client.Delete(context.Background(), pod); err != nil {
			s.Error(err)
		}
	})
}

func TestAnApprovedRemovalOfOthers(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one, two := worker("slow", 2000), worker("slow", 2001)
	s.stock(one, two)
	s.compute(s.held, 9, s.candidate(slow, one))
	s.approve(s.plan(v1alpha1.ScalePlanPending))
	// Another VM has the name now.
	again := worker("slow", 2000)
	again.Key = fleet.Key(strings.Repeat("9", 32))
	if got := s.compute(s.held, 9, s.candidate(slow, again), s.candidate(slow, two)); len(got) != 0 {
		t.Errorf("%q go", got)
	}
	// While the approved VM does not exist, other removals are proposed.
	s.later(2 * time.Minute)
	s.compute(s.held, 9, s.candidate(slow, two))
	if open := s.undecided(); len(open) != 1 || open[0].Spec.VMs[0].Key != string(two.Key) {
		t.Errorf("%d plans wait, want that of %s", len(open), two.Name)
	}
	s.later(25 * time.Hour)
	if got := s.compute(s.held, 9, s.candidate(slow, one)); len(got) != 0 {
		t.Errorf("%q go after the plan expired", got)
	}
}

// TestAnApprovedRemovalThatWaits approves the removal of two nodes, of which only one can
// be removed now. It checks that neither is removed, and that the removal of a third node
// is proposed separately.
func TestAnApprovedRemovalThatWaits(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one, two, three := worker("slow", 2000), worker("slow", 2001), worker("slow", 2002)
	s.stock(one, two, three)
	s.compute(s.held, 9, s.candidate(slow, one), s.candidate(slow, two))
	s.approve(s.plan(v1alpha1.ScalePlanPending))
	s.later(2 * time.Minute)
	if got := s.compute(s.held, 9, s.candidate(slow, one), s.candidate(slow, three)); len(got) != 0 {
		t.Errorf("%q go", got)
	}
	open := s.undecided()
	if len(open) != 1 || len(open[0].Spec.VMs) != 1 || open[0].Spec.VMs[0].Key != string(three.Key) {
		t.Errorf("%d plans wait, want that of %s alone", len(open), three.Name)
	}
}

func TestARemovalThatIsNotWantedAnyMore(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one := worker("slow", 2000)
	s.stock(one)
	s.compute(s.held, 9, s.candidate(slow, one))
	s.settle()
	s.later(4 * time.Minute)
	s.settle()
	s.plan(v1alpha1.ScalePlanPending)
	s.later(4 * time.Minute)
	s.settle()
	s.plan(v1alpha1.ScalePlanSuperseded)
}

// TestARemovalOutlivesItsLeader checks that a replica that was built long before it led
// supersedes a removal only after it has run long enough to see that its nodes are needed.
func TestARemovalOutlivesItsLeader(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one := worker("slow", 2000)
	s.stock(one)
	s.compute(s.held, 9, s.candidate(slow, one))
	s.restart() // the next leader is built
	s.later(time.Hour)
	s.settle()
	s.later(4 * time.Minute)
	s.settle()
	s.plan(v1alpha1.ScalePlanPending)
	s.later(4 * time.Minute)
	s.settle()
	s.plan(v1alpha1.ScalePlanSuperseded)
}

// TestARemovalThatDoesNotEnd checks that an approved removal fails if the VM still exists
// two hours later, unless its deletion is in progress.
func TestARemovalThatDoesNotEnd(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one := worker("slow", 2000)
	s.stock(one)
	s.compute(s.held, 9, s.candidate(slow, one))
	s.approve(s.plan(v1alpha1.ScalePlanPending))
	if got := s.compute(s.held, 9, s.candidate(slow, one)); len(got) != 1 {
		t.Fatalf("%q go", got)
	}
	s.later(2 * time.Hour)
	s.vms[0].Phase = scaler.PhaseRemoving
	s.settle()
	s.plan(v1alpha1.ScalePlanApproved)
	s.vms[0].Phase = scaler.PhaseMade
	s.settle()
	if plan := s.plan(v1alpha1.ScalePlanFailed); !strings.Contains(plan.Status.Result, "1 VM was not deleted within 1h") {
		t.Errorf("result %q", plan.Status.Result)
	}
}

func TestReplacementsOfManualPoolsWait(t *testing.T) {
	s := newShop(t)
	free, slow := s.pool("free", "", ""), s.pool("slow", "manual", "")
	one, two := worker("free", 2000), worker("slow", 2001)
	s.stock(one, two)
	// A removal alone needs no approval if only scale-up is manual.
	if got := s.compute(s.held, 9, s.candidate(slow, two)); !slices.Equal(got, []string{"slow-2001"}) {
		t.Errorf("%q go", got)
	}
	s.freeInner.replacement = "slow"
	if got := s.compute(s.free, 9, s.candidate(free, one)); len(got) != 0 {
		t.Errorf("%q go", got)
	}
	plan := s.plan(v1alpha1.ScalePlanPending)
	if plan.Spec.Summary != "1 to create, 1 to delete on lab/pve-1" || plan.Spec.Reasons[0] != "a new node replaces removed ones: scale-up of NodePool slow is manual" {
		t.Errorf("plan is %+v", plan.Spec)
	}
	if want := "-2 vCPUs, -2 GiB memory, -8 GiB disk, not including 1 VM of unknown size"; !strings.HasSuffix(plan.Spec.Cost, want) {
		t.Errorf("the cost is %q, want %q", plan.Spec.Cost, want)
	}
	s.approve(plan)
	if got := s.compute(s.free, 9, s.candidate(free, one)); !slices.Equal(got, []string{"free-2000"}) {
		t.Errorf("%q go once approved", got)
	}
}

// unread is a fleet that has not been read yet.
type unread struct{}

func (unread) Synced() bool          { return false }
func (unread) VMs() []scaler.VMState { return nil }

// TestPlansOutliveARestart calls Advance before the new controller has read any VM, and
// checks that the plan stays pending.
func TestPlansOutliveARestart(t *testing.T) {
	s := newShop(t)
	slow := s.pool("slow", "", "manual")
	one := worker("slow", 2000)
	s.stock(one)
	s.compute(s.held, 9, s.candidate(slow, one))
	s.approvals.Watch(unread{})
	s.settle()
	s.plan(v1alpha1.ScalePlanPending)
}
