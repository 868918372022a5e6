package v1alpha1_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
)

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// scalePlan returns a plan for one VM with all fields that numaform sets.
func scalePlan() *v1alpha1.ScalePlan {
	diff, digest := v1alpha1.CutDiff("+ resource\n")
	hash := hashOf("plan")
	return &v1alpha1.ScalePlan{
		ObjectMeta: metav1.ObjectMeta{GenerateName: v1alpha1.ScalePlanName("workers", v1alpha1.ScaleDown, hash) + "-"},
		Spec: v1alpha1.ScalePlanSpec{
			Direction: v1alpha1.ScaleDown, NodePools: []string{"workers"}, RequestedBy: "consolidation", Why: "pods fit on fewer nodes",
			Summary: "1 node less", PlanHash: hash, Diff: diff, DiffSHA256: digest, Reasons: []string{"deletes a node"},
			VMs: []v1alpha1.ScalePlanVM{{
				Action: v1alpha1.ScalePlanDelete, Name: "workers-2000", Key: "k", Host: "lab/pve-1", NodePool: "workers",
				InstanceType: "c1.4VCPU-8GB", Change: hashOf("delete"), Reason: "empty", Pods: []string{"default/a"},
			}},
			Hosts: []v1alpha1.ScalePlanHost{{Host: "lab/pve-1", PlanSHA256: hashOf("file"), PlanDigest: "d", Lineage: "l", Serial: 3}},
			Verdict: v1alpha1.ScalePlanVerdict{
				Decision: v1alpha1.VerdictNeedsApproval,
				Rules:    []v1alpha1.ScalePlanRule{{Rule: "deletes", Decision: v1alpha1.VerdictNeedsApproval, Message: "1 VM goes"}},
			},
			ExpiresAt: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		},
	}
}

// decided is a test case: a change of an existing plan from one spec to another.
type decided struct {
	name   string
	before func(*v1alpha1.ScalePlanSpec)
	change func(*v1alpha1.ScalePlanSpec)
	want   string // part of the error; empty if the change is allowed
}

func approve(s *v1alpha1.ScalePlanSpec) { s.Approve, s.ApprovedBy = s.PlanHash, "jane" }
func reject(s *v1alpha1.ScalePlanSpec)  { s.Reject, s.RejectedBy = "not today", "jane" }

