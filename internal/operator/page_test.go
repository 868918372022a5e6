package operator_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/page"
)

// TestCheckPage checks that the page needs a certificate on every address that other machines
// may reach.
func TestCheckPage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ address, dir, want string }{
		{"0", "", ""},
		{"127.0.0.1:8082", "", ""},
		{"[::1]:8082", "", ""},
		{"localhost:8082", "", ""},
		{":8082", "", "need TLS"},
		{"0.0.0.0:8082", "", "need TLS"},
		{"[::]:8082", "", "need TLS"},
		{"192.0.2.1:8082", "", "need TLS"},
		{"localhost.example:8082", "", "need TLS"},
		{"8082", "", "missing port"},
		{":8443", "/etc/numaform-page", ""},
	} {
		err := operator.CheckPage(test.address, test.dir)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with certificate %q: %v, want %q", test.address, test.dir, err, test.want)
		}
	}
}

// TestPageChangesNothing opens every page of a controller, and checks what it sends to the API
// server: it reads, and asks who the reader is.
func TestPageChangesNothing(t *testing.T) {
	t.Parallel()
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sent []string
	answers := map[string]any{
		"/api":  metav1.APIVersions{Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{Groups: []metav1.APIGroup{group("numaform.dev", "v1alpha1"), group("karpenter.sh", "v1")}},
		"/apis/numaform.dev/v1alpha1": metav1.APIResourceList{GroupVersion: "numaform.dev/v1alpha1", APIResources: []metav1.APIResource{
			{Name: "scaleplans", SingularName: "scaleplan", Kind: "ScalePlan", Verbs: []string{"get", "list"}},
		}},
		"/apis/karpenter.sh/v1": metav1.APIResourceList{GroupVersion: "karpenter.sh/v1", APIResources: []metav1.APIResource{
			{Name: "nodepools", SingularName: "nodepool", Kind: "NodePool", Verbs: []string{"get", "list"}},
		}},
		"/apis/numaform.dev/v1alpha1/scaleplans":                 map[string]any{"kind": "ScalePlanList", "apiVersion": "numaform.dev/v1alpha1", "items": []any{plan}},
		"/apis/numaform.dev/v1alpha1/scaleplans/workers-up-3f2a": plan,
		"/apis/karpenter.sh/v1/nodepools": map[string]any{"kind": "NodePoolList", "apiVersion": "karpenter.sh/v1", "items": []any{map[string]any{
			"metadata": map[string]any{"name": "workers"}, "status": map[string]any{"conditions": []any{map[string]any{
				"type": v1alpha1.ConditionScaleUpReady, "status": "False", "reason": "PendingApproval", "message": "two VMs wait", "lastTransitionTime": "2026-11-29T03:00:00Z",
			}}},
		}}},
		"/apis/authentication.k8s.io/v1/tokenreviews": authenticationv1.TokenReview{
			TypeMeta: metav1.TypeMeta{Kind: "TokenReview", APIVersion: "authentication.k8s.io/v1"},
			Status:   authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "alice"}},
		},
		"/apis/authorization.k8s.io/v1/subjectaccessreviews": authorizationv1.SubjectAccessReview{
			TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: true},
		},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent = append(sent, r.Method+" "+r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()

	dir := t.TempDir()
	config := &operator.Config{ClusterID: "prod", StateDir: filepath.Join(dir, "state")}
	config.Fleet.Dir = filepath.Join(dir, "fleet")
	shown, err := operator.NewPage(config, operator.ControllerSettings{PageAddress: "127.0.0.1:0", Version: "1.4.0"}, &rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { shown.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	handler := shown.Handler()
	for path, want := range map[string]string{
		"": "two VMs wait", "vms": "No VM matches", "hosts": "Proxmox cannot be read now", "plans": "workers-up-3f2a",
		"plan?name=workers-up-3f2a": "the whole diff", "plan?name=none": "does not exist", "history": "No change matches",
	} {
		request := httptest.NewRequest(http.MethodGet, page.Root+path, nil)
		request.SetBasicAuth("alice", "token")
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if !strings.Contains(response.Body.String(), want) {
			t.Errorf("%s lacks %q: %d\n%s", path, want, response.Code, response.Body)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	reviews := 0
	for _, request := range sent {
		if request == "POST /apis/authentication.k8s.io/v1/tokenreviews" || request == "POST /apis/authorization.k8s.io/v1/subjectaccessreviews" {
			reviews++
		} else if !strings.HasPrefix(request, "GET ") {
			t.Errorf("a page view sent %s", request)
		}
	}
	if lists := len(slices.DeleteFunc(slices.Clone(sent), func(s string) bool { return s != "GET /apis/numaform.dev/v1alpha1/scaleplans" })); lists != 1 || reviews != 2 {
		t.Errorf("7 page views listed ScalePlans %d times and sent %d reviews, want 1 and 2:\n%s", lists, reviews, strings.Join(sent, "\n"))
	}
	if found, err := filepath.Glob(filepath.Join(dir, "*", "*")); err != nil || len(found) > 0 {
		t.Errorf("page views wrote %v, %v", found, err)
	}
}

// plan is a ScalePlan.
var plan = map[string]any{
	"apiVersion": "numaform.dev/v1alpha1", "kind": "ScalePlan", "metadata": map[string]any{"name": "workers-up-3f2a"},
	"spec": map[string]any{"summary": "2 to create", "diff": "the whole diff", "expiresAt": "2126-01-02T03:04:05Z"},
}

func group(name, version string) metav1.APIGroup {
	of := metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + version, Version: version}
	return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{of}, PreferredVersion: of}
}
