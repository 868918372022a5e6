// Package faults_test breaks things while numaform works: it kills the engine, the
// provider and numaform itself at named steps, makes Proxmox, backends and disks
// fail, and then lets numaform try again. What is left is judged by what Proxmox,
// the backend and the fleet's directory hold, never by what numaform says of them.
//
// The test binary plays numaform and the engine too, see TestMain. The table of
// all faults is docs/faults.md.
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

// asNumaform makes this test binary numaform.
const asNumaform = "FAULTS_AS_NUMAFORM"

// rounds is how often each victim is killed at each step, each time with another
// seed.
var rounds = flag.Int("faults.rounds", 1, "kill each victim at each step that often")

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

// numaform is cmd/numaform.
func numaform() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, cli.Process{
		Version: "faults", Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
}