func decisions() []decided {
	const fixed = "only approve, approvedBy, signatures, breakGlass, reject and rejectedBy may change"
	sign := func(s *v1alpha1.ScalePlanSpec) {
		s.Signatures = append(s.Signatures, v1alpha1.ScalePlanSignature{User: "jane", Signature: "signed"})
	}
	signed := func(s *v1alpha1.ScalePlanSpec) { approve(s); sign(s) }
	breakGlass := func(s *v1alpha1.ScalePlanSpec) {
		s.BreakGlass = &v1alpha1.ScalePlanBreakGlass{User: "jane", Reason: "fire", Until: s.ExpiresAt}
	}
	return []decided{
		{name: "approve", change: approve},
		{name: "reject", change: reject},
		{name: "half a hash", change: func(s *v1alpha1.ScalePlanSpec) { s.Approve, s.ApprovedBy = s.PlanHash[:32], "jane" }, want: "must be the whole spec.planHash"},
		{name: "another hash", change: func(s *v1alpha1.ScalePlanSpec) { s.Approve, s.ApprovedBy = hashOf("other"), "jane" }, want: "must be the whole spec.planHash"},
		{name: "a yes", change: func(s *v1alpha1.ScalePlanSpec) { s.Approve, s.ApprovedBy = "yes", "jane" }, want: "must be the whole spec.planHash"},
		{name: "approved by nobody", change: func(s *v1alpha1.ScalePlanSpec) { s.Approve = s.PlanHash }, want: "must be set together with approve"},
		{name: "nothing approved by somebody", change: func(s *v1alpha1.ScalePlanSpec) { s.ApprovedBy = "jane" }, want: "must be set together with approve"},
		{name: "rejected by nobody", change: func(s *v1alpha1.ScalePlanSpec) { s.Reject = "no" }, want: "must be set together with reject"},
		{name: "both", change: func(s *v1alpha1.ScalePlanSpec) { approve(s); reject(s) }, want: "approved and rejected"},
		{name: "taken back", before: approve, change: func(s *v1alpha1.ScalePlanSpec) { s.Approve, s.ApprovedBy = "", "" }, want: "cannot be revoked"},
		{name: "rejected after all", before: approve, change: reject, want: "approved and rejected"},
		{name: "approved after all", before: reject, change: func(s *v1alpha1.ScalePlanSpec) { s.Reject, s.RejectedBy = "", ""; approve(s) }, want: "a rejection cannot be revoked"},
		{name: "by another", before: approve, change: func(s *v1alpha1.ScalePlanSpec) { s.ApprovedBy = "joe" }, want: "the user who approved cannot be changed"},
		{name: "rejected by another", before: reject, change: func(s *v1alpha1.ScalePlanSpec) { s.RejectedBy = "joe" }, want: "the user who rejected cannot be changed"},
		{name: "signed", change: func(s *v1alpha1.ScalePlanSpec) { approve(s); sign(s) }},
		{name: "another signature", before: signed, change: func(s *v1alpha1.ScalePlanSpec) {
			s.Signatures = append([]v1alpha1.ScalePlanSignature{{User: "joe", Signature: "another"}}, s.Signatures...)
		}},
		{name: "signed but not approved", change: sign, want: "signatures or breakGlass are part of an approval"},
		{name: "a changed signature", before: signed, change: func(s *v1alpha1.ScalePlanSpec) { s.Signatures[0].Signature = "other" }, want: "cannot be changed or removed"},
		{name: "a removed signature", before: signed, change: func(s *v1alpha1.ScalePlanSpec) { s.Signatures = nil }, want: "cannot be changed or removed"},
		{name: "a huge signature", before: approve, change: func(s *v1alpha1.ScalePlanSpec) { sign(s); s.Signatures[0].Signature = strings.Repeat("x", 12289) }, want: "may not be more than 12288"},
		{name: "17 signatures", before: approve, change: func(s *v1alpha1.ScalePlanSpec) {
			for range 17 {
				sign(s)
			}
		}, want: "at most 16 items"},
		{name: "break-glass", before: approve, change: breakGlass},
		{name: "other break-glass", before: func(s *v1alpha1.ScalePlanSpec) { approve(s); breakGlass(s) }, change: func(s *v1alpha1.ScalePlanSpec) { s.BreakGlass.Reason = "flood" }, want: "cannot be changed or revoked"},
		{name: "cluster", change: func(s *v1alpha1.ScalePlanSpec) { s.ClusterID = "other" }, want: fixed},
		{name: "hash and approval", change: func(s *v1alpha1.ScalePlanSpec) { s.PlanHash = hashOf("other"); approve(s) }, want: fixed},
		{name: "direction", change: func(s *v1alpha1.ScalePlanSpec) { s.Direction = v1alpha1.ScaleUp }, want: fixed},
		{name: "pools", change: func(s *v1alpha1.ScalePlanSpec) { s.NodePools = []string{"others"} }, want: fixed},
		{name: "requester", change: func(s *v1alpha1.ScalePlanSpec) { s.RequestedBy = "me" }, want: fixed},
		{name: "purpose", change: func(s *v1alpha1.ScalePlanSpec) { s.Why = "" }, want: fixed},
		{name: "summary", change: func(s *v1alpha1.ScalePlanSpec) { s.Summary = "no change" }, want: fixed},
		{name: "VMs", change: func(s *v1alpha1.ScalePlanSpec) { s.VMs[0].Name = "workers-2001" }, want: fixed},
		{name: "no VMs", change: func(s *v1alpha1.ScalePlanSpec) { s.VMs = nil }, want: fixed},
		{name: "shards", change: func(s *v1alpha1.ScalePlanSpec) { s.Hosts[0].Serial = 4 }, want: fixed},
		{name: "diff", change: func(s *v1alpha1.ScalePlanSpec) { s.Diff = "nothing\n" }, want: fixed},
		{name: "digest", change: func(s *v1alpha1.ScalePlanSpec) { s.DiffSHA256 = "" }, want: fixed},
		{name: "reasons", change: func(s *v1alpha1.ScalePlanSpec) { s.Reasons = append(s.Reasons, "x") }, want: fixed},
		{name: "verdict", change: func(s *v1alpha1.ScalePlanSpec) { s.Verdict.Decision = v1alpha1.VerdictAllow }, want: fixed},
		{name: "expiry", change: func(s *v1alpha1.ScalePlanSpec) { s.ExpiresAt = metav1.NewTime(s.ExpiresAt.AddDate(1, 0, 0)) }, want: fixed},
	}
}

