package approval_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

func TestModesLetPassOrWait(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("free", "", "")
	b.pool("quick", "auto", "manual")
	b.pool("slow", "manual", "auto")
	b.pool("odd", "Manual ", "")
	may, err := b.approvals.Up(t.Context(), snapshot(), nil)
	if err != nil || len(may) != 0 {
		t.Fatalf("of nothing, %d may be made (%v)", len(may), err)
	}
	may, err = b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{
		placed("free", pve1, 4096, "a"), placed("quick", pve1, 4096, "b"),
		placed("slow", pve2, 4096, "c"), placed("odd", pve2, 4096, "d"), placed("gone", pve2, 4096, "e"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.scaler.plans != 0 {
		t.Errorf("%d plans were made while others wait for places", b.scaler.plans)
	}
	if err := b.approvals.Draft(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(may) != 2 || may[0].NodePool != "free" || may[1].NodePool != "quick" {
		t.Errorf("may be made: %+v", may)
	}
	plans := b.plans(v1alpha1.ScalePlanPending)
	if len(plans) != 3 {
		t.Errorf("%d plans wait, want those of slow, odd and gone", len(plans))
	}
	for i := range plans {
		drawn := b.approvals.Pictures(plans[i].Name)
		if picture := string(drawn["lab/pve-2"]); len(drawn) != 1 || !strings.Contains(picture, "create s1.2VCPU-4GB for "+plans[i].Spec.NodePools[0]) {
			t.Errorf("%s has %d pictures; that of lab/pve-2 is %.100q", plans[i].Name, len(drawn), picture)
		}
	}
	b.wantWaits("gone e PendingApproval", "odd d PendingApproval", "slow c PendingApproval")
	reported := false
	for _, event := range b.events {
		reported = reported || (event.Reason == approval.ReasonUnknownMode && strings.Contains(event.Message, `unknown mode "Manual "`))
	}
	if !reported {
		t.Error("no event reports the unknown mode")
	}
}

// TestAdvanceWaitsLongerWithoutPlans checks that Advance runs rarely while no ScalePlan
// is in progress.
func TestAdvanceWaitsLongerWithoutPlans(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "auto")
	idle, err := b.approvals.Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.want(0, placed("slow", pve2, 4096, "a"))
	open, err := b.approvals.Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if open.RequeueAfter <= 0 || idle.RequeueAfter < 10*open.RequeueAfter {
		t.Errorf("Advance is repeated after %s with an open ScalePlan, and after %s without", open.RequeueAfter, idle.RequeueAfter)
	}
}

// TestReserveIsPlannedAgain checks that a standby VM is planned again when it is requested
// with Reserve.
func TestReserveIsPlannedAgain(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	standby := placed("slow", pve1, 4096, "a")
	standby.Standby = true
	b.want(0, standby)
	b.want(0, standby)
	if b.scaler.plans != 1 {
		t.Errorf("%d dry plans were made of the same VM", b.scaler.plans)
	}
	if cost := b.plan(v1alpha1.ScalePlanPending).Spec.Cost; cost != "+0.00080 EUR/h (about +0.58 EUR/month): +8 GiB disk" {
		t.Errorf("the cost is %q, want only that of a disk", cost)
	}
	standby.Reserve = true
	b.want(0, standby)
	if b.scaler.plans != 2 {
		t.Errorf("%d dry plans were made, want another one for the VM that reserves", b.scaler.plans)
	}
	if plan := b.plan(v1alpha1.ScalePlanPending); len(plan.Spec.VMs) != 1 {
		t.Errorf("vms are %+v", plan.Spec.VMs)
	}
}

func TestScalePlanSaysAll(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "web-1", "web-2"), placed("slow", pve2, 8192, "db-1"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	spec := plan.Spec
	if spec.Direction != v1alpha1.ScaleUp || spec.Summary != "2 to create on lab/pve-1, lab/pve-2" || spec.Why != "3 pods need new nodes" {
		t.Errorf("plan is %+v", spec)
	}
	if want := "+0.066 EUR/h (about +47.89 EUR/month): +4 vCPUs, +12 GiB memory, +16 GiB disk"; spec.Cost != want {
		t.Errorf("the cost is %q, want %q", spec.Cost, want)
	}
	if len(spec.Hosts) != 2 || len(spec.Hosts[0].PlanSHA256) != 64 || spec.Verdict.Decision != v1alpha1.VerdictAllow {
		t.Errorf("hosts are %+v, verdict %+v", spec.Hosts, spec.Verdict)
	}
	if !strings.Contains(spec.Diff, "will be created") || !strings.Contains(spec.Diff, "# Host lab/pve-2") {
		t.Errorf("the diff is not the engine's:\n%s", spec.Diff)
	}
	if len(spec.Reasons) == 0 || spec.Reasons[0] != "scale-up of NodePool slow is manual" {
		t.Errorf("reasons are %q", spec.Reasons)
	}
	if got := strings.Join(spec.VMs[0].Pods, " "); len(spec.VMs) != 2 || got != "default/web-1 default/web-2" {
		t.Errorf("vms are %+v", spec.VMs)
	}
	if left := spec.ExpiresAt.Sub(b.clock.Now()); left < 23*time.Hour || left > 25*time.Hour {
		t.Errorf("it expires in %s", left)
	}
	// A pending plan is not planned again.
	b.want(0, placed("slow", pve1, 4096, "web-1", "web-2"), placed("slow", pve2, 8192, "db-1"))
	if b.scaler.plans != 1 {
		t.Errorf("%d dry plans were made", b.scaler.plans)
	}
}

// other returns a VM of NodePool other.
func other(id fleet.VMID) fleet.VM {
	p := placed("other", pve2, 2048)
	p.Spec.Hosts = nil
	return fleet.VM{
		Key: fleet.Key(strings.Repeat("c", 32)), VMID: id, Name: fleet.NodeName("other", id), Spec: p.Spec, Placement: p.Placement,
		Source: fleet.Source{VMID: 9002, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm"}, Module: modules.Hash(),
	}
}

func TestApprovalAfterTwoHours(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	half := func(spec *v1alpha1.ScalePlanSpec) { spec.Approve, spec.ApprovedBy = spec.PlanHash[:32], "alice" }
	if err := b.say(plan.DeepCopy(), half); !apierrors.IsInvalid(err) {
		t.Errorf("half a hash: %v", err)
	}
	b.want(0, placed("slow", pve1, 4096, "a"))

	b.clock.SetTime(b.clock.Now().Add(2 * time.Hour))
	b.approve(plan)
	// Meanwhile numaform was restarted, another pool's VM got the VMID, and other pods
	// request a VM like the approved one.
	again := newFleet(b, other(2000))
	again.want(1, placed("slow", pve1, 4096, "b", "c"))
	plan = b.plan(v1alpha1.ScalePlanApproved)
	if plan.Status.Approver != "alice" {
		t.Errorf("the approver is %q", plan.Status.Approver)
	}
	// numaform restarts before the VM is reserved: the approval is still valid.
	again.restart()
	again.want(1, placed("slow", pve1, 4096, "b", "c"))
	// Once the VM exists, the approval is used.
	again.vms = vms{made(placed("slow", pve1, 4096), 2001, scaler.PhaseMaking, nil)}
	again.want(0, placed("slow", pve1, 4096, "d"))
	again.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	again.vms[0].Phase = scaler.PhaseMade
	again.settle()
	if plan = b.plan(v1alpha1.ScalePlanApplied); plan.Status.Result != "1 VM was created" {
		t.Errorf("the result is %q", plan.Status.Result)
	}
	// Another VM of the same kind is a new change.
	again.want(0, placed("slow", pve1, 4096, "d"))
	if plan = b.plan(v1alpha1.ScalePlanPending); plan.Spec.Approve != "" {
		t.Error("the new plan is approved already")
	}
}

func TestAChangedPlanDoesNotApply(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	first := b.plan(v1alpha1.ScalePlanPending)
	b.approve(first)
	b.want(0, placed("slow", pve2, 4096, "a"))
	if old := b.plan(v1alpha1.ScalePlanSuperseded); old.Name != first.Name {
		t.Errorf("%s is superseded", old.Name)
	}
	second := b.plan(v1alpha1.ScalePlanPending)
	b.want(0, placed("slow", pve2, 4096, "a"), placed("slow", pve2, 4096, "b"))
	if third := b.plan(v1alpha1.ScalePlanPending); third.Spec.PlanHash == second.Spec.PlanHash {
		t.Error("two VMs have the hash of one")
	}
	// The first plan, which was approved, is finished: the same VM needs a new approval.
	b.want(0, placed("slow", pve1, 4096, "a"))
	if plan := b.plan(v1alpha1.ScalePlanPending); plan.Spec.PlanHash != first.Spec.PlanHash || plan.Spec.Approve != "" {
		t.Errorf("plan is %+v", plan.Spec)
	}
}

// TestAPlanChangesDuringADryPlan replaces a plan whose pull request is opened while the new
// change is planned.
func TestAPlanChangesDuringADryPlan(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	first := b.plan(v1alpha1.ScalePlanPending)
	b.scaler.during = func() {
		if err := b.approvals.SetPullRequest(t.Context(), first.Name, &v1alpha1.ScalePlanPullRequest{Number: 3, Branch: "numaform/lab/a"}); err != nil {
			t.Error(err)
		}
	}
	b.want(0, placed("slow", pve2, 4096, "a"))
	if old := b.plan(v1alpha1.ScalePlanSuperseded); old.Name != first.Name || old.Status.PullRequest == nil {
		t.Errorf("superseded is %+v", old)
	}
}

func TestAnApprovalIsForOneState(t *testing.T) {
	for _, tt := range []struct {
		name    string
		lineage string
		serial  int
		want    int
		result  string
	}{
		{"it went on", "first", 9, 1, ""},
		{"it went back", "first", 6, 0, "went back from serial 7 to 6"},
		{"it is another one", "second", 7, 0, "was replaced"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, guard.DefaultRules())
			b.pool("slow", "manual", "")
			b.state("first", 7)
			b.want(0, placed("slow", pve1, 4096, "a"))
			plan := b.plan(v1alpha1.ScalePlanPending)
			if host := plan.Spec.Hosts[0]; host.Lineage != "first" || host.Serial != 7 {
				t.Errorf("host is %+v", host)
			}
			b.approve(plan)
			b.state(tt.lineage, tt.serial)
			b.want(tt.want, placed("slow", pve1, 4096, "a"))
			notified := slices.ContainsFunc(b.events, func(event events.Event) bool {
				return event.Reason == approval.ReasonFinished && strings.Contains(event.Message, tt.result)
			})
			if notified != (tt.want == 0) {
				t.Errorf("events are %+v", b.events)
			}
			if waiting := len(b.plans(v1alpha1.ScalePlanPending)); waiting != 1-tt.want {
				t.Errorf("%d plans wait", waiting)
			}
		})
	}
}

func TestAnExpiredPlanDoesNotApply(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	b.clock.SetTime(plan.Spec.ExpiresAt.Time)
	b.approve(plan)
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.settle()
	b.plan(v1alpha1.ScalePlanExpired)
	b.want(0, placed("slow", pve1, 4096, "a"))
	if next := b.plan(v1alpha1.ScalePlanPending); next.Spec.Approve != "" || next.UID == plan.UID {
		t.Errorf("plan is %+v", next.Spec)
	}
}

func TestARejectedPlanRestsForADay(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	err := b.say(b.plan(v1alpha1.ScalePlanPending), func(spec *v1alpha1.ScalePlanSpec) { spec.Reject, spec.RejectedBy = "too big", "bob" })
	if err != nil {
		t.Fatal(err)
	}
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.settle()
	if plan := b.plan(v1alpha1.ScalePlanRejected); plan.Status.Result != "rejected by bob: too big" {
		t.Errorf("the result is %q", plan.Status.Result)
	}
	b.restart()
	b.want(0, placed("slow", pve1, 4096, "a"))
	if plans := b.plans(""); len(plans) != 1 {
		t.Errorf("%d plans", len(plans))
	}
	b.clock.SetTime(b.clock.Now().Add(25 * time.Hour))
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.plan(v1alpha1.ScalePlanPending)
}

// TestAfterARejection checks which pods get a new plan after a rejection: not the ones that
// need the same change, until the rejected plan is deleted, and at once the others.
func TestAfterARejection(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	rejected := b.plan(v1alpha1.ScalePlanPending)
	if err := b.say(rejected, func(spec *v1alpha1.ScalePlanSpec) { spec.Reject, spec.RejectedBy = "too big", "bob" }); err != nil {
		t.Fatal(err)
	}
	b.settle()
	b.want(0, placed("slow", pve1, 4096, "b"))
	b.wantWaits("slow b PlanRejected")
	if plans := b.plans(""); len(plans) != 1 {
		t.Errorf("%d plans", len(plans))
	}

	b.want(0, placed("slow", pve1, 8192, "b", "c"))
	b.wantWaits("slow b,c PendingApproval")
	larger := b.plan(v1alpha1.ScalePlanPending)

	b.want(0, placed("slow", pve1, 4096, "b"))
	b.wantWaits("slow b PlanRejected")
	if ended := b.plan(v1alpha1.ScalePlanSuperseded); ended.UID != larger.UID {
		t.Errorf("plan %s is superseded", ended.Name)
	}
	if err := b.client.Delete(t.Context(), b.plan(v1alpha1.ScalePlanRejected)); err != nil {
		t.Fatal(err)
	}
	b.want(0, placed("slow", pve1, 4096, "b"))
	b.wantWaits("slow b PendingApproval")
	if next := b.plan(v1alpha1.ScalePlanPending); next.Name != rejected.Name || next.Spec.Reject != "" {
		t.Errorf("the new plan is %s: %+v", next.Name, next.Spec)
	}
}

// TestTheSameChangeTwice checks that a plan stays as it ended while its VM has not joined,
// and that another pod with the same need gets a new plan of the same name, which is not
// approved.
func TestTheSameChangeTwice(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	first := b.plan(v1alpha1.ScalePlanPending)
	b.approve(first)
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.create(2007, scaler.PhaseMaking)
	// The VM takes pod a in each decision, from its reservation on.
	b.want(0)
	b.settle()
	if begun := b.plan(v1alpha1.ScalePlanApproved); begun.UID != first.UID {
		t.Error("another plan has begun")
	}
	b.vms[0].Phase = scaler.PhaseMade
	b.settle()
	b.want(0)
	b.settle()
	if applied := b.plan(v1alpha1.ScalePlanApplied); applied.UID != first.UID || len(b.plans("")) != 1 {
		t.Errorf("%d plans; %s is applied", len(b.plans("")), applied.Name)
	}

	b.want(0, placed("slow", pve1, 4096, "b"))
	second := b.plan(v1alpha1.ScalePlanPending)
	if second.Name != first.Name || second.UID == first.UID || second.Spec.Approve != "" || len(b.plans("")) != 1 {
		t.Errorf("%d plans; the second one is %s: %+v", len(b.plans("")), second.Name, second.Spec)
	}
	b.approve(second)
	b.want(1, placed("slow", pve1, 4096, "b"))
	b.create(2008, scaler.PhaseMade)
	b.settle()
	b.plan(v1alpha1.ScalePlanApplied)
}

func TestWhatTheGuardDeniesNobodyApproves(t *testing.T) {
	b := newBench(t, guard.Rules{})
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanFailed)
	if plan.Spec.Verdict.Decision != v1alpha1.VerdictDeny || len(plan.Spec.Reasons) < 2 {
		t.Errorf("plan is %+v", plan.Spec)
	}
	b.approve(plan)
	b.want(0, placed("slow", pve1, 4096, "a"))
	if plans := b.plans(""); len(plans) != 1 || b.scaler.plans != 1 {
		t.Errorf("%d plans, planned %d times", len(plans), b.scaler.plans)
	}
}

