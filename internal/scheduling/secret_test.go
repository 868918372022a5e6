package scheduling_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
)

// TestSecret checks that a manifest may contain a Secret, with data and stringData.
func TestSecret(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "templates.yaml")
	text := "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: numaform}\ndata: {user-data: eA==}\nstringData: {join-command: join}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := scheduling.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	cluster := scheduling.FromObjects(objects)
	got, err := cluster.Secret(t.Context(), "numaform", "a")
	if diff := cmp.Diff(map[string][]byte{"user-data": []byte("x"), "join-command": []byte("join")}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := cluster.Secret(t.Context(), "default", "a"); err == nil {
		t.Error("a Secret of another namespace was read")
	}
}
