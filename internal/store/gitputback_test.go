package store_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/translog"
)

// guarded is a sealed fleet in git that pushes its copy again.
type guarded struct {
	*store.Sealed
	remote, subdir, key string
	reports             []store.PutBack
}

// newGuarded returns a fleet with three changes.
func newGuarded(t *testing.T, subdir string) *guarded {
	t.Helper()
	p := &guarded{remote: bare(t), subdir: subdir, key: filepath.Join(t.TempDir(), "key")}
	p.restart(t)
	for i := range 3 {
		begin(t, p, desired(), changed(i, 2000))
		end(t, p, changed(i))
	}
	return p
}

// other returns a store of the same installation with a new clone, which pushes nothing again.
func (p *guarded) other(t *testing.T) *store.Sealed {
	t.Helper()
	return store.NewSealed(openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: p.remote, Subdir: p.subdir}), store.FileVault(p.key), "prod")
}

// restart loses the clone.
func (p *guarded) restart(t *testing.T) {
	t.Helper()
	p.Sealed = p.other(t)
	p.PutBack(func(done store.PutBack) { p.reports = append(p.reports, done) })
}

// wantPutBack checks what was reported, and that the branch and the history are complete.
func (p *guarded) wantPutBack(t *testing.T, size int64, lost ...int) {
	t.Helper()
	wantFiles(t, p, desired())
	wantIntact(t, p.Sealed, size)
	wantIntact(t, p.other(t), size) // not only in the clone
	var ids []string
	for _, n := range lost {
		ids = append(ids, changed(n).ID)
	}
	if len(p.reports) != 1 || p.reports[0].Err != nil || !slices.Equal(p.reports[0].Lost, ids) {
		t.Fatalf("reported %+v, want one push of %q", p.reports, ids)
	}
	p.reports = nil
	wantSound(t, p.remote)
}

// TestPutBack takes the branch of a fleet back, as a forced push and a restore of the
// repository do, deletes it, and adds other commits to the older branch: numaform pushes its
// copy again, without force.
func TestPutBack(t *testing.T) {
	t.Parallel()
	for _, subdir := range []string{"", "clusters/prod"} {
		t.Run(filepath.Base(subdir), func(t *testing.T) {
			t.Parallel()
			p := newGuarded(t, subdir)
			head := run(t, p.remote, "rev-parse", "main")
			run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
			run(t, p.remote, "update-ref", "refs/notes/numaform", "refs/notes/numaform~2")
			p.wantPutBack(t, 6, 1, 2)
			if now := run(t, p.remote, "rev-parse", "main"); now != head {
				t.Errorf("the branch is at %s, want the same commit %s as before", now, head)
			}

			run(t, p.remote, "update-ref", "-d", "refs/heads/main")
			p.wantPutBack(t, 6, 0, 1, 2)

			run(t, p.remote, "update-ref", "refs/heads/main", "main~1")
			ann := person(t, p.remote)
			put(t, ann, "README.md", "theirs")
			commitAll(t, ann, "theirs")
			p.wantPutBack(t, 6, 2)
			if got := run(t, p.remote, "show", "main:README.md"); got != "theirs" {
				t.Errorf("README.md %q, want the other commit below ours", got)
			}
			begin(t, p, desired(), changed(3))
			end(t, p, changed(3))
			wantIntact(t, p.Sealed, 8)
			if len(p.reports) > 0 {
				t.Errorf("reported %+v", p.reports)
			}
		})
	}
}

// TestPutBackToANewRepository loses the repository at the server: once an empty one is at its
// address, numaform pushes its whole copy, with the outcomes.
func TestPutBackToANewRepository(t *testing.T) {
	t.Parallel()
	for _, subdir := range []string{"", "clusters/prod"} {
		t.Run(filepath.Base(subdir), func(t *testing.T) {
			t.Parallel()
			p := newGuarded(t, subdir)
			if err := os.RemoveAll(p.remote); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Read(t.Context()); err == nil {
				t.Error("the fleet was read without the repository")
			}
			run(t, filepath.Dir(p.remote), "init", "--quiet", "--bare", p.remote)
			p.wantPutBack(t, 6, 0, 1, 2)
			begin(t, p, desired(), changed(3))
			end(t, p, changed(3))
			wantIntact(t, p.other(t), 8)
		})
	}
}

// TestPutBackBesideALargeRecord takes the branch back to another commit with the same record,
// which is too large to be read.
func TestPutBackBesideALargeRecord(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "")
	ann := person(t, p.remote)
	large := func(message string) {
		put(t, ann, "history/2026/11/20261121T120000Z-aaaaaaaa.json", strings.Repeat(" ", 9<<20))
		run(t, ann, "add", "-A")
		run(t, ann, "commit", "--quiet", "-m", message)
		run(t, ann, "push", "--quiet", "--force")
	}
	large("a record")
	begin(t, p, desired(), changed(3, 2000))
	end(t, p, changed(3))
	run(t, ann, "reset", "--quiet", "--hard", "HEAD~1")
	large("the same record")
	wantFiles(t, p, desired())
	if len(p.reports) != 1 || p.reports[0].Err != nil || !slices.Equal(p.reports[0].Lost, []string{changed(3).ID}) {
		t.Errorf("reported %+v, want one push of %s", p.reports, changed(3).ID)
	}
}

