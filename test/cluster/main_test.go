// Package cluster_test runs numaform's controller with a real Kubernetes control plane, the
// real engine and provider, a simulated Proxmox, and guests that join the cluster with only
// the data of their seeds. It checks the outcome in Kubernetes, in Proxmox and in the
// backend, and does not rely on numaform's own reports alone.
package cluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/testenv"
)

// binary is the path of the program under test.
var binary string

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); slices.Contains(hostPrograms, name) {
		os.Exit(hostProgram(name, os.Getenv("HOST_SHELL"), os.Args[1:]))
	}
	log.SetLogger(logr.Discard())
	if err := testenv.RunAtOnce("3"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "numaform-cluster-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "numaform")
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "github.com/numaform/numaform/cmd/numaform").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building numaform: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
