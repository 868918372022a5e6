package store_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// working returns a store with a remote, and the paths of its clone and of the remote.
func working(t *testing.T) (g *store.Git, clone, remote string) {
	t.Helper()
	clone, remote = filepath.Join(t.TempDir(), "git"), bare(t)
	return openGit(t, store.GitConfig{Clone: clone, Remote: remote}), clone, remote
}

// person returns another working copy of a remote.
func person(t *testing.T, remote string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, "clone", "--quiet", "--no-hardlinks", remote, ".")
	return dir
}

// commitAll commits a person's changes, and pushes them.
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

// wantSound checks the repository with git fsck.
func wantSound(t *testing.T, dir string) {
	t.Helper()
	run(t, dir, "fsck", "--strict")
}

// TestGitCommits checks the commit, the note and the messages of one apply with git itself.
func TestGitCommits(t *testing.T) {
	t.Parallel()
	g, clone, remote := working(t)
	change := changed(0, 2000, 2001)
	change.Why = "2 pods\nNumaform-Approver: mallory"
	change.Hosts[0].Approver = "ann"
	change.Approval = &audit.Approval{By: "bob", Digest: strings.Repeat("cd", 32)}
	begin(t, g, desired(), change)
	end(t, g, change)
	wantSound(t, clone)
	if got := run(t, remote, "rev-list", "--count", "main"); got != "1" {
		t.Errorf("%s commits, want one for each apply", got)
	}
	if got, want := run(t, remote, "log", "--format=%s"), "numaform: add a-2000, a-2001 on pve-1"; got != want {
		t.Errorf("subject %q, want %q", got, want)
	}
	want := "Numaform-Change: 20261121T134501Z-00000000\nNumaform-Kind: scale-up\nNumaform-Why: 2 pods Numaform-Approver: mallory\n" +
		"Numaform-Actor: ann@laptop\nNumaform-Plan: r/pve-1 sha256:" + strings.Repeat("ab", 32) +
		"\nNumaform-Verdict: r/pve-1 allowed\nNumaform-Approved-Digest: " + strings.Repeat("cd", 32) + "\nNumaform-Approver: ann\nNumaform-Approver: bob"
	if got := run(t, remote, "log", "--format=%(trailers:only)"); got != want {
		t.Errorf("trailers:\n%s\nwant:\n%s", got, want)
	}
	if body := run(t, remote, "log", "--format=%b"); !strings.Contains(body, "+ a-2001 on pve-1: the only host with free cores") {
		t.Errorf("body lacks the reason of a placement:\n%s", body)
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
	wake := changed(0)
	wake.Kind, wake.Woken = audit.KindWake, changed(0, 2000).Added
	rest := changed(0)
	rest.Kind, rest.Rested = audit.KindRecovery, changed(0, 2000).Added
	hand := changed(0)
	hand.Kind = audit.KindByHand
	unlock := audit.Change{ID: hand.ID, Time: hand.Time, ClusterID: hand.ClusterID, Kind: audit.KindRecovery, Outside: []string{"release of lock 7f3a"}}
	for name, tt := range map[string]struct {
		change audit.Change
		want   string
	}{
		"many":    {many, "numaform: add 12 nodes on pve-1"},
		"undo":    {undo, "numaform: undo: remove a-2000 on pve-1"},
		"wake":    {wake, "numaform: wake a-2000 on pve-1"},
		"rest":    {rest, "numaform: return to standby a-2000 on pve-1"},
		"by hand": {hand, "numaform: adopt edits made by hand"},
		"unlock":  {unlock, "numaform: record writes outside a plan"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			begin(t, g, desired(), tt.change)
			if got := run(t, remote, "log", "--format=%s"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestGitRevert reverts an apply as a person does: the desired state is reverted, and the
// history keeps all changes.
func TestGitRevert(t *testing.T) {
	t.Parallel()
	g, clone, remote := working(t)
	old := render(map[fleet.VMID]string{2000: "pve-1"})
	first, second := changed(0, 2000), changed(1, 2001)
	begin(t, g, old, first)
	end(t, g, first)
	begin(t, g, desired(), second)
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
	wantFiles(t, g, desired())
	wantHistory(t, g, third.Time.Add(time.Hour), closed(third))
	wantSound(t, clone)
}

// TestGitNeverForces moves the branch between a read and a write, forwards and backwards:
// the write returns ErrMoved.
func TestGitNeverForces(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(0))
	_, base := readFrom(t, g)
	ann := person(t, remote)
	put(t, ann, "README.md", "theirs")
	commitAll(t, ann, "theirs")
	if err := g.Begin(t.Context(), base, render(nil), changed(1)); !errors.Is(err, store.ErrMoved) {
		t.Errorf("onto a branch with another commit: %v, want ErrMoved", err)
	}
	begin(t, g, render(nil), changed(1))
	if got := run(t, remote, "log", "--format=%s", "-2", "main"); !strings.HasSuffix(got, "\ntheirs") {
		t.Errorf("log %q, want the person's commit below ours", got)
	}
	_, base = readFrom(t, g)
	run(t, remote, "update-ref", "refs/heads/main", "main~1")
	if err := g.Begin(t.Context(), base, desired(), changed(2)); !errors.Is(err, store.ErrMoved) {
		t.Errorf("onto a branch that was taken back meanwhile: %v, want ErrMoved", err)
	}
	wantFiles(t, g, desired())
}

func TestGitOffline(t *testing.T) {
	t.Parallel()
	g, clone, remote := working(t)
	first := changed(0)
	begin(t, g, desired(), first)
	_, base := readFrom(t, g)
	if err := os.Rename(remote, remote+".away"); err != nil {
		t.Fatal(err)
	}
	_, _, err := g.Read(t.Context())
	wantError(t, err, "fetching from "+remote, "nothing was changed")
	wantError(t, g.Begin(t.Context(), base, render(nil), changed(1)), "pushing to "+remote, "nothing was applied")
	wantError(t, g.End(t.Context(), ended(first)), "will be pushed with the next one")
	if known, err := g.Known(t.Context(), time.Time{}); err != nil || len(known) != 1 || known[0].Change.ID != first.ID {
		t.Errorf("without the remote %v, %v is known", known, err)
	}
	wantSound(t, clone)
	if err := os.Rename(remote+".away", remote); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, g, desired())
	second := changed(2)
	begin(t, g, render(nil), second)
	end(t, g, second)
	elsewhere := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	wantHistory(t, elsewhere, time.Time{}, closed(first), closed(second))
}

// TestGitRefusedByARule uses a remote that accepts no pushes to the branch: Begin reports
// that a hook declined the push, and the fleet is unchanged.
func TestGitRefusedByARule(t *testing.T) {
	t.Parallel()
	g, clone, remote := working(t)
	begin(t, g, desired(), changed(0))
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
	wantFiles(t, g, desired())
	wantSound(t, clone)
}

// TestGitNotesOfTwoClients records outcomes on two machines independently: both and a third
// machine read both outcomes.
func TestGitNotesOfTwoClients(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	first, second := changed(0), changed(1)
	begin(t, g, desired(), first)
	begin(t, g, desired(), second)
	other := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	readFrom(t, other)
	end(t, g, first)
	end(t, other, second)
	for _, view := range []store.Store{g, other, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})} {
		wantHistory(t, view, time.Time{}, closed(first), closed(second))
	}
	if notes := run(t, remote, "notes", "--ref=numaform", "list"); strings.Count(notes, "\n") != 1 {
		t.Errorf("git finds the notes\n%s\nwant two", notes)
	}
}

// TestGitNotesAfterALostResponse records an outcome on another machine while the response
// to a push is lost, and checks that the next outcome does not replace the recorded one.
func TestGitNotesAfterALostResponse(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	first, second := changed(0), changed(1)
	begin(t, g, desired(), first)
	other := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	readFrom(t, other)
	_, base := readFrom(t, g)
	g.Interrupt(func(step string) error {
		if step != "pushed" {
			return nil
		}
		end(t, other, first)
		return errCrash
	})
	if err := g.Begin(t.Context(), base, desired(), second); err != nil {
		t.Fatalf("a push whose answer was lost: %v", err)
	}
	g.Interrupt(nil)
	end(t, g, second)
	wantHistory(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), time.Time{}, closed(first), closed(second))
}

