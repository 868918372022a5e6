// Package faults_test injects faults while numaform runs: it kills the engine, the provider
// and numaform itself at defined steps, makes Proxmox, backends and disks fail, and then
// runs numaform again. It checks the contents of Proxmox, the backend and the fleet's
// directory and, where an operator must act, the output of numaform.
//
// The test binary also runs as numaform and as the engine: see TestMain. docs/faults.md
// lists all faults.
package faults_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/testenv"
)

// asNumaform is the environment variable that makes this test binary run as numaform.
const asNumaform = "FAULTS_AS_NUMAFORM"

// rounds is the number of times each victim is killed at each step, each time with a
// different seed.
var rounds = flag.Int("faults.rounds", 1, "number of times to kill each victim at each step")

func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == shimName:
		os.Exit(shim())
	case os.Getenv(fullAfter) != "":
		fmt.Fprintln(os.Stderr, "filling the disk:", fill())
		os.Exit(1)
	case os.Getenv(asNumaform) != "":
		os.Exit(numaform())
	}
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// numaform runs the command line as the main function of cmd/numaform does, and returns the
// exit code.
func numaform() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, cli.Process{
		Version: "faults", Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
}
