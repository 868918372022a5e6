package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/pvesim"
)

// kills is the number of kills of the controller at random times, and killSeed the seed of
// these times.
var (
	kills    = flag.Int("cluster.kills", 0, "number of times to kill the controller at a random time")
	killSeed = flag.Uint64("cluster.seed", 0, "seed of the random times; 0 means a seed from the clock")
)

// TestKillControllerAtRandom checks the invariants of docs/faults.md after repeated kills
// of the controller at random times while pods are created and nodes are deleted. It does
// nothing unless -cluster.kills is set.
func TestKillControllerAtRandom(t *testing.T) {
	if *kills == 0 {
		t.Log("no kills requested: set -cluster.kills")
		return
	}
	number := *killSeed
	if number == 0 {
		number = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", number)
	rng := rand.New(rand.NewPCG(number, 0))
	s := newScene(t, worldConfig{
		args:   []string{"--leader-elect=false"},
		delays: pvesim.Delays{Clone: 2 * time.Second, Start: 300 * time.Millisecond, Stop: 300 * time.Millisecond, Destroy: time.Second},
		guests: func(c *guestsim.Config) { c.PodStop = time.Second },
	})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	var apps []string
	for i := range *kills {
		if app := fmt.Sprintf("load-%02d", i); len(apps) < 5 {
			s.pods(app, 1, "500m", "512Mi", apart)
			apps = append(apps, app)
		}
		if s.bound(apps[0]) && rng.IntN(2) == 0 {
			s.deleteNodeOf(apps[0])
			apps = apps[1:]
		}
		s.pass(time.Duration(rng.Int64N(int64(25 * time.Second))))
		withDisk := rng.IntN(2) == 0
		s.kill(withDisk)
		t.Logf("kill %d (disk lost: %t) landed at: %s", i, withDisk, s.portrait())
		s.age()
		s.run()
	}
	for _, app := range apps {
		s.running(app, 1, 5*time.Minute)
	}
	s.settled(len(apps))
	s.check()
	s.deleteAll()
	s.nothingIsLeft(4 * time.Minute)
	s.check()
	s.checkSecrets()
}

// bound reports whether the pod of an app has a node with a NodeClaim.
func (s *scene) bound(app string) bool {
	s.t.Helper()
	pod := &corev1.Pod{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: app + "-00"}, pod); err != nil {
		s.t.Fatal(err)
	}
	return pod.Spec.NodeName != "" && s.claimAt(pod.Spec.NodeName) != nil
}

// pass waits, and checks that the controller does not exit in the meantime.
func (s *scene) pass(d time.Duration) {
	s.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.controller.done:
		s.t.Fatalf("the controller exited unexpectedly: %v\n%s", s.controller.err, s.controller.log.tail())
	}
}
