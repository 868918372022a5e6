// Package scale_test runs numaform's controller with a large fleet. It uses the real
// controller, engine and provider, a control plane without kubelets, and a simulated
// Proxmox cluster for each region. All VMs exist from the start, so that only the
// controller's own work is measured.
//
//	go test ./test/scale -v -run TestScale -scale.size 2/10/300/1200
package scale_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// build builds numaform and returns its path.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "numaform")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/numaform/numaform/cmd/numaform").CombinedOutput(); err != nil {
		t.Fatalf("building numaform: %v\n%s", err, out)
	}
	return binary
}
