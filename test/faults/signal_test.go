package faults_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
)

// clone returns a fault for the second clone request of an apply. It takes effect after
// Proxmox has accepted the request.
func clone() pvesim.Fault {
	return pvesim.Fault{Method: "POST", Path: `/clone$`, Skip: 1, After: true}
}

// TestTerminated checks that numaform shuts down gracefully when it is terminated, as in a
// rollout, and on Ctrl-C, which signals every process of the terminal: it leaves no process
// behind, saves and unlocks the state, and loses no VM.
func TestTerminated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at     func(w *world) *gate
		signal syscall.Signal
		group  bool
	}{
		"at plan":    {func(w *world) *gate { return w.backend.hold("GET", operationPlan, false) }, syscall.SIGTERM, false},
		"at a clone": {func(w *world) *gate { return w.holdCall(clone()) }, syscall.SIGTERM, false},
		"at a start": {func(w *world) *gate {
			return w.holdCall(pvesim.Fault{Method: "POST", Path: `/status/start$`, After: true})
		}, syscall.SIGTERM, false},
		"Ctrl-C at a clone":   {func(w *world) *gate { return w.holdCall(clone()) }, syscall.SIGINT, true},
		"while state is sent": {func(w *world) *gate { return w.backend.hold("POST", operationApply, false) }, syscall.SIGTERM, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := tt.at(w)
			r := w.start(w.applyArgs()...)
			r.await(g)
			pid := r.cmd.Process.Pid
			family := below(pid)
			if tt.group {
				pid = -pid
			}
			w.must(kill(pid, tt.signal))
			g.open(false)
			if code := r.wait(); code != cli.ExitFailed && code != cli.ExitOK {
				t.Errorf("exit code %d, want that of a graceful shutdown\n%s", code, r.said())
			}
			if left := alive(family); len(left) > 0 {
				t.Errorf("numaform left processes behind: %v", left)
			}
			if locks, kept := w.backend.locked(), w.kept(); len(locks)+len(kept) > 0 {
				t.Errorf("numaform left locks %v and states %v", locks, kept)
			}
			vmids, _ := w.stateOf(busyHost)
			if begun := w.begun(); len(vmids) < begun {
				t.Errorf("%d VMs exist, the state has %v", begun, vmids)
			}
			w.converge(scaledUp)
			if strings.Contains(r.said(), "panic") {
				t.Errorf("numaform panicked:\n%s", r.said())
			}
		})
	}
}

// begun returns the number of the fleet's VMs in Proxmox, complete or not.
func (w *world) begun() int {
	n := 0
	for _, guest := range w.sim.Guests() {
		if _, foreign := w.foreign[guest.VMID]; !foreign && guest.Config["template"] != "1" {
			n++
		}
	}
	return n
}
