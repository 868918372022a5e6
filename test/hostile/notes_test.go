package hostile_test

import (
	"os"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/testenv"
)

// noteAttack is a git note that an attacker pushes where numaform records the outcome of a
// change.
type noteAttack struct {
	name string
	// note returns the attacker's note, given numaform's note.
	note func(w *world, was string) string
	// object replaces the target of the ref for notes.
	object string
	// shown is the expected text in the change's history.
	shown string
}

func noteAttacks() []noteAttack {
	as := func(text string) func(*world, string) string { return func(*world, string) string { return text } }
	return []noteAttack{
		{name: "a failure", shown: "forged outcome: failed on 1 of 1 hosts", note: func(w *world, was string) string {
			forged := strings.Replace(was, `"host": `, `"error": "no room", "host": `, 1)
			if forged == was {
				w.t.Fatalf("the note names no host:\n%s", was)
			}
			return forged
		}},
		{name: "of another change", shown: "unverified outcome: unreadable", note: func(_ *world, was string) string {
			return strings.Replace(was, `"id": "2`, `"id": "3`, 1)
		}},
		{name: "control characters", shown: "forged outcome", note: func(_ *world, was string) string {
			return strings.Replace(was, `"host": `, `"error": "\u001b]0;x\u0007", "host": `, 1)
		}},
		{name: "no record", shown: "unverified outcome: unreadable", note: as("looks good\n")},
		{name: "of a newer format", shown: "forged outcome: unreadable", note: func(_ *world, was string) string {
			return strings.Replace(was, `"format": 1`, `"format": 99`, 1)
		}},
		{name: "deep", shown: "unverified outcome: unreadable", note: as(strings.Repeat("[", 1<<20))},
		{name: "enormous", shown: "unverified outcome: unreadable", note: as(strings.Repeat("x", 100<<20))},
		{name: "a reference to a file", object: "HEAD:fleet.json", shown: "done in"},
		{name: "a reference to files", object: "HEAD^{tree}", shown: "done in"},
		{name: "a reference to the branch", object: "HEAD", shown: "done in"},
	}
}

// TestHostileNotes checks that numaform's decisions do not depend on the git notes in which
// it records the outcomes of changes: after an attacker pushed such a note, numaform plans
// no change, and continues to create VMs. `make nightly` applies and creates a VM after
// each note, `make test` after the first and the last.
func TestHostileNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, current(), inGit, testenv.Engine(t))
	w.measures = true
	was := w.git(w.path("remote.git"), nil, "notes", "--ref=numaform", "show", "main")
	attacks := noteAttacks()
	for i, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			w := w.of(t)
			w.restore()
			w.restoreAll()
			w.calls = len(w.sim.Calls())
			if a.note != nil {
				file := w.path("remote.git", "note")
				w.must(os.WriteFile(file, []byte(a.note(w, was)), 0o600))
				w.git(w.path("remote.git"), nil, "notes", "--ref=numaform", "add", "--force", "-F", file, "main")
				w.must(os.Remove(file))
			} else {
				object := strings.TrimSpace(w.git(w.path("remote.git"), nil, "rev-parse", a.object))
				w.git(w.path("remote.git"), nil, "update-ref", "refs/notes/numaform", object)
			}
			ends := enginetest.EveryCase() || i == 0 || i == len(attacks)-1
			commands := [][]string{planNothing(), {"history"}}
			if ends {
				commands = append(commands, applyNothing())
			}
			for _, args := range commands {
				saw := w.watch(args...)
				if problem := w.harmed(saw, true); saw.code != 0 || problem != "" {
					t.Errorf("numaform %s: exit code %d: %s\n%s", strings.Join(args, " "), saw.code, problem, saw.said)
				}
				if args[0] == "history" && !strings.Contains(saw.said, a.shown) {
					t.Errorf("the history does not contain %q:\n%s", a.shown, saw.said)
				}
			}
			if !ends {
				return
			}
			if r := w.run("apply", "-f", "pods.yaml", "--auto-approve"); a.note != nil && r.code != 0 || len(w.found()) != len(w.guests)+1 {
				t.Errorf("no VM was created: exit code %d\n%s", r.code, r.said)
			}
		})
	}
}
