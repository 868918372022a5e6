package store_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/store"
)

// TestGitReviewWithoutRemote proposes a change in a repository of this machine that has no
// remote: on a branch, and nothing else changes until a person merges it.
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
	if got := run(t, dir, "rev-parse", proposed.Branch); got != proposed.Commit {
		t.Errorf("the branch is at %s, want %s", got, proposed.Commit)
	}
	wantFiles(t, g, render(nil))
	wantHistory(t, g, time.Time{}, open(changed(0)))

	run(t, dir, "update-ref", "refs/heads/main", proposed.Commit)
	wantFiles(t, g, desired())
	wantHistory(t, g, time.Time{}, open(changed(0)), open(change))
}
