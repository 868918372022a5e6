package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
)

// Promtool returns the path of the promtool that make promtool found or downloaded.
func Promtool(t testing.TB) string {
	t.Helper()
	enginetest.Needs(t, "promtool")
	copied := filepath.Join(enginetest.ModuleRoot(t), ".tools", "promtool")
	if _, err := os.Stat(copied); err == nil {
		return copied
	}
	installed, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v: run make promtool", err)
	}
	return installed
}
