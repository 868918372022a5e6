package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestAPIServerLost checks that no VM is created twice or lost if the API server is down
// for 20 seconds while VMs are being created, so that the engine cannot save its state.
func TestAPIServerLost(t *testing.T) {
	enginetest.Nightly(t)
	s := newScene(t, worldConfig{
		args:   []string{"--leader-elect=false"},
		delays: pvesim.Delays{Clone: time.Second, Start: 200 * time.Millisecond},
	})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	s.pods("web", 3, "500m", "512Mi", apart)
	trap := holdCall(pvesim.Fault{Method: "POST", Path: `/clone$`, After: true}, nil)(s)
	t.Logf("stopping the API server: %s", s.await(trap))
	if err := s.plane.Stop(); err != nil {
		t.Fatal(err)
	}
	trap.free()
	s.pass(20 * time.Second)
	if err := s.plane.Resume(); err != nil {
		t.Fatal(err)
	}
	s.running("web", 3, 4*time.Minute)
	s.settled(3)
	s.check()
	s.checkSecrets()
}

// TestBurstDuringSlowClone checks that, if more pods are created while a host clones
// slowly, another host creates its VM in the meantime, and the cloning host creates its
// other VMs in one apply afterwards.
func TestBurstDuringSlowClone(t *testing.T) {
	enginetest.Nightly(t)
	const long = 30 * time.Second
	s := newScene(t, worldConfig{args: []string{"--leader-elect=false"}, delays: pvesim.Delays{Clone: long}})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	s.pods("slow", 1, "500m", "512Mi", apart, atHost("pve-1"))
	s.eventually(2*time.Minute, func(context.Context) string {
		for _, call := range s.proxmox.Calls() {
			if strings.HasSuffix(call.Path, "/clone") {
				return ""
			}
		}
		return "no clone"
	})
	s.proxmox.SetDelays(pvesim.Delays{Clone: time.Second})
	s.pods("late", 2, "500m", "512Mi", apart, atHost("pve-1"))
	s.pods("other", 2, "500m", "512Mi", apart, atHost("pve-2"))
	s.running("other", 2, 2*time.Minute)
	if node := s.nodeFor("slow"); node != "" {
		t.Errorf("the pod that waits for the slow clone already has node %s: make the clone slower", node)
	}
	s.running("slow", 1, 2*time.Minute)
	s.running("late", 2, 2*time.Minute)
	s.settled(5)
	s.check()
	if got := s.engineRuns("apply"); got["pve-1"] != 2 || got["pve-2"] != 1 {
		t.Errorf("runs of apply: %v, want 2 on pve-1 and 1 on pve-2", got)
	}
}

// atHost makes a pod select the nodes on a host.
func atHost(host string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: host} }
}

// nodeFor returns the node of an app's first pod, or "".
func (s *scene) nodeFor(app string) string {
	s.t.Helper()
	pod := &corev1.Pod{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("%s-00", app)}, pod); err != nil {
		s.t.Fatal(err)
	}
	return pod.Spec.NodeName
}
