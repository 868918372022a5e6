package state_test

import (
	"archive/zip"
	"os"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/state"
)

// savedPlan writes a saved plan with one member.
func savedPlan(t *testing.T, member, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "1.tfplan")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	w, err := archive.Create(member)
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMadeFrom(t *testing.T) {
	t.Parallel()
	encrypted := filepath.Join(t.TempDir(), "2.tfplan")
	if err := os.WriteFile(encrypted, []byte("not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, file, lineage string
		serial              int64
		fails               bool
	}{
		{"a state", savedPlan(t, "tfstate", `{"version":4,"lineage":"abc","serial":7}`), "abc", 7, false},
		{"no state", savedPlan(t, "tfplan", "…"), "", 0, false},
		{"an encrypted plan", encrypted, "", 0, false},
		{"a broken state", savedPlan(t, "tfstate", `{"lineage":`), "", 0, true},
		{"no plan", filepath.Join(t.TempDir(), "missing"), "", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lineage, serial, err := state.MadeFrom(tt.file)
			if lineage != tt.lineage || serial != tt.serial || (err != nil) != tt.fails {
				t.Errorf("lineage %q, serial %d, error %v", lineage, serial, err)
			}
		})
	}
}
