package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
)

// TestHistoryAccepted rewrites the history of a running controller, as whoever can write the
// fleet can: first an outcome in the middle is deleted, then the newest change is. Each time the
// controller stops with a condition, an event and a metric, and a new pod gets no VM. Then an
// administrator accepts it beside the controller, and the pod gets its VM.
func TestHistoryAccepted(t *testing.T) {
	enginetest.Nightly(t)
	address := freeAddress(t)
	s := newScene(t, worldConfig{args: []string{"--drift-every", "10s", "--metrics-bind-address", address}})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	for _, app := range []string{"a", "b"} {
		s.pods(app, 1, "500m", "512Mi", apart)
		s.running(app, 1, 3*time.Minute)
	}
	s.settled(2)

	s.forget(s.history()[0].Change.ID + "-outcome")
	s.holds(address, 1)
	s.pods("c", 1, "500m", "512Mi", apart)
	s.pass(12 * time.Second) // another verification
	if vms := len(s.ours()); vms != 2 {
		t.Fatalf("%d VMs while the history is not accepted", vms)
	}
	s.accepted("accept", address)
	s.running("c", 1, 3*time.Minute)
	s.settled(3)

	// The newest change, as after a restore of etcd.
	newest := s.newest().Change.ID
	record := s.record(newest)
	root := s.record("")
	root.Annotations["numaform.dev/head"] = record.Annotations["numaform.dev/previous"]
	if err := s.api.Update(context.Background(), root); err != nil {
		t.Fatal(err)
	}
	s.forget(newest)
	s.forget(newest + "-outcome")
	s.holds(address, 1)
	if out, err := s.numaform("history", "accept", "--reason", "x"); err == nil || !strings.Contains(out, "accept-restore") {
		t.Fatalf("accept, after the newest change was lost: %v\n%s", err, out)
	}
	s.pods("d", 1, "500m", "512Mi", apart)
	s.accepted("accept-restore", address)
	s.running("d", 1, 3*time.Minute)
	for _, app := range []string{"a", "b", "c"} {
		s.running(app, 1, time.Minute)
	}
	if vms := len(s.ours()); vms != 4 {
		t.Errorf("%d VMs for 4 pods", vms)
	}
	s.checkForeign()
}

// record returns the ConfigMap of a change, or the root of the fleet for no change.
func (s *scene) record(change string) *corev1.ConfigMap {
	s.t.Helper()
	name := "fleet"
	if change != "" {
		name += "-" + strings.ToLower(change)
	}
	m := &corev1.ConfigMap{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, m); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// forget deletes a record.
func (s *scene) forget(record string) {
	s.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fleet-" + strings.ToLower(record)}}
	if err := s.api.Delete(context.Background(), m); err != nil {
		s.t.Fatal(err)
	}
}

// accepted accepts the history as an administrator, and waits until the controller continues.
func (s *scene) accepted(command, address string) {
	s.t.Helper()
	if out, err := s.numaform("history", command, "--reason", "an operator deleted ConfigMaps"); err != nil {
		s.t.Fatalf("numaform history %s: %v\n%s", command, err, out)
	}
	s.holds(address, 0)
}

// holds waits until the controller reports that it stopped, or that it did not, by its metric;
// and if it did, by its condition and an event.
func (s *scene) holds(address string, held int) {
	s.t.Helper()
	s.eventually(time.Minute, func(ctx context.Context) string {
		served, err := scrape(ctx, "http://"+address+"/metrics")
		if err != nil {
			return err.Error()
		}
		if value, found := served.sum("numaform_history_held"); !found || value != float64(held) {
			return fmt.Sprintf("numaform_history_held is %g (exists: %t)", value, found)
		}
		condition, err := s.scaleUpReady(ctx, "workers")
		if err != nil {
			return err.Error()
		}
		if rewritten := condition.Reason == v1alpha1.ReasonHistoryRewritten; rewritten != (held == 1) {
			return fmt.Sprintf("condition %+v", condition)
		}
		var events corev1.EventList
		if err := s.api.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err.Error()
		}
		for i := range events.Items {
			if held == 0 || events.Items[i].Reason == v1alpha1.ReasonHistoryRewritten {
				return ""
			}
		}
		return "no event"
	})
}
