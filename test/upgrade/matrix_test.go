package upgrade_test

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/store"
)

// TestMatrix checks, for each kind of store and each backend, that this numaform replaces no
// VM of a fleet that the baseline created, that a second plan is empty, and that VMs can be
// created and removed. Then it checks the baseline on the upgraded fleet.
func TestMatrix(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	for _, at := range []struct{ store, backend string }{
		{inGit, backendLocal},
		{inGit, backendHTTP},
		{inGitAlone, backendLocal},
		{inDirectory, backendLocal},
		{inDirectory, backendPG},
		{inDirectory, backendKube},
		{inConfigMaps, backendKube},
		{inConfigMaps, backendPG},
	} {
		t.Run(at.store+" "+at.backend, func(t *testing.T) {
			t.Parallel()
			w := newMatrixWorld(t, at.store, at.backend)
			w.apply(w.baseline, "two.yaml")
			w.upgrade()
			before := w.guests()
			if len(before) != 2 {
				t.Fatalf("the baseline created %d VMs, want 2", len(before))
			}
			w.goesOn(before)
			w.rollback()
		})
	}
}

// goesOn checks that this numaform does not change existing guests, and can create and
// remove others.
func (w *matrixWorld) goesOn(before map[int]string) {
	w.t.Helper()
	w.nothingToDo(w.current)
	w.apply(w.current, "nothing.yaml")
	w.same(before, 0)
	w.run(0, w.current, "drift", "--detailed-exitcode")
	w.apply(w.current, "three.yaml")
	w.same(before, 1)
	w.nothingToDo(w.current)
	w.remove(w.current, before)
	w.same(before, 0)
	w.nothingToDo(w.current)
}

// remove removes the VM that is not in before.
func (w *matrixWorld) remove(program string, before map[int]string) {
	w.t.Helper()
	for _, guest := range w.sim.Guests() {
		if _, existed := before[guest.VMID]; guest.VMID >= 2000 && guest.VMID <= 2999 && !existed {
			w.run(0, program, "remove", guest.Config["name"], "-f", "nothing.yaml", "--auto-approve")
			return
		}
	}
	w.t.Fatal("no VM to remove")
}

// rollback checks that the baseline works on the upgraded fleet, or refuses it before any
// write.
func (w *matrixWorld) rollback() {
	w.t.Helper()
	before := w.guests()
	calls := len(w.sim.Calls())
	files := w.tree()
	code, said := w.try(w.baseline, "apply", "-f", "three.yaml", "--auto-approve")
	if code != 0 {
		w.t.Logf("the baseline refuses the newer format:\n%s", said)
		w.same(before, 0)
		for _, call := range w.sim.Calls()[calls:] {
			if call.Method != "GET" && !strings.HasPrefix(call.Path, "/access/") {
				w.t.Errorf("the baseline refused, but wrote before: %s %s", call.Method, call.Path)
			}
		}
		if after := w.tree(); after != files {
			w.t.Errorf("the baseline refused, but the repository is at %s, was at %s", after, files)
		}
		w.nothingToDo(w.current)
		return
	}
	// The baseline finds no state in the old location, and imports its VMs again.
	w.apply(w.baseline, "nothing.yaml")
	w.same(before, 1)
	w.nothingToDo(w.baseline)
	// Upgrade again.
	w.apply(w.current, "nothing.yaml")
	w.same(before, 1)
	w.nothingToDo(w.current)
	w.remove(w.current, before)
	w.same(before, 0)
	w.nothingToDo(w.current)
}

// TestMatrixStandby checks that the baseline refuses a fleet with a standby VM before any
// write. The baseline does not support standby VMs, so its plan would start the VM.
func TestMatrixStandby(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	for _, at := range []struct{ store, backend string }{{inDirectory, backendLocal}, {inDirectory, backendKube}} {
		t.Run(at.store+" "+at.backend, func(t *testing.T) {
			t.Parallel()
			w := newMatrixWorld(t, at.store, at.backend)
			w.apply(w.baseline, "one.yaml")
			existing := w.guests()
			vmid := w.addStandby()
			before := w.guests()
			if len(before) != len(existing)+1 || !strings.Contains(before[vmid], "running=false") {
				t.Fatalf("VM %d is not a stopped VM in addition to those of the baseline: %v", vmid, before)
			}
			w.same(existing, 1)

			for _, args := range [][]string{
				{"plan", "-f", "nothing.yaml"},
				{"apply", "-f", "three.yaml", "--auto-approve"},
				{"apply", "-f", "nothing.yaml", "--auto-approve"},
				{"drift"},
			} {
				w.refuses(before, args...)
			}
			w.nothingToDo(w.current)
		})
	}
}