// TestGitNotesOfOtherClients adds an invalid note to the commit of a change as another
// client, in a remote that can omit large objects and in one that cannot. The outcome is
// unreadable, and the following changes succeed.
func TestGitNotesOfOtherClients(t *testing.T) {
	t.Parallel()
	first, second := changed(0), changed(1)
	for name, tt := range map[string]struct{ note, want string }{
		"of a person": {"looks good", "git notes --ref=numaform edit"},
		"another's":   {`{"format": 1, "id": "` + second.ID + `"}`, "it is the record of"},
		"enormous":    {strings.Repeat("x", 8<<20+1), "8388608"},
		"a newer":     {`{"format": 2, "id": "` + first.ID + `", "shards": 7}`, "a newer numaform wrote it"},
	} {
		for _, filters := range []string{"true", "false"} {
			t.Run(name+", a remote that filters: "+filters, func(t *testing.T) {
				t.Parallel()
				g, _, remote := working(t)
				run(t, remote, "config", "uploadpack.allowFilter", filters)
				begin(t, g, desired(), first)
				at := run(t, remote, "rev-parse", "--short=12", "main")
				put(t, remote, "note", tt.note)
				run(t, remote, "notes", "--ref=numaform", "add", "-F", filepath.Join(remote, "note"), "main")
				want := open(first)
				if name == "a newer" {
					want.Outcome = &audit.Outcome{Format: 2, ID: first.ID}
				}
				wantUnreadable(t, g, want, "in the note on commit "+at)
				wantUnreadable(t, g, want, tt.want)
				begin(t, g, desired(), second)
				end(t, g, second)
				wantUnreadable(t, g, want, tt.want, closed(second))
				wantUnreadable(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), want, tt.want, closed(second))
			})
		}
	}
}

