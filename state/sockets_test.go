package state_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/state"
)

// TestSocketsOfKilled checks that a process removes what killed processes with a provider
// left in the directory for temporary files.
func TestSocketsOfKilled(t *testing.T) {
	t.Parallel()
	enginetest.Long(t, "an engine")
	plugins, err := filepath.Abs("../.tools/plugins")
	if err != nil {
		t.Fatal(err)
	}
	dir, temporary := t.TempDir(), t.TempDir()
	write(t, dir, "main.tf", provided)
	left := func() []string {
		entries, err := os.ReadDir(temporary)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names
	}
	for range 5 {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), planVariable+"="+dir, "TMPDIR="+temporary, "NUMAFORM_TEST_PLUGINS="+plugins)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has planned
			t.Fatal(err)
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := child.Wait(); err == nil {
			t.Error("the child ended well")
		}
		if names := left(); len(names) > 1 {
			t.Fatalf("%v are left", names)
		}
	}
}

// planIn plans in a directory with the provider, reports it, and waits to be killed.
func planIn(dir string) int {
	ctx := context.Background()
	tools, _ := filepath.Abs("../.tools/bin")
	engine, err := state.FindEngine(ctx, state.EngineConfig{Dirs: []string{tools}})
	if err != nil {
		return 4
	}
	w, err := state.New(state.Config{Dir: dir, Engine: engine, PluginDir: os.Getenv("NUMAFORM_TEST_PLUGINS")})
	if err != nil {
		return 1
	}
	if _, err := w.Recover(ctx); err != nil {
		return 2
	}
	if _, err := w.Plan(ctx, state.PlanOptions{}); err != nil {
		return 3
	}
	_, _ = os.Stdout.WriteString("x")
	<-make(chan struct{})
	return 0
}
