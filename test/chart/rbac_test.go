package chart_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/testenv"
)

// account is the user name of the controller of a release named numaform.
const account = "system:serviceaccount:numaform:numaform"

// install installs a release with default values once, and returns its objects.
var install = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
	out, err := testenv.Helm(root, "template", "numaform", "charts/numaform", "--namespace", "numaform", "--include-crds")
	if err != nil {
		return nil, err
	}
	made, err := testenv.Decode([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: numaform}"))
	if err != nil {
		return nil, err
	}
	objects, err := testenv.Decode(out)
	if err != nil {
		return nil, err
	}
	objects = append(made, objects...)
	return objects, cluster.Install(context.Background(), objects)
})

func installed(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := install()
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// grant is a rule and its namespace; an empty namespace means all.
type grant struct {
	role, namespace string
	rule            rbacv1.PolicyRule
}

func grants(t *testing.T, objects []*unstructured.Unstructured) []grant {
	t.Helper()
	var found []grant
	for _, kind := range []string{"ClusterRole", "Role"} {
		for _, object := range ofKind(t, objects, kind) {
			var role rbacv1.Role
			convert(t, &unstructured.Unstructured{Object: withoutAggregation(object)}, &role)
			for _, rule := range role.Rules {
				found = append(found, grant{kind + " " + role.Name, role.Namespace, rule})
			}
		}
	}
	return found
}

func withoutAggregation(object *unstructured.Unstructured) map[string]any {
	kept := maps.Clone(object.Object)
	delete(kept, "aggregationRule")
	return kept
}

// TestNoSecretsOfTheCluster checks that no release grants access to secrets, tokens or exec
// in all namespaces, or verbs that escalate permissions.
func TestNoSecretsOfTheCluster(t *testing.T) {
	t.Parallel()
	never := []string{"escalate", "bind", "impersonate", "*"}
	for _, release := range releases(t) {
		for _, g := range grants(t, testenv.RenderChart(t, testenv.Chart{Values: release.values})) {
			for _, resource := range g.rule.Resources {
				if resource == "serviceaccounts/token" && !slices.Equal(g.rule.ResourceNames, []string{release.objects() + "-bootstrap"}) {
					t.Errorf("%s: %s grants tokens of %v", release.name, g.role, g.rule.ResourceNames)
				}
				if g.namespace == "" && (resource == "secrets" || resource == "serviceaccounts/token" || resource == "nodes/proxy" || strings.HasPrefix(resource, "pods/exec")) {
					t.Errorf("%s: %s grants %s in all namespaces", release.name, g.role, resource)
				}
			}
			for _, word := range slices.Concat(g.rule.APIGroups, g.rule.Resources, g.rule.Verbs) {
				if slices.Contains(never, word) {
					t.Errorf("%s: %s contains %q", release.name, g.role, word)
				}
			}
			if len(g.rule.NonResourceURLs) > 0 && (g.role != "ClusterRole "+release.objects()+"-page" || !slices.Equal(g.rule.NonResourceURLs, []string{page.Root})) {
				t.Errorf("%s: %s grants URLs %v", release.name, g.role, g.rule.NonResourceURLs)
			}
		}
	}
}

// TestRightsAreOfThingsThatExist checks that the granted resources and verbs exist on a
// real API server.
func TestRightsAreOfThingsThatExist(t *testing.T) {
	t.Parallel()
	objects := installed(t)
	verbs := servedVerbs(t)
	// These resources exist only for authorizers. The admission plugin
	// OwnerReferencesPermissionEnforcement checks finalizers.
	verbs["certificates.k8s.io/signers"] = []string{"approve"}
	verbs["karpenter.sh/nodeclaims/finalizers"] = []string{"update"}
	verbs["karpenter.sh/nodepools/finalizers"] = []string{"update"}
	verbs["numaform.dev/scaleplans"] = append(verbs["numaform.dev/scaleplans"], "approve", "break-glass")
	for _, g := range grants(t, objects) {
		for _, key := range g.resources() {
			for _, verb := range g.rule.Verbs {
				if !slices.Contains(verbs[key], verb) {
					t.Errorf("%s: %s of %s does not exist in Kubernetes", g.role, verb, key)
				}
			}
		}
	}
}

// resources returns the resources of the rule as group/resource.
func (g grant) resources() []string {
	var keys []string
	for _, group := range g.rule.APIGroups {
		for _, resource := range g.rule.Resources {
			keys = append(keys, group+"/"+resource)
		}
	}
	return keys
}

// servedVerbs returns the verbs that the API server supports, by group/resource.
func servedVerbs(t *testing.T) map[string][]string {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string][]string{}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, resource := range list.APIResources {
			key := group + "/" + resource.Name
			verbs[key] = append(verbs[key], resource.Verbs...)
		}
	}
	return verbs
}

