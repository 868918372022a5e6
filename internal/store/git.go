package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// defaultBranch is the branch of a GitConfig that names none.
const defaultBranch = "main"

// GitConfig says where a fleet's repository is.
type GitConfig struct {
	// Dir is the working copy. It may be lost if there is a remote.
	Dir string
	// Subdir is the fleet's directory below Dir, with slashes; empty means Dir itself.
	Subdir string
	// Remote is the URL of the repository that others see, without a password, and for
	// http without a user; empty means the working copy's origin, if it has one.
	Remote string
	// Branch holds what is wanted; empty means main.
	Branch string
	// Author makes the commits; empty means numaform.
	Author GitAuthor
	Auth   GitAuth
	// Review has changes of files pushed to a branch of their own for a person to
	// merge, rather than made.
	Review bool
}

// GitAuthor is who makes commits.
type GitAuthor struct{ Name, Email string }

// GitAuth is what opens the remote. Nothing of it is ever written anywhere.
type GitAuth struct {
	// Username goes with Token; empty means numaform.
	Username string
	// Token is the password for https.
	Token string
	// SSHKey is the path of a private key for ssh, without a passphrase; empty means
	// the ssh agent.
	SSHKey string
}

// Git is a fleet in a git repository: one commit for each apply, its outcome a note
// on it.
type Git struct {
	config GitConfig
	// fleet is the fleet's directory, root the whole working copy.
	fleet, root *Directory
}

var _ Store = (*Git)(nil)

// NewGit returns the fleet in a git repository. It neither reads nor writes yet.
func NewGit(config GitConfig) (*Git, error) {
	if config.Branch == "" {
		config.Branch = defaultBranch
	}
	if config.Author == (GitAuthor{}) {
		config.Author = GitAuthor{Name: "numaform", Email: "numaform@localhost"}
	}
	switch {
	case config.Dir == "":
		return nil, errors.New("the fleet's git store has no directory: name one for the working copy")
	case config.Subdir != "" && !fs.ValidPath(config.Subdir):
		return nil, fmt.Errorf("the fleet's git store: subdirectory %q lies outside of the working copy: name one below it, with slashes", config.Subdir)
	case plumbing.NewBranchReferenceName(config.Branch).Validate() != nil:
		return nil, fmt.Errorf("the fleet's git store: %q is no name for a branch", config.Branch)
	}
	if holdsSecret(config.Remote) {
		return nil, errors.New("the fleet's git store: the remote's URL holds a user or password, which would be written to .git/config: leave them out, " +
			"name the user in fleet.git.username, and set the environment variable NUMAFORM_GIT_TOKEN")
	}
	fleet := NewDirectory(filepath.Join(config.Dir, filepath.FromSlash(config.Subdir)))
	return &Git{config: config, fleet: fleet, root: &Directory{
		path: config.Dir, private: filepath.Join(fleet.private, "git"), tree: true,
	}}, nil
}

// webUser matches a URL with a user; what cannot be parsed may be one, too.
var webUser = regexp.MustCompile(`(?i)^\s*https?:.*@`)

// holdsSecret reports whether a URL may hold a credential: many servers take a token
// in place of the user, so for http only a URL without user holds none for sure.
func holdsSecret(remote string) bool {
	parsed, err := url.Parse(remote)
	if err != nil {
		return webUser.MatchString(remote)
	}
	if parsed.User == nil {
		return false
	}
	_, secret := parsed.User.Password()
	return secret || parsed.Scheme == "http" || parsed.Scheme == "https"
}

// Path returns the path of the fleet's directory.
func (g *Git) Path() string { return g.fleet.Path() }

// Lock takes the working copy for one process of this machine. Between machines,
// the push decides: whoever comes second is told ErrMoved.
func (g *Git) Lock(ctx context.Context) (unlock func() error, err error) { return g.fleet.Lock(ctx) }

