package approval_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// strict returns rules under which every create needs approval.
func strict() guard.Rules {
	rules := guard.DefaultRules()
	rules.Limits.PerChange.Creates = 0
	return rules
}

// held returns a host's plan that creates the VMs and needs approval. No VM gets the VMID
// in taken.
func (b *bench) held(taken fleet.VMID, placed ...scheduling.Placed) *scaler.RootPlan {
	b.Helper()
	var requests []scaler.Request
	for _, p := range placed {
		requests = append(requests, scaler.Request{Spec: p.Spec, Placement: p.Placement})
	}
	change, err := b.scaler.Propose(b.Context(), snapshot(), requests, map[topology.RegionName][]fleet.VMID{"lab": {taken}})
	if err != nil {
		b.Fatal(err)
	}
	plans, err := b.scaler.Scaler.Plan(b.Context(), change)
	if err != nil || len(plans) != 1 || plans[0].Err != nil {
		b.Fatalf("plans are %+v (%v)", plans, err)
	}
	if plans[0].Verdict.Decision != guard.NeedsApproval {
		b.Fatalf("the guard says %s", plans[0].Verdict)
	}
	return &plans[0]
}

// asked checks who approves a plan.
func (b *bench) asked(want string, plan *scaler.RootPlan) {
	b.Helper()
	approval, err := b.approvals.Approver(b.Context(), plan)
	got := ""
	if approval != nil {
		got = approval.By
	}
	if err != nil || got != want {
		b.Fatalf("the approver is %q (%v), want %q", got, err, want)
	}
}

func TestTheGateOpensByMode(t *testing.T) {
	b := newBench(t, strict())
	b.pool("quick", "auto", "")
	b.pool("swift", "auto", "")
	b.pool("free", "policy", "")
	b.asked("auto mode of NodePool quick", b.held(0, placed("quick", pve1, 4096)))
	b.asked("auto mode of NodePool quick, swift", b.held(0, placed("quick", pve1, 4096), placed("swift", pve1, 4096)))
	if plans := b.plans(""); len(plans) != 0 {
		t.Errorf("%d plans wait", len(plans))
	}
	b.asked("", b.held(0, placed("quick", pve1, 4096), placed("free", pve1, 4096)))
	b.plan(v1alpha1.ScalePlanPending)
	stranger := b.held(0, placed("quick", pve1, 4096))
	stranger.Verdict.Findings[0].Address = "module.other-2000.proxmox_virtual_environment_vm.node"
	b.asked("", stranger)
	address := stranger.Verdict.Findings[0].Address
	if !slices.ContainsFunc(b.plans(v1alpha1.ScalePlanPending), func(plan v1alpha1.ScalePlan) bool {
		return strings.HasPrefix(plan.Spec.Verdict.Rules[0].Message, address+": ")
	}) {
		t.Errorf("no plan names %s", address)
	}
}

func TestTheGateOpensByAPlan(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	b.asked("", b.held(0, placed("free", pve1, 4096, "a")))
	b.asked("", b.held(2000, placed("free", pve1, 4096, "b")))
	plan := b.plan(v1alpha1.ScalePlanPending)
	if plan.Spec.RequestedBy != "guard" || plan.Spec.Verdict.Decision != v1alpha1.VerdictNeedsApproval || plan.Spec.VMs[0].InstanceType != "s1.2VCPU-4GB" {
		t.Errorf("plan is %+v", plan.Spec)
	}
	b.approve(plan)
	b.asked("", b.held(0, placed("free", pve1, 8192, "a")))
	b.asked("", b.held(0, placed("free", pve1, 4096, "a"), placed("free", pve1, 4096, "b")))
	denied := b.held(0, placed("free", pve1, 4096, "a"))
	denied.Verdict.Decision = guard.Deny
	b.asked("", denied)
	worse := b.held(0, placed("free", pve1, 4096, "a"))
	worse.Verdict.Findings = append(worse.Verdict.Findings, guard.Finding{Rule: guard.RuleForget, Decision: guard.NeedsApproval})
	b.asked("", worse)
}

