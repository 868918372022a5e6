package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
)

// Baseline returns a directory with the program numaform, built from the commit in
// tools/baseline/commit, and with the chart of that commit in charts/numaform. It fails the
// test if make baseline has not built numaform.
func Baseline(t testing.TB) string {
	t.Helper()
	root := enginetest.ModuleRoot(t)
	commit, err := os.ReadFile(filepath.Join(root, "tools", "baseline", "commit"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, ".tools", "baseline", strings.TrimSpace(string(commit)))
	if _, err := os.Stat(filepath.Join(dir, "numaform")); err != nil {
		t.Fatalf("no baseline numaform in %s: run make baseline", dir)
	}
	return dir
}
