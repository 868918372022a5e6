package approval_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/state/guard"
)

// signers are keys of people, by name.
type signers map[string]ssh.Signer

// newSigners returns a key for each of alice, bob and carol, a second one of alice, one of bob
// that has expired and mallory's, which is unknown; and the policy that needs the signatures
// of alice and bob.
func newSigners(t *testing.T) (signers, signature.Policy) {
	t.Helper()
	keys, lines := signers{}, ""
	owners := map[string]string{
		"alice": "alice", "alice's laptop": "alice", "bob": "bob", "bob, expired": `bob valid-before="20260101Z"`, "carol": "carol", "mallory": "",
	}
	for name, owner := range owners {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if keys[name], err = ssh.NewSignerFromKey(private); err != nil {
			t.Fatal(err)
		}
		if owner != "" {
			lines += owner + " " + string(ssh.MarshalAuthorizedKey(keys[name].PublicKey()))
		}
	}
	known, err := signature.ParseSigners("allowed_signers", []byte(lines))
	if err != nil {
		t.Fatal(err)
	}
	return keys, signature.Policy{
		Signers: known, BreakGlass: []string{"carol"},
		Require: []signature.Requirement{{NodePools: []string{"slow"}, Quorum: 2, Of: []string{"alice", "bob"}}},
	}
}

// sign returns a signature of a plan's approval by a person's key, added by a bot.
func (s signers) sign(t *testing.T, name string, plan *v1alpha1.ScalePlan) v1alpha1.ScalePlanSignature {
	t.Helper()
	statement := signature.Statement{ClusterID: plan.Spec.ClusterID, Hash: plan.Spec.PlanHash, Subject: signature.ForScalePlan(plan.Name, string(plan.UID))}
	if glass := plan.Spec.BreakGlass; glass != nil {
		statement.BreakGlass, statement.Until = glass.Reason, glass.Until.Time
	}
	text, err := statement.Text()
	if err != nil {
		t.Fatal(err)
	}
	made, err := signature.Sign(s[name], text)
	if err != nil {
		t.Fatal(err)
	}
	return v1alpha1.ScalePlanSignature{User: "bot", Signature: made}
}

// add adds signatures to an approved plan.
func (b *bench) add(plan *v1alpha1.ScalePlan, signatures ...v1alpha1.ScalePlanSignature) {
	b.Helper()
	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.Signatures = append(spec.Signatures, signatures...) }); err != nil {
		b.Fatal(err)
	}
}

// waitsFor returns why an approved plan does not begin.
func (b *bench) waitsFor() string {
	b.Helper()
	b.settle()
	for _, condition := range b.plan(v1alpha1.ScalePlanPending).Status.Conditions {
		if condition.Type == approval.ConditionSufficient && condition.Status == metav1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// TestApprovalNeedsSignatures checks whose signatures begin a ScalePlan: the right keys, but
// neither a wrong or expired key, another hash, a replay of another or of an earlier plan, nor
// fewer people than the quorum, whatever number of keys they have.
func TestApprovalNeedsSignatures(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	keys, policy := newSigners(t)
	b.policy = policy
	b.pool("slow", "manual", "")
	pod := placed("slow", pve1, 4096, "a")
	b.want(0, placed("slow", pve1, 8192, "b"))
	other := b.plan(v1alpha1.ScalePlanPending)
	ofOther := []v1alpha1.ScalePlanSignature{keys.sign(t, "alice", other), keys.sign(t, "bob", other)}
	if err := b.client.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.want(0, pod)
	old := b.plan(v1alpha1.ScalePlanPending)
	replayed := []v1alpha1.ScalePlanSignature{keys.sign(t, "alice", old), keys.sign(t, "bob", old)}
	if err := b.client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.want(0, pod)

	// The same change is proposed again, with the same name and hash.
	plan := b.plan(v1alpha1.ScalePlanPending)
	if plan.Name != old.Name || plan.Spec.PlanHash != old.Spec.PlanHash || plan.Spec.ClusterID != "test" || other.Spec.PlanHash == old.Spec.PlanHash {
		t.Fatalf("plan is %s %+v, want one with the hash of %s", plan.Name, plan.Spec, old.Name)
	}
	b.approve(plan)
	b.want(0, pod)
	if got := b.waitsFor(); !strings.Contains(got, "0 of 2 signatures") {
		t.Errorf("an approval by name only waits for %q", got)
	}
	forged := plan.DeepCopy()
	forged.Spec.PlanHash = strings.Repeat("0", 64)
	for _, test := range []struct {
		name       string
		signatures []v1alpha1.ScalePlanSignature
		want       []string
	}{
		{"of another plan", ofOther, []string{"0 of 2 signatures", "another text"}},
		{"a replay", replayed, []string{"0 of 2 signatures", "another text"}},
		{"of another hash", []v1alpha1.ScalePlanSignature{keys.sign(t, "bob", forged)}, []string{"0 of 2 signatures", "another text"}},
		{"an unknown key", []v1alpha1.ScalePlanSignature{keys.sign(t, "mallory", plan)}, []string{"0 of 2 signatures", "is not an allowed signer"}},
		{"an expired key", []v1alpha1.ScalePlanSignature{keys.sign(t, "bob, expired", plan)}, []string{"0 of 2 signatures", "expired at 2026-01-01T00:00:00Z"}},
		{"the user who approved, alone", []v1alpha1.ScalePlanSignature{keys.sign(t, "alice", plan)}, []string{"1 of 2 signatures (alice)"}},
		{"two keys of one person", []v1alpha1.ScalePlanSignature{keys.sign(t, "alice's laptop", plan)}, []string{"1 of 2 signatures (alice)"}},
		{"a person outside the quorum", []v1alpha1.ScalePlanSignature{keys.sign(t, "carol", plan)}, []string{"1 of 2 signatures (alice)"}},
	} {
		b.add(b.plan(v1alpha1.ScalePlanPending), test.signatures...)
		b.want(0, pod)
		got := b.waitsFor()
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: waits for %q, want %q", test.name, got, want)
			}
		}
	}
	if got := b.approvals.Pending()[v1alpha1.ScaleUp]; got != 1 {
		t.Errorf("%d plans wait for a decision, want 1: it lacks a signature", got)
	}
	plan = b.plan(v1alpha1.ScalePlanPending)
	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.Signatures = spec.Signatures[1:] }); err == nil || !strings.Contains(err.Error(), "cannot be changed or removed") {
		t.Errorf("a signature was removed: %v", err)
	}
	b.add(b.plan(v1alpha1.ScalePlanPending), keys.sign(t, "bob", plan))
	b.want(1, pod)
	if by := b.plan(v1alpha1.ScalePlanApproved).Status.Approver; by != "alice, signed by alice, alice, carol, bob" {
		t.Errorf("the approver is %q", by)
	}
}