// TestTheGateOpensForAllThatItHeld checks that the approval of two VMs does not cover one
// of them alone, and that only one plan for a host is pending.
func TestTheGateOpensForAllThatItHeld(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	b.asked("", b.held(0, placed("free", pve1, 4096, "a"), placed("free", pve1, 4096, "b")))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.asked("", b.held(0, placed("free", pve1, 4096, "a")))
	b.asked("", b.held(0, placed("free", pve1, 8192, "a")))
	if open := b.undecided(); len(open) != 1 || !strings.Contains(open[0].Spec.Diff, "= 8192") {
		t.Errorf("%d plans wait, want that of the last", len(open))
	}
}

// TestTheGateOpensForAVMWithASeed checks that an approval still applies when the VM has
// another VMID and key, and so another seed name.
func TestTheGateOpensForAVMWithASeed(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	seeded := func(taken fleet.VMID) *scaler.RootPlan {
		plan := b.held(taken, placed("free", pve1, 4096, "a"))
		made := plan.Intent.Create[0]
		for _, change := range plan.Plan.JSON.ResourceChanges {
			after := change.Change.After.(map[string]any)
			after["cdrom"] = []any{map[string]any{"file_id": fleet.SeedVolume("local", "prod", made.VMID, made.Key)}}
		}
		return plan
	}
	b.asked("", seeded(0))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	plan := seeded(2000)
	b.asked("alice", plan)
	if got, want := b.plan(v1alpha1.ScalePlanApproved).Status.Keys, string(plan.Intent.Create[0].Key); !slices.Equal(got, []string{want}) {
		t.Errorf("the plan records the VMs %q, want %s", got, want)
	}
}

func TestTheGateOpensOnceAPersonSaysSo(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	b.asked("", b.held(0, placed("free", pve1, 4096, "a")))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.restart()
	// The new VM waits for approval in the Writer, while another VM like it already
	// exists.
	plan := b.held(2000, placed("free", pve1, 4096, "b"))
	b.vms = vms{made(placed("free", pve1, 4096), 2000, scaler.PhaseMade, nil), made(placed("free", pve1, 4096), 2001, scaler.PhaseMaking, nil)}
	b.vms[1].VM.Key = plan.Intent.Create[0].Key
	b.asked("alice", plan)
	b.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	b.vms[1].Phase = scaler.PhaseMade
	b.settle()
	b.plan(v1alpha1.ScalePlanApplied)
}