func TestPlansThatNobodyNeedsGo(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.want(0)
	b.plan(v1alpha1.ScalePlanPending)
	// No pod triggers the decision that ends the plan.
	for _, after := range []time.Duration{0, 3 * time.Minute} {
		b.clock.SetTime(b.clock.Now().Add(after))
		b.again = false
		if b.settle(); b.again != (after > 0) {
			t.Errorf("after %s, another decision is requested: %t", after, b.again)
		}
	}
	b.want(0)
	b.plan(v1alpha1.ScalePlanSuperseded)
	b.clock.SetTime(b.clock.Now().Add(8 * 24 * time.Hour))
	b.settle()
	if plans := b.plans(""); len(plans) != 0 {
		t.Errorf("%d old plans remain", len(plans))
	}
}

// TestPlansOfUnreadHostsStay checks that a plan, and so its pull request, does not end while its
// host cannot be read: no pod can be placed there, although pods may still need the VMs.
func TestPlansOfUnreadHostsStay(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	unreadable, neverRead := snapshot(), snapshot()
	unreadable.Hosts[0].Problem = "cannot be read now"
	neverRead.Hosts = neverRead.Hosts[1:]
	for name, seen := range map[string]*topology.Snapshot{"unreadable": unreadable, "never read": neverRead} {
		b.clock.SetTime(b.clock.Now().Add(3 * time.Minute))
		if _, err := b.approvals.Up(t.Context(), seen, nil); err != nil {
			t.Fatal(err)
		}
		b.again = false
		if b.settle(); b.again || len(b.plans(v1alpha1.ScalePlanPending)) != 1 {
			t.Errorf("%s: %d plans are pending, and another decision is requested: %t", name, len(b.plans(v1alpha1.ScalePlanPending)), b.again)
		}
	}
	b.clock.SetTime(b.clock.Now().Add(3 * time.Minute))
	b.want(0)
	b.plan(v1alpha1.ScalePlanSuperseded)
}

