package backends_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// TestRestartDuringApply checks that no resource is lost if PostgreSQL restarts during an
// apply, which releases the lock, and a second checkout of the fleet also applies, whichever
// of the two ends first.
func TestRestartDuringApply(t *testing.T) {
	t.Parallel()
	for turn, name := range []string{"the first ends first", "the second ends first"} {
		for _, engine := range due(t, turn) {
			t.Run(engine.Name()+"/"+name, func(t *testing.T) {
				t.Parallel()
				restartDuringApply(t, engine, name == "the second ends first")
			})
		}
	}
}

func restartDuringApply(t *testing.T, engine *state.Engine, secondFirst bool) {
	t.Helper()
	database := testenv.Postgres(t)
	s := &site{Backend: fleet.Backend{Type: "pg"}, env: map[string]string{"PG_CONN_STR": database.URL()}}
	r := newRoot(t, s, engine, 1)
	first := r.open(t, here)
	firstDone, releaseFirst := r.applyHeld(t, first)

	if err := lockedOut(t, r.beside(t, engine)); err != nil {
		t.Error(err)
	}
	must(t, database.Restart())

	// The second checkout has an additional file, and applies only that file.
	other := r.beside(t, engine)
	other.fleet.VMs = append(other.fleet.VMs, vmAt(here, 2002))
	other.render(t)
	mine, theirs := generator.Address(&other.fleet.VMs[0]), generator.Address(&other.fleet.VMs[1])
	second := other.open(t, here)
	p := plan(t, second, state.PlanOptions{Targets: []string{theirs}})
	if secondFirst {
		apply(t, second, p)
		releaseFirst()
		refused(t, <-firstDone)
	} else {
		reached, releaseSecond := other.holdClone(t)
		secondDone := make(chan error, 1)
		go func() {
			_, err := second.Apply(t.Context(), p)
			secondDone <- err
		}()
		<-reached
		releaseFirst()
		refused(t, <-firstDone)
		releaseSecond()
		must(t, <-secondDone)
	}
	if diff := cmp.Diff([]string{theirs}, addresses(t, second)); diff != "" {
		t.Errorf("the state lacks resources of the second apply: %s", diff)
	}

	recovery, err := first.Recover(t.Context())
	must(t, err)
	if recovery.Pushed || recovery.SetAside == "" || !cmp.Equal(recovery.Lost, []string{mine}) {
		t.Errorf("recovery is %+v, want the state of the first apply set aside, with its resource", recovery)
	}
	apply(t, second, plan(t, second, state.PlanOptions{Imports: generator.Imports(&other.fleet.VMs[0])}))
	if diff := cmp.Diff([]string{mine, theirs}, addresses(t, second)); diff != "" {
		t.Errorf("state: %s", diff)
	}
	settled(t, second)
}

// lockedOut returns an error unless a plan fails because the state is locked.
func lockedOut(t *testing.T, r *root) error {
	t.Helper()
	_, err := r.open(t, here).Plan(t.Context(), state.PlanOptions{})
	var locked *state.LockedError
	if !errors.As(err, &locked) || !strings.Contains(err.Error(), "ends with its holder's connection") {
		return errors.Join(errors.New("the state is not locked"), err)
	}
	return nil
}

// refused checks that an apply failed to save its state.
func refused(t *testing.T, err error) {
	t.Helper()
	var failed *state.CommandError
	if !errors.As(err, &failed) || failed.Backend != "pg" || !strings.Contains(err.Error(), "errored.tfstate and the next run saves it first") {
		t.Errorf("got %v, want a state that could not be saved", err)
	}
}

// TestPostgresWithoutAFence checks that a plan lists the VM whose state another apply
// overwrote, and that an import restores it. Here the engine is connected directly to the
// server, so it does not notice the loss of its lock.
func TestPostgresWithoutAFence(t *testing.T) {
	t.Parallel()
	engine := engines(t)[0]
	database := testenv.Postgres(t)
	s := &site{Backend: fleet.Backend{Type: "pg"}, env: map[string]string{"PG_CONN_STR": database.URL()}}
	r := newRoot(t, s, engine, 1)
	first := r.open(t, here, unfenced)
	apply(t, first, plan(t, first, state.PlanOptions{}))
	other := r.beside(t, engine)
	other.fleet.VMs = append(other.fleet.VMs, vmAt(here, 2003))
	other.render(t)
	r.fleet.VMs = append(r.fleet.VMs, vmAt(here, 2002))
	r.render(t)
	base, mine, theirs := generator.Address(&r.fleet.VMs[0]), generator.Address(&r.fleet.VMs[1]), generator.Address(&other.fleet.VMs[1])

	firstDone, releaseFirst := r.applyHeld(t, first)
	must(t, database.Restart())
	second := other.open(t, here, unfenced)
	apply(t, second, plan(t, second, state.PlanOptions{}))
	releaseFirst()
	must(t, <-firstDone) // it did not notice the loss of its lock
	if diff := cmp.Diff([]string{base, mine}, addresses(t, second)); diff != "" {
		t.Fatalf("the first apply did not overwrite the state of the second: %s", diff)
	}
	p := plan(t, second, state.PlanOptions{Targets: []string{base}})
	if diff := cmp.Diff([]string{theirs}, p.Lost); diff != "" {
		t.Errorf("lost: %s", diff)
	}
	p = plan(t, second, state.PlanOptions{Targets: []string{theirs}, Imports: generator.Imports(&other.fleet.VMs[1])})
	apply(t, second, p)
	if diff := cmp.Diff([]string{base, mine, theirs}, addresses(t, second)); diff != "" {
		t.Errorf("state: %s", diff)
	}
}

// unfenced configures a password file. The engine finds the server's entry only by the real
// address of the server, so numaform cannot use a fence.
func unfenced(c *state.Config) {
	c.Env["PGPASSFILE"] = "/dev/null"
}
