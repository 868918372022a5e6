package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// working returns a store with a remote, and both of their directories.
func working(t *testing.T) (g *store.Git, dir, remote string) {
	t.Helper()
	dir, remote = t.TempDir(), bare(t)
	return openGit(t, store.GitConfig{Dir: dir, Remote: remote}), dir, remote
}

// person returns another working copy of a remote.
func person(t *testing.T, remote string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, "clone", "--quiet", remote, ".")
	return dir
}

// commitAll commits what a person did, and pushes it.
func commitAll(t *testing.T, dir, message string) {
	t.Helper()
	run(t, dir, "add", "-A")
	run(t, dir, "commit", "--quiet", "-m", message)
	run(t, dir, "push", "--quiet")
}

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want an error with %q", err, text)
		}
	}
}

// wantClean wants git to see nothing that is not committed, and no damage.
func wantClean(t *testing.T, dir string) {
	t.Helper()
	if status := run(t, dir, "status", "--porcelain"); status != "" {
		t.Errorf("git status:\n%s", status)
	}
	run(t, dir, "fsck", "--strict")
}

// TestGitCommits looks at one apply with git itself.
func TestGitCommits(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	change := changed(0, 2000, 2001)
	change.Why = "2 pods\nNumaform-Approver: mallory"
	change.Shards[0].Approver = "ann"
	begin(t, g, wanted(), change)
	end(t, g, change)
	wantClean(t, dir)
	if got := run(t, remote, "rev-list", "--count", "main"); got != "1" {
		t.Errorf("%s commits, want one for each apply", got)
	}
	if got, want := run(t, remote, "log", "--format=%s"), "numaform: add a-2000, a-2001 on pve-1"; got != want {
		t.Errorf("subject %q, want %q", got, want)
	}
	want := "Numaform-Change: 20261121T134501Z-00000000\nNumaform-Kind: scale-up\nNumaform-Why: 2 pods Numaform-Approver: mallory\n" +
		"Numaform-Actor: ann@laptop\nNumaform-Plan: r/pve-1 sha256:" + strings.Repeat("ab", 32) +
		"\nNumaform-Verdict: r/pve-1 allowed\nNumaform-Approver: ann"
	if got := run(t, remote, "log", "--format=%(trailers:only)"); got != want {
		t.Errorf("trailers:\n%s\nwant:\n%s", got, want)
	}
	if body := run(t, remote, "log", "--format=%b"); !strings.Contains(body, "+ a-2001 on pve-1: the only host with free cores") {
		t.Errorf("body lacks why a VM stands where it does:\n%s", body)
	}
	if notes := run(t, remote, "log", "--notes=numaform"); !strings.Contains(notes, "Notes (numaform):") || !strings.Contains(notes, `"duration_ns": 60000000000`) {
		t.Errorf("git log --notes=numaform lacks the outcome:\n%s", notes)
	}
	if list := historyOf(t, g, time.Time{}); len(list) != 1 || list[0].Commit != run(t, remote, "rev-parse", "main") {
		t.Errorf("history %+v, want the commit's hash in it", list)
	}
}