func TestPausedMakesNothing(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("free", "auto", "")
	b.paused = true
	b.want(0, placed("free", pve1, 4096, "a"))
	b.paused = false
	b.want(1, placed("free", pve1, 4096, "a"))
}

func TestAnApplyThatFails(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.vms = vms{made(placed("slow", pve1, 4096), 2009, scaler.PhaseMade, nil)}
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	b.vms = append(b.vms, made(placed("slow", pve1, 4096), 2010, scaler.PhaseFailed, errors.New("storage is full")))
	b.settle()
	if plan := b.plan(v1alpha1.ScalePlanFailed); plan.Status.Result != "slow-2010: storage is full" {
		t.Errorf("the result is %q", plan.Status.Result)
	}
}

func TestVMsThatNeverCome(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.clock.SetTime(b.clock.Now().Add(20 * time.Minute))
	b.settle()
	if plan := b.plan(v1alpha1.ScalePlanFailed); !strings.Contains(plan.Status.Result, "0 of 1 VMs were created") {
		t.Errorf("the result is %q", plan.Status.Result)
	}
}

// TestVMsThatWaitForTheBackend checks that a plan does not end while one of its VMs waits for
// the state backend.
func TestVMsThatWaitForTheBackend(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	two := []scheduling.Placed{placed("slow", pve1, 4096, "a"), placed("slow", pve1, 4096, "b")}
	b.want(0, two...)
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(2, two...)
	b.vms = append(b.vms, made(two[0], 2010, scaler.PhaseReserved, &state.CommandError{Backend: "kubernetes", Text: "connection refused"}))
	b.clock.SetTime(b.clock.Now().Add(20 * time.Minute))
	b.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	b.vms[len(b.vms)-1].Err = nil
	b.settle()
	b.plan(v1alpha1.ScalePlanFailed)
}