// TestWhatTheControllerMay checks the controller's permissions, in the syntax of kubectl
// auth can-i, as decided by the authorizer.
func TestWhatTheControllerMay(t *testing.T) {
	t.Parallel()
	installed(t)
	may := []string{
		"create secrets in numaform", "delete secrets in numaform", "list secrets in numaform",
		"get services/kube-dns in kube-system",
		"get configmaps/cluster-info in kube-public",
		"create serviceaccounts/numaform-bootstrap/token in numaform", "get serviceaccounts/numaform-bootstrap in numaform",
		"update leases.coordination.k8s.io in numaform", "update configmaps/numaform-control in numaform",
		"create pods/eviction in shop", "delete pods in shop", "patch nodes",
		"create nodeclaims.karpenter.sh", "patch nodeclaims.karpenter.sh/status", "update nodepools.karpenter.sh/finalizers",
		"watch nodeoverlays.karpenter.sh", "patch nodeoverlays.karpenter.sh/status",
		"create scaleplans.numaform.dev", "update scaleplans.numaform.dev/status",
		"update certificatesigningrequests.certificates.k8s.io/approval",
		"approve signers.certificates.k8s.io/kubernetes.io/kube-apiserver-client-kubelet",
	}
	mayNot := []string{
		"get secrets in shop", "list secrets", "watch secrets in kube-system", "get secrets in kube-public",
		"get secrets in kube-system", "list secrets in kube-system", "create secrets in kube-system", "delete secrets in kube-system",
		"get configmaps in kube-system", "update configmaps/cluster-info in kube-public",
		"approve scaleplans.numaform.dev", "create nodes", "create pods in shop", "create pods/exec in shop",
		"create serviceaccounts/token in numaform", "create serviceaccounts/numaform/token in numaform", "get serviceaccounts/numaform in numaform",
		"create serviceaccounts/numaform-bootstrap/token in kube-system", "update clusterroles.rbac.authorization.k8s.io",
		"approve signers.certificates.k8s.io/kubernetes.io/kube-apiserver-client",
		"approve signers.certificates.k8s.io/kubernetes.io/kubelet-serving",
		"sign signers.certificates.k8s.io/kubernetes.io/kube-apiserver-client-kubelet",
		"create certificatesigningrequests.certificates.k8s.io", "delete scaleplans.numaform.dev/status", "patch nodeoverlays.karpenter.sh",
		"list deployments.apps", "list capacitybuffers.autoscaling.x-k8s.io",
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, question := range slices.Concat(may, mayNot) {
		want[question] = slices.Contains(may, question)
		got[question] = allowed(t, account, question)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}

// TestWhatPeopleMay checks the permissions of users with the chart's roles, as decided by the
// authorizer. No user may change the fleet except through an approval.
func TestWhatPeopleMay(t *testing.T) {
	t.Parallel()
	installed(t)
	reads := []string{
		"get scaleplans.numaform.dev", "list proxmoxnodeclasses.numaform.dev", "watch nodepools.karpenter.sh", "list nodeclaims.karpenter.sh",
	}
	approves := []string{"approve scaleplans.numaform.dev", "patch scaleplans.numaform.dev", "delete scaleplans.numaform.dev"}
	never := []string{
		"create scaleplans.numaform.dev", "deletecollection scaleplans.numaform.dev", "update scaleplans.numaform.dev/status",
		"patch proxmoxnodeclasses.numaform.dev", "patch nodepools.karpenter.sh", "delete nodeclaims.karpenter.sh",
		"get secrets in numaform", "update configmaps in numaform", "update configmaps/numaform-control in numaform",
		"get pods/log in numaform", "delete nodes", "create serviceaccounts/numaform-bootstrap/token in numaform",
	}
	for user, test := range map[string]struct {
		role string
		may  []string
	}{
		"vera":   {"numaform-viewer", reads},
		"arthur": {"numaform-approver", slices.Concat(reads, approves)},
	} {
		if err := as(t, "").Create(context.Background(), bind(user, test.role)); err != nil {
			t.Fatal(err)
		}
		// The authorizer learns of the binding in the background.
		deadline := time.Now().Add(time.Minute)
		for !allowed(t, user, reads[0]) && time.Now().Before(deadline) {
			<-time.After(50 * time.Millisecond)
		}
		want, got := map[string]bool{}, map[string]bool{}
		for _, question := range slices.Concat(reads, approves, never) {
			want[question] = slices.Contains(test.may, question)
			got[question] = allowed(t, user, question)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rights of %s, a %s (-want +got):\n%s", user, test.role, diff)
		}
	}
}

// allowed reports whether a user may VERB RESOURCE[.GROUP][/NAME][/SUBRESOURCE] [in
// NAMESPACE].
func allowed(t *testing.T, user, question string) bool {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	question, namespace, _ := strings.Cut(question, " in ")
	verb, what, _ := strings.Cut(question, " ")
	what, below, _ := strings.Cut(what, "/")
	resource, group, _ := strings.Cut(what, ".")
	attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Namespace: namespace}
	subresources := []string{"log", "eviction", "exec", "token", "status", "approval", "finalizers", "nodeclient"}
	if name, subresource, found := strings.Cut(below, "/"); found && slices.Contains(subresources, subresource) {
		attributes.Name, attributes.Subresource = name, subresource
	} else if slices.Contains(subresources, below) {
		attributes.Subresource = below
	} else {
		attributes.Name = below
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes}}
	review, err = clients.AuthorizationV1().SubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(fmt.Errorf("checking access to %s: %w", question, err))
	}
	return review.Status.Allowed
}

