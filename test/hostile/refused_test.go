package hostile_test

import (
	"fmt"
	"math"
	"path"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
)

// command is a command of numaform to run against an attack.
type command struct {
	args []string
	// reads is set if the command reads the fleet's files.
	reads bool
}

// commands returns the commands that must withstand an attack.
func (w *world) commands() []command {
	return []command{
		{args: planNothing(), reads: true},
		{args: applyNothing(), reads: true},
		{args: []string{"remove", nodeOf(w.remaining()), "-f", "nothing.yaml", "--auto-approve"}, reads: true},
		{args: []string{"undo", "-f", "nothing.yaml", "--auto-approve"}, reads: true},
		{args: []string{"drift"}, reads: true},
		{args: []string{"history"}},
		{args: []string{"policy", "show"}},
	}
}

// remaining returns the path of an existing VM's node file.
func (w *world) remaining() string { return rootDir + "/node-workers-2001.tf" }

// TestRefused checks that the attacks have no effect on this numaform. `make test` runs
// each kind of attack once, in one place, and only the first with Terraform. `make nightly`
// runs the demonstrated attacks with each engine in each place, and the generated attacks
// with OpenTofu; without -hostile.full, similar attacks alternate between the places.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, engine := range engines(t) {
		for _, where := range []place{inGit, inDirectory} {
			attacks := shown()
			if name == "tofu" {
				attacks = append(attacks, generated()...)
			} else if !enginetest.EveryCase() {
				attacks = attacks[:1]
				if where == inDirectory {
					continue
				}
			}
			t.Run(name+" "+string(where), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, current(), where, engine)
				for i, a := range attacks {
					if a.possible(w, name) && a.due(where, i) {
						t.Run(a.name, func(t *testing.T) { w.of(t).refuses(a) })
					}
				}
			})
		}
	}
}

// due reports whether this run includes an attack in a place where it is possible. i is the
// index of the attack.
func (a *attack) due(where place, i int) bool {
	turn := (i%2 == 0) == (where == inGit)
	switch {
	case *full:
		return true
	case enginetest.EveryCase():
		return turn || !a.more || a.only != ""
	case a.more:
		return false
	case a.left: // it has no effect in a directory
		return where == inGit
	}
	return turn || a.only != ""
}

// refuses checks that an attack has no effect.
func (w *world) refuses(a attack) {
	w.t.Helper()
	w.launch(a)
	a.passes = a.passes || a.left && w.place == inDirectory
	commands := w.commands()
	commands = commands[:min(a.commands(), len(commands))]
	if a.some && len(commands) == 2 && !*full {
		// Only one command: plan in the repository, apply in the directory.
		commands = commands[:1]
		if w.place == inDirectory && !a.passes {
			commands = w.commands()[1:2]
		}
	}
	for _, c := range commands {
		saw := w.watch(c.args...)
		what := "numaform " + strings.Join(c.args, " ")
		if problem := w.harmed(saw, a.passes); problem != "" {
			w.t.Errorf("%s: %s\n%s", what, problem, saw.said)
			w.restoreAll()
			return
		}
		names := a.where()
		switch {
		case a.passes || !c.reads:
		case saw.code != 1:
			w.t.Errorf("%s: exit code %d, want a refusal\n%s", what, saw.code, saw.said)
		case !namesIt(saw.stderr, names):
			w.t.Errorf("%s does not name %q\n%s", what, names, saw.said)
		}
		if a.passes && c.reads {
			// An ignored attack is not refused, and its change may be valid.
			return
		}
	}
}

// namesIt reports whether a message names a path, its directory, or a parent directory that
// is not part of every fleet.
func namesIt(message, name string) bool {
	if strings.Contains(message, name) || strings.Contains(message, path.Dir(name)+"/") {
		return true
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if dir != region && dir != rootDir && dir != "modules" && strings.Contains(message, dir) {
			return true
		}
	}
	return false
}

// commands returns the number of commands to run against an attack.
func (a *attack) commands() int {
	switch {
	case a.more:
		return 1
	case a.some:
		return 2
	}
	return math.MaxInt
}

// harmed describes the effect of an attack, or returns "".
func (w *world) harmed(saw *seen, passes bool) string {
	var problems []string
	note := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, started := range saw.started {
		if !passes || !strings.HasPrefix(started, "engine") && started != "provider" {
			note("started: %s", started)
		}
	}
	if saw.connections > 0 {
		note("%d connections to the listener: %q", saw.connections, saw.asked)
	}
	if canaries := leaked([]byte(saw.said)); len(canaries) > 0 {
		note("its output contains %v", canaries)
	}
	for _, all := range [][]string{saw.exposed, saw.guests, saw.writes, w.statesChanged()} {
		problems = append(problems, all...)
	}
	if strings.ContainsAny(saw.said, "\x1b\x07\u202e") {
		note("its output contains control characters: %q", saw.said)
	}
	if saw.memoryMiB > maxMemoryMiB {
		note("it used %d MiB", saw.memoryMiB)
	}
	return strings.Join(problems, "\n")
}
