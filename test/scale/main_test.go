// Package scale_test runs numaform's controller with a large fleet: the real controller,
// engine and provider, a control plane without kubelets, and a simulated Proxmox cluster
// for each region. All VMs exist from the start, so that only the controller's own work is
// measured.
//
//	go test ./test/scale -v -run TestScale -scale.size 2/20/1000/4000
package scale_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// binary is the path of the program under test.
var binary string

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "numaform-scale-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "numaform")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/numaform/numaform/cmd/numaform").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building numaform: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
