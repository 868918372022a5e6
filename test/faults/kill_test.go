package faults_test

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// landings counts the kills by victim and step.
type landings struct {
	// mu guards counts.
	mu     sync.Mutex
	counts map[string]int
}

func (l *landings) add(v victim, step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[string(v)+" "+step]++
}

// TestKill checks that another apply finishes a change during which a process was killed:
// see killAt. `make nightly` kills each victim at each step; `make test` skips the steps
// with nightly set, and kills one victim at each other step, alternating between the
// victims.
func TestKill(t *testing.T) {
	t.Parallel()
	landed := &landings{counts: map[string]int{}}
	wanted := map[string]int{}
	t.Run("all", func(t *testing.T) {
		for i, s := range steps() {
			victims := s.victims
			if !enginetest.EveryCase() {
				if s.nightly {
					continue
				}
				victims = victims[i%len(victims):][:1]
			}
			for _, v := range victims {
				for seed := range *rounds {
					t.Run(fmt.Sprintf("%s/%s/%d", s.name, v, seed), func(t *testing.T) {
						wanted[string(v)+" "+s.name]++
						t.Parallel()
						killAt(t, s, v, seed, landed)
					})
				}
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t.Logf("killed %s: %d of %d", name, landed.counts[name], wanted[name])
		if landed.counts[name] < wanted[name] {
			t.Errorf("%s was hit %d times, want %d", name, landed.counts[name], wanted[name])
		}
	}
}

// rngOf returns a random source that is the same for a case in each run.
func rngOf(s step, v victim, seed int) *rand.Rand {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %s", s.name, v)
	return rand.New(rand.NewPCG(hash.Sum64(), uint64(seed)))
}

// killAt kills a victim at a step. It checks numaform's exit code and the invariants, and
// that complete VMs do not change.
func killAt(t *testing.T, s step, v victim, seed int, landed *landings) {
	rng := rngOf(s, v, seed)
	settings := []setting{delays(pvesim.Delays{
		Clone: 200*time.Millisecond + randomly(rng, 600*time.Millisecond), Start: 100*time.Millisecond + randomly(rng, 300*time.Millisecond),
		Stop: 100*time.Millisecond + randomly(rng, 300*time.Millisecond), Destroy: 100*time.Millisecond + randomly(rng, 300*time.Millisecond),
	})}
	if rng.IntN(4) == 0 {
		settings = append(settings, asRoot)
	}
	if s.anywhere && seed%3 == 2 {
		settings = append(settings, localState)
	}
	w := newWorld(t, settings...)
	args, wanted := w.applyArgs(), scaledUp
	if s.removal {
		args, wanted = w.prepareRemoval(), scaledUp-1
	}
	g := s.arm(w, rng)
	r := w.start(args...)
	where := r.await(g)
	alive, complete := w.portrait(), w.complete()
	var pids []int
	if s.whenSeen {
		g.open(false)
		pids = r.killWhenSeen(v)
	} else {
		pids = r.kill(v)
	}
	landed.add(v, s.name)
	t.Logf("killed %s %v at %s: %s", v, pids, where, alive)
	if !s.whenSeen {
		g.open(v != victimProvider && strings.HasPrefix(where, "backend"))
	}
	if code := r.wait(); code != exitAfter(v) {
		t.Errorf("exit code %d after the %s was killed, want %d\n%s", code, v, exitAfter(v), r.said())
	}
	w.converge(wanted)
	w.checkComplete(complete)
}

// complete returns the configurations of the fleet's running VMs.
func (w *world) complete() map[string]string {
	complete := map[string]string{}
	for name, guest := range w.ours() {
		if guest.Running {
			complete[name] = guest.Raw
		}
	}
	return complete
}

// checkComplete checks that the VMs that were complete at the time of a kill, and are still
// desired, did not change.
func (w *world) checkComplete(complete map[string]string) {
	w.t.Helper()
	for name, guest := range w.ours() {
		if raw, ok := complete[name]; ok && raw != guest.Raw {
			w.t.Errorf("%s was complete, but was changed:\n%s\nbefore:\n%s", name, guest.Raw, raw)
		}
	}
}

func randomly(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// exitAfter returns numaform's exit code when a victim is killed.
func exitAfter(v victim) int {
	if v == victimNumaform {
		return killed
	}
	return cli.ExitFailed
}

// prepareRemoval creates the VMs, makes one of them unneeded, and returns the command that
// removes it.
func (w *world) prepareRemoval() []string {
	w.t.Helper()
	w.apply(cli.ExitOK)
	w.edit("manifests/pods.yaml", "replicas: 2", "replicas: 1")
	names := slices.Sorted(maps.Keys(w.nodeFiles()))
	return []string{"remove", names[len(names)-1], "-f", w.manifests(), "--auto-approve"}
}

// converge applies twice: the first apply finishes the interrupted work, the second must
// change nothing. Then it checks the invariants.
func (w *world) converge(wanted int) {
	w.t.Helper()
	w.apply(cli.ExitOK)
	w.mark()
	w.apply(cli.ExitOK)
	if writes := w.writes(); len(writes) > 0 {
		w.t.Errorf("the second apply still changed something: %v", writes)
	}
	w.check(wanted)
}

// portrait describes the contents of Proxmox and the backend.
func (w *world) portrait() string {
	var vms []string
	for _, guest := range w.sim.Guests() {
		if _, isForeign := w.foreign[guest.VMID]; isForeign || guest.Config["template"] == "1" {
			continue
		}
		what := "stopped"
		switch {
		case guest.Config["lock"] != "":
			what = "locked: " + guest.Config["lock"]
		case guest.Running:
			what = "running"
		}
		vms = append(vms, fmt.Sprintf("%d %s", guest.VMID, what))
	}
	return fmt.Sprintf("VMs %v, %d locks, %d states", vms, len(w.backend.locked()), w.backend.saved())
}
