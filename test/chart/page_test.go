package chart_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestWhoReadsThePage checks the login of the web page against a real API server, with the
// permissions that the chart gives to the controller: a token of an account that is bound to the
// chart's role is accepted, and every other token is rejected.
func TestWhoReadsThePage(t *testing.T) {
	t.Parallel()
	installed(t)
	ctx := context.Background()
	release := testenv.RenderChart(t, testenv.Chart{Values: map[string]any{"fullnameOverride": "paged", "page": map[string]any{"enabled": true}}})
	release = slices.DeleteFunc(release, func(object *unstructured.Unstructured) bool {
		return !slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "ServiceAccount"}, object.GetKind())
	})
	if err := cluster.Install(ctx, release); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	token := func(name string) string {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "numaform", Name: name}}
		if _, err := admin.CoreV1().ServiceAccounts("numaform").Create(ctx, account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		request, err := admin.CoreV1().ServiceAccounts("numaform").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	reader, stranger := token("page-reader"), token("page-stranger")
	binding := bind("system:serviceaccount:numaform:page-reader", "paged-page")
	binding.Name = "page-readers"
	if err := as(t, "").Create(ctx, binding); err != nil {
		t.Fatal(err)
	}

	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:numaform:paged"}
	controller, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	served := page.New(page.Config{
		Read: func(context.Context) *page.Data {
			return &page.Data{Status: &status.Report{}, Fleet: &fleet.Fleet{}, Snapshot: &topology.Snapshot{}}
		},
		Plan:   func(context.Context, string) (*v1alpha1.ScalePlan, error) { return nil, context.Canceled },
		Access: page.NewAccess(controller, clock.RealClock{}),
		Redact: strings.Clone,
		Clock:  clock.RealClock{},
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { served.Run(running); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	get := func(token string) int {
		request := httptest.NewRequest(http.MethodGet, page.Root, nil)
		request.SetBasicAuth("", token)
		response := httptest.NewRecorder()
		served.Handler().ServeHTTP(response, request)
		return response.Code
	}
	// The authorizer learns of the bindings in the background.
	deadline := time.Now().Add(time.Minute)
	for get(reader) != http.StatusOK && time.Now().Before(deadline) {
		<-time.After(300 * time.Millisecond)
	}
	for name, test := range map[string]struct {
		token string
		want  int
	}{
		"a reader":                {reader, http.StatusOK},
		"an account without role": {stranger, http.StatusForbidden},
		"a changed token":         {reader[:len(reader)-4] + "AAAA", http.StatusUnauthorized},
		"no token":                {"", http.StatusUnauthorized},
	} {
		if got := get(test.token); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
