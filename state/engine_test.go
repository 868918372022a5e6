package state_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/state"
)

// program writes an executable that reports a version as an engine does. It warns on
// stderr, and on stdout if its environment is not clean.
func program(t testing.TB, dir, name, version string) string {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n[ \"$TF_CLI_CONFIG_FILE\" = /dev/null ] || echo warning\necho warning >&2\necho '{\"terraform_version\": %q}'\n", version)
	return executable(t, dir, name, script)
}

func executable(t testing.TB, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFindEngine checks which engine is found, and the error if there is none. It changes
// PATH, so it does not run in parallel.
func TestFindEngine(t *testing.T) {
	onPath, extra := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath+string(filepath.ListSeparator)+"/bin")
	t.Setenv("TF_CLI_CONFIG_FILE", "/nonexistent")
	terraform := program(t, onPath, "terraform", "1.11.4")
	tofu := program(t, extra, "tofu", "1.12.6")
	old := program(t, onPath, "old", "1.5.0")
	mute := executable(t, onPath, "mute", "#!/bin/sh\n")
	odd := program(t, onPath, "odd", "x")
	failing := executable(t, onPath, "failing", "#!/bin/sh\nexit 3\n")
	development := program(t, onPath, "development", "1.12.6-dev")
	tests := []struct {
		name   string
		config state.EngineConfig
		want   string
		errs   []string
	}{
		{"tofu first", state.EngineConfig{Dirs: []string{extra}}, tofu, nil},
		{"terraform without tofu", state.EngineConfig{}, terraform, nil},
		{"by name", state.EngineConfig{Binary: "terraform", Dirs: []string{extra}}, terraform, nil},
		{"by path", state.EngineConfig{Binary: tofu}, tofu, nil},
		{"by constraint", state.EngineConfig{Version: "< 1.12", Dirs: []string{extra}}, terraform, nil},
		{"nothing fits", state.EngineConfig{Version: ">= 2", Dirs: []string{extra}}, "", []string{
			"looked for tofu or terraform, version >= 2, in " + onPath, extra, tofu + ": it is version 1.12.6", terraform + ": it is version 1.11.4", "make tools", "engine.binary",
		}},
		{"no such path", state.EngineConfig{Binary: "./none/tofu"}, "", []string{"looked for ./none/tofu", "does not exist"}},
		{"path too old", state.EngineConfig{Binary: old}, "", []string{old + ": it is version 1.5.0", "version >= 1.8"}},
		{"path says nothing", state.EngineConfig{Binary: mute}, "", []string{"its version output is not in the format"}},
		{"path says nonsense", state.EngineConfig{Binary: odd}, "", []string{`it reports version "x"`}},
		{"path fails", state.EngineConfig{Binary: failing}, "", []string{"exit status 3"}},
		{"no release", state.EngineConfig{Binary: development}, "", []string{"it is version 1.12.6-dev"}},
		{"no such name", state.EngineConfig{Binary: "nothing"}, "", []string{"looked for nothing"}},
		{"no constraint", state.EngineConfig{Version: "new"}, "", []string{`engine.version "new"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := state.FindEngine(t.Context(), tt.config)
			if tt.errs == nil {
				if err != nil || got.Path != tt.want {
					t.Fatalf("got %v, %v, want %s", got, err, tt.want)
				}
				return
			}
			if err == nil {
				t.Fatalf("found %v", got)
			}
			for _, part := range tt.errs {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error lacks %q: %v", part, err)
				}
			}
		})
	}
	var none *state.EngineError
	if _, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: "nothing"}); !errors.As(err, &none) || none.Wanted[0] != "nothing" {
		t.Errorf("got %v, want an EngineError", err)
	}
}

func TestEngineString(t *testing.T) {
	t.Parallel()
	e := state.Engine{Path: "/opt/tofu", Version: "1.12.6"}
	if e.Name() != "tofu" || e.String() != "tofu 1.12.6 (/opt/tofu)" {
		t.Errorf("got %q, %q", e.Name(), e.String())
	}
}

// TestEngineRuns checks that the engine's version is read only once per directory.
func TestEngineRuns(t *testing.T) {
	t.Parallel()
	tools, dir := t.TempDir(), root(t, localBackend)
	runs := filepath.Join(tools, "runs")
	e := &state.Engine{Version: "1.12.6", Path: executable(t, tools, "tofu", fmt.Sprintf(
		"#!/bin/sh\necho \"$1\" >> %q\nexec %q \"$@\"\n", runs, engine(t).Path,
	))}
	for range 2 {
		w := open(t, dir, func(c *state.Config) { c.Engine = e })
		mustPlan(t, w, state.PlanOptions{})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	count := map[string]int{}
	for line := range strings.Lines(string(mustRead(t, runs))) {
		count[strings.TrimSpace(line)]++
	}
	if count["version"] != 1 || count["init"] != 1 || count["plan"] != 2 {
		t.Errorf("runs %v, want the version asked and the directory initialized once, and two plans", count)
	}
}

// TestEngineArguments checks the engine's arguments, and the error of a failed run.
func TestEngineArguments(t *testing.T) {
	t.Parallel()
	tools, dir := t.TempDir(), root(t, localBackend)
	runs := filepath.Join(tools, "runs")
	e := &state.Engine{Version: "1.12.6", Path: executable(t, tools, "tofu", fmt.Sprintf(
		"#!/bin/sh\n[ \"$1\" != apply ] || { echo boom >&2; exit 1; }\necho \"$*\" >> %q\nexec %q \"$@\"\n", runs, engine(t).Path,
	))}
	w := open(t, dir, func(c *state.Config) { c.Engine = e })
	for _, tt := range []struct {
		options state.PlanOptions
		want    string
	}{
		{state.PlanOptions{}, "-refresh=false"}, {state.PlanOptions{Refresh: true}, "-refresh=true"}, {state.PlanOptions{RefreshOnly: true}, "-refresh=true"},
	} {
		mustPlan(t, w, tt.options)
		lines := strings.Split(string(mustRead(t, runs)), "\n")
		last := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "plan ") })
		if last < 0 || !strings.Contains(lines[last]+" ", " "+tt.want+" ") || strings.Contains(lines[last], "-refresh-only") != tt.options.RefreshOnly {
			t.Errorf("%+v: %q, want %s", tt.options, lines, tt.want)
		}
		if err := os.Remove(runs); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.Apply(t.Context(), mustPlan(t, w, state.PlanOptions{}))
	if want := "applying " + dir + ": boom"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