// TestPutBackInBegin takes the branch back between a read and a write: the change is pushed
// together with what was lost.
func TestPutBackInBegin(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "")
	_, base := readFrom(t, p)
	run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
	if err := p.Begin(t.Context(), base, desired(), changed(3)); err != nil {
		t.Fatal(err)
	}
	end(t, p, changed(3))
	p.wantPutBack(t, 8, 1, 2)

	// Another commit, and a deleted branch: the caller reads again.
	_, base = readFrom(t, p)
	run(t, p.remote, "update-ref", "-d", "refs/heads/main")
	if err := p.Begin(t.Context(), base, desired(), changed(4)); err != nil && !errors.Is(err, store.ErrMoved) {
		t.Fatal(err)
	}
}

// TestPutBackKeepsOtherFiles checks that files outside the fleet's directory that a forced
// push removed, such as a secret, do not come back.
func TestPutBackKeepsOtherFiles(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "clusters/prod")
	before := run(t, p.remote, "rev-parse", "main")
	ann := person(t, p.remote)
	put(t, ann, "password", "s3cret")
	commitAll(t, ann, "oops")
	run(t, ann, "rm", "--quiet", "password")
	commitAll(t, ann, "remove it again")
	begin(t, p, desired(), changed(3))
	end(t, p, changed(3))
	run(t, p.remote, "update-ref", "refs/heads/main", before)
	p.wantPutBack(t, 8, 3)
	if log := run(t, p.remote, "log", "--format=%s", "main"); strings.Contains(log, "oops") {
		t.Errorf("the branch has the removed commit again:\n%s", log)
	}
}

// TestPutBackNot checks what numaform does not push again: what a user accepted, commits that
// have the same records, a revert, and a proposal that was merged and not applied.
func TestPutBackNot(t *testing.T) {
	t.Parallel()
	wantNothing := func(t *testing.T, p *guarded, size int64) {
		t.Helper()
		if wantIntact(t, p.Sealed, size); len(p.reports) > 0 {
			t.Errorf("reported %+v", p.reports)
		}
	}
	t.Run("squash", func(t *testing.T) {
		t.Parallel()
		p := newGuarded(t, "")
		ann := person(t, p.remote)
		run(t, ann, "checkout", "--quiet", "--orphan", "squashed")
		run(t, ann, "commit", "--quiet", "-m", "all of it")
		run(t, ann, "push", "--quiet", "--force", "origin", "squashed:main")
		// The outcomes are notes on commits that are gone.
		found, err := p.Audit(t.Context())
		if err != nil || len(p.reports) > 0 || slices.ContainsFunc(found.Findings, func(f audit.Finding) bool { return f.Kind == translog.KindChange }) {
			t.Errorf("findings %+v, reported %+v, %v", found.Findings, p.reports, err)
		}
	})
	t.Run("rebase", func(t *testing.T) {
		t.Parallel()
		p := newGuarded(t, "")
		ann := person(t, p.remote)
		run(t, ann, "rebase", "--quiet", "--root", "--force-rebase")
		run(t, ann, "push", "--quiet", "--force")
		wantNothing(t, p, 6)
		wantFiles(t, p, desired())
	})
	t.Run("revert", func(t *testing.T) {
		t.Parallel()
		p := newGuarded(t, "")
		begin(t, p, render(nil), changed(3))
		end(t, p, changed(3))
		ann := person(t, p.remote)
		run(t, ann, "revert", "--no-edit", "HEAD")
		run(t, ann, "push", "--quiet")
		wantFiles(t, p, desired())
		wantNothing(t, p, 8)
	})
	t.Run("accepted", func(t *testing.T) {
		t.Parallel()
		p := newGuarded(t, "")
		run(t, p.remote, "update-ref", "refs/heads/main", "main~1")
		user := p.other(t)
		found, err := user.Audit(t.Context())
		if err != nil || found.Rewritten == nil || !found.Rewritten.Older {
			t.Fatalf("another clone: %+v, %v", found, err)
		}
		accept := changed(4)
		accept.Kind, accept.Accepts = audit.KindAcceptRestore, audit.AcceptsOf(found.Open())
		begin(t, user, desired(), accept)
		end(t, user, accept)
		if found = auditOf(t, p.Sealed, 2); found.Rewritten != nil || len(p.reports) > 0 {
			t.Errorf("findings %+v, reported %+v", found.Open(), p.reports)
		}
		begin(t, p, desired(), changed(5))
	})
	t.Run("a person's commits", func(t *testing.T) {
		t.Parallel()
		p := newGuarded(t, "")
		before := run(t, p.remote, "rev-parse", "main")
		ann := person(t, p.remote)
		put(t, ann, "README.md", "a mistake")
		commitAll(t, ann, "a mistake")
		wantFiles(t, p, desired())
		wantIntact(t, p.Sealed, 6)
		run(t, p.remote, "update-ref", "refs/heads/main", before)
		wantFiles(t, p, desired())
		wantNothing(t, p, 6)
		if now := run(t, p.remote, "rev-parse", "main"); now != before {
			t.Errorf("the branch is at %s, want %s", now, before)
		}
	})
}

