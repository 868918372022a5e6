package faults_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is the time limit of each wait.
const patience = 2 * time.Minute

// killed is the exit code of a process killed by a signal.
const killed = -1

// run is a running numaform.
type run struct {
	w      *world
	args   []string
	cmd    *exec.Cmd
	output string
	ended  chan struct{}
}

// start starts numaform as a separate process. Its output goes to a file, so that no reader
// waits for a provider that outlives numaform.
func (w *world) start(args ...string) *run {
	w.t.Helper()
	w.runs++
	r := &run{w: w, args: args, output: filepath.Join(w.dir, "said", fmt.Sprintf("%02d-%s.txt", w.runs, args[0])), ended: make(chan struct{})}
	file, err := os.Create(r.output)
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	r.cmd = exec.Command(self, args...)
	r.cmd.Dir, r.cmd.Env = w.dir, w.env
	if !w.discards {
		r.cmd.Stdout, r.cmd.Stderr = file, file
	}
	// If the test times out, numaform is killed.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	w.must(r.cmd.Start())
	go func() {
		_ = r.cmd.Wait() // wait returns the exit code
		_ = file.Close() // written by the child, not this process
		close(r.ended)
	}()
	w.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // still running only if the test failed
		<-r.ended
	})
	return r
}

// wait returns the exit code.
func (r *run) wait() int {
	r.w.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.w.must(kill(r.cmd.Process.Pid, syscall.SIGQUIT)) // it dumps its goroutines
		<-r.ended
		r.w.t.Fatalf("numaform %s did not end\n%s", strings.Join(r.args, " "), r.said())
	}
	return r.cmd.ProcessState.ExitCode()
}

// said returns numaform's output.
func (r *run) said() string {
	content, err := os.ReadFile(r.output)
	r.w.must(err)
	return string(content)
}

// numaform runs a command, fails the test unless it exits with code want, and returns its
// output.
func (w *world) numaform(want int, args ...string) string {
	w.t.Helper()
	r := w.start(args...)
	if code := r.wait(); code != want {
		w.t.Fatalf("numaform %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, want, r.said())
	}
	return r.said()
}

func (w *world) manifests() string { return filepath.Join(w.dir, "manifests") }

// apply runs apply with the manifests, and returns its output.
func (w *world) apply(want int) string {
	w.t.Helper()
	return w.numaform(want, w.applyArgs()...)
}

func (w *world) applyArgs() []string { return []string{"apply", "-f", w.manifests(), "--auto-approve"} }

// await waits until a visitor reaches the gate, and fails the test if numaform ends first.
func (r *run) await(g *gate) string {
	r.w.t.Helper()
	select {
	case what := <-g.reached:
		return what
	case <-r.ended:
		select {
		case what := <-g.reached:
			return what
		default:
		}
		r.w.t.Fatalf("no process reached the step: numaform ended with exit code %d\n%s", r.cmd.ProcessState.ExitCode(), r.said())
	case <-time.After(patience):
		r.w.t.Fatalf("no process reached the step\n%s", r.said())
	}
	return ""
}

// until polls until a condition holds.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			w.t.Fatalf("timed out waiting for: %s", what)
		case <-tick.C:
		}
	}
}

// kill sends a signal to a process that may have ended.
func kill(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing %d: %w", pid, err)
	}
	return nil
}

// mark marks the current call: writes returns later calls only.
func (w *world) mark() { w.marked = len(w.sim.Calls()) }

// writes returns the calls after the mark that change Proxmox.
func (w *world) writes() []string {
	var writes []string
	for _, call := range w.sim.Calls()[w.marked:] {
		if call.Method != "GET" && !strings.HasPrefix(call.Path, "/access/") {
			writes = append(writes, call.Method+" "+call.Path)
		}
	}
	slices.Sort(writes)
	return writes
}
