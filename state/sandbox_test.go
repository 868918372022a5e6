package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/state"
)

// TestEngineSeesItsOwnFiles checks that the engine, while it plans, can read the files of
// its root, of the modules and of the state, and system files like /etc/hosts, but no
// others. Without a helper, or where the kernel cannot confine, it can read all of them.
func TestEngineSeesItsOwnFiles(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	write(t, elsewhere, "token", "canary")
	for _, confined := range []bool{true, false} {
		fleet := t.TempDir()
		write(t, fleet, "modules/m/data", "ours")
		write(t, fleet, "modules/m/main.tf", "output \"x\" {\n  value = filebase64(\"${path.module}/data\")\n}\n")
		write(t, fleet, "region/host-2/terraform.tfstate", "{}")
		dir := filepath.Join(fleet, "region", "host-1")
		write(t, dir, "main.tf", localBackend+"module \"m\" {\n  source = \"../../modules/m\"\n}\n")
		write(t, dir, "data", "ours")
		reads := func(path string) error {
			write(t, dir, "reads.tf", fmt.Sprintf("resource \"terraform_data\" \"r\" {\n  input = filebase64(%q)\n}\n", path))
			w := open(t, dir, func(c *state.Config) {
				c.BackendConfig = map[string]string{"path": filepath.Join(fleet, "states", "terraform.tfstate")}
				if !confined {
					c.Engine = &state.Engine{Path: c.Engine.Path, Version: c.Engine.Version}
				}
			})
			plan, err := w.Plan(t.Context(), state.PlanOptions{})
			if err == nil && path == filepath.Join(dir, "data") {
				mustApply(t, w, plan)
			}
			if closeErr := w.Close(); closeErr != nil {
				t.Fatal(closeErr)
			}
			return err
		}
		for _, path := range []string{filepath.Join(dir, "data"), filepath.Join(fleet, "modules/m/data"), filepath.Join(fleet, "states/terraform.tfstate"), "/etc/hosts"} {
			if err := reads(path); err != nil {
				t.Errorf("confined %t: %s: %v", confined, path, err)
			}
		}
		for _, path := range []string{
			filepath.Join(elsewhere, "token"), filepath.Join(fleet, "region/host-2/terraform.tfstate"), "/proc/self/environ", "/etc/shadow",
		} {
			err := reads(path)
			if hidden := err != nil && strings.Contains(strings.Join(strings.Fields(err.Error()), " "), "permission denied"); hidden != (confined && confine.Version() > 0) {
				t.Errorf("confined %t: %s: %v", confined, path, err)
			}
		}
	}
}

// TestRules checks the files that the engine may read for each backend, in addition to
// its own.
func TestRules(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, home, ".kube/config", "users:\n- user:\n    client-key: ../keys/client.pem\n")
	write(t, home, "plugin/config", "users:\n- user:\n    exec:\n      command: aws\n")
	write(t, home, "keys/client.pem", "key")
	write(t, home, "pass", "db:1:x:y:z")
	write(t, home, ".aws/config", "[default]\nregion = x\n")
	write(t, home, "aws/config", "[default]\ncredential_process = /bin/x\n")
	write(t, home, ".ssh/id", "git")
	program := engine(t).Path
	script := filepath.Join(home, "tofu")
	write(t, home, "tofu", "#!/bin/sh\n")
	for name, tt := range map[string]struct {
		backend, program string
		env, config      map[string]string
		kubeconfig       string
		want             []string
		open             string
	}{
		"local":           {backend: "local", config: map[string]string{"path": filepath.Join(home, "states/s")}, want: []string{"states"}},
		"kubernetes":      {backend: "kubernetes", want: []string{".kube", ".kube/config", "keys/client.pem"}},
		"kubeconfig":      {backend: "kubernetes", config: map[string]string{"config_path": "~/.kube/config"}, want: []string{".kube", ".kube/config", "keys/client.pem"}},
		"plugin":          {backend: "kubernetes", env: map[string]string{"KUBE_CONFIG_PATHS": "/nonexistent:" + home + "/plugin/config"}, open: "another program"},
		"login":           {backend: "kubernetes", kubeconfig: "users:\n- user:\n    client-key: " + home + "/keys/client.pem\n", want: []string{"keys/client.pem"}},
		"login by plugin": {backend: "kubernetes", kubeconfig: "users:\n- user:\n    exec:\n      command: aws\n", open: "another program"},
		"pg":              {backend: "pg", env: map[string]string{"PGPASSFILE": filepath.Join(home, "pass")}, want: []string{"pass"}},
		"s3":              {backend: "s3", want: []string{".aws", ".aws/config"}},
		"s3, by program":  {backend: "s3", env: map[string]string{"AWS_CONFIG_FILE": filepath.Join(home, "aws/config")}, open: "another program"},
		"http":            {backend: "http", env: map[string]string{"PGPASSFILE": filepath.Join(home, "pass")}},
		"script":          {backend: "http", program: script, open: "a script"},
		"another variant": {backend: "gcs", want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := &state.Config{Dir: t.TempDir(), Engine: &state.Engine{Path: program}, BackendConfig: tt.config, Kubeconfig: state.Kubeconfig{Content: []byte(tt.kubeconfig)}}
			if tt.program != "" {
				config.Engine.Path = tt.program
			}
			env := map[string]string{"HOME": home}
			for name, value := range tt.env {
				env[name] = value
			}
			files := map[string][]byte{"main.tf": []byte(fmt.Sprintf("terraform {\n  backend %q {}\n}\n", tt.backend))}
			seen, open := state.Sees(config, env, files)
			if (open == "") != (tt.open == "") || !strings.Contains(open, tt.open) {
				t.Fatalf("not confined as %q, want %q", open, tt.open)
			}
			if open != "" {
				return
			}
			var below []string
			for _, path := range seen {
				if rest, ok := strings.CutPrefix(path, home+"/"); ok {
					if _, err := os.Stat(path); err == nil {
						below = append(below, rest)
					}
				}
			}
			slices.Sort(below)
			if below = slices.Compact(below); !slices.Equal(below, tt.want) {
				t.Errorf("sees %v of the home directory, want %v", below, tt.want)
			}
			if account := "/var/run/secrets/kubernetes.io/serviceaccount"; slices.Contains(seen, account) != (tt.backend == "kubernetes" && tt.kubeconfig == "") {
				t.Errorf("sees %v, and the pod's token only if the backend needs it", seen)
			}
		})
	}
}