// TestGitDamagedRepository removes an object of a record from a clone, and from a repository
// without a remote. The reason says that the repository is damaged, and how to repair it.
func TestGitDamagedRepository(t *testing.T) {
	t.Parallel()
	change := changed(0)
	for name, tt := range map[string]struct {
		// find returns the missing object.
		find  func(t *testing.T, repository string) string
		clone string
		entry audit.Entry
	}{
		"a change": {
			func(t *testing.T, repository string) string {
				for line := range strings.Lines(run(t, repository, "ls-tree", "-r", "main")) {
					if strings.HasSuffix(strings.TrimSpace(line), "/"+change.ID+".json") {
						return strings.Fields(line)[2]
					}
				}
				t.Fatal("the branch does not contain the record")
				return ""
			}, "more than 8388608 bytes, or because the clone is damaged", nothingOf(change),
		},
		"a note": {
			func(t *testing.T, repository string) string {
				return run(t, repository, "notes", "--ref=numaform", "list", "main")
			},
			"more than 8388608 bytes, or because the clone is damaged", open(change),
		},
		"a tree of notes": {
			func(t *testing.T, repository string) string {
				return run(t, repository, "rev-parse", "refs/notes/numaform:"+run(t, repository, "rev-parse", "main")[:2])
			}, "the clone is damaged: object not found: remove the directory", open(change),
		},
	} {
		for _, remote := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remote: %t", name, remote), func(t *testing.T) {
				t.Parallel()
				repository := bare(t)
				config, damaged, want := store.GitConfig{Dir: repository, Clone: t.TempDir()}, repository, "the repository is damaged: object not found: run git -C "+repository+" fsck"
				if remote {
					damaged = filepath.Join(t.TempDir(), "git")
					config, want = store.GitConfig{Clone: damaged, Remote: repository}, tt.clone
				}
				g := openGit(t, config)
				begin(t, g, desired(), change)
				end(t, g, change)
				hash := tt.find(t, repository)
				if err := os.Remove(filepath.Join(damaged, "objects", hash[:2], hash[2:])); err != nil {
					t.Fatal(err)
				}
				wantUnreadable(t, openGit(t, config), tt.entry, want)
			})
		}
	}
}