// TestPutBackAfterARestore rewrites every commit of a branch, with fewer records, after a user
// accepted a restore earlier: that acceptance is not one of this loss.
func TestPutBackAfterARestore(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "")
	run(t, p.remote, "update-ref", "refs/heads/main", "main~1")
	user := p.other(t)
	found, err := user.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	accept := changed(4)
	accept.Kind, accept.Accepts = audit.KindAcceptRestore, audit.AcceptsOf(found.Open())
	begin(t, user, desired(), accept)
	end(t, user, accept)
	p.restart(t)
	for i := 5; i < 7; i++ {
		begin(t, p, desired(), changed(i))
		end(t, p, changed(i))
	}
	auditOf(t, p.Sealed, 6)

	ann := person(t, p.remote)
	run(t, ann, "reset", "--quiet", "--hard", "HEAD~1")
	run(t, ann, "rebase", "--quiet", "--root", "--force-rebase")
	run(t, ann, "push", "--quiet", "--force")
	after := auditOf(t, p.Sealed, 6)
	if after.Rewritten != nil || len(p.reports) != 1 || !slices.Equal(p.reports[0].Lost, []string{changed(6).ID}) {
		t.Errorf("rewritten %v, reported %+v, want one push of %s", after.Rewritten, p.reports, changed(6).ID)
	}
	wantSound(t, p.remote)
}

// TestPutBackOfANewClone checks that a new clone has a copy as soon as it was audited, and
// that without one, the loss holds all changes.
func TestPutBackOfANewClone(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "")
	p.restart(t)
	wantIntact(t, p.Sealed, 6)
	run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
	p.wantPutBack(t, 6, 1, 2)

	p.restart(t)
	run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
	found, err := p.Audit(t.Context())
	if err != nil || found.Rewritten == nil || !found.Rewritten.Older || len(p.reports) > 0 {
		t.Errorf("without a copy: %+v, %v, reported %+v", found, err, p.reports)
	}
}

// TestPutBackRefused uses a remote that accepts no push: numaform writes nothing on top of the
// older branch, and pushes its copy as soon as it can.
func TestPutBackRefused(t *testing.T) {
	t.Parallel()
	p := newGuarded(t, "")
	run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
	put(t, p.remote, "hooks/pre-receive", "#!/bin/sh\necho protected branch >&2\nexit 1\n")
	hook := filepath.Join(p.remote, "hooks", "pre-receive")
	if err := os.Chmod(hook, 0o700); err != nil {
		t.Fatal(err)
	}
	_, base := readFrom(t, p)
	if len(p.reports) == 0 || p.reports[0].Err == nil || !strings.Contains(p.reports[0].String(), "cannot push its copy") {
		t.Fatalf("reported %+v, want an error", p.reports)
	}
	err := p.Begin(t.Context(), base, desired(), changed(3))
	if held, is := errors.AsType[*store.RewrittenError](err); !is || !held.Older {
		t.Errorf("a change on top of the older branch: %v", err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	p.reports = nil
	p.wantPutBack(t, 6, 1, 2)
	begin(t, p, desired(), changed(3))
}

// TestPutBackByTwo checks that two machines with a clone each put back what each of them wrote,
// whoever is first. If they share the head of the log, as replicas of a controller do, the one
// that lacks the newest change waits for the other.
func TestPutBackByTwo(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"two logs": false, "one log": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newGuarded(t, "")
			q := &guarded{remote: p.remote, key: p.key}
			if !shared {
				q.key = filepath.Join(t.TempDir(), "key")
				content, err := os.ReadFile(p.key)
				if err == nil {
					err = os.WriteFile(q.key, content, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			q.restart(t)
			begin(t, q, render(nil), changed(3))
			end(t, q, changed(3))
			run(t, p.remote, "update-ref", "refs/heads/main", "main~2")
			wantFiles(t, p, desired())
			if shared {
				_, base := readFrom(t, p)
				err := p.Begin(t.Context(), base, desired(), changed(4))
				if held, is := errors.AsType[*store.RewrittenError](err); !is || !held.Older {
					t.Errorf("a change without the newest one: %v", err)
				}
				wantFiles(t, q, render(nil))
			}
			begin(t, p, desired(), changed(4))
			end(t, p, changed(4))
			readFrom(t, q)
			found, err := q.Audit(t.Context())
			if err != nil || found.Rewritten != nil {
				t.Fatalf("%+v, %v", found, err)
			}
			ids := map[string]bool{}
			for _, e := range historyOf(t, p.other(t), time.Time{}) {
				ids[e.Change.ID] = e.Verified && e.OutcomeVerified
			}
			want := map[string]bool{}
			for n := range 5 {
				want[changed(n).ID] = true
			}
			if !maps.Equal(ids, want) {
				t.Errorf("history %v, want %v", ids, want)
			}
		})
	}
}