func TestGitSubjects(t *testing.T) {
	t.Parallel()
	many := changed(0)
	for id := range 12 {
		many.Added = append(many.Added, changed(0, 2000+id).Added...)
	}
	undo := changed(0)
	undo.Kind, undo.Removed = audit.KindUndo, changed(0, 2000).Added
	hand := changed(0)
	hand.Kind = audit.KindByHand
	for name, tt := range map[string]struct {
		change audit.Change
		want   string
	}{
		"many":    {many, "numaform: add 12 nodes on pve-1"},
		"undo":    {undo, "numaform: undo: remove a-2000 on pve-1"},
		"by hand": {hand, "numaform: take over what was edited by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			begin(t, g, wanted(), tt.change)
			if got := run(t, remote, "log", "--format=%s"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestGitRevert has a person revert an apply: what is wanted goes back, and the
// history keeps all.
func TestGitRevert(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	old := render(map[fleet.VMID]string{2000: "pve-1"})
	first, second := changed(0, 2000), changed(1, 2001)
	begin(t, g, old, first)
	end(t, g, first)
	begin(t, g, wanted(), second)
	end(t, g, second)
	ann := person(t, remote)
	run(t, ann, "revert", "--no-edit", "HEAD")
	run(t, ann, "push", "--quiet")
	wantFiles(t, g, old)
	wantHistory(t, g, time.Time{}, closed(first), closed(second))
	wantHistory(t, g, second.Time, closed(second))
	third := changed(2)
	begin(t, g, old, third)
	end(t, g, third)
	wantHistory(t, g, time.Time{}, closed(first), closed(second), closed(third))
	run(t, ann, "pull", "--quiet")
	run(t, ann, "revert", "--no-edit", "HEAD~1")
	run(t, ann, "push", "--quiet")
	wantFiles(t, g, wanted())
	wantHistory(t, g, third.Time.Add(time.Hour), closed(third))
	wantClean(t, dir)
}

// TestGitRevertOfTheFirst takes the fleet's .gitignore away with the first commit, and
// neither state nor plan is there to be committed then.
func TestGitRevertOfTheFirst(t *testing.T) {
	t.Parallel()
	for _, subdir := range []string{"", "clusters/prod"} {
		dir := t.TempDir()
		g := openGit(t, store.GitConfig{Dir: dir, Remote: bare(t), Subdir: subdir})
		begin(t, g, wanted(), changed(0, 2000, 2001))
		for _, name := range []string{"r/pve-1/terraform.tfstate", "r/pve-1/.terraform/provider", store.PrivateDir + "/work/plan"} {
			put(t, filepath.Join(dir, filepath.FromSlash(subdir)), name, "secret")
		}
		put(t, dir, "elsewhere/terraform.tfstate", "not of the fleet")
		run(t, dir, "revert", "--no-edit", "HEAD")
		want := map[string]string{"": "", "clusters/prod": "?? elsewhere/"}[subdir]
		if got := run(t, dir, "status", "--porcelain", "--untracked-files=normal"); got != want {
			t.Errorf("in %q git would add %q, want %q", subdir, got, want)
		}
	}
}

// TestGitByHand has a person edit the working copy and not commit.
func TestGitByHand(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	begin(t, g, wanted(), changed(0))
	put(t, dir, "notes.txt", "mine")
	put(t, dir, "README.md", "mine too")
	run(t, dir, "add", "README.md")
	if err := os.Remove(filepath.Join(dir, "r", "pve-1", "node-a-2001.tf")); err != nil {
		t.Fatal(err)
	}
	want := wanted()
	delete(want, "r/pve-1/node-a-2001.tf")
	wantFiles(t, g, want)
	begin(t, g, want, changed(1))
	if got, want := run(t, remote, "show", "--format=", "--name-status", "main"), "A\thistory/2026/11/20261121T134601Z-00000001.json\nD\tr/pve-1/node-a-2001.tf"; got != want {
		t.Errorf("the commit has\n%s\nwant\n%s", got, want)
	}
	if got, want := run(t, dir, "status", "--porcelain"), "A  README.md\n?? notes.txt"; got != want {
		t.Errorf("status\n%s\nwant what is the person's own:\n%s", got, want)
	}
}

// TestGitForward has others push while a person's edits are not committed.
func TestGitForward(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	begin(t, g, wanted(), changed(0))
	ann := person(t, remote)
	put(t, ann, "docs/deep/a.txt", "a")
	put(t, ann, "run.sh", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Join(ann, "run.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("docs/deep", filepath.Join(ann, "link")); err != nil {
		t.Fatal(err)
	}
	commitAll(t, ann, "docs")
	put(t, dir, "r/pve-1/node-a-2001.tf", string(wanted()["r/pve-1/node-a-2001.tf"])+"# edited\n")
	want := wanted()
	want["r/pve-1/node-a-2001.tf"] = append(want["r/pve-1/node-a-2001.tf"], "# edited\n"...)
	wantFiles(t, g, want)
	if got, want := run(t, dir, "status", "--porcelain"), "M r/pve-1/node-a-2001.tf"; got != want {
		t.Errorf("status\n%s\nwant\n%s", got, want)
	}
	run(t, ann, "rm", "-r", "--quiet", "docs", "link")
	put(t, ann, "r/pve-1/node-a-2001.tf", "# theirs\n")
	commitAll(t, ann, "edit it too")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "node-a-2001.tf has changes that are not committed", "git checkout HEAD -- r/pve-1/node-a-2001.tf")
	run(t, dir, "checkout", "--quiet", "HEAD", "--", "r/pve-1/node-a-2001.tf")
	if _, _, err := g.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantClean(t, dir)
	if _, err := os.Lstat(filepath.Join(dir, "docs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of removed files: %v", err)
	}
}

// TestGitNeverForces has both sides commit.
func TestGitNeverForces(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	begin(t, g, wanted(), changed(0))
	ann := person(t, remote)
	put(t, ann, "a.txt", "theirs")
	commitAll(t, ann, "theirs")
	put(t, dir, "b.txt", "mine")
	run(t, dir, "add", "b.txt")
	run(t, dir, "commit", "--quiet", "-m", "mine")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "different commits", "git pull --rebase")
	run(t, dir, "pull", "--quiet", "--rebase")
	begin(t, g, render(nil), changed(1))
	if got := run(t, remote, "log", "--format=%s", "-2", "main"); !strings.HasSuffix(got, "\nmine") {
		t.Errorf("log %q, want the person's commit below ours", got)
	}
	run(t, remote, "update-ref", "refs/heads/main", "main~2")
	_, base, err := g.Read(t.Context()) // the remote was taken back: what is here is ahead
	if err != nil {
		t.Fatal(err)
	}
	run(t, remote, "update-ref", "refs/heads/main", "main~1")
	if err := g.Begin(t.Context(), base, wanted(), changed(2)); !errors.Is(err, store.ErrMoved) {
		t.Errorf("onto a branch that was taken back meanwhile: %v, want ErrMoved", err)
	}
}

func TestGitOffline(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	first := changed(0)
	begin(t, g, wanted(), first)
	_, base := readFrom(t, g)
	head := run(t, dir, "rev-parse", "HEAD")
	if err := os.Rename(remote, remote+".away"); err != nil {
		t.Fatal(err)
	}
	_, _, err := g.Read(t.Context())
	wantError(t, err, "fetching from "+remote, "nothing was changed")
	wantError(t, g.Begin(t.Context(), base, render(nil), changed(1)), "pushing to "+remote, "nothing was applied")
	wantError(t, g.End(t.Context(), ended(first)), "goes with the next one")
	if known, err := g.Known(t.Context(), time.Time{}); err != nil || len(known) != 1 || known[0].Change.ID != first.ID {
		t.Errorf("without the remote %v, %v is known", known, err)
	}
	if got := run(t, dir, "rev-parse", "HEAD"); got != head {
		t.Errorf("HEAD is %s, was %s", got, head)
	}
	wantClean(t, dir)
	if err := os.Rename(remote+".away", remote); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, g, wanted())
	second := changed(2)
	begin(t, g, render(nil), second)
	end(t, g, second)
	elsewhere := openGit(t, store.GitConfig{Dir: t.TempDir(), Remote: remote})
	wantHistory(t, elsewhere, time.Time{}, closed(first), closed(second))
}

// TestGitRefusedByARule has a remote that takes no pushes to the branch.
func TestGitRefusedByARule(t *testing.T) {
	t.Parallel()
	g, dir, remote := working(t)
	begin(t, g, wanted(), changed(0))
	put(t, remote, "hooks/pre-receive", "#!/bin/sh\necho protected branch >&2\nexit 1\n")
	if err := os.Chmod(filepath.Join(remote, "hooks", "pre-receive"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, base := readFrom(t, g)
	err := g.Begin(t.Context(), base, render(nil), changed(1))
	wantError(t, err, "pushing to", "hook declined")
	if errors.Is(err, store.ErrMoved) {
		t.Error("that is no moved fleet")
	}
	wantFiles(t, g, wanted())
	wantClean(t, dir)
}

// TestGitNotesOfTwo has two machines note outcomes without having seen each other's.
func TestGitNotesOfTwo(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	first, second := changed(0), changed(1)
	begin(t, g, wanted(), first)
	begin(t, g, wanted(), second)
	other := openGit(t, store.GitConfig{Dir: t.TempDir(), Remote: remote})
	readFrom(t, other)
	end(t, g, first)
	end(t, other, second)
	for _, view := range []store.Store{g, other, openGit(t, store.GitConfig{Dir: t.TempDir(), Remote: remote})} {
		wantHistory(t, view, time.Time{}, closed(first), closed(second))
	}
	if notes := run(t, remote, "notes", "--ref=numaform", "list"); strings.Count(notes, "\n") != 1 {
		t.Errorf("git finds the notes\n%s\nwant two", notes)
	}
}

func TestGitNoteOfAPerson(t *testing.T) {
	t.Parallel()
	g, dir, _ := working(t)
	first := changed(0)
	begin(t, g, wanted(), first)
	run(t, dir, "notes", "--ref=numaform", "add", "-m", "looks good")
	_, err := g.History(t.Context(), time.Time{})
	wantError(t, err, "in the note on commit "+run(t, dir, "rev-parse", "--short=12", "HEAD"), "git notes --ref=numaform edit")
}

// TestGitReview has a person merge what numaform proposes.
func TestGitReview(t *testing.T) {
	t.Parallel()
	for name, merge := range map[string][]string{
		"merge":  {"merge", "--quiet", "--no-ff", "--no-edit"},
		"squash": {"merge", "--quiet", "--squash"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, remote := t.TempDir(), bare(t)
			plain := openGit(t, store.GitConfig{Dir: dir, Remote: remote})
			begin(t, plain, render(nil), changed(0))
			g := openGit(t, store.GitConfig{Dir: dir, Remote: remote, Review: true})
			_, base := readFrom(t, g)
			change := changed(1, 2000)
			err := g.Begin(t.Context(), base, wanted(), change)
			var proposed *store.ProposedError
			if !errors.As(err, &proposed) || proposed.Branch != "numaform/"+change.ID || proposed.Remote != remote {
				t.Fatalf("got %v, want a proposal", err)
			}
			if got := run(t, remote, "rev-parse", proposed.Branch); got != proposed.Commit {
				t.Errorf("the branch is at %s, want %s", got, proposed.Commit)
			}
			wantFiles(t, g, render(nil))
			wantHistory(t, g, time.Time{}, open(changed(0)))
			wantClean(t, dir)

			ann := person(t, remote)
			run(t, ann, append(merge, "origin/"+proposed.Branch)...)
			if name == "squash" {
				run(t, ann, "commit", "--quiet", "-m", "a better message")
			}
			run(t, ann, "push", "--quiet")
			wantFiles(t, g, wanted())
			wantHistory(t, g, time.Time{}, open(changed(0)), open(change))
			finish := changed(2)
			begin(t, g, wanted(), finish) // only a record: nothing to review
			end(t, g, change)
			end(t, g, finish)
			wantHistory(t, g, change.Time, closed(change), closed(finish))
		})
	}
}

func TestGitWorkingCopiesItRefuses(t *testing.T) {
	t.Parallel()
	remote := bare(t)
	begin(t, openGit(t, store.GitConfig{Dir: t.TempDir(), Remote: remote}), wanted(), changed(0))
	for name, tt := range map[string]struct {
		prepare func(dir string)
		want    string
	}{
		"files":          {func(dir string) { put(t, dir, "a/b.txt", "") }, "it holds files and is no git repository: move them elsewhere"},
		"another branch": {func(dir string) { run(t, dir, "clone", "-q", remote, "."); run(t, dir, "switch", "-qc", "x") }, "it is on x: check main out"},
		"no branch":      {func(dir string) { run(t, dir, "clone", "-q", remote, "."); run(t, dir, "checkout", "-q", "--detach") }, "it is on no branch"},
		"another origin": {func(dir string) {
			run(t, dir, "clone", "-q", remote, ".")
			run(t, dir, "remote", "set-url", "origin", "/x")
		}, "its origin is /x, not " + remote},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.prepare(dir)
			_, _, err := openGit(t, store.GitConfig{Dir: dir, Remote: remote}).Read(t.Context())
			wantError(t, err, "opening the working copy "+dir, tt.want)
		})
	}
}

func TestGitBranchThatWent(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, wanted(), changed(0))
	run(t, remote, "branch", "other", "main")
	run(t, remote, "update-ref", "-d", "refs/heads/main")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "no longer has the branch main")
}

