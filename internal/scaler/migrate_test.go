package scaler_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

const aState = `{"version":4,"terraform_version":"1.9.0","serial":7,"lineage":"a","outputs":{},"resources":[]}`

// oldFleet is a fleet's directory in which an older version kept its states, with the state
// directory of this version. said are the progress messages.
type oldFleet struct {
	t          *testing.T
	dir, state string
	edit       func(*scaler.Config)
	said       []string
}

func newOldFleet(t *testing.T) *oldFleet {
	t.Helper()
	base := t.TempDir()
	return &oldFleet{t: t, dir: filepath.Join(base, "fleet"), state: filepath.Join(base, "state"), edit: func(*scaler.Config) {}}
}

func (o *oldFleet) scaler() *scaler.Scaler {
	config := scaler.Config{
		ClusterID: clusterID, Dir: o.dir, StateDir: o.state, Place: o.dir, Backend: fleet.Backend{Type: "local"},
		Progress: func(_ topology.HostID, message string) { o.said = append(o.said, message) },
	}
	o.edit(&config)
	return scaler.New(config)
}

func (o *oldFleet) put(name, content string) {
	o.t.Helper()
	path := filepath.Join(o.dir, name)
	must(o.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// states returns the states below the state directory, without the migration's record.
func (o *oldFleet) states() map[string]string {
	o.t.Helper()
	found := map[string]string{}
	root := filepath.Join(o.state, "states")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || entry.Name() == "migrated.json" {
			return err
		}
		content, err := os.ReadFile(path)
		found[filepath.ToSlash(strings.TrimPrefix(path, root+"/"))] = string(content)
		return err
	})
	must(o.t, err)
	return found
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestStatesAreTakenOverOnce migrates an older version's states. It checks that states that
// are put in the fleet's directory afterwards are ignored.
func TestStatesAreTakenOverOnce(t *testing.T) {
	t.Parallel()
	const errored = ".numaform/work/lab/pve-1/errored.tfstate"
	o := newOldFleet(t)
	o.put("lab/pve-1/terraform.tfstate", aState)
	o.put("lab/pve-2/terraform.tfstate", "half a")
	o.put(errored, "errored")
	want := map[string]string{
		"lab/pve-1/terraform.tfstate": aState, "lab/pve-2/terraform.tfstate": "half a", "lab/pve-1/errored.tfstate": "errored",
	}
	for range 2 {
		must(t, o.scaler().Places())
		if diff := cmp.Diff(want, o.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	}
	if len(o.said) != 3 || !strings.Contains(o.said[0], "moved the state "+o.dir+"/lab/pve-1/terraform.tfstate to "+o.state) {
		t.Errorf("said %q", o.said)
	}
	for _, name := range []string{"lab/pve-1/terraform.tfstate", errored} {
		if _, err := os.Stat(filepath.Join(o.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	// Files that a user pushes after the migration must have no effect.
	o.put("lab/pve-1/terraform.tfstate", "forged")
	o.put("lab/pve-3/terraform.tfstate", "forged")
	o.put(errored, "forged")
	must(t, o.scaler().Places())
	if diff := cmp.Diff(want, o.states()); diff != "" {
		t.Errorf("states afterwards (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(o.state, "states", "lab", "pve-1", "terraform.tfstate")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestTakingOverIsCutOff repeats a migration that was interrupted after it copied the first
// of two states: the copy is not overwritten, and the second state is migrated.
func TestTakingOverIsCutOff(t *testing.T) {
	t.Parallel()
	o := newOldFleet(t)
	o.put("lab/pve-1/terraform.tfstate", "old")
	o.put("lab/pve-2/terraform.tfstate", "two")
	first := filepath.Join(o.state, "states", "lab", "pve-1", "terraform.tfstate")
	must(t, os.MkdirAll(filepath.Dir(first), 0o700), os.WriteFile(first, []byte("one"), 0o600))
	must(t, o.scaler().Places())
	want := map[string]string{"lab/pve-1/terraform.tfstate": "one", "lab/pve-2/terraform.tfstate": "two"}
	if diff := cmp.Diff(want, o.states()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// TestStatesOfOthersAreNotTakenOver checks that states are refused that other users may
// have written: states that are tracked by git, reached through a link, not regular files
// or too large.
func TestStatesOfOthersAreNotTakenOver(t *testing.T) {
	t.Parallel()
	const name = "lab/pve-1/terraform.tfstate"
	cases := map[string]struct {
		make func(t *testing.T, o *oldFleet)
		want string
	}{
		"tracked": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put(name, "forged")
			track(t, o.dir, name)
		}, name + " is tracked by git, so anyone who may push can replace it: run git rm --cached"},
		"tracked below": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			top := o.dir
			o.dir = filepath.Join(top, "sub", "fleet")
			o.put(name, "forged")
			track(t, top, "sub/fleet/"+name)
		}, "is tracked by git"},
		"a tracked working directory": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put(".numaform/work/lab/pve-1/errored.tfstate", "forged")
			track(t, o.dir, ".numaform/work/lab/pve-1/errored.tfstate")
		}, "errored.tfstate is tracked by git"},
		"a link": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put("other", "forged")
			must(t, os.MkdirAll(filepath.Join(o.dir, "lab", "pve-1"), 0o755), os.Symlink("../../other", filepath.Join(o.dir, name)))
		}, "is reached through a link, " + name},
		"a link out": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			must(t, os.MkdirAll(filepath.Join(o.dir, "lab", "pve-1"), 0o755), os.Symlink("/etc/passwd", filepath.Join(o.dir, name)))
		}, "is reached through a link"},
		"a linked region": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put("elsewhere/pve-1/terraform.tfstate", "forged")
			must(t, os.Rename(filepath.Join(o.dir, "elsewhere"), filepath.Join(o.dir, ".x")), os.Symlink(".x", filepath.Join(o.dir, "lab")))
		}, "is reached through a link, lab"},
		"a directory": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put(name+"/x", "forged")
		}, "is not a regular file"},
		"one too large": {func(t *testing.T, o *oldFleet) {
			t.Helper()
			o.put(name, "")
			must(t, os.Truncate(filepath.Join(o.dir, name), 1<<30))
		}, "has 1073741824 bytes, more than the maximum of 268435456"},
	}
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			o := newOldFleet(t)
			c.make(t, o)
			err := o.scaler().Places()
			var refused *scaler.RelicError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || refused.Hint == "" {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if got := o.states(); len(got) > 0 {
				t.Errorf("states %v", got)
			}
		})
	}
}

