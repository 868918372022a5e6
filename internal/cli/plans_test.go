package cli_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/signature"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// scalePlan returns a plan that is pending, or in another phase.
func scalePlan(t *testing.T, name string, change func(plan *v1alpha1.ScalePlan)) *v1alpha1.ScalePlan {
	t.Helper()
	plan := &v1alpha1.ScalePlan{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ScalePlanSpec{
			Direction: v1alpha1.ScaleUp, NodePools: []string{"workers"}, RequestedBy: "provisioning", Why: "3 pods need new nodes",
			Summary: "1 to create on lab/pve-1", PlanHash: strings.Repeat("0123456789abcdef", 4),
			VMs: []v1alpha1.ScalePlanVM{{
				Action: v1alpha1.ScalePlanCreate, Host: "lab/pve-1", NodePool: "workers", InstanceType: "s1.2VCPU-4GB",
				Reason: "the fullest host that has room", Pods: []string{"default/web-1", "default/web-2"},
			}},
			Hosts:     []v1alpha1.ScalePlanHost{{Host: "lab/pve-1"}},
			Reasons:   []string{"scale-up of NodePool workers is manual"},
			Verdict:   v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictAllow},
			Diff:      "# Host lab/pve-1\nguard: allowed\n\nPlan: 1 to add, 0 to change, 0 to destroy.\n",
			ExpiresAt: metav1.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC),
		},
	}
	change(plan)
	status := plan.Status
	c := kubeClient(t)
	if err := c.Create(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	plan.Status = status
	if err := c.Status().Update(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return plan
}

// golden compares a text with a file in testdata, or rewrites the file with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func clearPlans(t *testing.T) {
	t.Helper()
	if err := kubeClient(t).DeleteAllOf(t.Context(), &v1alpha1.ScalePlan{}); err != nil {
		t.Fatal(err)
	}
}

func TestPlans(t *testing.T) {
	controlPlane(t)
	clearPlans(t)
	says(t, 0, "No changes are pending approval.", "plans")
	scalePlan(t, "workers-down-2", func(plan *v1alpha1.ScalePlan) {
		plan.Spec.Direction, plan.Spec.Verdict.Decision = v1alpha1.ScaleDown, v1alpha1.VerdictNeedsApproval
		plan.Spec.Summary = "2 to delete on lab/pve-2"
		plan.Status.Phase, plan.Status.Approver, plan.Status.Result = v1alpha1.ScalePlanApplied, "alice", "2 VMs are gone"
		plan.Spec.VMs[0] = v1alpha1.ScalePlanVM{Action: v1alpha1.ScalePlanDelete, Name: "workers-2001", Host: "lab/pve-2", NodePool: "workers"}
	})
	if list := says(t, 0, "No changes are pending approval.\n", "plans"); !strings.Contains(list, "workers-down-2  Applied") {
		t.Errorf("the list lacks the decided plan:\n%s", list)
	}
	scalePlan(t, "workers-up-1", func(plan *v1alpha1.ScalePlan) {
		plan.Spec.Cost = "+0.14 EUR/h (about +102 EUR/month): +2 vCPUs, +4 GiB memory, +30 GiB disk"
	})
	list := says(t, 0, "NAME", "plans")
	if strings.Contains(list, "No changes") {
		t.Errorf("a plan is pending:\n%s", list)
	}
	for _, want := range []string{"workers-up-1    Pending", "workers-down-2  Applied", "1 to create on lab/pve-1"} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %q:\n%s", want, list)
		}
	}
	shown := func(name string) string {
		return strings.ReplaceAll(says(t, 0, "", "plans", name), "--kubeconfig "+controlPlane(t).Kubeconfig, "--kubeconfig admin.conf")
	}
	golden(t, "plan-pending.txt", shown("workers-up-1"))
	golden(t, "plan-applied.txt", says(t, 0, "", "plans", "workers-down-2"))
	var plans []v1alpha1.ScalePlan
	list = says(t, 0, "", "plans", "-o", "json")
	validate(t, output(t, "get-plans"), []byte(list))
	validate(t, output(t, "get-plan"), []byte(says(t, 0, "", "plans", "workers-up-1", "-o", "json")))
	if err := json.Unmarshal([]byte(list), &plans); err != nil || len(plans) != 2 {
		t.Errorf("%d plans in JSON (%v)", len(plans), err)
	}
	var plan v1alpha1.ScalePlan
	if err := json.Unmarshal([]byte(says(t, 0, "", "plans", "workers-up-1", "-o", "json")), &plan); err != nil || plan.Spec.PlanHash == "" {
		t.Errorf("the plan in JSON is %+v (%v)", plan, err)
	}
	scalePlan(t, "workers-down-3", func(plan *v1alpha1.ScalePlan) {
		plan.Spec.Direction, plan.Spec.Verdict.Decision, plan.Spec.Summary = v1alpha1.ScaleDown, v1alpha1.VerdictNeedsApproval, "4 to delete on lab/pve-2"
		plan.Spec.VMs = nil
		for _, name := range []string{"workers-2001", "workers-2002", "workers-2003", "workers-2004"} {
			plan.Spec.VMs = append(plan.Spec.VMs, v1alpha1.ScalePlanVM{Action: v1alpha1.ScalePlanDelete, Name: name, Host: "lab/pve-2", NodePool: "workers"})
		}
	})
	golden(t, "plan-delete.txt", shown("workers-down-3"))
	says(t, 2, "must be text, wide, json or yaml", "plans", "-o", "toml")
	says(t, 0, "APPROVED BY", "plans", "-o", "wide")
	says(t, 2, "remove it to show plan workers-up-1", "plans", "workers-up-1", "--watch")
	says(t, 1, "to list the plans, run numaform plans", "plans", "missing")
}