func TestGitConfig(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]store.GitConfig{
		"has no directory":                 {},
		"lies outside of the working copy": {Dir: "x", Subdir: "../y"},
		"is no name for a branch":          {Dir: "x", Branch: "a..b"},
	} {
		_, err := store.NewGit(config)
		wantError(t, err, want)
	}
}

func TestGitRemotesWithAUser(t *testing.T) {
	t.Parallel()
	for _, remote := range []string{"git@git.example:x.git", "ssh://git@git.example/x.git", "https://git.example/@x.git", "/srv/a@b.git"} {
		if _, err := store.NewGit(store.GitConfig{Dir: "x", Remote: remote}); err != nil {
			t.Errorf("%s: %v", remote, err)
		}
	}
	for _, remote := range []string{
		"https://u:hunter2@git.example/x.git", "https://hunter2@git.example/x.git", "HTTP://hunter2@git.example/x.git",
		"https://u:hunter2%zz@git.example/x.git", "https://u:hunter2/y@git.example/x.git", "ssh://git:hunter2@git.example/x.git",
	} {
		_, err := store.NewGit(store.GitConfig{Dir: "x", Remote: remote})
		wantError(t, err, "fleet.git.username", "NUMAFORM_GIT_TOKEN")
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v tells the password", err)
		}
	}
}