// TestUntrackedStatesOfACheckoutAreTakenOver checks that a state in a git checkout is
// migrated if git does not track it.
func TestUntrackedStatesOfACheckoutAreTakenOver(t *testing.T) {
	t.Parallel()
	o := newOldFleet(t)
	o.put("fleet.json", "{}")
	track(t, o.dir, "fleet.json")
	o.put("lab/pve-1/terraform.tfstate", aState)
	must(t, o.scaler().Places())
	if got := o.states(); len(got) != 1 {
		t.Errorf("states %v", got)
	}
}

// TestOtherBackendsHaveErroredStatesOnly checks that only states that no backend accepted
// are migrated if the fleet's states are not files below the state directory.
func TestOtherBackendsHaveErroredStatesOnly(t *testing.T) {
	t.Parallel()
	for _, backend := range []fleet.Backend{{Type: "kubernetes"}, {Type: "pg"}, {Type: "http"}, {Type: "local", Config: map[string]string{"path": "/srv/states"}}} {
		o := newOldFleet(t)
		o.edit = func(c *scaler.Config) { c.Backend = backend }
		o.put("lab/pve-1/terraform.tfstate", aState)
		o.put(".numaform/work/lab/pve-1/errored.tfstate", "errored")
		must(t, o.scaler().Places())
		if diff := cmp.Diff(map[string]string{"lab/pve-1/errored.tfstate": "errored"}, o.states()); diff != "" {
			t.Errorf("%s: states (-want +got):\n%s", backend.Type, diff)
		}
	}
}