// TestSecretsOfOtherNamespaces checks a statement of docs/install.md: the chart grants no
// verbs on Secrets outside its namespace unless a value requests them.
func TestSecretsOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	tokens := leastValues()
	tokens["rbac"] = map[string]any{"bootstrapTokens": true}
	for _, test := range []struct {
		release
		want map[string][]string
	}{
		{release{"default values", nil}, map[string][]string{}},
		{release{"least values", leastValues()}, map[string][]string{}},
		{release{"bootstrap tokens", tokens}, map[string][]string{"kube-system": {"create", "delete"}}},
		{release{"full values", fullValues(t)}, map[string][]string{"kube-system": {"create", "delete"}, "node-templates": {"get"}}},
	} {
		got := map[string][]string{}
		for _, g := range grants(t, testenv.RenderChart(t, testenv.Chart{Values: test.values})) {
			if slices.Contains(g.rule.Resources, "secrets") && g.namespace != "numaform" {
				got[g.namespace] = append(got[g.namespace], g.rule.Verbs...)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: verbs of Secrets by namespace (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestWhoMayAskForCertificates checks that, in every release, only the ServiceAccount for
// joining nodes and the group of numaform's bootstrap tokens may request certificates.
func TestWhoMayAskForCertificates(t *testing.T) {
	t.Parallel()
	for _, release := range releases(t) {
		want := []rbacv1.Subject{
			{Kind: "ServiceAccount", Namespace: "numaform", Name: release.objects() + "-bootstrap"},
			{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:bootstrappers:numaform"},
		}
		var got []rbacv1.Subject
		for _, object := range ofKind(t, testenv.RenderChart(t, testenv.Chart{Values: release.values}), "ClusterRoleBinding") {
			var binding rbacv1.ClusterRoleBinding
			convert(t, object, &binding)
			if binding.RoleRef.Name == "system:node-bootstrapper" {
				got = append(got, binding.Subjects...)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: subjects of system:node-bootstrapper (-want +got):\n%s", release.name, diff)
		}
	}
}

// TestWhatJoiningNodesMay checks the permissions of a stolen join token, as decided by the
// authorizer.
func TestWhatJoiningNodesMay(t *testing.T) {
	t.Parallel()
	installed(t)
	for question, want := range map[string]bool{
		"create certificatesigningrequests.certificates.k8s.io": true, "get certificatesigningrequests.certificates.k8s.io": true,
		"create certificatesigningrequests.certificates.k8s.io/nodeclient": false, "update certificatesigningrequests.certificates.k8s.io/approval": false,
		"get secrets in kube-system": false, "list secrets in numaform": false, "get nodes": false, "list pods in shop": false,
		"create serviceaccounts/numaform-bootstrap/token in numaform": false,
	} {
		if got := allowed(t, account+"-bootstrap", question); got != want {
			t.Errorf("%s: %v, want %v", question, got, want)
		}
	}
}

// TestEveryReleaseIsAccepted checks that the API server accepts every object of every
// release, except objects whose kind or namespace the test cluster lacks.
func TestEveryReleaseIsAccepted(t *testing.T) {
	t.Parallel()
	installed(t)
	for _, release := range releases(t) {
		for _, object := range testenv.RenderChart(t, testenv.Chart{Namespace: "kube-system", Values: release.values}) {
			// The test cluster has neither the CRDs of the Prometheus operator nor this
			// namespace.
			if object.GetKind() == "ServiceMonitor" || object.GetKind() == "PrometheusRule" || object.GetNamespace() == "node-templates" {
				continue
			}
			if err := dryRun(object); err != nil {
				t.Errorf("%s: %s %s: %v", release.name, object.GetKind(), object.GetName(), err)
			}
		}
	}
}

// TestObjectsDoNotCollide checks that no object appears twice if the release's namespace is
// one in which the chart creates roles.
func TestObjectsDoNotCollide(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"kube-system", "kube-public", "node-templates"} {
		seen := map[string]bool{}
		for _, object := range testenv.RenderChart(t, testenv.Chart{Namespace: namespace, Values: fullValues(t)}) {
			key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
			if seen[key] {
				t.Errorf("namespace %s: %s appears twice", namespace, key)
			}
			seen[key] = true
		}
	}
}