// TestGitNotesThatCannotBeRead loses the directory of the notes that holds a
// commit's: whether there is one is not known then.
func TestGitNotesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := openGit(t, store.GitConfig{Dir: dir})
	change := changed(0)
	begin(t, g, wanted(), change)
	end(t, g, change)
	tree := run(t, dir, "rev-parse", "refs/notes/numaform:"+run(t, dir, "rev-parse", "HEAD")[:2])
	if err := os.Remove(filepath.Join(dir, ".git", "objects", tree[:2], tree[2:])); err != nil {
		t.Fatal(err)
	}
	if err := g.End(t.Context(), ended(change)); err == nil || errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want an error that claims nothing", err)
	}
}

// TestGitTellsNoSecret has a remote that does not answer, and secrets for it.
func TestGitTellsNoSecret(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]store.GitConfig{
		"token":         {Remote: "http://127.0.0.1:1/x.git", Auth: store.GitAuth{Token: "c4n4ry"}},
		"in clear text": {Remote: "http://git.example/x.git", Auth: store.GitAuth{Token: "c4n4ry"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config.Dir = t.TempDir()
			_, _, err := openGit(t, config).Read(t.Context())
			wantError(t, err, config.Remote)
			if strings.Contains(err.Error(), "c4n4ry") {
				t.Errorf("%v tells the token", err)
			}
			wantNowhere(t, config.Dir, "c4n4ry")
		})
	}
	dir := t.TempDir()
	run(t, dir, "init", "-q", "-b", "main")
	run(t, dir, "remote", "add", "origin", "http://u:c4n4ry@127.0.0.1:1/x.git")
	_, _, err := openGit(t, store.GitConfig{Dir: dir}).Read(t.Context())
	wantError(t, err, "fetching from http://127.0.0.1:1/x.git")
	if strings.Contains(err.Error(), "c4n4ry") {
		t.Errorf("%v tells the password of a person's own remote", err)
	}
}