// TestFleetMoves moves and copies a fleet with the default state directory, which is
// named after the fleet's place. The states of a moved fleet are found, and a copy is
// refused until the original is deleted.
func TestFleetMoves(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (o *oldFleet, next func(dir, state string)) {
		t.Helper()
		o = newOldFleet(t)
		o.state = filepath.Join(filepath.Dir(o.dir), clusterID+"-1111")
		o.put("fleet.json", "{}")
		o.put("lab/pve-1/terraform.tfstate", aState)
		must(t, o.scaler().Places())
		return o, func(dir, state string) {
			o.dir, o.state = filepath.Join(filepath.Dir(o.dir), dir), filepath.Join(filepath.Dir(o.dir), state)
		}
	}
	t.Run("moved", func(t *testing.T) {
		t.Parallel()
		o, next := begin(t)
		before, was := o.states(), o.dir
		next("elsewhere", clusterID+"-2222")
		must(t, os.Rename(was, o.dir))
		for range 2 {
			must(t, o.scaler().Places())
			if diff := cmp.Diff(before, o.states()); diff != "" {
				t.Errorf("states (-before +after):\n%s", diff)
			}
		}
		if said := strings.Join(o.said, "\n"); strings.Count(said, "the fleet was moved to "+o.dir) != 1 {
			t.Errorf("said %s", said)
		}
	})
	t.Run("copied", func(t *testing.T) {
		t.Parallel()
		o, next := begin(t)
		was := o.dir
		next("copy", clusterID+"-2222")
		must(t, os.CopyFS(o.dir, os.DirFS(was)))
		err := o.scaler().Places()
		var moved *scaler.MovedFleetError
		if !errors.As(err, &moved) || moved.Other != was || !strings.Contains(err.Error(), "use only one of the copies") {
			t.Errorf("got %v", err)
		}
		if got := o.states(); len(got) > 0 {
			t.Errorf("states %v", got)
		}
	})
	t.Run("copied, with one state directory", func(t *testing.T) {
		t.Parallel()
		o, next := begin(t)
		was := o.dir
		next("copy", filepath.Base(o.state))
		must(t, os.CopyFS(o.dir, os.DirFS(was)))
		if err := o.scaler().Places(); !as[*scaler.MovedFleetError](err) {
			t.Errorf("got %v", err)
		}
		// Once the original no longer exists, the copy is the fleet.
		must(t, os.RemoveAll(was), o.scaler().Places())
		if got := o.states(); len(got) != 1 {
			t.Errorf("states %v", got)
		}
	})
	t.Run("another cluster", func(t *testing.T) {
		t.Parallel()
		o, next := begin(t)
		next("other", "other-2222")
		o.edit = func(c *scaler.Config) { c.ClusterID = "other" }
		must(t, o.scaler().Places())
		if got := o.states(); len(got) > 0 {
			t.Errorf("states %v", got)
		}
	})
}

// TestStateDirIsPrivate checks that a state directory is refused if it is not set, or is
// in the fleet's directory or a git checkout, which others can write to.
func TestStateDirIsPrivate(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", "fleet/state", "fleet", "checkout/state"} {
		o := newOldFleet(t)
		must(t, os.MkdirAll(filepath.Join(filepath.Dir(o.dir), "checkout", ".git"), 0o755))
		if o.state = dir; dir != "" {
			o.state = filepath.Join(filepath.Dir(o.dir), dir)
		}
		if err := o.scaler().Places(); err == nil || !strings.Contains(err.Error(), "set state_dir in numaform.yaml") {
			t.Errorf("%q: got %v", dir, err)
		}
	}
}

// track adds a file to the index of a repository.
func track(t *testing.T, dir, name string) {
	t.Helper()
	repository, err := git.PlainInit(dir, false)
	must(t, err)
	tree, err := repository.Worktree()
	must(t, err)
	_, err = tree.Add(name)
	must(t, err)
}