func TestAHeldPoolWaitsBeforeItClaims(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	b.want(1, placed("free", pve1, 4096, "a"))
	b.asked("", b.held(0, placed("free", pve1, 4096, "a")))
	b.want(0, placed("free", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	b.approve(plan)
	b.want(1, placed("free", pve1, 4096, "a"))
	b.asked("alice", b.held(2000, placed("free", pve1, 4096, "a")))
	b.vms = vms{made(placed("free", pve1, 4096), 2001, scaler.PhaseMade, nil)}
	b.settle()
	b.plan(v1alpha1.ScalePlanApplied)
}

func TestTheGateOpensForWhatWasApprovedBefore(t *testing.T) {
	b := newBench(t, strict())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"), placed("slow", pve2, 4096, "b"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(2, placed("slow", pve1, 4096, "a"), placed("slow", pve2, 4096, "b"))
	b.asked("alice", b.held(2000, placed("slow", pve1, 4096, "a")))
	b.asked("", b.held(2000, placed("slow", pve1, 4096, "a"), placed("slow", pve1, 4096, "c")))
}

func TestTheGateOpensOncePerApproval(t *testing.T) {
	b := newBench(t, strict())
	b.pool("free", "", "")
	b.asked("", b.held(0, placed("free", pve1, 4096, "a")))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	plan := b.held(0, placed("free", pve1, 4096, "a"))
	b.vms = vms{made(placed("free", pve1, 4096), 2000, scaler.PhaseReserved, nil)}
	b.vms[0].VM.Key = plan.Intent.Create[0].Key
	b.asked("alice", plan)
	// While the approved VM is being created, pods request another VM like it.
	next := b.held(2000, placed("free", pve1, 4096, "b"))
	b.vms[0].Phase = scaler.PhaseMaking
	b.vms = append(b.vms, made(placed("free", pve1, 4096), 2001, scaler.PhaseReserved, nil))
	b.vms[1].VM.Key = next.Intent.Create[0].Key
	b.asked("", next)
}

// removal returns a host's plan that deletes the VMs.
func removal(vms ...fleet.VM) *scaler.RootPlan {
	plan := &scaler.RootPlan{
		Host: pve1, Touched: true, Plan: emptyPlan("will be destroyed"),
		Verdict: guard.Verdict{Decision: guard.NeedsApproval, Findings: []guard.Finding{{Rule: guard.RuleLimit, Decision: guard.NeedsApproval, Message: "too many"}}},
	}
	for _, vm := range vms {
		plan.Intent.Delete = append(plan.Intent.Delete, guard.Target{
			Address: "module." + vm.Name + "." + guard.ResourceType + ".node", VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host, Pool: vm.Pool,
		})
	}
	return plan
}

func emptyPlan(text string) *state.Plan {
	return &state.Plan{JSON: &tfjson.Plan{}, Text: text, SHA256: strings.Repeat("1", 64), Digest: strings.Repeat("2", 64)}
}

func TestTheGateOpensForRemovalsByKey(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("other", "manual", "policy")
	one, two := other(2000), other(2001)
	two.Key = fleet.Key(strings.Repeat("d", 32))
	b.vms = vms{{VM: one, Phase: scaler.PhaseRemoving}}
	b.asked("", removal(one))
	// Karpenter did not request this removal, so its plan stays pending although the node
	// is not a candidate.
	b.clock.SetTime(b.clock.Now().Add(10 * time.Minute))
	b.settle()
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.asked("", removal(two))
	b.asked("alice", removal(one))
	b.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	b.vms = nil
	b.settle()
	if plan := b.plan(v1alpha1.ScalePlanApplied); plan.Status.Result != "1 VM was deleted" {
		t.Errorf("the result is %q", plan.Status.Result)
	}
}

// TestChangesInPlaceWaitByMode requests an update of a running VM, which the guard allows.
// It checks that the update needs approval in a manual NodePool only, and that its plan is
// superseded if the update is no longer requested.
func TestChangesInPlaceWaitByMode(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("other", "manual", "")
	b.pool("free", "policy", "")
	vm := other(2000)
	plan := removal(vm)
	plan.InPlace, plan.Verdict = true, guard.Verdict{Decision: guard.Allow}
	plan.Intent.Update, plan.Intent.Delete = plan.Intent.Delete, nil
	if asks, err := b.approvals.Asks(t.Context(), plan); err != nil || !asks {
		t.Fatalf("asks: %t (%v)", asks, err)
	}
	b.vms = vms{{VM: vm, Phase: scaler.PhaseMade, Changing: true}}
	b.asked("", plan)
	b.settle()
	waiting := b.plan(v1alpha1.ScalePlanPending)
	if waiting.Spec.RequestedBy != approval.RequestedByClass || len(waiting.Spec.Reasons) != 1 || waiting.Spec.Summary != "1 to change on lab/pve-1" {
		t.Errorf("plan is %+v", waiting.Spec)
	}
	b.approve(waiting)
	b.asked("alice", plan)
	b.settle()
	b.plan(v1alpha1.ScalePlanApproved)
	b.vms[0].Changing = false
	b.settle()
	b.plan(v1alpha1.ScalePlanApplied)

	// A request that is reverted before a decision is no longer pending.
	b.vms[0].Changing = true
	plan.Intent.Update[0].Key = fleet.Key(strings.Repeat("d", 32))
	b.vms[0].VM.Key = plan.Intent.Update[0].Key
	b.asked("", plan)
	b.vms[0].Changing = false
	b.settle()
	b.plan(v1alpha1.ScalePlanPending) // right after a start, the update may not have been requested yet
	b.clock.SetTime(b.clock.Now().Add(2*time.Minute - 1))
	b.settle()
	b.plan(v1alpha1.ScalePlanPending)
	b.clock.SetTime(b.clock.Now().Add(1))
	b.settle()
	b.plan(v1alpha1.ScalePlanSuperseded)

	plan.Intent.Update[0].Pool = "free"
	if asks, err := b.approvals.Asks(t.Context(), plan); err != nil || asks {
		t.Errorf("asks about a pool with policy: %t (%v)", asks, err)
	}
}

// TestPodsDoNotWaitForChangesInPlace checks that a new VM may be created while an update of
// a running VM in its NodePool is pending approval.
func TestPodsDoNotWaitForChangesInPlace(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("other", "policy", "")
	vm := other(2000)
	plan := removal(vm)
	plan.InPlace, plan.Verdict = true, guard.Verdict{Decision: guard.NeedsApproval}
	plan.Intent.Update, plan.Intent.Delete = plan.Intent.Delete, nil
	b.vms = vms{{VM: vm, Phase: scaler.PhaseMade, Changing: true}}
	b.asked("", plan)
	waiting := b.plan(v1alpha1.ScalePlanPending)
	if waiting.Spec.Verdict.Decision == v1alpha1.VerdictAllow {
		t.Fatalf("plan is %+v", waiting.Spec)
	}
	b.want(1, placed("other", pve1, 4096, "a"))
	if still := b.plan(v1alpha1.ScalePlanPending); still.Name != waiting.Name {
		t.Errorf("%s took the place of %s", still.Name, waiting.Name)
	}
}

// TestAVMThatWasGivenUpWasNotMade checks that a plan fails if its VM is removed before it
// was created.
func TestAVMThatWasGivenUpWasNotMade(t *testing.T) {
	b := newBench(t, strict())
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(1, placed("slow", pve1, 4096, "a"))
	b.vms = vms{made(placed("slow", pve1, 4096), 2000, scaler.PhaseRemoving, nil)}
	b.settle()
	b.plan(v1alpha1.ScalePlanFailed)
}

// TestAWakeThatTheModeHolds checks that the ScalePlan of a wake that the guard allows does not
// say that the guard requires approval.
func TestAWakeThatTheModeHolds(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := fleet.VM{Key: fleet.Key(strings.Repeat("e", 32)), VMID: 2000, Name: fleet.NodeName("slow", 2000), Standby: true}
	vm.Pool, vm.Host = "slow", pve1
	wake := &scaler.RootPlan{
		Host: pve1, Touched: true, Plan: emptyPlan("will be updated in-place"),
		Verdict: guard.Verdict{Decision: guard.Allow},
		Intent:  guard.Intent{ClusterID: "test", Wake: []guard.Target{{Address: generator.Address(&vm), VMID: vm.VMID, Key: vm.Key, Host: pve1.Host, Pool: vm.Pool}}},
	}
	if asks, err := b.approvals.Asks(t.Context(), wake); err != nil || !asks {
		t.Fatalf("asks: %t (%v)", asks, err)
	}
	b.asked("", wake)
	plan := b.plan(v1alpha1.ScalePlanPending)
	if spec := plan.Spec; spec.RequestedBy != approval.RequestedByStandby || spec.Why != "pods need these standby VMs" ||
		!slices.Equal(spec.Reasons, []string{"scale-up of a NodePool of these VMs is manual"}) {
		t.Errorf("plan is %+v", spec)
	}
	b.approve(plan)
	b.asked("alice", wake)
}

// TestAWakeWaitsForItsApproval checks that pods may not wake a VM while its ScalePlan is
// undecided, or after it was rejected: each request would create a NodeClaim and delete it
// again.
func TestAWakeWaitsForItsApproval(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("free", "", "")
	vm := fleet.VM{Key: fleet.Key(strings.Repeat("e", 32)), VMID: 2000, Name: fleet.NodeName("free", 2000), Standby: true}
	vm.Pool, vm.Host, vm.VCPUs, vm.MemoryMiB, vm.DiskGiB = "free", pve1, 2, 3072, 30
	b.vms = vms{{VM: vm, Phase: scaler.PhaseMade}}
	other := vm
	other.Key = fleet.Key(strings.Repeat("f", 32))
	may := func(want, wantOther bool) {
		t.Helper()
		mayWake, err := b.approvals.MayWake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if mayWake(&vm) != want || mayWake(&other) != wantOther {
			t.Errorf("it may wake: %v, want %v; another one: %v, want %v", mayWake(&vm), want, mayWake(&other), wantOther)
		}
	}
	may(true, true)
	wake := &scaler.RootPlan{
		Host: pve1, Touched: true, Plan: emptyPlan("will be updated in-place"),
		Verdict: guard.Verdict{Decision: guard.NeedsApproval},
		Intent:  guard.Intent{ClusterID: "test", Wake: []guard.Target{{Address: generator.Address(&vm), VMID: vm.VMID, Key: vm.Key, Host: pve1.Host, Pool: vm.Pool}}},
	}
	b.asked("", wake)
	may(false, true)

	plan := b.plan(v1alpha1.ScalePlanPending)
	if want := "+0.026 EUR/h (about +18.98 EUR/month): +2 vCPUs, +3 GiB memory"; plan.Spec.Cost != want {
		t.Errorf("the cost is %q, want %q", plan.Spec.Cost, want)
	}
	b.approve(plan)
	may(true, true)
	b.asked("alice", wake)

	// The wake of the other VM is rejected.
	wake.Intent.Wake[0].Key = other.Key
	b.asked("", wake)
	may(true, false)
	rejected := b.plan(v1alpha1.ScalePlanPending)
	if err := b.say(rejected, func(spec *v1alpha1.ScalePlanSpec) { spec.Reject, spec.RejectedBy = "no", "bob" }); err != nil {
		t.Fatal(err)
	}
	may(true, false)
	b.settle()
	may(true, false)
}

// TestPendingWakesRemain checks that a pending wake of a standby VM delays no new VMs, and that
// neither new VMs that wait nor the wake of another standby VM of its host replace its ScalePlan.
func TestPendingWakesRemain(t *testing.T) {
	for mode, may := range map[string]int{"policy": 1, "manual": 0} {
		t.Run(mode, func(t *testing.T) {
			b := newBench(t, guard.DefaultRules())
			b.pool("free", mode, "")
			vm := fleet.VM{Key: fleet.Key(strings.Repeat("e", 32)), VMID: 2000, Name: fleet.NodeName("free", 2000), Standby: true}
			vm.Pool, vm.Host = "free", pve1
			b.vms = vms{{VM: vm, Phase: scaler.PhaseMade}}
			wake := &scaler.RootPlan{
				Host: pve1, Touched: true, Plan: emptyPlan("will be updated in-place"),
				Verdict: guard.Verdict{Decision: guard.NeedsApproval},
				Intent:  guard.Intent{ClusterID: "test", Wake: []guard.Target{{Address: generator.Address(&vm), VMID: vm.VMID, Key: vm.Key, Host: pve1.Host, Pool: vm.Pool}}},
			}
			b.asked("", wake)
			first := b.plan(v1alpha1.ScalePlanPending)
			b.want(may, placed("free", pve1, 4096, "a"))
			wake.Intent.Wake[0].Key = fleet.Key(strings.Repeat("f", 32))
			b.asked("", wake)
			pending := b.plans(v1alpha1.ScalePlanPending)
			if want := 3 - may; len(pending) != want { // both wakes, and the new VM unless it may be created
				t.Errorf("%d plans are pending, want %d", len(pending), want)
			}
			if !slices.ContainsFunc(pending, func(plan v1alpha1.ScalePlan) bool { return plan.Name == first.Name }) {
				t.Errorf("%s is no longer pending", first.Name)
			}
			b.vms = nil
			b.settle()
			if ended := b.plans(v1alpha1.ScalePlanSuperseded); !slices.ContainsFunc(ended, func(plan v1alpha1.ScalePlan) bool { return plan.Name == first.Name }) {
				t.Errorf("%s is pending although its VM does not exist", first.Name)
			}
		})
	}
}