func TestApprove(t *testing.T) {
	controlPlane(t)
	clearPlans(t)
	plan := scalePlan(t, "workers-up-1", func(*v1alpha1.ScalePlan) {})
	hash := plan.Spec.PlanHash
	says(t, 2, "stdin is not a terminal", "approve", plan.Name)
	says(t, 1, "nothing was approved", "approve", plan.Name, "--hash", hash[:32])
	says(t, 1, "nothing was approved", "approve", plan.Name, "--hash", strings.Repeat("f", 64))
	says(t, 2, "missing argument: run numaform approve NAME", "approve")
	if err := kubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil || plan.Spec.Approve != "" {
		t.Fatalf("approve is %q (%v)", plan.Spec.Approve, err)
	}
	says(t, 0, "workers-up-1 is approved by admin", "approve", plan.Name, "--hash", hash)
	if err := kubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil || plan.Spec.Approve != hash || plan.Spec.ApprovedBy != "admin" {
		t.Errorf("plan is %+v (%v)", plan.Spec, err)
	}
	says(t, 1, "was already approved by admin", "approve", plan.Name, "--hash", hash)
	says(t, 1, "was already approved by admin", "reject", plan.Name)
}

func TestApproveTooLate(t *testing.T) {
	controlPlane(t)
	clearPlans(t)
	hash := strings.Repeat("0123456789abcdef", 4)
	scalePlan(t, "old", func(plan *v1alpha1.ScalePlan) { plan.Spec.ExpiresAt = metav1.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC) })
	scalePlan(t, "denied", func(plan *v1alpha1.ScalePlan) { plan.Spec.Verdict.Decision = v1alpha1.VerdictDeny })
	scalePlan(t, "gone", func(plan *v1alpha1.ScalePlan) {
		plan.Status.Phase, plan.Status.Result = v1alpha1.ScalePlanSuperseded, "something else is needed now"
	})
	says(t, 1, "expired at 2020-01-02T03:04:05Z", "approve", "old", "--hash", hash)
	says(t, 1, "the guard denies plan denied", "approve", "denied", "--hash", hash)
	says(t, 1, "plan gone is Superseded: something else is needed now", "approve", "gone", "--hash", hash)
}

