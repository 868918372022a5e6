package backends_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// TestUnlock checks numaform unlock with each backend: it releases nothing while an apply
// runs, and releases the lock of a killed engine, but no lock with another ID. Locks of local
// states and of PostgreSQL end with their holder.
func TestUnlock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		r := newRoot(t, newSite(t, kind, false), engine, 1)
		unlock := r.command(t)
		w := r.open(t, here)
		done, release := r.applyHeld(t, w)
		held := r.locks(t)

		refusal := map[string]string{"local": "ends with the process that holds it: it is held by ", "pg": "ends with its holder's connection"}[kind]
		switch {
		case refusal != "":
		case r.tells(engine):
			refusal = "the holder seems to run; nothing was released"
		default:
			refusal = "stdin is not a terminal; nothing was released"
		}
		if code, out := unlock("pve-1"); code != cli.ExitFailed || !strings.Contains(out, refusal) {
			t.Errorf("during an apply: exit code %d, want %q:\n%s", code, refusal, out)
		}
		if now := r.locks(t); now != held {
			t.Errorf("%d locks are left of %d", now, held)
		}
		pids := applying(t, w.Dir())
		if len(pids) != 1 {
			t.Fatalf("engines %v, want one", pids)
		}
		providers := serving(t, pids[0])
		must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		<-done
		release()
		await(t, "the provider to end", func() bool { return !slices.ContainsFunc(providers, runs) })
		if !r.outlives {
			await(t, "the lock to end with its holder", func() bool { return r.locks(t) == 0 })
			if code, out := unlock("pve-1"); code != cli.ExitOK || !strings.Contains(out, "Nothing was changed") {
				t.Errorf("after the holder ended: exit code %d:\n%s", code, out)
			}
			return
		}

		var locked *state.LockedError
		if err := r.beside(t, engine).open(t, here).Locked(t.Context()); !errors.As(err, &locked) {
			t.Fatalf("got %v, want the lock of the killed engine", err)
		}
		if code, out := unlock("pve-1", "0b5c1f0e-0000-4000-8000-000000000001", "--yes"); code != cli.ExitFailed || !strings.Contains(out, "the lock has changed: its ID is now "+locked.ID) {
			t.Errorf("another ID: exit code %d:\n%s", code, out)
		}
		code, out := unlock(here.String(), locked.ID, "--yes")
		if code != cli.ExitOK || !strings.Contains(out, "is released") || r.locks(t) > 0 {
			t.Errorf("exit code %d, %d locks are left:\n%s", code, r.locks(t), out)
		}
		if ended := strings.Contains(out, "no other numaform runs an engine for this state: it has ended"); ended != r.tells(engine) {
			t.Errorf("the output says that the holder has ended: %t\n%s", ended, out)
		}
		if code, out := unlock("pve-1"); code != cli.ExitOK || !strings.Contains(out, "is not locked") {
			t.Errorf("a free lock: exit code %d:\n%s", code, out)
		}
	})
}

// runs reports whether a process exists.
func runs(pid int) bool { return syscall.Kill(pid, 0) == nil }

// command returns a function that runs numaform unlock for the fleet, as a separate process
// without a terminal. It sets the file of a local state, so it is called before the
// workspace is opened.
func (r *root) command(t *testing.T) func(args ...string) (code int, output string) {
	t.Helper()
	config, states := filepath.Join(t.TempDir(), "numaform.yaml"), t.TempDir()
	r.home = scaler.StateFile(states, here)
	must(t, os.MkdirAll(filepath.Dir(r.home), 0o700))
	content, err := yaml.Marshal(map[string]any{
		"clusterID": r.fleet.ClusterID,
		"clusters":  []any{map[string]any{"region": testenv.Region, "url": r.sim.URL(), "insecure": true, "token_id": "numaform@pve!scaler", "token_secret_file": "token"}},
		"engine":    map[string]any{"binary": r.engine.Path, "plugin_dir": testenv.PluginDir(t)},
		"fleet":     map[string]any{"dir": r.dir, "backend": map[string]any{"type": r.Type, "config": r.Config}},
		"state_dir": states,
	})
	must(t, err)
	must(t, os.WriteFile(config, content, 0o600))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(config), "token"), []byte("unused"), 0o600))
	return func(args ...string) (code int, output string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), os.Args[0], append([]string{"unlock", "--config", config}, args...)...)
		command.Env = append(testenv.CleanEnv(), commandVariable+"=1")
		for _, name := range slices.Sorted(maps.Keys(r.env)) {
			command.Env = append(command.Env, name+"="+r.env[name])
		}
		out, err := command.CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return command.ProcessState.ExitCode(), string(out)
	}
}
