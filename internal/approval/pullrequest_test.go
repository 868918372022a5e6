package approval_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/state/guard"
)

// decide records the decision of a plan's pull request.
func (b *bench) decide(plan *v1alpha1.ScalePlan, approved, rejected string) {
	b.Helper()
	request := &v1alpha1.ScalePlanPullRequest{Number: 7, Approved: approved, Rejected: rejected, DecidedBy: "alice"}
	if err := b.approvals.SetPullRequest(b.Context(), plan.Name, request); err != nil {
		b.Fatal(err)
	}
}

// TestApprovedByPullRequest begins a plan that its pull request approved, by exactly the
// plan's hash. A status that another client wrote approves nothing.
func TestApprovedByPullRequest(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	hash := plan.Spec.PlanHash

	b.forge(plan, v1alpha1.ScalePlanStatus{
		Phase: v1alpha1.ScalePlanPending, PullRequest: &v1alpha1.ScalePlanPullRequest{Number: 7, Approved: hash, DecidedBy: "mallory"},
	})
	b.want(0, vm)
	b.settle()
	b.decide(plan, "", "")
	b.want(0, vm)
	b.decide(plan, strings.Repeat("0", 64), "")
	b.want(0, vm)
	b.decide(plan, hash, "")
	b.want(1, vm)
	if got := b.plan(v1alpha1.ScalePlanApproved); got.Status.Approver != "alice" || got.Status.PullRequest.Number != 7 {
		t.Errorf("the status is %+v", got.Status)
	}
}

// TestPullRequestNeedsSignatures checks that the merge of a pull request does not replace
// required signatures: the plan begins when a user approves it with them.
func TestPullRequestNeedsSignatures(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	keys, policy := newSigners(t)
	b.policy = policy
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	b.decide(plan, plan.Spec.PlanHash, "")
	b.want(0, vm)
	if got := b.waitsFor(); !strings.Contains(got, "0 of 2 signatures") {
		t.Errorf("a merge alone waits for %q", got)
	}
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.add(b.plan(v1alpha1.ScalePlanPending), keys.sign(t, "alice", plan), keys.sign(t, "bob", plan))
	b.want(1, vm)
}

// TestRejectedByPullRequest ends a plan that its pull request rejected, and does not propose
// it again.
func TestRejectedByPullRequest(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	b.decide(b.plan(v1alpha1.ScalePlanPending), "", "pull request #7 was closed")
	b.want(0, vm)
	b.settle()
	if got := b.plan(v1alpha1.ScalePlanRejected).Status.Result; got != "rejected by alice: pull request #7 was closed" {
		t.Errorf("the result is %q", got)
	}
	b.want(0, vm)
	if plans := b.undecided(); len(plans) > 0 {
		t.Errorf("%d plans wait for a decision", len(plans))
	}
}

// TestModeWithoutAnnotation uses the configured mode for NodePools without an annotation
// only.
func TestModeWithoutAnnotation(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.unset = approval.ModeManual
	b.restart()
	b.pool("unset", "", "")
	b.pool("policy", "policy", "")
	b.want(0, placed("unset", pve1, 4096, "a"))
	b.plan(v1alpha1.ScalePlanPending)
	b.want(1, placed("policy", pve1, 4096, "b"))
}

// TestReadDuringDecision reads the plans between the two writes of a decision by a pull
// request: the reader, which may begin the plan, must not have the status without it.
func TestReadDuringDecision(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	read := make(chan []v1alpha1.ScalePlan, 1)
	b.updated = func() {
		go func() {
			plans, err := b.approvals.Plans(t.Context())
			if err != nil {
				t.Error(err)
			}
			read <- plans
		}()
		for range 20 { // until the reader is done, unless it waits for this writer
			if len(read) == 0 {
				<-time.After(100 * time.Millisecond)
			}
		}
	}
	b.decide(plan, plan.Spec.PlanHash, "")
	for _, seen := range <-read {
		if seen.Status.PullRequest == nil || seen.Status.PullRequest.Approved != plan.Spec.PlanHash {
			t.Errorf("the reader has the status %+v", seen.Status)
		}
	}
}
