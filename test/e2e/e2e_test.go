// Package e2e_test runs numaform's command line with the real engine, the real provider and
// a simulated Proxmox, and checks the outcome in Proxmox.
package e2e_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
)

// quickstart opens the quickstart on a simulated Proxmox that is stopped at the end of the
// test.
func quickstart(t *testing.T, change ...func(*pvesim.Config)) *demo.Stage {
	t.Helper()
	return open(t, demo.Config{
		Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart", "rival"},
		Change: func(config *pvesim.Config) {
			for _, change := range change {
				change(config)
			}
		},
	})
}

// oneHost opens the quickstart with pods that need only pve-2. Use oneHost for tests in
// which other hosts would only repeat the same case: such tests spend most of their time in
// the engines, one per host.
func oneHost(t *testing.T) *demo.Stage {
	t.Helper()
	stage := quickstart(t)
	onOneHost(t, stage)
	return stage
}

// onOneHost removes the pods that can run on any host.
func onOneHost(t *testing.T, stage *demo.Stage) {
	t.Helper()
	for _, replicas := range []string{"15", "12"} { // of the Deployments whose pods can run on any host
		edit(t, stage, "manifests/pods.yaml", "replicas: "+replicas, "replicas: 0")
	}
}

// open opens an example on a simulated Proxmox that is stopped at the end of the test.
func open(t *testing.T, config demo.Config) *demo.Stage {
	t.Helper()
	talk := &testWriter{t: t}
	t.Cleanup(talk.stop)
	config.Dir, config.PluginDir, config.Environ = t.TempDir(), testenv.PluginDir(t), testenv.CleanEnv()
	config.Stdout, config.Stderr = io.Discard, talk
	stage, err := demo.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	return stage
}

// testWriter writes a command's output to the test's log.
type testWriter struct {
	// mu guards t, which is nil once the test is over.
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(string(bytes.TrimRight(text, "\n")))
	}
	return len(text), nil
}

func (w *testWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

// run runs a command and fails the test unless it exits with code want.
func run(t *testing.T, stage *demo.Stage, want int, args ...string) string {
	t.Helper()
	stdout, code := stage.Numaform(context.Background(), args...)
	if code != want {
		t.Fatalf("numaform %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, want, stdout)
	}
	return stdout
}

// readFleet reads a fleet's directory.
func readFleet(t *testing.T, dir string) (fleet.Fleet, generator.Files) {
	t.Helper()
	files, err := store.NewDirectory(dir).Files()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := generator.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	return parsed, files
}

// kept returns a directory with the files of a stage's fleet: the stage's own directory, or
// a new checkout of its repository.
func kept(t *testing.T, stage *demo.Stage) string {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(stage.Dir, "numaform.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`remote: ([^}]+)}`).FindSubmatch(config)
	if found == nil {
		return stage.Fleet()
	}
	dir := t.TempDir()
	git(t, "", "clone", "--quiet", string(found[1]), dir)
	return dir
}

// edit replaces text in a file of the stage.
func edit(t *testing.T, stage *demo.Stage, name, old, replacement string) {
	t.Helper()
	path := filepath.Join(stage.Dir, name)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte(old)) {
		t.Fatalf("%s does not contain %q", name, old)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(content, []byte(old), []byte(replacement)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// asRoot makes numaform log in as root@pam with a password, and pin by affinity.
func asRoot(t *testing.T, stage *demo.Stage) {
	t.Helper()
	edit(t, stage, "numaform.yaml", "  token_id: numaform@pve!scaler\n  token_secret_file: token\n",
		"  username: root@pam\n  password: "+pvesim.DefaultRootPassword+"\n")
	edit(t, stage, "manifests/nodepools.yaml", "pinWith: HostAgent", "pinWith: Affinity")
}

func TestPlanIsTheSameTwice(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	first, second := filepath.Join(stage.Dir, "a"), filepath.Join(stage.Dir, "b")
	for _, out := range []string{first, second, first} {
		run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--out", out, "--no-engine")
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests())
	one, files := readFleet(t, first)
	two, others := readFleet(t, second)
	if diff := cmp.Diff(files, others); diff != "" {
		t.Errorf("the folders differ (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(one, two); diff != "" {
		t.Errorf("the fleets differ (-first +second):\n%s", diff)
	}
	if len(one.VMs) == 0 {
		t.Error("the fleet is empty")
	}
	entries, err := os.ReadDir(stage.Fleet())
	if !os.IsNotExist(err) {
		t.Errorf("plan created the fleet's own directory: %v, %v", entries, err)
	}
}
