package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestAlerts runs controllers, causes the faults of all alerts of the chart, and scrapes the
// controllers' metrics meanwhile. promtool then evaluates the chart's rules on exactly these
// scrapes: no alert fires without a fault, and only the expected ones fire during one. The scrapes
// also contain all series of the dashboard.
func TestAlerts(t *testing.T) {
	t.Parallel()
	faults := map[string]func(*testing.T, *recording){"users": faultsOfUsers, "stores": faultsOfStores, "proxmox": faultsOfProxmox}
	var mu sync.Mutex
	var done []*recording
	t.Cleanup(func() {
		if len(done) == len(faults) { // not if -run selects some of them
			allAlertsFired(t, done)
			dashboardHasSeries(t, done)
		}
	})
	for name, cause := range faults {
		t.Run(name, func(t *testing.T) {
			r := &recording{}
			cause(t, r)
			r.end()
			r.evaluate(t)
			mu.Lock()
			defer mu.Unlock()
			done = append(done, r)
		})
	}
}

// twins returns three hosts of the same kind.
func twins(t *testing.T) []topology.Host {
	t.Helper()
	return append(largeHosts(t), testenv.Host(t, "pve-3", "xeon-6230-2s-snc2", 9003))
}

// faultsOfUsers causes the faults for which a user acts: guests that were changed or left
// behind, a host that is down, pods without a place, decisions that wait, messages that do not
// arrive, a record that was removed, and a controller that was stopped.
func faultsOfUsers(t *testing.T, r *recording) {
	w := newWorld(t, worldConfig{
		hosts: twins(t), args: []string{"--drift-every", "10s", "--feature-gates", "CapacityBuffer=true"},
		values: map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}},
	})
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(hook.Close)
	w.edit(`$`, fmt.Sprintf("notifications: {interval: 1s, targets: [{name: good, type: webhook, url: %q}, {name: bad, type: slack}]}\n", hook.URL))
	w.env = append(w.env, "NUMAFORM_NOTIFICATIONS_TARGETS_1_URL=https://127.0.0.1:1/x")
	r.begin(w)

	marker := fleet.Marker{ClusterID: clusterID, Key: "0123456789abcdef0123456789abcdef"}
	lost := pvesim.Guest{VMID: 2900, Host: "pve-1", Running: true, Config: map[string]string{
		"name": "lost", "cores": "1", "memory": "512", "description": marker.String(),
	}}
	if err := w.proxmox.PutGuest(lost); err != nil {
		t.Fatal(err)
	}
	w.pool(poolConfig{name: "workers", budgets: "0"})
	w.pool(poolConfig{name: "gated", budgets: "0"})
	w.patch(&karpv1.NodePool{}, "gated", fmt.Sprintf(`{"metadata":{"annotations":{%q:"manual"}}}`, v1alpha1.AnnotationScaleUp))
	w.standbyBuffer("workers", "1", 1)
	w.pods("web", 1, "1", "1Gi", inPool("workers"))
	w.pods("waits", 1, "1", "1Gi", inPool("gated"))
	w.pods("huge", 1, "500", "1Gi")
	r.until("numaform_vms", is(1), "phase", "standby")
	w.running("web", 1, 2*time.Minute)
	for _, guest := range w.ours() {
		if guest.Running && guest.VMID != lost.VMID {
			if out, err := w.proxmox.Shell(fmt.Sprintf("qm set %d --tags edited-by-hand", guest.VMID)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	r.until("numaform_drifted_vms", is(1), "class", "repairable")
	used := map[string]bool{"pve-1": true}
	for _, host := range w.hostsWithVMs() {
		used[host] = true
	}
	down := "pve-2"
	if used[down] {
		down = "pve-3"
	}
	w.proxmox.SetHostOnline(down, false)
	r.until("numaform_host_up", is(0), "host", down)
	r.until("numaform_pending_scaleplans", is(1), "direction", "up")
	r.until("numaform_notifications_total", atLeast(3), "type", "slack", "result", "error")
	r.until("numaform_orphaned_vms", is(1))
	// The last: Karpenter removes this series during each decision.
	r.until("karpenter_scheduler_unschedulable_pods_count", atLeast(1))
	unsent := `NumaformNotificationsFail{type="slack"}`
	r.fires(soon, unsent)
	orphaned := `NumaformVMOrphaned{region="homelab",host="pve-1"}`
	r.fires(
		61*time.Minute, orphaned, fmt.Sprintf(`NumaformHostUnusable{region="homelab",host=%q}`, down), `NumaformPodsUnschedulable`, `NumaformPlanPending{direction="up"}`,
		`NumaformDrift{class="stray"}`, `NumaformDrift{class="repairable"}`,
	)

	alice := w.as("alice", "numaform-approver")
	glass := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "glass"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "numaform-break-glass"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}
	if err := w.api.Create(context.Background(), glass); err != nil {
		t.Fatal(err)
	}
	var plan *v1alpha1.ScalePlan
	w.eventually(2*time.Minute, func(context.Context) string {
		if plan = w.pending(v1alpha1.ScaleUp, time.Minute); strings.Contains(plan.Spec.Summary, down) {
			return fmt.Sprintf("%s is for a host that is down, so another plan will replace it", plan.Name)
		}
		return ""
	})
	broken := plan.DeepCopy()
	broken.Spec.Approve, broken.Spec.ApprovedBy = plan.Spec.PlanHash, "alice"
	broken.Spec.BreakGlass = &v1alpha1.ScalePlanBreakGlass{
		User: "alice", Reason: "the shop is down", Until: metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second)),
	}
	if err := alice.Patch(context.Background(), broken, client.MergeFrom(plan)); err != nil {
		t.Fatal(err)
	}
	r.until("numaform_break_glass_approvals_total", is(1))
	w.running("waits", 1, 2*time.Minute)
	unlink := w.forgetFirstChange()
	r.until("numaform_history_readable", is(0))
	r.fires(16*time.Minute, `NumaformHistoryUnreadable`, orphaned, unsent)
	unlink()
	r.until("numaform_history_faults", atLeast(1), "class", "missing")
	r.fires(soon, `NumaformBreakGlass`, `NumaformHistoryRewritten{class="missing"}`, unsent)

	w.stop(syscall.SIGTERM)
	r.until("numaform_queue_length", absent)
	r.fires(16*time.Minute, `NumaformNotRunning`, unsent)
}

