package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/testenv"
)

// as returns a client that impersonates a user, or an administrator's client if user is
// empty.
func as(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	api, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// dryRun sends an object to the API server as a dry run.
func dryRun(object *unstructured.Unstructured) error {
	api, err := client.New(cluster.Config, client.Options{})
	if err != nil {
		return err
	}
	return api.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
		client.DryRunAll, client.ForceOwnership, client.FieldOwner("test"))
}

// hash is the hash of every plan in these tests.
var hash = strings.Repeat("0123456789abcdef", 4)

// scalePlan returns a pending plan, with additional fields in its spec.
func scalePlan(name string, more map[string]any) *unstructured.Unstructured {
	spec := map[string]any{
		"direction": "Up", "nodePools": []any{"workers"}, "requestedBy": "provisioning", "summary": "2 VMs for workers",
		"planHash": hash, "shards": []any{map[string]any{"host": "region-1/pve-1"}},
		"verdict": map[string]any{"decision": "NeedsApproval"}, "expiresAt": "2099-01-01T00:00:00Z",
	}
	for key, value := range more {
		spec[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "numaform.dev/v1alpha1", "kind": "ScalePlan", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// people binds roles to users: alice may approve plans, bob may write plans but not
// approve them, victor may only read them, and gwen may also break the glass.
func people(t *testing.T) {
	t.Helper()
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "plan-writer"},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"numaform.dev"}, Resources: []string{"scaleplans"}, Verbs: []string{"create", "get", "patch", "update"},
			}},
		},
		bind("alice", "numaform-approver"), bind("bob", "plan-writer"), bind("victor", "numaform-viewer"),
		bind("gwen", "numaform-approver"), bind("gwen", "numaform-break-glass"),
	} {
		if err := as(t, "").Create(context.Background(), object); err != nil {
			t.Fatal(err)
		}
	}
}

func bind(user, role string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
}

// TestWhoApproves checks which users the admission policy allows to approve and reject
// plans, on a real API server.
func TestWhoApproves(t *testing.T) {
	t.Parallel()
	installed(t)
	people(t)
	awaitPolicy(t)
	approval := func(by string) map[string]any { return map[string]any{"approve": hash, "approvedBy": by} }
	rejection := func(by string) map[string]any { return map[string]any{"reject": "not now", "rejectedBy": by} }
	signed := func(by, user string) map[string]any {
		return map[string]any{"approve": hash, "approvedBy": by, "signatures": []any{map[string]any{"user": user, "signature": "signed"}}}
	}
	glass := func(by, user string) map[string]any {
		return map[string]any{"approve": hash, "approvedBy": by, "breakGlass": map[string]any{"user": user, "reason": "fire", "until": "2098-01-01T00:00:00Z"}}
	}
	tests := []struct {
		name, user string
		patch      map[string]any
		want       string
	}{
		{"an approver approves", "alice", approval("alice"), ""},
		{"an approver rejects", "alice", rejection("alice"), ""},
		{"an approver in another's name", "alice", approval("bob"), "spec.approvedBy is bob but you are alice"},
		{"an approver rejects in another's name", "alice", rejection("bob"), "spec.rejectedBy is bob but you are alice"},
		{"who may only write", "bob", approval("bob"), "user bob may not approve or reject plans"},
		{"who may only write, in an approver's name", "bob", approval("alice"), "bob"},
		{"who may only write rejects", "bob", rejection("bob"), "user bob may not approve or reject plans"},
		{"the controller", account, approval(account), "user " + account + " may not approve or reject plans"},
		{"who may only read", "victor", approval("victor"), "cannot patch resource"},
		{"half a hash", "alice", map[string]any{"approve": hash[:32], "approvedBy": "alice"}, "spec.approve"},
		{"nobody's approval", "alice", map[string]any{"approve": hash}, "approvedBy"},
		{"an approver signs", "alice", signed("alice", "alice"), ""},
		{"a signature in another's name", "alice", signed("alice", "bob"), "the user of a new entry of spec.signatures must be alice"},
		{"a signature without an approval", "alice", map[string]any{"signatures": signed("alice", "alice")["signatures"]}, "spec.approve"},
		{"who may only write signs", "bob", signed("bob", "bob"), "user bob may not approve or reject plans"},
		{"break-glass without the verb", "alice", glass("alice", "alice"), "user alice may not approve by break-glass"},
		{"break-glass", "gwen", glass("gwen", "gwen"), ""},
		{"break-glass in another's name", "gwen", glass("gwen", "alice"), "spec.breakGlass.user must be gwen"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := scalePlan("plan-"+string(rune('a'+i)), nil)
			if err := as(t, account).Create(context.Background(), plan); err != nil {
				t.Fatal(err)
			}
			before := plan.DeepCopy()
			for key, value := range tt.patch {
				if err := unstructured.SetNestedField(plan.Object, value, "spec", key); err != nil {
					t.Fatal(err)
				}
			}
			wantRefusal(t, as(t, tt.user).Patch(context.Background(), plan, client.MergeFrom(before)), tt.want)
		})
	}
}

// TestNobodyBringsAnApprovalAlong checks that a user who may not approve cannot create an
// approved plan, but can change other fields of an approved plan.
func TestNobodyBringsAnApprovalAlong(t *testing.T) {
	t.Parallel()
	installed(t)
	awaitPolicy(t)
	ctx := context.Background()
	approved := scalePlan("brought", map[string]any{"approve": hash, "approvedBy": account})
	wantRefusal(t, as(t, account).Create(ctx, approved), "may not approve or reject plans")

	standing := scalePlan("standing", map[string]any{"approve": hash, "approvedBy": "admin"})
	if err := as(t, "").Create(ctx, standing); err != nil {
		t.Fatal(err)
	}
	before := standing.DeepCopy()
	standing.SetLabels(map[string]string{"seen": "true"})
	if err := as(t, account).Patch(ctx, standing, client.MergeFrom(before)); err != nil {
		t.Errorf("a write that does not change the approval: %v", err)
	}
}

func wantRefusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want it to contain %q", err, want)
	}
}

// awaitPolicy waits until the API server enforces the policy, which it loads in the
// background.
func awaitPolicy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	probe := scalePlan("probe", map[string]any{"approve": hash, "approvedBy": "nobody"})
	for as(t, "").Create(ctx, probe.DeepCopy(), client.DryRunAll) == nil {
		select {
		case <-ctx.Done():
			t.Fatal("the API server does not enforce the policy")
		case <-ticker.C:
		}
	}
}

// TestRolesOfPeople checks that only the role for viewers is aggregated to the role view.
func TestRolesOfPeople(t *testing.T) {
	t.Parallel()
	for _, object := range ofKind(t, testenv.RenderChart(t, testenv.Chart{}), "ClusterRole") {
		labels := object.GetLabels()
		if aggregated := labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true"; aggregated != (object.GetName() == "numaform-viewer") {
			t.Errorf("ClusterRole %s: aggregated to view: %t", object.GetName(), aggregated)
		}
	}
}

// TestPodsAreRestricted checks that a namespace that enforces the Pod Security Standard
// "restricted" accepts the pods of each release.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := as(t, "").Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	for _, release := range releases(t) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "restricted", Name: "numaform"}, Spec: deployment(t, release.values).Spec.Template.Spec}
		if err := as(t, "").Create(ctx, pod, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", release.name, err)
		}
		pod.Spec.SecurityContext.SeccompProfile = nil
		wantRefusal(t, as(t, "").Create(ctx, pod, client.DryRunAll), "seccompProfile")
	}
}