// wantNowhere wants no file below dir to hold a text.
func wantNowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), text) {
			t.Errorf("%s holds %q", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGitTakesOverADirectory makes a repository of a fleet that had none.
func TestGitTakesOverADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := changed(0)
	begin(t, store.NewDirectory(dir), wanted(), before)
	end(t, store.NewDirectory(dir), before)
	g := openGit(t, store.GitConfig{Dir: dir})
	wantFiles(t, g, wanted())
	wantHistory(t, g, time.Time{}, closed(before))
	since := changed(1)
	begin(t, g, wanted(), since)
	if list, err := g.History(t.Context(), time.Time{}); err != nil || len(list) != 2 || list[0].Change.ID != before.ID || list[1].Change.ID != since.ID {
		t.Errorf("history %v, %v", list, err)
	}
	if list := run(t, dir, "ls-tree", "-r", "--name-only", "HEAD"); !strings.Contains(list, "r/pve-1/node-a-2001.tf") || strings.Contains(list, store.PrivateDir) {
		t.Errorf("committed:\n%s", list)
	}
}

// TestGitDecisions keeps the words that people search for.
func TestGitDecisions(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	change := changed(0)
	change.Shards[0].Verdict.Decision = guard.NeedsApproval
	begin(t, g, wanted(), change)
	if got := run(t, remote, "log", "--format=%(trailers:key=Numaform-Verdict,valueonly)"); got != "r/pve-1 needs approval" {
		t.Errorf("verdict %q", got)
	}
}