// refuses checks that the baseline refuses a command because it does not support standby VMs,
// and writes nothing.
func (w *matrixWorld) refuses(before map[int]string, args ...string) {
	w.t.Helper()
	calls := len(w.sim.Calls())
	files := w.files()
	code, said := w.try(w.baseline, args...)
	if code == 0 || !strings.Contains(said, `unknown attribute "standby"`) {
		w.t.Errorf("%s %s: exit code %d, want a refusal of the standby VM\n%s", w.name(w.baseline), strings.Join(args, " "), code, said)
	}
	w.same(before, 0)
	for _, call := range w.sim.Calls()[calls:] {
		if call.Method != "GET" && !strings.HasPrefix(call.Path, "/access/") {
			w.t.Errorf("the baseline refused, but wrote before: %s %s", call.Method, call.Path)
		}
	}
	if after := w.files(); !maps.Equal(after, files) {
		w.t.Errorf("the baseline refused %s, but changed files of the fleet", strings.Join(args, " "))
	}
}

// addStandby creates a standby VM with this numaform and returns its VMID. Only the
// controller decides on standby VMs, so the test plans a VM, marks it as standby in its
// file, and applies the files.
func (w *matrixWorld) addStandby() int {
	w.t.Helper()
	existing := w.guests()
	w.run(0, w.current, "plan", "-f", "two.yaml", "--no-engine", "--out", "fleet")
	planned, err := store.NewDirectory(w.path("fleet")).Files()
	w.must(err)
	parsed, err := generator.Current().Parse(planned)
	w.must(err)
	at := slices.IndexFunc(parsed.VMs, func(vm fleet.VM) bool { return existing[int(vm.VMID)] == "" })
	if at < 0 {
		w.t.Fatal("no new VM in the files")
	}

	vm := &parsed.VMs[at]
	vm.Standby = true
	rendered, err := generator.Current().Render(parsed)
	w.must(err)
	w.must(os.WriteFile(w.path("fleet", generator.NodeFile(vm)), rendered[generator.NodeFile(vm)], 0o600))
	w.apply(w.current, "nothing.yaml")
	return int(vm.VMID)
}

// files returns the content of all regular files below the fleet's directory, by path.
func (w *matrixWorld) files() map[string]string {
	w.t.Helper()
	found := map[string]string{}
	dir := os.DirFS(w.path("fleet"))
	w.must(fs.WalkDir(dir, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := fs.ReadFile(dir, path)
		found[path] = string(content)
		return err
	}))
	return found
}

// tree returns the hash of the last commit in the fleet's remote repository, or "" if the
// fleet has no remote.
func (w *matrixWorld) tree() string {
	if w.store != inGit {
		return ""
	}
	return w.git(w.path("remote.git"), "rev-parse", "main")
}

// bareClone matches the command in the message to operators whose repository has no remote.
var bareClone = regexp.MustCompile("git clone --bare [^\n;,`]*")

// upgrade makes the changes that numaform asks an operator to make if the repository has no
// remote: it runs the git command in the message, and sets the remote. Other fleets need no
// change.
func (w *matrixWorld) upgrade() {
	w.t.Helper()
	if w.store != inGitAlone {
		return
	}
	code, said := w.try(w.current, "plan", "-f", "nothing.yaml")
	command := bareClone.FindString(said)
	if code == 0 || command == "" {
		return
	}
	w.t.Logf("the operator runs: %s", command)
	words := strings.Fields(command)
	w.git(w.dir, words[1:]...)
	bare := words[len(words)-1]
	if !filepath.IsAbs(bare) {
		bare = w.path(bare)
	}
	content, err := os.ReadFile(w.path("numaform.yaml"))
	w.must(err)
	w.must(os.WriteFile(w.path("numaform.yaml"), []byte(strings.Replace(string(content), "git: {enabled: true}", "git: {remote: '"+bare+"'}", 1)), 0o600))
}