// TestGitInvalidNotes stores other content at the reference of the notes: existing clones
// keep their outcomes, and changes are still possible.
func TestGitInvalidNotes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a file", "a tree", "another branch"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			begin(t, g, desired(), changed(0))
			end(t, g, changed(0))
			put(t, remote, "note", "looks good")
			object := map[string]string{"a tree": "main^{tree}", "another branch": "main"}[name]
			if object == "" {
				object = run(t, remote, "hash-object", "-w", filepath.Join(remote, "note"))
			}
			run(t, remote, "update-ref", "refs/notes/numaform", run(t, remote, "rev-parse", object))
			wantHistory(t, g, time.Time{}, closed(changed(0)))
			begin(t, g, desired(), changed(1))
			wantHistory(t, g, time.Time{}, closed(changed(0)), open(changed(1)))
			fresh := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
			wantFiles(t, fresh, desired())
			if list := historyOf(t, fresh, time.Time{}); len(list) != 2 {
				t.Errorf("another machine finds %+v", list)
			}
		})
	}
}

// TestGitReview checks that a change becomes the desired state only when a reviewer has
// merged its branch.
func TestGitReview(t *testing.T) {
	t.Parallel()
	for name, merge := range map[string][]string{
		"merge":  {"merge", "--quiet", "--no-ff", "--no-edit"},
		"squash": {"merge", "--quiet", "--squash"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clone, remote := t.TempDir(), bare(t)
			plain := openGit(t, store.GitConfig{Clone: clone, Remote: remote})
			begin(t, plain, render(nil), changed(0))
			g := openGit(t, store.GitConfig{Clone: clone, Remote: remote, Review: true})
			_, base := readFrom(t, g)
			change := changed(1, 2000)
			err := g.Begin(t.Context(), base, desired(), change)
			var proposed *store.ProposedError
			if !errors.As(err, &proposed) || proposed.Branch != "numaform/"+change.ID || proposed.Remote != remote {
				t.Fatalf("got %v, want a proposal", err)
			}
			wantError(t, err, "waits for review on branch "+proposed.Branch+" of "+remote+" (commit "+proposed.Commit[:12]+")")
			if got := run(t, remote, "rev-parse", proposed.Branch); got != proposed.Commit {
				t.Errorf("the branch is at %s, want %s", got, proposed.Commit)
			}
			wantFiles(t, g, render(nil))
			wantHistory(t, g, time.Time{}, open(changed(0)))
			wantSound(t, clone)

			ann := person(t, remote)
			run(t, ann, append(merge, "origin/"+proposed.Branch)...)
			if name == "squash" {
				run(t, ann, "commit", "--quiet", "-m", "a better message")
			}
			run(t, ann, "push", "--quiet")
			wantFiles(t, g, desired())
			wantHistory(t, g, time.Time{}, open(changed(0)), open(change))
			finish := changed(2)
			begin(t, g, desired(), finish) // only a record: nothing to review
			end(t, g, change)
			end(t, g, finish)
			wantHistory(t, g, change.Time, closed(change), closed(finish))
		})
	}
}

func TestGitDeletedBranch(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(0))
	run(t, remote, "branch", "other", "main")
	run(t, remote, "update-ref", "-d", "refs/heads/main")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "no longer has the branch main")
}