// TestScalePlanDecisions checks that a plan is immutable, except that users may approve or
// reject it once, with the whole hash.
func TestScalePlanDecisions(t *testing.T) {
	c := newClient(t, nil)
	for _, test := range decisions() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			plan := scalePlan()
			if err := c.Create(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			if test.before != nil {
				test.before(&plan.Spec)
				if err := c.Update(t.Context(), plan); err != nil {
					t.Fatal(err)
				}
			}
			test.change(&plan.Spec)
			err := c.Update(t.Context(), plan)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestScalePlanStatusIsApart checks that an update of the spec, such as an approval, does not
// change the status.
func TestScalePlanStatusIsApart(t *testing.T) {
	c := newClient(t, nil)
	plan := scalePlan()
	if err := c.Create(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	plan.Status.Phase = v1alpha1.ScalePlanPending
	if err := c.Status().Update(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	approve(&plan.Spec)
	plan.Status.Phase, plan.Status.Approver = v1alpha1.ScalePlanApproved, "jane"
	if err := c.Update(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if plan.Status.Phase != v1alpha1.ScalePlanPending || plan.Status.Approver != "" {
		t.Errorf("whoever may update a plan wrote its status: %+v", plan.Status)
	}
	plan.Status.Phase = "Lost"
	if err := c.Status().Update(t.Context(), plan); !apierrors.IsInvalid(err) {
		t.Errorf("error is %v, want that the phase is invalid", err)
	}
}

// TestLargestScalePlan checks that the API server accepts, and etcd stores, a plan with as
// many VMs and hosts and as long a diff as the schema allows.
func TestLargestScalePlan(t *testing.T) {
	c := newClient(t, nil)
	plan := scalePlan()
	plan.Spec.Diff, plan.Spec.DiffSHA256 = v1alpha1.CutDiff(strings.Repeat("+ line of a plan with ünïcödé\n", 1<<17))
	plan.Spec.VMs, plan.Spec.Hosts = nil, nil
	for i := range 512 {
		plan.Spec.VMs = append(plan.Spec.VMs, v1alpha1.ScalePlanVM{
			Action: v1alpha1.ScalePlanCreate, Name: fmt.Sprintf("workers-%d", i), Host: "lab/pve-1", NodePool: "workers",
			Change: hashOf("x"), Reason: strings.Repeat("r", 256),
		})
	}
	for i := range 256 {
		plan.Spec.Hosts = append(plan.Spec.Hosts, v1alpha1.ScalePlanHost{
			Host: fmt.Sprintf("lab/pve-%d", i), PlanSHA256: hashOf("x"), PlanDigest: hashOf("y"), Lineage: hashOf("z")[:36], Serial: 1,
		})
	}
	if err := c.Create(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	approve(&plan.Spec)
	if err := c.Update(t.Context(), plan); err != nil {
		t.Errorf("it cannot be approved: %v", err)
	}
	got := &v1alpha1.ScalePlan{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(plan), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Spec, got.Spec); diff != "" {
		t.Errorf("the plan changed on its way:\n%s", diff)
	}
}

func TestCutDiff(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, diff string
		cut        bool
	}{
		{"nothing", "", false},
		{"little", "+ a\n- b\n", false},
		{"just enough", strings.Repeat("x", 512<<10), false},
		{"one more", strings.Repeat("x", 512<<10+1), true},
		{"lines", strings.Repeat("+ line\n", 1<<17), true},
		{"one long line of runes", strings.Repeat("ü", 1<<19), true},
		{"no UTF-8", "a\xffb\n", false},
	} {
		kept, digest := v1alpha1.CutDiff(test.diff)
		if digest != hashOf(test.diff) {
			t.Errorf("%s: digest is not of the whole diff", test.name)
		}
		if len(kept) > 512<<10 || !utf8.ValidString(kept) {
			t.Errorf("%s: %d bytes are kept, valid: %v", test.name, len(kept), utf8.ValidString(kept))
		}
		if test.cut != strings.Contains(kept, "more bytes are not shown. SHA-256 of the whole diff: "+digest) {
			t.Errorf("%s: ends with %q", test.name, kept[max(0, len(kept)-120):])
		}
		if strings.Contains(test.diff, "+ line") && !strings.Contains(kept, "+ line\n…") {
			t.Errorf("%s: is cut within a line", test.name)
		}
	}
}

func TestScalePlanNames(t *testing.T) {
	t.Parallel()
	hash := hashOf("x")
	if got, want := v1alpha1.ScalePlanName("workers", v1alpha1.ScaleUp, hash), "workers-up-"+hash[:12]; got != want {
		t.Errorf("name is %q, want %q", got, want)
	}
	if long := v1alpha1.ScalePlanName(strings.Repeat("p", 253), v1alpha1.ScaleDown, hash); len(long) != 253 || !strings.HasSuffix(long, "-down-"+hash[:12]) {
		t.Errorf("name is %q", long)
	}
	for phase, over := range map[v1alpha1.ScalePlanPhase]bool{
		"": false, v1alpha1.ScalePlanPending: false, v1alpha1.ScalePlanApproved: false,
		v1alpha1.ScalePlanRejected: true, v1alpha1.ScalePlanExpired: true, v1alpha1.ScalePlanSuperseded: true,
		v1alpha1.ScalePlanApplied: true, v1alpha1.ScalePlanFailed: true,
	} {
		if phase.Over() != over {
			t.Errorf("%q is over: %v", phase, phase.Over())
		}
	}
}
