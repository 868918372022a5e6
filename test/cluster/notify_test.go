package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/notify"
)

// inbox is a webhook that collects messages.
type inbox struct {
	// mu guards items.
	mu    sync.Mutex
	items []notify.Item
}

func (b *inbox) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var message notify.Message
	if err := json.Unmarshal(text, &message); err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items = append(b.items, message.Notices...)
}

// got returns the notifications with a reason about an object whose name begins with prefix.
func (b *inbox) got(reason, prefix string) []notify.Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []notify.Item
	for _, item := range b.items {
		if item.Reason == reason && strings.HasPrefix(item.Object, prefix) {
			found = append(found, item)
		}
	}
	return found
}

// TestNotifications checks that the controller reports a plan that waits, a pause and a
// failure once, also after a restart, while another target never responds, and that scaling
// waits for neither.
func TestNotifications(t *testing.T) {
	w := newWorld(t, worldConfig{})
	box := &inbox{}
	server := httptest.NewServer(box)
	t.Cleanup(server.Close)
	hang := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(hanging.Close)
	t.Cleanup(func() { close(hang) })
	path := filepath.Join(w.dir, "numaform.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.write("url", server.URL+"/secret-of-the-hook\n")
	w.write("numaform.yaml", string(text)+fmt.Sprintf(`notifications:
  interval: 1s
  targets:
  - {name: hangs, type: webhook, url: %q}
  - {name: works, type: webhook, url_file: url}
`, hanging.URL))

	w.start()
	w.classAndPool("workers", "", "")
	pool := &karpv1.NodePool{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: "workers"}, pool); err != nil {
		t.Fatal(err)
	}
	before := pool.DeepCopy()
	pool.Annotations = map[string]string{v1alpha1.AnnotationScaleUp: "manual"}
	if err := w.api.Patch(context.Background(), pool, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	w.pods("web", 3, "1", "1Gi")
	plan := w.pending(v1alpha1.ScaleUp, time.Minute)
	reported := func(reason, object string) {
		t.Helper()
		w.eventually(time.Minute, func(context.Context) string {
			if len(box.got(reason, object)) == 0 {
				return fmt.Sprintf("no notification %s about %s; got %v", reason, object, box.items)
			}
			return ""
		})
	}
	reported("ScalePlanProposed", "ScalePlan "+plan.Name)

	// Another process does not repeat it, although the NodePool has events about it.
	w.eventually(time.Minute, func(ctx context.Context) string {
		var stored corev1.ConfigMap
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "numaform-notifications"}, &stored); err != nil {
			return err.Error()
		}
		if strings.Contains(fmt.Sprint(stored.Data), plan.Name) || stored.Data["works"] == "" {
			return fmt.Sprintf("the ConfigMap contains %v", stored.Data)
		}
		return ""
	})
	w.stop(syscall.SIGKILL)
	w.start()
	alice := w.as("alice", "numaform-approver")
	if err := approve(alice, plan, "alice", plan.Spec.PlanHash); err != nil {
		t.Fatal(err)
	}
	w.running("web", 3, 2*time.Minute)

	w.numaform("pause")
	reported("Paused", "numaform")
	if plans := append(box.got("ScalePlanProposed", ""), box.got("PendingApproval", "")...); len(plans) != 1 {
		t.Errorf("the plan was reported %d times: %v", len(plans), plans)
	}
	log := w.controller.log
	w.eventually(time.Minute, func(context.Context) string {
		if !log.contains("could not send notifications") {
			return "the log does not report the target that hangs"
		}
		return ""
	})
	if log.contains("secret-of-the-hook") {
		t.Error("the log contains the URL of the webhook")
	}
}