// TestGitMisspelledBranch configures a branch that does not exist: a repository with a
// fleet on other branches is refused, until the user creates the branch. Branches without
// a fleet, and proposals, do not count.
func TestGitMisspelledBranch(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		subdir, filters string
		local           bool
	}{
		"remote":                 {filters: "false"},
		"remote with filters":    {filters: "true"},
		"below a directory":      {filters: "false", subdir: "clusters/prod"},
		"without a remote":       {local: true},
		"a directory, no remote": {local: true, subdir: "clusters/prod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote := bare(t)
			run(t, remote, "config", "uploadpack.allowFilter", cmp.Or(tt.filters, "false"))
			at := func(branch, subdir string) *store.Git {
				config := store.GitConfig{Clone: t.TempDir(), Remote: remote, Branch: branch, Subdir: subdir}
				if tt.local {
					config.Remote, config.Dir = "", remote
				}
				return openGit(t, config)
			}

			ann := t.TempDir()
			run(t, ann, "clone", "--quiet", remote, ".")
			put(t, ann, "README.md", "no fleet")
			run(t, ann, "add", "-A")
			run(t, ann, "commit", "--quiet", "-m", "start")
			run(t, ann, "push", "--quiet", "origin", "HEAD:docs", "HEAD:numaform/1")
			wantFiles(t, at("main", tt.subdir), generator.Files{})
			begin(t, at("main", tt.subdir), desired(), changed(0))
			run(t, remote, "update-ref", "refs/heads/numaform/2", "main")
			run(t, remote, "update-ref", "refs/heads/stage", "main")

			g := at("mian", tt.subdir)
			_, _, err := g.Read(t.Context())
			wantError(t, err, "branch mian (fleet.git.branch in numaform.yaml) does not exist in "+remote+", but a fleet exists there on main, stage: nothing was changed")
			_, err = g.History(t.Context(), time.Time{})
			wantError(t, err, "mian")
			wantFiles(t, at("mian", "elsewhere"), generator.Files{})

			run(t, remote, "update-ref", "-d", "refs/heads/main")
			run(t, remote, "update-ref", "-d", "refs/heads/stage")
			wantFiles(t, g, generator.Files{}) // proposals are not fleets
			run(t, remote, "update-ref", "refs/heads/main", "numaform/2")

			run(t, ann, "switch", "--quiet", "--orphan", "mian")
			run(t, ann, "commit", "--quiet", "--allow-empty", "-m", "fleet")
			run(t, ann, "push", "--quiet", "origin", "mian")
			wantFiles(t, g, generator.Files{})
			begin(t, g, render(nil), changed(1))
			wantFiles(t, at("mian", tt.subdir), render(nil))
			wantFiles(t, at("main", tt.subdir), desired())
			wantSound(t, remote)
		})
	}
}

func TestGitConfig(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]store.GitConfig{
		"has no directory for its clone":       {Dir: "x"},
		"has neither a remote nor a directory": {Clone: "c"},
		"must be a slash-separated path":       {Clone: "c", Dir: "x", Subdir: "../y"},
		"is not a valid branch name":           {Clone: "c", Dir: "x", Branch: "a..b"},
	} {
		_, err := store.NewGit(config)
		wantError(t, err, want)
	}
}

func TestGitRemotesWithAUser(t *testing.T) {
	t.Parallel()
	for _, remote := range []string{"git@git.example:x.git", "ssh://git@git.example/x.git", "https://git.example/@x.git", "/srv/a@b.git"} {
		if _, err := store.NewGit(store.GitConfig{Clone: "c", Remote: remote}); err != nil {
			t.Errorf("%s: %v", remote, err)
		}
	}
	for _, remote := range []string{
		"https://u:hunter2@git.example/x.git", "https://hunter2@git.example/x.git", "HTTP://hunter2@git.example/x.git",
		"https://u:hunter2%zz@git.example/x.git", "https://u:hunter2/y@git.example/x.git", "ssh://git:hunter2@git.example/x.git",
	} {
		_, err := store.NewGit(store.GitConfig{Clone: "c", Remote: remote})
		wantError(t, err, "fleet.git.username", "NUMAFORM_GIT_TOKEN")
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v tells the password", err)
		}
	}
}

// TestGitUnreadableNotes deletes the tree that contains a commit's note: End then fails,
// because it is unknown whether the commit has a note.
func TestGitUnreadableNotes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: dir})
	change := changed(0)
	begin(t, g, desired(), change)
	end(t, g, change)
	tree := run(t, dir, "rev-parse", "refs/notes/numaform:"+run(t, dir, "rev-parse", "main")[:2])
	if err := os.Remove(filepath.Join(dir, "objects", tree[:2], tree[2:])); err != nil {
		t.Fatal(err)
	}
	if err := g.End(t.Context(), ended(change)); err == nil || errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want an error that claims nothing", err)
	}
}

// TestGitNotesWithoutACommit deletes or damages the commit of the notes: outcomes are
// then unknown, and none counts as missing.
func TestGitNotesWithoutACommit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: dir})
	change := changed(0)
	begin(t, g, desired(), change)
	end(t, g, change)
	notes := run(t, dir, "rev-parse", "refs/notes/numaform")
	object := filepath.Join(dir, "objects", notes[:2], notes[2:])
	if err := os.Remove(object); err != nil {
		t.Fatal(err)
	}
	wantUnreadable(t, g, open(change), "in the note on commit")
	if err := os.WriteFile(object, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := g.History(t.Context(), time.Time{}); err == nil || !strings.Contains(err.Error(), "reading the record in the note on commit") {
		t.Errorf("got %+v, %v, want why the record cannot be read", list, err)
	}
}