func TestReject(t *testing.T) {
	controlPlane(t)
	clearPlans(t)
	plan := scalePlan(t, "workers-up-1", func(*v1alpha1.ScalePlan) {})
	says(t, 2, "must not be empty", "reject", plan.Name, "--reason", " ")
	says(t, 0, "workers-up-1 is rejected by admin", "reject", plan.Name, "--reason", "too big")
	if err := kubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil || plan.Spec.Reject != "too big" || plan.Spec.RejectedBy != "admin" {
		t.Errorf("plan is %+v (%v)", plan.Spec, err)
	}
	says(t, 1, "was already rejected by admin", "approve", plan.Name, "--hash", plan.Spec.PlanHash)
}

// TestApproveSigned checks that approve writes the text to sign, and adds signatures and a
// break-glass approval to a plan, also to one that is approved already.
func TestApproveSigned(t *testing.T) {
	controlPlane(t)
	clearPlans(t)
	plan := scalePlan(t, "workers-up-9", func(plan *v1alpha1.ScalePlan) { plan.Spec.ClusterID = "prod" })
	hash, dir := plan.Spec.PlanHash, t.TempDir()
	statement := filepath.Join(dir, "plan.txt")
	says(t, 0, "", "approve", plan.Name, "--statement", statement)
	text, err := os.ReadFile(statement)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := signature.ParseStatement(string(text)); err != nil || got.ClusterID != "prod" || got.Hash != hash || got.Subject != signature.ForScalePlan(plan.Name, string(plan.UID)) {
		t.Fatalf("the statement is %+v (%v)", got, err)
	}
	signed := func(name string, text []byte) string {
		t.Helper()
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(private)
		if err != nil {
			t.Fatal(err)
		}
		made, err := signature.Sign(signer, text)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(made), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	read := func() *v1alpha1.ScalePlanSpec {
		t.Helper()
		if err := kubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
			t.Fatal(err)
		}
		return &plan.Spec
	}
	says(t, 1, "must sign exactly the text that --statement writes", "approve", plan.Name, "--hash", hash, "--signature", signed("other.sig", []byte("another text")))
	says(t, 1, "it is not an SSH signature", "approve", plan.Name, "--hash", hash, "--signature", statement)
	says(t, 1, "reading --signature", "approve", plan.Name, "--hash", hash, "--signature", filepath.Join(dir, "missing"))
	says(t, 2, "requires --break-glass", "approve", plan.Name, "--hash", hash, "--break-glass-until", "2126-01-01T00:00:00Z")
	says(t, 2, "must be a time such as", "approve", plan.Name, "--hash", hash, "--break-glass", "fire", "--break-glass-until", "tomorrow")
	if spec := read(); spec.Approve != "" || len(spec.Signatures) > 0 {
		t.Fatalf("an invalid signature approved the plan: %+v", spec)
	}
	says(t, 0, "workers-up-9 is approved by admin", "approve", plan.Name, "--hash", hash, "--signature", signed("alice.sig", text))
	says(t, 1, "was already approved by admin: to add a signature", "approve", plan.Name, "--hash", hash)
	says(t, 0, "workers-up-9 is approved by admin", "approve", plan.Name, "--hash", hash, "--signature", signed("bob.sig", text), "--signature", signed("carol.sig", text))
	if spec := read(); spec.Approve != hash || len(spec.Signatures) != 3 || spec.Signatures[2].User != "admin" {
		t.Errorf("the plan has the signatures %+v", spec.Signatures)
	}
	shown := says(t, 0, "\nSignatures\n", "plans", plan.Name)
	if got := strings.Count(shown, "  SHA256:"); got != 3 || strings.Count(shown, ", added by admin\n") != 3 {
		t.Errorf("%d signatures are shown, want 3:\n%s", got, shown)
	}
	says(t, 0, "workers-up-9 is approved by admin", "approve", plan.Name, "--hash", hash, "--break-glass", "fire", "--break-glass-until", "2126-01-01T00:00:00Z")
	if glass := read().BreakGlass; glass == nil || glass.Reason != "fire" || glass.User != "admin" {
		t.Errorf("the break-glass approval is %+v", glass)
	}
	says(t, 0, "fire (admin, until 2126-01-01T00:00:00Z)", "plans", plan.Name)
}