// TestMatrixCrashed checks that this numaform finishes an apply during which the baseline was
// killed, and changes no complete VM.
func TestMatrixCrashed(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	for _, at := range []struct{ store, backend string }{{inGit, backendLocal}, {inDirectory, backendLocal}, {inDirectory, backendHTTP}} {
		t.Run(at.store+" "+at.backend, func(t *testing.T) {
			t.Parallel()
			w := newMatrixWorld(t, at.store, at.backend)
			w.apply(w.baseline, "two.yaml")
			before := w.guests()
			w.killAt(pvesim.Fault{Method: "POST", Path: `/clone$`, Times: 1, After: true}, "three.yaml")
			w.apply(w.current, "nothing.yaml")
			w.same(before, 1)
			w.nothingToDo(w.current)
		})
	}
}

// killAt kills the baseline at a Proxmox call of its apply.
func (w *matrixWorld) killAt(fault pvesim.Fault, manifests string) {
	w.t.Helper()
	reached, release := make(chan struct{}, 1), make(chan struct{})
	fault.Hit = func(ctx context.Context, _ pvesim.Call) {
		reached <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	remove := w.sim.AddFault(fault)
	defer remove()
	cmd, said := w.start(context.Background(), w.baseline, "apply", "-f", manifests, "--auto-approve")
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it was killed
		close(ended)
	}()
	select {
	case <-reached:
	case <-ended:
		close(release)
		w.t.Fatalf("the baseline exited before it was killed\n%s", said)
	}
	w.must(cmd.Process.Kill())
	<-ended
	close(release)
	w.settle()
}

// TestMatrixErrored checks that this numaform saves a state that the baseline could not save,
// and changes no VM.
func TestMatrixErrored(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	for _, store := range []string{inGit, inDirectory} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := newMatrixWorld(t, store, backendHTTP)
			w.apply(w.baseline, "two.yaml")
			before := w.guests()
			w.states.Refuse("POST")
			w.run(1, w.baseline, "apply", "-f", "three.yaml", "--auto-approve")
			w.states.Refuse()
			if kept := w.errored(); len(kept) == 0 {
				t.Fatal("the baseline left no errored.tfstate")
			}
			w.apply(w.current, "nothing.yaml")
			w.same(before, 1)
			w.nothingToDo(w.current)
			if kept := w.errored(); len(kept) > 0 {
				t.Errorf("states are still kept: %v", kept)
			}
		})
	}
}

// errored returns the files of states that could not be saved.
func (w *matrixWorld) errored() []string {
	var kept []string
	w.must(filepath.WalkDir(w.dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Name() == "errored.tfstate" {
			kept = append(kept, path)
		}
		return err
	}))
	return kept
}

// TestMatrixReview checks that this numaform applies a change that the baseline pushed to a
// branch, after the branch is merged.
func TestMatrixReview(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	w := newMatrixWorld(t, inGit, backendHTTP)
	w.apply(w.baseline, "one.yaml")
	before := w.guests()
	w.configure("review: true, ")
	if said := w.apply(w.baseline, "three.yaml"); !strings.Contains(said, "waits for review on branch numaform/") {
		t.Fatalf("no change waits for review:\n%s", said)
	}
	w.same(before, 0)
	w.apply(w.current, "nothing.yaml")
	w.same(before, 0)
	person := filepath.Join(t.TempDir(), "person")
	w.git(w.dir, "clone", "--quiet", w.path("remote.git"), person)
	branches := strings.Fields(w.git(person, "for-each-ref", "--format=%(refname)", "refs/remotes/origin/numaform/"))
	if len(branches) != 1 {
		t.Fatalf("branches %v, want one", branches)
	}
	w.git(person, "merge", "--quiet", "--no-edit", branches[0])
	w.git(person, "push", "--quiet", "origin", "main")
	w.apply(w.current, "nothing.yaml")
	w.same(before, 2)
	w.nothingToDo(w.current)
	if list := slices.Collect(strings.Lines(w.run(0, w.current, "history"))); len(list) == 0 {
		t.Error("the history is empty")
	}
}