// TestSignaturesReachTheHistory checks that the plan of the host gets the signatures of the
// ScalePlan, that they verify again, and that a key that is no longer allowed approves
// nothing.
func TestSignaturesReachTheHistory(t *testing.T) {
	b := newBench(t, strict())
	keys, policy := newSigners(t)
	b.policy = policy
	b.pool("slow", "auto", "")
	held := b.held(0, placed("slow", pve1, 4096, "a"))
	b.asked("", held) // auto mode does not replace the signatures
	plan := b.plan(v1alpha1.ScalePlanPending)
	b.approve(plan)
	plan = b.plan(v1alpha1.ScalePlanPending)
	b.add(plan, keys.sign(t, "alice", plan), keys.sign(t, "bob", plan))
	b.policy.Signers = &signature.Signers{}
	b.asked("", held)
	b.policy = policy
	got, err := b.approvals.Approver(t.Context(), held)
	if err != nil || got == nil || got.By != "alice, signed by alice, bob" || len(got.Signatures) != 2 || got.ScalePlan != plan.Name {
		t.Fatalf("the approval is %+v (%v)", got, err)
	}
	for _, err := range got.Check(&policy, "test", b.clock.Now()) {
		if err != nil {
			t.Error(err)
		}
	}
	forged := *got
	forged.Digest = strings.Repeat("0", 64)
	for _, err := range append(forged.Check(&policy, "test", b.clock.Now()), got.Check(&policy, "other", b.clock.Now())...) {
		if err == nil {
			t.Error("a signature of another change verifies")
		}
	}
	// A guard that allows the same plan later still finds the approval.
	held.Verdict.Decision = guard.Allow
	if again, err := b.approvals.Approved(t.Context(), held); err != nil || again == nil || again.By != got.By {
		t.Errorf("the approval in progress is %+v (%v)", again, err)
	}
}

