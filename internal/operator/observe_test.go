package operator_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
)

// TestObservedFleetThatCannotBeRead checks that a file in place of the fleet's directory is
// an error, and not a fleet without VMs.
func TestObservedFleetThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	s := scaler.New(scaler.Config{ClusterID: "test", Store: store.NewDirectory(dir), Dir: dir, Backend: fleet.Backend{Type: "local"}})
	if states, err := operator.Observed(t.Context(), s); err != nil || len(states) != 0 {
		t.Errorf("a fleet that does not exist yet: %v, %v", states, err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if states, err := operator.Observed(t.Context(), s); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("got %v, %v", states, err)
	}
}
