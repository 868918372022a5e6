package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/store"
)

// adoptSteps returns the points of an adoption at which it is killed, in order.
func (k *kpp) adoptSteps() []killStep {
	counted := func(name string, reached func(vms, ours, theirs int) bool) killStep {
		return killStep{name: name, arm: seen(func(context.Context, *scene) string {
			vms, ours, theirs := k.adopted()
			if !reached(vms, ours, theirs) {
				return ""
			}
			return fmt.Sprintf("%d VMs, %d NodeClaims and %d others", vms, ours, theirs)
		})}
	}
	marked := pvesim.Fault{Method: "PUT", Path: `^/nodes/[^/]+/qemu/21\d+/config$`}
	after := marked
	after.After = true
	all := len(k.guests)
	return []killStep{
		{name: "during plan", arm: holdEngine("hold", "plan")},
		{name: "change begun, not applied", arm: holdEngine("hold", "apply"), after: wantBegun},
		{name: "at the first marker", arm: holdCall(marked, byProvider)},
		{name: "some markers written", arm: holdCall(after, fifth())},
		{name: "applied, no outcome yet", arm: holdEngine("after", "apply"), after: wantBegun},
		counted("no NodeClaim created", func(vms, _, _ int) bool { return vms == all }),
		counted("a NodeClaim created", func(_, ours, _ int) bool { return ours > 0 }),
		counted("half of the nodes moved", func(_, _, theirs int) bool { return theirs <= all/2 }),
		counted("one node left", func(_, _, theirs int) bool { return theirs <= 1 }),
	}
}

// fifth returns a condition that holds for the fifth call of the provider and later ones.
func fifth() func(*scene, pvesim.Call) bool {
	var calls atomic.Int32
	return func(s *scene, call pvesim.Call) bool { return byProvider(s, call) && calls.Add(1) >= 5 }
}

// scene returns the cluster as a scene whose engine can be held.
func (k *kpp) scene() *scene {
	k.t.Helper()
	s := &scene{world: k.world}
	var err error
	s.fleet, err = store.NewConfigMap(k.plane.Client(k.t), namespace, "fleet")
	k.must(err)
	s.holdableEngine()
	return s
}

// killAdopt runs numaform adopt, approves the plan that it reports, and kills it at a step.
func (k *kpp) killAdopt(s *scene, step killStep) {
	k.t.Helper()
	trap := step.arm(s)
	approve := []string{"--auto-approve"}
	for range 30 {
		where, out := k.interrupted(trap, approve...)
		if where != "" {
			k.t.Logf("killed at %q: %s; %s", step.name, where, s.portrait())
			trap.free()
			if step.after != nil {
				step.after(s)
			}
			if problem := k.undisturbed(context.Background()); problem != "" {
				k.t.Fatalf("killed at %q: %s", step.name, problem)
			}
			s.age()
			return
		}
		if strings.Contains(out, locked) {
			continue
		}
		match := digestPattern.FindStringSubmatch(out)
		if match == nil {
			k.t.Fatalf("not killed at %q:\n%s", step.name, out)
		}
		approve = []string{"--approve", match[1]}
	}
	k.t.Fatalf("not killed at %q", step.name)
}

// interrupted runs numaform adopt, and kills it when the trap springs. If it ended before,
// where is "".
func (k *kpp) interrupted(trap *trap, args ...string) (where, out string) {
	k.t.Helper()
	command := k.command(args...)
	var text bytes.Buffer
	command.Stdout, command.Stderr = &text, &text
	k.must(command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // killed, or refused: its output tells
	}()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if where = trap.sprung(context.Background()); where != "" {
			k.must(command.Process.Kill())
			<-ended
			return where, text.String()
		}
		select {
		case <-ended:
			return "", text.String()
		case <-ticker.C:
		}
	}
}

// TestKillAdopt kills the adoption of 20 nodes at each step. Each run continues where the
// killed one stopped. No pod is evicted, no VM is lost, made twice, restarted or replaced.
func TestKillAdopt(t *testing.T) {
	enginetest.Nightly(t)
	k := newKPP(t, kppNodes)
	for name := range k.nodes {
		k.podOn(name)
	}
	s := k.scene()
	for _, step := range k.adoptSteps() {
		k.killAdopt(s, step)
	}
	k.complete()
	k.start()
	k.stays(0)
}
