package faults_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
)

// fullAfter is the environment variable with the number of bytes that numaform and its
// child processes can write to a file. It simulates a full disk.
const fullAfter = "FAULTS_FULL_AFTER"

// fill sets the limit for this process and re-executes the program. It also blocks the
// signal that a write beyond the limit causes. The mask applies only to this thread, and
// the new program's threads inherit it.
func fill() error {
	limit, err := strconv.ParseUint(os.Getenv(fullAfter), 10, 64)
	if err != nil {
		return fmt.Errorf("reading %s: %w", fullAfter, err)
	}
	runtime.LockOSThread()
	var blocked unix.Sigset_t
	blocked.Val[0] = 1 << (uint(syscall.SIGXFSZ) - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, nil); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	if err := os.Unsetenv(fullAfter); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// TestDiskFull checks that, if the disk is full after a number of bytes, either all files
// are written and applied, or nothing is applied.
func TestDiskFull(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	failed := make(chan bool, 8)
	t.Run("all", func(t *testing.T) {
		for _, limit := range []int{500, 3000, 8000, 14000, 100_000} {
			t.Run(strconv.Itoa(limit), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				env := w.env
				w.env = append(env[:len(env):len(env)], fullAfter+"="+strconv.Itoa(limit))
				// numaform's output goes to /dev/null, which has no limit.
				w.discards = true
				code := w.start(w.applyArgs()...).wait()
				w.env, w.discards = env, false
				t.Logf("exit code %d, %s", code, w.portrait())
				failed <- code != cli.ExitOK
				switch {
				case code == cli.ExitOK:
					w.check(scaledUp)
				case code != cli.ExitFailed:
					t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
				case w.begun() > 0:
					t.Errorf("apply failed, but created %s", w.portrait())
				}
				w.converge(scaledUp)
			})
		}
	})
	close(failed)
	var counts [2]int
	for bad := range failed {
		if bad {
			counts[0]++
		} else {
			counts[1]++
		}
	}
	if counts[0] == 0 || counts[1] == 0 {
		t.Errorf("%d failed and %d succeeded: choose limits with both results", counts[0], counts[1])
	}
}

// TestDiskFullAtTheEnd checks that, if the disk is full when a local state is saved after
// the creation of its VMs, an apply finds the VMs once the partial state is moved away.
func TestDiskFullAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localState)
	g := w.doorman.hold("apply", false)
	r := w.start(w.applyArgs()...)
	r.await(g)
	for _, pid := range r.pids(victimEngine) {
		w.must(unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 3000, Max: 3000}, nil))
	}
	g.open(false)
	if code := r.wait(); code != cli.ExitFailed {
		t.Errorf("exit code %d, want %d\n%s", code, cli.ExitFailed, r.said())
	}
	if begun := w.begun(); begun != scaledUp {
		t.Errorf("%d VMs were created, want %d: the disk was full too early", begun, scaledUp)
	}
	// A partial state is not evidence that VMs are missing. An operator moves it away, as
	// the error advises.
	w.mark()
	for _, half := range append(w.kept(), filepath.Join(w.dir, "state", "states", "homelab", busyHost, "terraform.tfstate")) {
		if out := w.apply(cli.ExitFailed); !strings.Contains(out, filepath.Base(half)) && !strings.Contains(out, "state file could not be parsed") {
			t.Errorf("the error does not name %s:\n%s", half, out)
		}
		w.must(os.Rename(half, half+".half"))
	}
	if writes := w.writes(); len(writes) > 0 {
		t.Errorf("numaform wrote without a state: %v", writes)
	}
	w.converge(scaledUp)
	if _, err := os.Stat(filepath.Join(w.dir, "state", "states", "homelab", busyHost, "terraform.tfstate")); err != nil {
		t.Error(err)
	}
}
