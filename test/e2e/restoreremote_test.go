package e2e_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
)

// TestRestoreIntoNewRemote loses the git remote, which is then created again without commits,
// and restores a backup: with numaform's own clone of the lost remote, the restore refuses, and
// says to remove the clone.
func TestRestoreIntoNewRemote(t *testing.T) {
	t.Parallel()
	for _, cloneLost := range []bool{false, true} {
		t.Run(fmt.Sprintf("clone lost: %t", cloneLost), func(t *testing.T) {
			t.Parallel()
			stage := oneHost(t)
			remote := inGit(t, stage)
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			file := filepath.Join(stage.Dir, "backup.tar.gz")
			run(t, stage, cli.ExitOK, "backup", "--plain", "-o", file)
			guests := guestsOf(stage)
			made := history(t, stage)

			lose(t, remote)
			git(t, "", "init", "--quiet", "--bare", "--initial-branch", "main", remote)
			clone := filepath.Join(stage.StateDir(), "git")
			if !cloneLost {
				// The clone has a branch that the remote lacks, as if a person had deleted it.
				out, err := program(t, stage, "restore", file, "--write").CombinedOutput()
				if err == nil || !strings.Contains(string(out), "if the repository was created again") || !strings.Contains(string(out), clone) {
					t.Errorf("restore with the clone of the lost remote: %v\n%s", err, out)
				}
				wantUnchanged(t, stage, guests)
			}
			lose(t, clone)
			out := run(t, stage, cli.ExitOK, "restore", file, "--write")
			t.Logf("restore:\n%s", out)
			wantUnchanged(t, stage, guests)
			now := history(t, stage)
			for _, before := range made {
				if !slices.ContainsFunc(now, func(e audit.Entry) bool { return e.Change.ID == before.Change.ID && e.Outcome != nil }) {
					t.Errorf("the history lacks change %s", before.Change.ID)
				}
			}
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
			if log := git(t, remote, "log", "--oneline", "main"); log == "" {
				t.Error("the remote has no commits")
			}
		})
	}
}