// Read fetches, brings the working copy forward to the remote's branch, and returns
// its files. What people changed in it and did not commit is part of what is
// wanted. It fails if the remote cannot be reached, as nobody could write then.
func (g *Git) Read(ctx context.Context) (files generator.Files, revision Revision, err error) {
	err = g.with(func(w *worktree) error {
		if err := w.pull(ctx); err != nil {
			return err
		}
		have, err := g.fleet.scan()
		files = generator.Select(have)
		revision = RevisionOf(files)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return files, revision, nil
}

// Begin commits files and the change's record and pushes them; only then it touches
// the working copy. A remote that others pushed to meanwhile is ErrMoved; one that
// cannot be reached is an error, and nothing was changed.
func (g *Git) Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	if err := g.fleet.inside(files); err != nil {
		return err
	}
	return g.with(func(w *worktree) error {
		next, changes, err := w.next(base, files, &change, record)
		if err != nil {
			return err
		}
		if g.config.Review && changes {
			return w.propose(ctx, next.Commit, change.ID)
		}
		if err := w.publish(ctx, next.Commit); err != nil {
			return err
		}
		return w.land(next)
	})
}

// End notes the outcome on the change's commit and pushes the note.
func (g *Git) End(ctx context.Context, outcome audit.Outcome) error {
	record, err := encodeOutcome(outcome)
	if err != nil {
		return err
	}
	began, err := time.Parse(idTime, outcome.ID[:len(idTime)])
	if err != nil {
		return fmt.Errorf("recording the outcome of change %s: %w", outcome.ID, err)
	}
	return g.with(func(w *worktree) error {
		records, err := w.records(began)
		if err != nil {
			return err
		}
		found, exists := records[outcome.ID]
		if !exists {
			return fmt.Errorf("recording the outcome of change %s: no commit of branch %s holds it: %w", outcome.ID, g.config.Branch, fs.ErrNotExist)
		}
		return w.note(ctx, found.commit, record, outcome.Time)
	})
}

// History fetches, and returns the changes of the branch. It reads them from the
// commits that brought them, so nothing that people do to files takes them away. Those
// that were made before the directory became a repository are among them.
func (g *Git) History(ctx context.Context, since time.Time) (list []audit.Entry, err error) {
	return g.history(ctx, since, (*worktree).pull)
}

// Known returns the changes that the working copy knows, without asking the remote.
func (g *Git) Known(ctx context.Context, since time.Time) (list []audit.Entry, err error) {
	return g.history(ctx, since, func(*worktree, context.Context) error { return nil })
}

func (g *Git) history(ctx context.Context, since time.Time, pull func(*worktree, context.Context) error) (list []audit.Entry, err error) {
	err = g.with(func(w *worktree) error {
		if err := pull(w, ctx); err != nil {
			return err
		}
		records, err := w.records(since)
		if err != nil {
			return err
		}
		list, err = entries(slices.Collect(maps.Keys(records)), since, func(id string) (audit.Entry, error) { return w.entry(id, records[id]) })
		return err
	})
	if err != nil {
		return nil, err
	}
	before, err := g.fleet.History(ctx, since)
	if err != nil || len(before) == 0 {
		return list, err
	}
	committed := map[string]bool{}
	for i := range list {
		committed[list[i].Change.ID] = true
	}
	before = slices.DeleteFunc(before, func(e audit.Entry) bool { return committed[e.Change.ID] })
	list = append(before, list...)
	slices.SortStableFunc(list, func(a, b audit.Entry) int { return a.Change.Time.Compare(b.Change.Time) })
	return list, nil
}

// with opens the working copy, finishes what was cut off in it, and lets f work
// with it while no other process does.
func (g *Git) with(f func(*worktree) error) error {
	return g.root.alone(func() error {
		w, err := g.open()
		if err != nil {
			return g.scrub(fmt.Errorf("opening the working copy %s: %w", g.config.Dir, err))
		}
		if err := g.exclude(); err != nil {
			return err
		}
		if err := g.fleet.resume(); err != nil {
			return err
		}
		if err := w.resume(); err != nil {
			return g.scrub(err)
		}
		return g.scrub(f(w))
	})
}

// inRepository returns the path below the working copy of a file of the fleet.
func (g *Git) inRepository(name string) string { return path.Join(g.config.Subdir, name) }

var userinfo = regexp.MustCompile(`://[^/@\s]+@`)

// scrubbedError is an error of a library without the secrets in its text.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }

// scrub takes what could be a credential out of an error's text.
func (g *Git) scrub(err error) error {
	if err == nil {
		return nil
	}
	text := userinfo.ReplaceAllString(err.Error(), "://")
	if secret := g.config.Auth.Token; secret != "" {
		text = replaceAll(text, secret)
	}
	if text == err.Error() {
		return err
	}
	return &scrubbedError{text: text, err: err}
}

// empty reports whether nothing but numaform's private files is in the working copy.
func (g *Git) empty() (bool, error) {
	empty := true
	err := filepath.WalkDir(g.config.Dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == PrivateDir {
			return fs.SkipDir
		}
		if !entry.IsDir() {
			empty = false
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return empty, err
}