// TestFreeze checks that only a break-glass approval begins a change in a freeze window,
// in each direction, and that an ordinary approval begins it afterwards.
func TestFreeze(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	keys, policy := newSigners(t)
	b.policy = policy
	now := b.clock.Now()
	windows, err := freeze.Parse("freeze", []freeze.Config{{
		Name: "release", Start: now.Add(-time.Hour).Format(time.RFC3339), End: now.Add(2 * time.Hour).Format(time.RFC3339),
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.freezes = windows
	b.restart()
	b.pool("quick", "auto", "")
	pod := placed("quick", pve1, 4096, "a")
	b.want(0, pod)
	plan := b.plan(v1alpha1.ScalePlanPending)
	if reasons := strings.Join(plan.Spec.Reasons, "\n"); !strings.Contains(reasons, `freeze window "release"`) {
		t.Errorf("the reasons are %q", reasons)
	}
	b.wantFrozen(true, approval.ReasonFrozen)
	b.approve(plan)
	b.want(0, pod)
	if got := b.waitsFor(); !strings.Contains(got, `freeze window "release"`) {
		t.Errorf("an ordinary approval waits for %q", got)
	}
	plan = b.plan(v1alpha1.ScalePlanPending)
	glass := v1alpha1.ScalePlanBreakGlass{User: "carol", Reason: "the shop is down", Until: metav1.NewTime(now.Add(time.Hour).Truncate(time.Second))}
	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.BreakGlass = &glass }); err != nil {
		t.Fatal(err)
	}
	b.want(0, pod) // not signed
	plan = b.plan(v1alpha1.ScalePlanPending)
	b.add(plan, keys.sign(t, "alice", plan))
	b.want(0, pod) // signed by another
	if b.approvals.BreakGlass() != 0 {
		t.Error("a break-glass approval is counted that did not begin")
	}
	b.add(b.plan(v1alpha1.ScalePlanPending), keys.sign(t, "carol", plan))
	b.want(1, pod)
	if by := b.plan(v1alpha1.ScalePlanApproved).Status.Approver; by != "alice, signed by alice, carol, break-glass: the shop is down" {
		t.Errorf("the approver is %q", by)
	}
	if condition := meta.FindStatusCondition(b.plan(v1alpha1.ScalePlanApproved).Status.Conditions, approval.ConditionFrozen); condition == nil || condition.Status != metav1.ConditionFalse {
		t.Errorf("the plan that began is frozen: %+v", condition)
	}
	reported := false
	for _, event := range b.events {
		reported = reported || event.Reason == approval.ReasonBreakGlass && event.Type == "Warning"
		if event.Reason == approval.ReasonThawed {
			t.Errorf("the end of the freeze window was reported: %s", event.Message)
		}
	}
	if !reported || b.approvals.BreakGlass() != 1 {
		t.Errorf("the break-glass approval was reported: %t, and counted %d times", reported, b.approvals.BreakGlass())
	}

	// Every plan with requests is asked about in the window, and no other.
	for _, test := range []struct {
		intent guard.Intent
		want   bool
	}{
		{guard.Intent{}, false},
		{guard.Intent{Import: make([]guard.Target, 1)}, false},
		{guard.Intent{Create: make([]guard.Target, 1)}, true},
		{guard.Intent{Delete: make([]guard.Target, 1)}, true},
		{guard.Intent{Update: make([]guard.Target, 1)}, true},
		{guard.Intent{Wake: make([]guard.Target, 1)}, true},
	} {
		if asks, err := b.approvals.Asks(t.Context(), &scaler.RootPlan{Intent: test.intent}); err != nil || asks != test.want {
			t.Errorf("a plan with %+v needs approval: %t (%v), want %t", test.intent, asks, err, test.want)
		}
	}
	b.clock.SetTime(now.Add(3 * time.Hour))
	if asks, err := b.approvals.Asks(t.Context(), &scaler.RootPlan{Intent: guard.Intent{Create: make([]guard.Target, 1)}}); err != nil || asks {
		t.Errorf("after the window, a plan needs approval: %t (%v)", asks, err)
	}
	b.want(1, placed("quick", pve1, 8192, "b"))
}

// wantFrozen checks whether the pending plan waits because of a freeze window, and that this
// was reported once.
func (b *bench) wantFrozen(want bool, reason string) {
	b.Helper()
	b.settle()
	b.settle()
	condition := meta.FindStatusCondition(b.plan(v1alpha1.ScalePlanPending).Status.Conditions, approval.ConditionFrozen)
	if condition == nil || (condition.Status == metav1.ConditionTrue) != want {
		b.Fatalf("the condition is %+v, want %t", condition, want)
	}
	reported := 0
	for _, event := range b.events {
		if event.Reason == reason {
			reported++
		}
	}
	if reported != 1 {
		b.Errorf("%d events %s, want 1", reported, reason)
	}
}

// TestFreezeEnds checks that a plan which is proposed before a freeze window, and waits because
// of it, has a condition, and an event when the window begins and when it ends.
func TestFreezeEnds(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	now := b.clock.Now()
	windows, err := freeze.Parse("freeze", []freeze.Config{{
		Name: "release", Start: now.Add(time.Hour).Format(time.RFC3339), End: now.Add(2 * time.Hour).Format(time.RFC3339),
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.freezes = windows
	b.restart()
	b.pool("slow", "manual", "")
	pod := placed("slow", pve1, 4096, "a")
	b.want(0, pod)
	b.settle()
	if condition := meta.FindStatusCondition(b.plan(v1alpha1.ScalePlanPending).Status.Conditions, approval.ConditionFrozen); condition != nil {
		t.Errorf("before the window, the plan has the condition %+v", condition)
	}
	b.clock.SetTime(now.Add(90 * time.Minute))
	b.wantFrozen(true, approval.ReasonFrozen)
	b.approve(b.plan(v1alpha1.ScalePlanPending))
	b.want(0, pod)
	b.clock.SetTime(now.Add(150 * time.Minute))
	b.wantFrozen(false, approval.ReasonThawed)
	b.want(1, pod)
	b.plan(v1alpha1.ScalePlanApproved)
}
