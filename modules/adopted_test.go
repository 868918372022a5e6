package modules_test

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/modules"
)

// TestAdoptedIsReleased checks that the node module of the version for adopted VMs is
// proxmox-adopted.
func TestAdoptedIsReleased(t *testing.T) {
	t.Parallel()
	released, ok := modules.Released(modules.Adopted)
	if !ok {
		t.Fatalf("released/%s does not exist", modules.Adopted)
	}
	got, want := map[string]string{}, map[string]string{}
	for name, content := range released {
		if path.Dir(name) == modules.NodeModule {
			got[path.Base(name)] = string(content)
		}
	}
	files, err := filepath.Glob("proxmox-adopted/*.tf")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want[filepath.Base(file)] = string(content)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("proxmox-adopted is not released/%s/proxmox-node: released versions do not change, so add another one (-current +released):\n%s", modules.Adopted, diff)
	}
}
