package approval_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state/guard"
)

// installRBAC installs the chart's roles and admission policy for users.
func installRBAC(t *testing.T) {
	t.Helper()
	kinds := []string{"ClusterRole", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
	objects := testenv.RenderChart(t, testenv.Chart{})
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) })
	if err := plane.Cluster(t).Install(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { uninstall(t, objects) })
}

// uninstall deletes objects, and waits until the policy among them is no longer in
// effect.
func uninstall(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := newClient(t, plane.Cluster(t).Config)
	for _, object := range objects {
		if err := c.Delete(ctx, object); err != nil {
			t.Error(err)
		}
	}
	hash := strings.Repeat("a", 64)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := c.Create(ctx, &v1alpha1.ScalePlan{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: v1alpha1.ScalePlanSpec{
			Direction: v1alpha1.ScaleUp, NodePools: []string{"probe"}, RequestedBy: "probe", Summary: "nothing", PlanHash: hash,
			Hosts: []v1alpha1.ScalePlanHost{{Host: "lab/pve-1"}}, Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictAllow},
			ExpiresAt: metav1.Now(), Approve: hash, ApprovedBy: "alice",
		}}, client.DryRunAll)
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Errorf("the policy stays in force: %v", err)
			return
		}
	}
}

// bind gives a user a ClusterRole.
func bind(t *testing.T, user, role string) {
	t.Helper()
	err := newClient(t, plane.Cluster(t).Config).Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// decide approves a plan as a user, with name as the approver, and returns the API
// server's error.
func decide(t *testing.T, user, name string, plan *v1alpha1.ScalePlan) error {
	t.Helper()
	config := rest.CopyConfig(plane.Cluster(t).Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	after := plan.DeepCopy()
	after.Spec.Approve, after.Spec.ApprovedBy = plan.Spec.PlanHash, name
	return newClient(t, config).Patch(t.Context(), after, client.MergeFrom(plan))
}

func TestOnlyWhoHasTheVerbApproves(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	installRBAC(t)
	b.pool("slow", "manual", "")
	b.want(0, placed("slow", pve1, 4096, "a"))
	plan := b.plan(v1alpha1.ScalePlanPending)
	writer := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.Group}, Resources: []string{"scaleplans"}, Verbs: []string{"get", "list", "update", "patch"},
	}}}
	if err := b.client.Create(t.Context(), writer); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	bind(t, "victor", "numaform-viewer")
	bind(t, "walter", "writer")
	bind(t, "alice", "numaform-approver")

	// It takes a moment until the policy is in effect.
	deadline, ticker := time.After(30*time.Second), time.NewTicker(200*time.Millisecond)
	defer ticker.Stop()
	for {
		err := decide(t, "walter", "walter", plan)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "needs the verb approve") {
			break
		}
		if err == nil {
			t.Log("the policy is not in force yet")
			if err := b.client.Delete(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			b.restart()
			b.want(0, placed("slow", pve1, 4096, "a"))
			plan = b.plan(v1alpha1.ScalePlanPending)
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("who may patch may approve: %v", err)
		}
	}
	for _, tt := range []struct{ name, user, as, want string }{
		{"nobody", "mallory", "mallory", "cannot patch"},
		{"a viewer", "victor", "victor", "cannot patch"},
		{"an approver in another's name", "alice", "bob", "set it to your own user name"},
	} {
		if err := decide(t, tt.user, tt.as, plan); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	b.want(0, placed("slow", pve1, 4096, "a"))
	if err := decide(t, "alice", "alice", plan); err != nil {
		t.Fatal(err)
	}
	b.want(1, placed("slow", pve1, 4096, "a"))
}
