package cluster_test

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// reader is a user of the controller's web page.
type reader struct {
	w            *world
	root, bearer string
}

// newReader returns a reader with a token of the API server. A role of "" leaves the user
// without permission.
func (w *world) newReader(address, name, role string) *reader {
	w.t.Helper()
	w.manifest(fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: %s, name: %s}}", namespace, name))
	if role != "" {
		w.manifest(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]s}
subjects: [{kind: ServiceAccount, namespace: %[3]s, name: %[1]s}]`, name, role, namespace))
	}
	config, _, err := w.plane.ServiceAccount(context.Background(), namespace, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return &reader{w: w, root: "http://" + address + page.Root, bearer: config.BearerToken}
}

// do sends a request, and returns the status and the text of the page without escapes.
func (r *reader) do(ctx context.Context, method, path string) (code int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, r.root+path, nil)
	if err != nil {
		return 0, "", err
	}
	if r.bearer != "" {
		request.SetBasicAuth("any", r.bearer)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, html.UnescapeString(string(content)), err
}

// shows waits until a view contains all texts, because the page reads again only after 15
// seconds. It returns the view.
func (r *reader) shows(path string, want ...string) string {
	r.w.t.Helper()
	shown := ""
	r.w.eventually(time.Minute, func(ctx context.Context) string {
		code, text, err := r.do(ctx, http.MethodGet, path)
		if err != nil || code != http.StatusOK {
			return fmt.Sprintf("GET %s: %d %v\n%s", path, code, err, text)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				return fmt.Sprintf("%s lacks %q:\n%s", path, part, text)
			}
		}
		shown = text
		return ""
	})
	return shown
}

// freeAddress returns an address for an endpoint of the controller.
func freeAddress(t *testing.T) string {
	t.Helper()
	addresses, err := testenv.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return addresses[0]
}

// TestPage checks the web page of a running controller over HTTP: what it shows of a change
// that waits for approval, of the VM that the change creates, and of its record, and whom it
// rejects.
func TestPage(t *testing.T) {
	address := freeAddress(t)
	w := newWorld(t, worldConfig{
		values: map[string]any{"page": map[string]any{"enabled": true}},
		args:   []string{"--page-bind-address", address},
	})
	w.start()
	w.classAndPool("workers", "  placement: {policy: Dedicated, pinWith: HostAgent}", "")
	w.patch(&karpv1.NodePool{}, "workers", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationScaleUp+`":"manual"}}}`)
	alice := w.as("alice", "numaform-approver")
	user, stranger := w.newReader(address, "page-reader", "numaform-page"), w.newReader(address, "page-stranger", "")
	anonymous := &reader{w: w, root: user.root}

	w.pods("web", 1, "2", "2Gi")
	plan := w.pending(v1alpha1.ScaleUp, time.Minute)
	user.shows("", plan.Name, plan.Spec.Summary, "1</b> pending approval", "0</b> VMs", "workers", v1alpha1.ReasonPendingApproval)
	user.shows("plans", plan.Name, "Pending", plan.Spec.Summary)
	diff := user.shows("plan?name="+plan.Name, "default/web-00", "numaform approve "+plan.Name+" --hash "+plan.Spec.PlanHash)
	for line := range strings.Lines(plan.Spec.Diff) {
		if line = strings.TrimSpace(line); !strings.Contains(diff, line) {
			t.Errorf("the page of the plan lacks the line %q of its diff", line)
		}
	}
	if err := approve(alice, plan, "alice", plan.Spec.PlanHash); err != nil {
		t.Fatal(err)
	}
	w.running("web", 1, 3*time.Minute)
	w.applied(plan.Name, "alice")

	claim := w.onlyClaim("workers")
	vm := w.ours()[claim.Status.NodeName]
	host := w.hostOf(vm.VMID)
	record := claim.Annotations[v1alpha1.AnnotationChange]
	if vm.Name == "" || record == "" || vm.Pins.IsEmpty() {
		t.Fatalf("the NodeClaim %s names the VM %+v and the change %q", claim.Name, vm, record)
	}
	id := url.QueryEscape(topology.HostID{Region: testenv.Region, Host: topology.HostName(host)}.String())
	user.shows("", "1</b> VMs", "1 running", "0</b> pending approval")
	user.shows("vms", vm.Name, host, fmt.Sprint(vm.VMID), "<td>"+vm.Pins.String()+"</td>")
	user.shows("hosts", host)
	user.shows("host?id="+id, vm.Name, "<td>"+vm.Pins.String()+"</td>")
	user.shows("map.svg?id="+id, "<svg", vm.Name)
	user.shows("plan?name="+plan.Name, "Applied", "alice")
	user.shows("history", record, "alice")
	user.shows("change?id="+record, vm.Name, host, "alice, digest ", "ScalePlan "+plan.Name)

	var decided v1alpha1.ScalePlan
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(plan), &decided); err != nil {
		t.Fatal(err)
	}
	paths := []string{"", "vms", "hosts", "host?id=" + id, "map.svg?id=" + id, "plans", "plan?name=" + plan.Name, "history", "change?id=" + record, "style.css", "none"}
	for _, path := range paths {
		for _, attempt := range []struct {
			by     *reader
			method string
			want   int
		}{
			{anonymous, http.MethodGet, http.StatusUnauthorized},
			{&reader{w: w, root: user.root, bearer: user.bearer[:len(user.bearer)-8] + "AAAAAAAA"}, http.MethodGet, http.StatusUnauthorized},
			{stranger, http.MethodGet, http.StatusForbidden},
			{user, http.MethodPost, http.StatusMethodNotAllowed},
			{user, http.MethodPut, http.StatusMethodNotAllowed},
			{user, http.MethodPatch, http.StatusMethodNotAllowed},
			{user, http.MethodDelete, http.StatusMethodNotAllowed},
		} {
			code, text, err := attempt.by.do(context.Background(), attempt.method, path)
			if code == http.StatusTooManyRequests { // wrong tokens are reviewed at a limited rate
				code = attempt.want
			}
			if err != nil || code != attempt.want {
				t.Errorf("%s %q: %d %v, want %d", attempt.method, path, code, err, attempt.want)
			}
			for _, secret := range []string{vm.Name, plan.Name, record} {
				if strings.Contains(text, secret) {
					t.Errorf("%s %q with status %d shows %s", attempt.method, path, code, secret)
				}
			}
		}
	}
	var after v1alpha1.ScalePlan
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(plan), &after); err != nil || after.Generation != decided.Generation {
		t.Errorf("the requests changed the plan: %v\n%+v", err, after.Spec)
	}
	if got := w.ours(); len(got) != 1 || got[vm.Name].VMID != vm.VMID {
		t.Errorf("the requests changed the VMs: %v", got)
	}
}