// faultsOfStores causes the faults of the fleet's repository and of the backend of its states.
func faultsOfStores(t *testing.T, r *recording) {
	w := newWorld(t, worldConfig{hosts: twins(t), states: testenv.HTTPState(t), args: []string{"--drift-every", "10s"}})
	remote := t.TempDir()
	git := func(ctx context.Context, args ...string) string {
		if out, err := exec.CommandContext(ctx, "git", append([]string{"-C", remote}, args...)...).CombinedOutput(); err != nil {
			return fmt.Sprintf("git %q: %v\n%s", args, err, out)
		}
		return ""
	}
	if failed := git(t.Context(), "init", "--quiet", "--bare", "--initial-branch=main"); failed != "" {
		t.Fatal(failed)
	}
	w.edit(`configmap: \{.*\}`, fmt.Sprintf("git: {remote: '%s'}", remote))
	r.begin(w)

	w.pool(poolConfig{name: "workers", budgets: "0"})
	w.pods("web", 1, "1", "1Gi", onHost("pve-1"))
	w.running("web", 1, 2*time.Minute)
	w.eventually(time.Minute, func(ctx context.Context) string { return git(ctx, "update-ref", "refs/heads/main", "main~1") })
	r.until("numaform_history_put_backs_total", is(1), "result", "success")
	pushed := `NumaformHistoryPutBack{result="success"}`
	r.fires(soon, pushed)

	refuse := filepath.Join(remote, "hooks", "pre-receive")
	if err := os.WriteFile(refuse, []byte("#!/bin/sh\necho protected branch >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.pods("refused", 1, "1", "1Gi", apart, onHost("pve-1"))
	r.until("numaform_waiting_vms", atLeast(1), "reason", "ChangePostponed")
	r.fires(6*time.Minute, pushed, `NumaformChangesPostponed{reason="ChangePostponed"}`)
	if err := os.Remove(refuse); err != nil {
		t.Fatal(err)
	}
	w.running("refused", 1, 2*time.Minute)

	w.lockStates(2 * time.Hour)
	w.pods("locked", 1, "1", "1Gi", apart, onHost("pve-1"))
	r.until("numaform_state_lock_age_seconds", atLeast(7200))
	locked := `NumaformStateLockStale{region="homelab",host="pve-1"}`
	r.fires(soon, pushed, locked)

	w.states.Refuse("GET", "POST", "LOCK", "UNLOCK")
	w.pods("outage", 1, "1", "1Gi", apart, onHost("pve-2"))
	r.until("numaform_waiting_vms", atLeast(1), "reason", "StateBackendUnreachable")
	r.fires(6*time.Minute, pushed, locked, `NumaformStateBackendUnreachable{reason="StateBackendUnreachable"}`)
	w.states.Refuse()
}

// faultsOfProxmox causes the faults of Proxmox: a full storage, and a cluster that does not
// respond.
func faultsOfProxmox(t *testing.T, r *recording) {
	w := newWorld(t, worldConfig{hosts: twins(t)})
	w.proxmox.AddFault(pvesim.Fault{Method: "POST", Path: `/clone$`, Status: 500, Reason: "storage 'local-lvm' is full"})
	r.begin(w)

	w.pool(poolConfig{name: "workers", budgets: "0"})
	for _, host := range []string{"pve-1", "pve-2", "pve-3"} {
		w.pods("on-"+host, 3, "1", "1Gi", apart, onHost(host))
	}
	var failed []string
	r.until("numaform_closed_offerings", atLeast(1))
	for _, host := range []string{"pve-1", "pve-2", "pve-3"} {
		r.until("numaform_vm_failures_total", atLeast(3), "host", host)
		failed = append(failed, fmt.Sprintf(`NumaformVMsFailed{region="homelab",host=%q}`, host))
	}
	r.until("numaform_apply_duration_seconds_count", atLeast(3), "result", "error")
	failed = append(failed, `NumaformAppliesFail{region="homelab"}`)
	r.fires(soon, failed...)

	w.proxmox.AddFault(pvesim.Fault{Disconnect: true})
	r.until("numaform_proxmox_readable", is(0))
	r.fires(6*time.Minute, append(failed, `NumaformProxmoxUnreadable{region="homelab"}`)...)
}

// forgetFirstChange deletes the record of the first change, and returns a function that removes
// the reference to it: the history cannot be read before.
func (w *world) forgetFirstChange() (unlink func()) {
	w.t.Helper()
	const previous = "numaform.dev/previous"
	var changes corev1.ConfigMapList
	if err := w.api.List(context.Background(), &changes, client.InNamespace(namespace), client.MatchingLabels{partLabel: "change"}); err != nil {
		w.t.Fatal(err)
	}
	first := slices.IndexFunc(changes.Items, func(m corev1.ConfigMap) bool { return m.Annotations[previous] == "" })
	second := slices.IndexFunc(changes.Items, func(m corev1.ConfigMap) bool {
		id := m.Annotations[previous]
		return id != "" && strings.HasSuffix(changes.Items[first].Name, strings.ToLower(id))
	})
	if err := w.api.Delete(context.Background(), &changes.Items[first]); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		changed := changes.Items[second].DeepCopy()
		delete(changed.Annotations, previous)
		if err := w.api.Patch(context.Background(), changed, client.MergeFrom(&changes.Items[second])); err != nil {
			w.t.Fatal(err)
		}
	}
}

// lockStates locks each state, like an engine on another machine that did so some time ago.
// The controller may hold the lock for a moment.
func (w *world) lockStates(ago time.Duration) {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{
		"ID": "5e1f0b9e-0000-4000-8000-000000000001", "Operation": "OperationTypeApply", "Who": "mallory@elsewhere",
		"Created": time.Now().Add(-ago).UTC().Format(time.RFC3339),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for path := range w.states.States() {
		w.eventually(time.Minute, func(ctx context.Context) string {
			request, err := http.NewRequestWithContext(ctx, "LOCK", w.states.URL+path, strings.NewReader(string(body)))
			if err != nil {
				return err.Error()
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err.Error()
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return path + ": " + response.Status
			}
			return ""
		})
	}
}
