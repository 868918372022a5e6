package scaler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestWriterWaitsForTheBackend checks that a VM whose state backend does not respond
// neither fails nor loses its place, while it is planned and while it is applied, and that
// the message contains the time at which the outage began.
func TestWriterWaitsForTheBackend(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	writer := scaler.NewWriter(scaler.New(scaler.Config{Clock: now}), scaler.WriterConfig{})
	vm := fleet.VM{Key: "a", Name: "workers-2000"}
	vm.Host = first
	writer.Reserve(vm)
	down := &state.CommandError{Operation: "planning", Backend: "kubernetes", Text: "connection refused"}
	const since = "waits: the kubernetes state backend has been unreachable since 2026-01-02T03:04:05Z: "
	expect := func(when string, phase scaler.Phase, message string) {
		t.Helper()
		got, exists := writer.VM(vm.Key)
		if !exists || got.Phase != phase || message == "" && got.Err != nil || message != "" && !strings.Contains(fmt.Sprint(got.Err), message) {
			t.Errorf("%s: phase %s with %v, want %s with %q", when, got.Phase, got.Err, phase, message)
		}
	}

	for range 3 {
		if !writer.ApproveCreates(t.Context(), []scaler.RootPlan{{Host: first, Touched: true, Err: down}}, vm.Key) {
			t.Error("the change was approved without its plan")
		}
		expect("no plan", scaler.PhaseReserved, since)
		now.Step(2 * time.Minute)
	}
	down.Operation = "applying"
	writer.ApplyCreates(t.Context(), first, fmt.Errorf("applying: %w", down), vm.Key)
	expect("no apply", scaler.PhaseMaking, since)
	writer.ApplyCreates(t.Context(), first, errors.New("no such template"))
	expect("another failure of the next run", scaler.PhaseFailed, "no such template")
	writer.ApplyCreates(t.Context(), first, nil)
	expect("applied", scaler.PhaseMade, "")
	if reason := scaler.BackendDown(errors.New("x"), now.Now()); reason != nil {
		t.Errorf("another error is an outage: %v", reason)
	}
}

// TestInterruptedVMsMeetAnotherObstacle checks that a VM whose creation was interrupted by
// an outage reports why the last attempt failed, and waits for the backend only if the
// backend is the reason.
func TestInterruptedVMsMeetAnotherObstacle(t *testing.T) {
	t.Parallel()
	down := &state.CommandError{Operation: "applying", Backend: "kubernetes", Text: "connection refused"}
	for name, test := range map[string]struct {
		plan    scaler.RootPlan
		phase   scaler.Phase
		message string
	}{
		"still down": {scaler.RootPlan{Host: first, Err: &state.CommandError{Backend: "kubernetes", Text: "timeout"}}, scaler.PhaseMaking, "timeout"},
		"host down":  {scaler.RootPlan{Host: first, Err: errors.New("no quorum")}, scaler.PhaseFailed, "no quorum"},
		"denied":     {scaler.RootPlan{Host: first, Verdict: guard.Verdict{Decision: guard.Deny}}, scaler.PhaseFailed, ""},
		"approval":   {scaler.RootPlan{Host: first, Verdict: guard.Verdict{Decision: guard.NeedsApproval}}, scaler.PhasePendingApproval, "approv"},
		"other host": {scaler.RootPlan{Host: topology.HostID{Region: first.Region, Host: "other"}, Err: errors.New("no quorum")}, scaler.PhaseMaking, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writer := scaler.NewWriter(scaler.New(scaler.Config{Clock: clocktesting.NewFakeClock(time.Now())}), scaler.WriterConfig{})
			vm := fleet.VM{Key: "a", Name: "workers-2000"}
			vm.Host = first
			writer.Reserve(vm)
			writer.ApplyCreates(t.Context(), first, down, vm.Key)
			if !writer.ApproveUnfinished(t.Context(), []scaler.RootPlan{test.plan}) {
				t.Error("the work was not postponed")
			}
			got, _ := writer.VM(vm.Key)
			if got.Phase != test.phase || !strings.Contains(fmt.Sprint(got.Err), test.message) {
				t.Errorf("phase %s with %v, want %s with %q", got.Phase, got.Err, test.phase, test.message)
			}
		})
	}
}

// TestOutageEnds checks that a failure begins a new outage after a success, and after a
// while without an attempt.
func TestOutageEnds(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*scaler.Writer, *clocktesting.FakeClock){
		"success": func(w *scaler.Writer, _ *clocktesting.FakeClock) { w.ApplyCreates(t.Context(), first, nil) },
		"idle":    func(_ *scaler.Writer, clock *clocktesting.FakeClock) { clock.Step(time.Hour) },
	} {
		now := clocktesting.NewFakeClock(time.Now())
		writer := scaler.NewWriter(scaler.New(scaler.Config{Clock: now}), scaler.WriterConfig{})
		fail := func() time.Time {
			vm := fleet.VM{Key: "a"}
			vm.Host = first
			writer.Reserve(vm)
			down := &state.CommandError{Backend: "pg"}
			writer.ApproveCreates(t.Context(), []scaler.RootPlan{{Host: first, Touched: true, Err: down}}, vm.Key)
			got, _ := writer.VM(vm.Key)
			return scaler.BackendDown(got.Err, time.Time{}).Since
		}
		begin := fail()
		now.Step(time.Minute)
		if got := fail(); !got.Equal(begin) {
			t.Errorf("%s: the outage began at %s, want %s", name, got, begin)
		}
		between(writer, now)
		if got := fail(); !got.Equal(now.Now()) {
			t.Errorf("%s: the next outage began at %s, want %s", name, got, now.Now())
		}
	}
}
