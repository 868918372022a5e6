package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestTwoReplicas checks that the second of two controllers runs no engine until the first
// is killed, and that a controller that is suspended during an apply, and resumed after
// another has become leader, starts no apply and exits.
func TestTwoReplicas(t *testing.T) {
	enginetest.Nightly(t)
	s := newScene(t, worldConfig{delays: pvesim.Delays{Clone: time.Second, Start: 200 * time.Millisecond}})
	s.replicaConfig("second")
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	first := s.leaderAfter("")
	second := s.replica("second")

	trap := holdCall(pvesim.Fault{Method: "POST", Path: `/clone$`, After: true}, nil)(s)
	s.pods("web", 1, "500m", "512Mi", apart)
	t.Logf("killed the leader: %s", s.await(trap))
	if runs := s.runsIn("second"); len(runs) > 0 {
		t.Errorf("a replica that is not the leader ran the engine: %q", runs)
	}
	s.kill(true)
	trap.free()
	s.age()
	s.controller = second
	heir := s.leaderAfter(first)
	s.running("web", 1, 3*time.Minute)
	s.settled(1)
	s.check()

	third := s.replica("")
	trap = holdCall(pvesim.Fault{Method: "PUT", Path: `^/nodes/[^/]+/qemu/2\d+/config$`}, byProvider)(s)
	s.pods("late", 1, "500m", "512Mi", apart)
	t.Logf("suspended the leader: %s", s.await(trap))
	s.signal(second, syscall.SIGSTOP)
	s.controller = third
	s.leaderAfter(heir)
	s.age()
	before := s.runsIn("second")
	s.signal(second, syscall.SIGCONT)
	trap.free()
	select {
	case <-second.done:
		t.Logf("the resumed leader ended: %v", second.err)
	case <-time.After(2 * time.Minute):
		t.Fatalf("the resumed leader did not exit:\n%s", second.log.tail())
	}
	s.running("late", 1, 3*time.Minute)
	s.settled(2)
	// The engine may finish a plan that was in progress, which has no effect.
	after := s.runsIn("second")[len(before):]
	t.Logf("engines started by the resumed leader: %q", after)
	if slices.Contains(after, "apply") {
		t.Errorf("the resumed leader applied: %q", after)
	}
	s.check()
	s.checkSecrets()
}

// replicaConfig configures a replica with a separate disk.
func (w *world) replicaConfig(name string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "numaform.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(name+".yaml", strings.Replace(string(text), "dir: fleet\n", "dir: "+name+"\n", 1))
}

// replica starts an additional controller, with its own configuration if name is set.
func (s *scene) replica(name string) *process {
	s.t.Helper()
	before := s.args
	if name != "" {
		s.args = append(s.args, "--config", name+".yaml")
	}
	p := s.startProcess()
	s.args = before
	s.said = append(s.said, p.log)
	s.t.Cleanup(func() {
		if s.controller == p {
			return // the test's own cleanup stops s.controller
		}
		_ = p.command.Process.Kill() // it may have exited
		<-p.done
	})
	return p
}

// runsIn returns the engine's commands in a replica's directory.
func (s *scene) runsIn(name string) (commands []string) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "engine.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		command, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(dir, filepath.Join(s.dir, name)+"/") {
			commands = append(commands, command)
		}
	}
	return commands
}

// leaderAfter waits for a leader other than the given one, and returns it.
func (w *world) leaderAfter(other string) (leader string) {
	w.t.Helper()
	w.eventually(2*time.Minute, func(ctx context.Context) string {
		lease := &coordinationv1.Lease{}
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "numaform-controller"}, lease); err != nil {
			return err.Error()
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || *lease.Spec.HolderIdentity == other {
			return "no other replica leads"
		}
		leader = *lease.Spec.HolderIdentity
		return ""
	})
	return leader
}

func (w *world) signal(p *process, signal syscall.Signal) {
	w.t.Helper()
	if err := p.command.Process.Signal(signal); err != nil {
		w.t.Fatal(err)
	}
}
