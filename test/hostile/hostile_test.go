// Package hostile_test attacks numaform through input that others can write: the files of a
// fleet in git and in a directory, git notes, and states. Each attack must have no effect
// on this numaform. The demonstrated attacks also run against the baseline, an earlier
// version of numaform, where they must succeed: an attack that never worked is not a test.
//
// The tests observe effects from outside: connections to a listener, starts of the engine
// and the provider, changes in Proxmox and the states, and credentials in written files.
// They check numaform's own output last.
package hostile_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

// full runs every attack in every place. Without it, similar attacks alternate between the
// places, and run with fewer commands and actions.
var full = flag.Bool("hostile.full", false, "run every attack in every place, and more attacks with each command and action")

// binary is the path of this numaform.
var binary string

func TestMain(m *testing.M) {
	if report := os.Getenv(launchVariable); report != "" {
		os.Exit(launch(report))
	}
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "numaform-hostile-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	binary = filepath.Join(dir, "numaform")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, "github.com/numaform/numaform/cmd/numaform")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building numaform: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// launchVariable is the environment variable that makes this test binary run its arguments
// as a program, and write the program's peak memory to the named file. If the test started
// the program itself, the figure would include the test's memory.
const launchVariable = "NUMAFORM_TEST_LAUNCH"

func launch(report string) int {
	if err := os.Unsetenv(launchVariable); err != nil {
		return 99
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_ = cmd.Run() // its exit code is passed on
	if cmd.ProcessState == nil {
		return 99
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		if err := os.WriteFile(report, []byte(strconv.FormatInt(usage.Maxrss>>10, 10)), 0o600); err != nil {
			return 99
		}
	}
	return cmd.ProcessState.ExitCode()
}
