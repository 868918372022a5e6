package operator_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/modules"
)

// TestModulesAllow checks that the configuration can allow modules that no release
// contains.
func TestModulesAllow(t *testing.T) {
	t.Parallel()
	own := modules.Files()
	own["proxmox-node/main.tf"] = append([]byte("# ours\n"), own["proxmox-node/main.tf"]...)
	hash := modules.HashOf(own)
	write := func(name string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), nil, 0o600) }
	}
	cases := map[string]struct {
		hash   string
		change func(dir string) error
		want   string
	}{
		"as they are":   {hash, func(string) error { return nil }, ""},
		"another hash":  {"0123456789abcdef", func(string) error { return nil }, "modules.allow.0123456789abcdef: the content of "},
		"a file more":   {hash, write("proxmox-node/zz.tf"), "has hash "},
		"a changed one": {hash, write("proxmox-node/main.tf"), "has hash "},
		"one missing": {
			hash, func(dir string) error { return os.RemoveAll(dir + "/proxmox-security-groups") },
			"copy modules/proxmox-security-groups of numaform's source",
		},
		"no module":    {hash, write("proxmox-node/zz.tofu"), "zz.tofu is not a regular .tf file"},
		"a directory":  {hash, func(dir string) error { return os.Mkdir(dir+"/proxmox-node/x.tf", 0o700) }, "x.tf is not a regular .tf file"},
		"a link":       {hash, func(dir string) error { return os.Symlink("main.tf", dir+"/proxmox-node/x.tf") }, "x.tf is not a regular .tf file"},
		"no directory": {hash, os.RemoveAll, "no such file"},
		"a large file": {hash, func(dir string) error { return os.Truncate(dir+"/proxmox-node/main.tf", 2<<20) }, "is larger than"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			dir := filepath.Join(base, "own")
			for name, content := range own {
				file := filepath.Join(dir, filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(base, "numaform.yaml")
			if err := os.WriteFile(path, []byte(minimal+"modules: {allow: {"+c.hash+": own}}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := operator.Load(path, []string{"HOME=" + base})
			if err != nil {
				t.Fatal(err)
			}
			scaler, err := config.ScalerConfig(t.Context(), nil, operator.Kubeconfig{}, false)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := scaler.Release.Carried(hash); !ok {
				t.Error("the modules are not allowed")
			}
			state := filepath.Join(base, ".local", "state", "numaform")
			if !strings.HasPrefix(scaler.StateDir, state) || scaler.Place != filepath.Join(base, "fleet") {
				t.Errorf("state directory %s, place %s", scaler.StateDir, scaler.Place)
			}
		})
	}
}