// TestGitSilenceLimit checks that a context ends only when its remote has sent nothing for
// two minutes.
func TestGitSilenceLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, reader, cancel := store.SilenceLimit(t.Context(), strings.NewReader("pack"))
		defer cancel()
		for range 3 {
			<-time.After(100 * time.Second)
			if _, err := reader.Read(make([]byte, 1)); err != nil || ctx.Err() != nil {
				t.Fatalf("given up though it answers: %v, %v", err, context.Cause(ctx))
			}
		}
		<-time.After(119 * time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Errorf("given up early: %v", context.Cause(ctx))
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		wantError(t, context.Cause(ctx), "no response for 2m0s")
	})
}

// TestGitSilentSSH checks that reads from and pushes to an SSH server that accepts connections
// but sends nothing end with their context.
func TestGitSilentSSH(t *testing.T) {
	dir := t.TempDir()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "key", string(pem.EncodeToMemory(block)))
	put(t, dir, "known_hosts", "")
	t.Setenv("SSH_KNOWN_HOSTS", filepath.Join(dir, "known_hosts"))

	for name, call := range map[string]func(context.Context, *store.Git) error{
		"read": func(ctx context.Context, g *store.Git) error { _, _, err := g.Read(ctx); return err },
		"push": func(ctx context.Context, g *store.Git) error {
			return g.DropBranch(ctx, "numaform/1", strings.Repeat("1", 40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			accepted := make(chan net.Conn, 1)
			go func() {
				defer cancel()
				defer close(accepted)
				if conn, err := listener.Accept(); err == nil {
					accepted <- conn
				}
			}()
			g := openGit(t, store.GitConfig{
				Clone: t.TempDir(), Remote: fmt.Sprintf("ssh://git@%s/x.git", listener.Addr()), Auth: store.GitAuth{SSHKey: filepath.Join(dir, "key")},
			})
			ended := make(chan error, 1)
			go func() { ended <- call(ctx, g) }()
			select {
			case err = <-ended:
			case <-time.After(20 * time.Second):
				t.Error("it waits for the server")
			}
			if !t.Failed() && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			if err := listener.Close(); err != nil {
				t.Error(err)
			}
			if conn := <-accepted; conn == nil {
				t.Error("it did not connect")
			} else if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGitHidesSecrets checks that errors and the clone of an unreachable remote contain no
// secret of its configuration.
func TestGitHidesSecrets(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]store.GitConfig{
		"token":         {Remote: "http://127.0.0.1:1/x.git", Auth: store.GitAuth{Token: "c4n4ry"}},
		"in clear text": {Remote: "http://git.example/x.git", Auth: store.GitAuth{Token: "c4n4ry"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config.Clone = t.TempDir()
			_, _, err := openGit(t, config).Read(t.Context())
			wantError(t, err, config.Remote)
			if strings.Contains(err.Error(), "c4n4ry") {
				t.Errorf("%v tells the token", err)
			}
			wantNowhere(t, config.Clone, "c4n4ry")
		})
	}
	dir := t.TempDir()
	run(t, dir, "init", "-q", "-b", "main")
	run(t, dir, "remote", "add", "origin", "http://u:c4n4ry@127.0.0.1:1/x.git")
	clone := t.TempDir()
	_, _, err := openGit(t, store.GitConfig{Clone: clone, Dir: dir}).Read(t.Context())
	wantNowhere(t, clone, "c4n4ry")
	wantError(t, err, "fetching from http://127.0.0.1:1/x.git")
	if strings.Contains(err.Error(), "c4n4ry") {
		t.Errorf("%v tells the password of a person's own remote", err)
	}
}

// wantNowhere checks that no file below dir contains a text.
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

// TestGitDecisions checks the verdict in a commit message.
func TestGitDecisions(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	change := changed(0)
	change.Hosts[0].Verdict.Decision = guard.NeedsApproval
	begin(t, g, desired(), change)
	if got := run(t, remote, "log", "--format=%(trailers:key=Numaform-Verdict,valueonly)"); got != "r/pve-1 needs approval" {
		t.Errorf("verdict %q", got)
	}
}