func TestAModeThatBecomesFree(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	pool := b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	pool.Annotations[v1alpha1.AnnotationScaleUp] = "policy"
	if err := b.client.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.plan(v1alpha1.ScalePlanSuperseded)
}

// TestApproverOf checks that only the VMs that a plan records have its approver. A similar
// VM has none, nor has a VM of a plan of an older version, which recorded no keys.
func TestApproverOf(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.create(2010, scaler.PhaseMade)
	b.vms = append(b.vms, made(b.may[0], 2011, scaler.PhaseMade, nil))
	b.wantApprover(0, "alice")
	b.wantApprover(1, "")
	b.settle()
	plan := b.plan(v1alpha1.ScalePlanApplied)
	if want := []string{string(b.vms[0].VM.Key)}; !slices.Equal(plan.Status.Keys, want) {
		t.Errorf("keys %q, want %q", plan.Status.Keys, want)
	}
	b.restart()
	b.wantApprover(0, "alice")
	if err := b.approvals.Created(t.Context(), "deleted", []fleet.VM{b.vms[1].VM}); err != nil {
		t.Errorf("VMs of a deleted plan: %v", err)
	}

	b.want(0, placed("slow", pve2, 4096, "b"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(1, placed("slow", pve2, 4096, "b"))
	b.vms = append(b.vms, made(b.may[0], 2012, scaler.PhaseMade, nil)) // an older version records no key
	b.clock.SetTime(b.clock.Now().Add(time.Second))
	b.wantApprover(2, "")
}

// unwritable is a cluster to which no status can be written.
type unwritable struct{ client.Client }

func (unwritable) Status() client.SubResourceWriter { return failing{} }

type failing struct{ client.SubResourceWriter }

var errUnwritable = errors.New("etcd is read-only")

func (failing) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return errUnwritable
}

// TestWhatCannotBeBegunWaits uses a cluster that cannot record that an approved plan was
// begun. It checks that the plan's VMs are not created: a restart would create them twice.
func TestWhatCannotBeBegunWaits(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	works := b.client
	b.client = unwritable{works}
	b.restart()
	for range 2 { // the first must plan again
		may, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{placed("slow", pve1, 4096, "a")})
		if len(may) > 0 || b.again && !errors.Is(err, errUnwritable) {
			t.Errorf("%d VMs may be made (%v)", len(may), err)
		}
		if err := b.approvals.Draft(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !b.again {
		t.Error("it was never to be begun")
	}
	b.client = works
	b.restart()
	b.want(1, placed("slow", pve1, 4096, "a"))
}

// wantWaits compares the NodePools that wait, with their pods and reasons, and checks that
// each message names a plan that exists.
func (b *bench) wantWaits(want ...string) {
	b.Helper()
	var got []string
	for _, wait := range b.approvals.Waits() {
		var pods []string
		for _, pod := range wait.Pods {
			pods = append(pods, pod.Name)
		}
		got = append(got, wait.NodePool+" "+strings.Join(pods, ",")+" "+wait.Reason)
		if wait.ScalePlan == "" {
			continue
		}
		if err := b.client.Get(b.Context(), client.ObjectKey{Name: wait.ScalePlan}, &v1alpha1.ScalePlan{}); err != nil || !strings.Contains(wait.Message, wait.ScalePlan) {
			b.Errorf("message %q, want plan %s (%v)", wait.Message, wait.ScalePlan, err)
		}
	}
	if !slices.Equal(got, want) {
		b.Errorf("waits are %q, want %q", got, want)
	}
}

// TestWaitsEnd checks the reason of a wait while its plan is pending, after the rejection and
// after the approval, when no pod requests it any more, and while the state backend does not
// respond.
func TestWaitsEnd(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.wantWaits("slow a PendingApproval")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.wantWaits("slow a PendingApproval")
	plan := b.plan(v1alpha1.ScalePlanPending)
	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.Reject, spec.RejectedBy = "not now", "alice" }); err != nil {
		t.Fatal(err)
	}
	b.settle()
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.wantWaits("slow a PlanRejected")
	if got := b.approvals.Waits()[0].Message; !strings.HasPrefix(got, "alice rejected plan "+plan.Name+": not now: ") {
		t.Errorf("message %q", got)
	}
	b.want(0)
	b.wantWaits()

	b.want(0, placed("slow", pve2, 2048, "a"))
	other := b.plan(v1alpha1.ScalePlanPending)
	b.approve(other)
	b.want(1, placed("slow", pve2, 2048, "a"))
	b.wantWaits()
	b.create(2010, scaler.PhaseMaking)
	b.wantApprover(len(b.vms)-1, "alice")

	b.scaler.plan = func(change *scaler.Change) []scaler.RootPlan {
		return []scaler.RootPlan{{Host: pve1, Touched: true, Err: &state.CommandError{Backend: "kubernetes", Text: "connection refused"}}}
	}
	if _, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{placed("slow", pve1, 8192, "a")}); err != nil {
		t.Fatal(err)
	}
	if err := b.approvals.Draft(t.Context()); err == nil {
		t.Error("no error while the backend is down")
	}
	b.wantWaits("slow a StateBackendUnreachable")
}
