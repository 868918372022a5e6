package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

func TestMain(m *testing.M) {
	if err := confine.Main(); err != nil { // this process is the confined helper of a program
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if slices.Contains(os.Environ(), asProgram) {
		os.Exit(cli.Run(context.Background(), cli.Process{
			Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		}))
	}
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// asProgram is set in the environment of a test binary that runs as numaform.
const asProgram = "TEST_AS_PROGRAM=1"

// program returns numaform as a process of its own, which can be killed.
func program(t *testing.T, stage *demo.Stage, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, args...)
	command.Dir, command.Env = stage.Dir, append(stage.Env(), asProgram)
	return command
}
