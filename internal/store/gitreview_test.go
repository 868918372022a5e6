package store_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/store"
)

// TestGitReviewWithoutRemote proposes a change in a repository of this machine that has no
// remote: the change is on a branch of its own, and nothing else changes until a person
// merges that branch.
func TestGitReviewWithoutRemote(t *testing.T) {
	t.Parallel()
	clone, dir := t.TempDir(), filepath.Join(t.TempDir(), "fleet")
	begin(t, openGit(t, store.GitConfig{Clone: clone, Dir: dir}), render(nil), changed(0))

	g := openGit(t, store.GitConfig{Clone: clone, Dir: dir, Review: true})
	_, base := readFrom(t, g)
	change := changed(1, 2000)
	err := g.Begin(t.Context(), base, desired(), change)
	var proposed *store.ProposedError
	if !errors.As(err, &proposed) || proposed.Branch != "numaform/"+change.ID || proposed.Remote != "" {
		t.Fatalf("got %v, want a proposal", err)
	}
	wantError(t, err, "waits for review on branch "+proposed.Branch+" (commit "+proposed.Commit[:12]+")")
	if got := run(t, dir, "rev-parse", proposed.Branch); got != proposed.Commit {
		t.Errorf("the branch is at %s, want %s", got, proposed.Commit)
	}
	wantFiles(t, g, render(nil))
	wantHistory(t, g, time.Time{}, open(changed(0)))

	run(t, dir, "update-ref", "refs/heads/main", proposed.Commit)
	wantFiles(t, g, desired())
	wantHistory(t, g, time.Time{}, open(changed(0)), open(change))
}

// TestGitKeepsEarlierHistory opens a fleet that was a plain directory until its user ran
// "git init". The records of that time are in the directory, committed or not.
func TestGitKeepsEarlierHistory(t *testing.T) {
	t.Parallel()
	for name, excluded := range map[string]string{"untracked": "history/", "committed": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			before := store.NewDirectory(dir)
			begin(t, before, render(nil), changed(0))
			end(t, before, changed(0))
			run(t, dir, "init", "--quiet", "--initial-branch=main")
			put(t, dir, ".git/info/exclude", excluded+"\n")
			run(t, dir, "add", ".")
			run(t, dir, "commit", "--quiet", "-m", "the fleet until now")
			run(t, dir, "remote", "add", "origin", bare(t))
			run(t, dir, "push", "--quiet", "origin", "main")

			g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: dir})
			begin(t, g, desired(), changed(1))
			end(t, g, changed(1))
			wantHistory(t, g, time.Time{}, closed(changed(0)), closed(changed(1)))
			wantHistory(t, g, changed(1).Time, closed(changed(1)))
		})
	}
}
