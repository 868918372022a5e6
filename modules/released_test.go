package modules_test

import (
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/modules"
)

var update = flag.Bool("update", false, "add the modules as they are to released")

// TestCurrentIsReleased checks that the current modules are among the released ones: the
// next numaform embeds them for existing VMs.
func TestCurrentIsReleased(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("released", modules.Hash())
	if *update {
		for name, content := range modules.Files() {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	files, ok := modules.Released(modules.Hash())
	if !ok {
		t.Fatalf("modules/%s is missing: run make release-modules once the modules are final, and commit the new directory", dir)
	}
	if diff := cmp.Diff(modules.Files(), files); diff != "" {
		t.Errorf("modules/%s (-current +released):\n%s", dir, diff)
	}
}

// TestReleasedAreTheirHash checks that each released version has the hash in its name.
func TestReleasedAreTheirHash(t *testing.T) {
	t.Parallel()
	if len(modules.Hashes()) < 2 {
		t.Fatalf("released: %v", modules.Hashes())
	}
	for _, hash := range modules.Hashes() {
		files, ok := modules.Released(hash)
		if !ok || modules.HashOf(files) != hash {
			t.Errorf("modules/released/%s: its content has hash %s", hash, modules.HashOf(files))
		}
		var onDisk []string
		dir := filepath.Join("released", hash)
		err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				onDisk = append(onDisk, filepath.ToSlash(strings.TrimPrefix(name, dir+string(filepath.Separator))))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(onDisk, slices.Sorted(maps.Keys(files))); diff != "" {
			t.Errorf("files of modules/%s (-disk +embedded):\n%s", dir, diff)
		}
	}
	for _, hash := range []string{"", ".", "..", "0123456789abcdef", modules.Hash() + "/proxmox-node", "../proxmox-node"} {
		if _, ok := modules.Released(hash); ok {
			t.Errorf("Released(%q) is true", hash)
		}
	}
}
