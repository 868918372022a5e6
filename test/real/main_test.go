// Package real_test runs numaform's controller with a real Kubernetes control plane, the
// real engine and provider, and VMs that QEMU runs: a guest boots from the template's image,
// reads its seed, joins with kubelet, and runs pods with containerd. Only Proxmox itself is
// simulated. Without KVM, a boot takes minutes.
package real_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/testenv"
)

// binary is the path of the program under test.
var binary string

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	if err := testenv.RunAtOnce("16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "numaform-real-")
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