// TestMarkOfTheMigration checks that the record of a migration contains the fleet's
// directory and the migrated states.
func TestMarkOfTheMigration(t *testing.T) {
	t.Parallel()
	o := newOldFleet(t)
	o.put("lab/pve-1/terraform.tfstate", aState)
	must(t, o.scaler().Places())
	content, err := os.ReadFile(filepath.Join(o.state, "states", "migrated.json"))
	must(t, err)
	var mark struct {
		From string
		Took []string
	}
	must(t, json.Unmarshal(content, &mark))
	if mark.From != o.dir || len(mark.Took) != 1 || mark.Took[0] != "lab/pve-1/terraform.tfstate" {
		t.Errorf("mark %s", content)
	}
}

// TestRunIsTakenOver migrates the record of an operation during which an older version
// died. It fails while that operation runs, and ignores or refuses records that prove
// nothing.
func TestRunIsTakenOver(t *testing.T) {
	t.Parallel()
	o := newOldFleet(t)
	work := filepath.Join(o.dir, ".numaform", "work", "lab", "pve-1")
	record := `{"operation":"applying","host":"h","pid":1,"began":"2026-01-01T00:00:00Z","until":"2026-01-01T00:01:00Z","dir":"` + work + `"}`
	name := ".numaform/work/lab/pve-1/.terraform/numaform/run.json"
	o.put(name, record)
	o.put(".numaform/work/lab/pve-1/.terraform/numaform/lock", "")
	lock, err := os.OpenFile(filepath.Join(work, ".terraform", "numaform", "lock"), os.O_RDWR, 0)
	must(t, err, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	if err := o.scaler().Places(); !errors.Is(err, state.ErrBusy) {
		t.Errorf("while it runs: %v", err)
	}
	must(t, lock.Close(), o.scaler().Places())
	content, err := os.ReadFile(filepath.Join(o.state, "work", "lab", "pve-1", ".terraform", "numaform", "run.json"))
	must(t, err)
	var got struct{ Dir, Former, Host string }
	must(t, json.Unmarshal(content, &got))
	if got.Dir != filepath.Join(o.state, "work", "lab", "pve-1") || got.Former != work || got.Host != "h" {
		t.Errorf("record %s", content)
	}

	// The record of a copied directory is ignored, and a pushed record is refused.
	o = newOldFleet(t)
	o.put(name, record)
	must(t, o.scaler().Places())
	if _, err := os.Stat(filepath.Join(o.state, "work", "lab", "pve-1", ".terraform")); err == nil {
		t.Error("a record of another directory was taken over")
	}
	o = newOldFleet(t)
	o.put(name, record)
	track(t, o.dir, name)
	var relic *scaler.RelicError
	if err := o.scaler().Places(); !errors.As(err, &relic) || strings.Contains(relic.Hint, "imports the VMs") {
		t.Errorf("tracked: %v, want a hint about a record, not about a state", err)
	}
}

// TestOldStateStays checks a migrated state that cannot be renamed, so that an older
// version would use it: the migration fails until the file in the way is removed.
func TestOldStateStays(t *testing.T) {
	t.Parallel()
	o := newOldFleet(t)
	o.put("lab/pve-1/terraform.tfstate", aState)
	inTheWay := filepath.Join(o.dir, "lab/pve-1/terraform.tfstate.migrated")
	must(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o755))
	for range 2 {
		if err := o.scaler().Places(); err == nil || !strings.Contains(err.Error(), "an older numaform would still use "+o.dir+"/lab/pve-1/terraform.tfstate") {
			t.Fatalf("got %v", err)
		}
	}
	must(t, os.RemoveAll(inTheWay), o.scaler().Places())
	if _, err := os.Stat(filepath.Join(o.dir, "lab/pve-1/terraform.tfstate")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old state is still there: %v", err)
	}
	if diff := cmp.Diff(map[string]string{"lab/pve-1/terraform.tfstate": aState}, o.states()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}
