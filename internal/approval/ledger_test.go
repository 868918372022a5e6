package approval_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// forge writes a status, as anyone with permission can.
func (b *bench) forge(plan *v1alpha1.ScalePlan, status v1alpha1.ScalePlanStatus) {
	b.Helper()
	if err := b.client.Get(b.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
		b.Fatal(err)
	}
	plan.Status = status
	if err := b.client.Status().Update(b.Context(), plan); err != nil {
		b.Fatal(err)
	}
}

// TestForgedStatus checks that a status written by another client neither approves nor
// ends a plan, and that an operator can still approve the plan.
func TestForgedStatus(t *testing.T) {
	future := metav1.NewTime(time.Now().Add(1000 * time.Hour))
	begun := metav1.Condition{Type: "Begun", Status: metav1.ConditionTrue, Reason: "Approved", LastTransitionTime: metav1.Now()}
	for phase, status := range map[v1alpha1.ScalePlanPhase]v1alpha1.ScalePlanStatus{
		v1alpha1.ScalePlanApproved:   {Approver: "mallory", Conditions: []metav1.Condition{begun}},
		v1alpha1.ScalePlanRejected:   {DecidedAt: &future},
		v1alpha1.ScalePlanFailed:     {DecidedAt: &future, FinishedAt: &future},
		v1alpha1.ScalePlanApplied:    {FinishedAt: &future},
		v1alpha1.ScalePlanExpired:    {DecidedAt: &future, FinishedAt: &future},
		v1alpha1.ScalePlanSuperseded: {FinishedAt: &future},
	} {
		t.Run(string(phase), func(t *testing.T) {
			b := newBench(t, guard.DefaultRules())
			b.pool("slow", "manual", "")
			vm := placed("slow", pve1, 4096, "a")
			// A VM like the new one already exists.
			b.vms = vms{made(vm, 2007, scaler.PhaseMade, nil)}
			b.want(0, vm)
			plan := b.plan(v1alpha1.ScalePlanPending)
			status.Phase = phase
			b.forge(plan, status)
			b.want(0, vm)
			b.want(0, vm)
			b.settle()
			if restored := b.plan(v1alpha1.ScalePlanPending); restored.UID != plan.UID || restored.Status.Approver != "" || restored.Status.DecidedAt != nil {
				t.Errorf("the status is %+v", restored.Status)
			}
			b.forge(plan, status)
			b.approve(plan)
			b.want(1, vm)
			if b.plan(v1alpha1.ScalePlanApproved).Status.Approver != "alice" {
				t.Error("the approval has another author")
			}
		})
	}
}

// TestAnApprovalIsGoodOnce resets the status of a begun and of an applied plan, and checks
// that the approval is not valid again.
func TestAnApprovalIsGoodOnce(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	b.approve(plan)
	b.want(1, vm)
	b.vms = vms{made(vm, 2007, scaler.PhaseMaking, nil)}
	b.forge(plan, v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanPending})
	b.want(0, vm)
	b.vms = vms{made(vm, 2007, scaler.PhaseMade, nil)}
	b.settle()
	b.plan(v1alpha1.ScalePlanApplied)
	b.forge(plan, v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanPending})
	b.want(0, vm)
	if pending := b.plan(v1alpha1.ScalePlanPending); pending.UID == plan.UID || pending.Spec.Approve != "" {
		t.Error("the plan that was carried out waits again")
	}
}

// TestPlansOfOthers checks that a ScalePlan that numaform did not propose is ignored and
// deleted, even if it has the name of the next proposal.
func TestPlansOfOthers(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	forged := plan.DeepCopy()
	if err := b.client.Delete(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	forged.ObjectMeta = metav1.ObjectMeta{Name: plan.Name}
	forged.Spec.ExpiresAt = metav1.NewTime(time.Now().Add(9000 * time.Hour))
	forged.Spec.Diff, forged.Spec.Approve, forged.Spec.ApprovedBy = "nothing to see here", forged.Spec.PlanHash, "mallory"
	if err := b.client.Create(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.want(0, vm)
	if now := b.plan(v1alpha1.ScalePlanPending); now.UID == forged.UID || now.Spec.Diff != plan.Spec.Diff {
		t.Error("the plan is not numaform's")
	}
	stranger := forged.DeepCopy()
	stranger.ObjectMeta = metav1.ObjectMeta{Name: "stranger"}
	if err := b.client.Create(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	b.settle()
	if len(b.plans("")) != 2 {
		t.Error("a plan goes that may be being proposed")
	}
	b.clock.SetTime(b.clock.Now().Add(2 * time.Minute))
	b.settle()
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(stranger), stranger); !apierrors.IsNotFound(err) {
		t.Errorf("the stranger is there: %v", err)
	}
}

// TestLedgerOfOlderVersions deletes the ledger, and checks that a plan of a version without
// one can still be approved.
func TestLedgerOfOlderVersions(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: approval.LedgerName}}
	if err := b.client.Delete(t.Context(), book); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.want(0, vm)
	b.approve(plan)
	b.want(1, vm)
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(book), book); err != nil || len(book.Data) == 0 {
		t.Fatalf("ledger %v, %v", book.Data, err)
	}
	// The ledger drops plans that no longer exist.
	if err := b.client.Delete(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	b.settle()
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(book), book); err != nil || len(book.Data) != 0 {
		t.Errorf("ledger %v, %v", book.Data, err)
	}
}

// TestForgedStatusWithoutLedger deletes the ledger, as the deletion of the namespace does,
// and checks that a decision by a pull request that another client wrote into a status
// neither approves nor rejects the plan.
func TestForgedStatusWithoutLedger(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)
	for _, request := range []v1alpha1.ScalePlanPullRequest{
		{Number: 7, Approved: plan.Spec.PlanHash, DecidedBy: "mallory"},
		{Number: 7, Rejected: "closed", DecidedBy: "mallory"},
	} {
		book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: approval.LedgerName}}
		if err := b.client.Delete(t.Context(), book); err != nil {
			t.Fatal(err)
		}
		b.forge(plan, v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanPending, PullRequest: &request})
		b.restart()
		b.want(0, vm)
		b.settle()
		b.want(0, vm)
		if now := b.plan(v1alpha1.ScalePlanPending); now.UID != plan.UID || now.Status.PullRequest != nil {
			t.Errorf("with %+v, the status is %+v", request, now.Status)
		}
	}
	b.approve(plan)
	b.want(1, vm)
}

// TestOwnStatusIsNotRestored calls Advance after a status was written and before it was
// entered into the ledger. It checks that Advance does not reset the status.
func TestOwnStatusIsNotRestored(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.want(0, vm)
	b.approve(b.plan(v1alpha1.ScalePlanPending))

	advanced := make(chan error, 1)
	b.updated = func() {
		go func() {
			_, err := b.approvals.Advance(t.Context())
			advanced <- err
		}()
		select {
		case err := <-advanced: // it did not wait for the entry
			advanced <- err
		case <-time.After(300 * time.Millisecond):
		}
	}
	b.want(1, vm)
	if err := <-advanced; err != nil {
		t.Fatal(err)
	}
	b.plan(v1alpha1.ScalePlanApproved)
}
