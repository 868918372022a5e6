package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/store"
)

// TestGitRefusesPipes replaces a file of a repository with a named pipe: it is refused,
// because opening it would wait for a writer forever.
func TestGitRefusesPipes(t *testing.T) {
	t.Parallel()
	pipe := func(path string) {
		t.Helper()
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	checkout := t.TempDir()
	run(t, checkout, "init", "--quiet", "--initial-branch=main", ".")
	pipe(filepath.Join(checkout, ".git", "config"))
	_, _, err := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: checkout, Remote: bare(t)}).Read(t.Context())
	wantError(t, err, "config is not a regular file")

	linked := t.TempDir()
	pipe(filepath.Join(linked, ".git"))
	_, _, err = openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: linked, Remote: bare(t)}).Read(t.Context())
	wantError(t, err, ".git is neither a directory nor a regular file")

	origin := t.TempDir()
	run(t, origin, "init", "--quiet", "--initial-branch=main", ".")
	run(t, origin, "commit", "--quiet", "--allow-empty", "-m", "begin")
	worktree := filepath.Join(t.TempDir(), "linked")
	run(t, origin, "worktree", "add", "--quiet", worktree)
	pipe(filepath.Join(origin, ".git", "config"))
	_, _, err = openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: worktree, Remote: bare(t)}).Read(t.Context())
	wantError(t, err, "config is not a regular file")

	repository := bare(t)
	pipe(filepath.Join(repository, "HEAD"))
	_, _, err = openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: repository}).Read(t.Context())
	wantError(t, err, "HEAD is not a regular file")
}
