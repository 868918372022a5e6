package store

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// DefaultBranch is the branch if GitConfig has none.
const DefaultBranch = "main"

// GitConfig configures a fleet's repository.
type GitConfig struct {
	// Clone is the directory of numaform's bare clone; no other program writes to it.
	Clone string
	// Dir is a checkout for users, which numaform never writes to. Without a Remote and an
	// origin, Dir is the bare repository itself.
	Dir string
	// Subdir is the fleet's directory in the repository, with slashes; empty means the top
	// directory.
	Subdir string
	// Remote is the URL of the shared repository, without a password and, for http and
	// https, without a user; empty means the origin of Dir, if it has one.
	Remote string
	// Branch is the branch with the desired state; empty means main.
	Branch string
	// Author is the author of the commits; empty means numaform.
	Author GitAuthor
	Auth   GitAuth
	// Review pushes changes of files to a separate branch for a reviewer to merge, instead
	// of applying them.
	Review bool
}

// GitAuthor is the author of commits.
type GitAuthor struct{ Name, Email string }

// GitAuth is the credential for the remote. It is never written to disk.
type GitAuth struct {
	// Username is the user for Token; empty means numaform.
	Username string
	// Token is the password for https.
	Token string
	// SSHKey is the path of a private key for ssh, without a passphrase; empty means the
	// ssh agent.
	SSHKey string
	// CAs are the certificate authorities to trust for https; nil means the system's.
	CAs *x509.CertPool
}

// Git is a fleet in a git repository: each apply is a commit, and its outcome is a note
// on the commit. It reads and writes objects in a bare clone and never writes to a user's
// checkout.
type Git struct {
	config GitConfig
	// locks is the directory of the lock files, in the clone.
	locks     *Directory
	interrupt interrupt
	// copies is set by PutBack.
	copies *copies

	mu sync.Mutex
	// withoutFleet contains the heads of other branches that contain no fleet.
	withoutFleet map[plumbing.Hash]bool
}

var _ Store = (*Git)(nil)

// NewGit returns the fleet in a git repository. It does no I/O.
func NewGit(config GitConfig) (*Git, error) {
	if config.Branch == "" {
		config.Branch = DefaultBranch
	}
	if config.Author == (GitAuthor{}) {
		config.Author = GitAuthor{Name: "numaform", Email: "numaform@localhost"}
	}
	switch {
	case config.Clone == "":
		return nil, errors.New("the fleet's git store has no directory for its clone: set state_dir in numaform.yaml")
	case config.Dir == "" && config.Remote == "":
		return nil, errors.New("the fleet's git store has neither a remote nor a directory: set fleet.git.remote or fleet.dir")
	case config.Subdir != "" && !fs.ValidPath(config.Subdir):
		return nil, fmt.Errorf("the fleet's git store: fleet.git.subdir %q must be a slash-separated path relative to the root of the repository", config.Subdir)
	case plumbing.NewBranchReferenceName(config.Branch).Validate() != nil:
		return nil, fmt.Errorf("the fleet's git store: fleet.git.branch %q is not a valid branch name: set it to a branch that git accepts", config.Branch)
	}
	if holdsSecret(config.Remote) {
		return nil, errors.New("the fleet's git store: the remote's URL contains a user or password, which messages and other programs would show: remove them, " +
			"set fleet.git.username to the user and the environment variable NUMAFORM_GIT_TOKEN to the password")
	}
	if config.Subdir == "." {
		config.Subdir = ""
	}
	return &Git{
		config: config, locks: &Directory{path: config.Clone, private: filepath.Join(config.Clone, "numaform")},
		withoutFleet: map[plumbing.Hash]bool{},
	}, nil
}

// webUser matches a URL with a user, including URLs that cannot be parsed.
var webUser = regexp.MustCompile(`(?i)^\s*https?:.*@`)

// holdsSecret reports whether a URL may contain a credential: a password or, in an http or
// https URL, any user, because many servers accept a token as the user.
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

// Lock locks the fleet against other processes on this machine. Between machines, the
// first push wins: Begin returns ErrMoved to the second machine.
func (g *Git) Lock(ctx context.Context) (unlock func() error, err error) {
	if err := g.makeClone(); err != nil {
		return nil, err
	}
	return g.locks.Lock(ctx)
}

// Holder names the process on this machine that holds the lock, or returns "".
func (g *Git) Holder(ctx context.Context) (string, error) { return g.locks.Holder(ctx) }

// Read fetches, and returns the fleet's files at the head of the remote's branch. It
// fails if the remote is unreachable, because a write would also fail, and if a checkout has
// changes of the fleet that are not on the branch.
func (g *Git) Read(ctx context.Context) (files generator.Files, revision Revision, err error) {
	err = g.with(func(r *repository) error {
		if err := r.pull(ctx); err != nil {
			return err
		}
		_, have, err := r.current()
		files = generator.Select(have)
		revision = RevisionOf(files)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return files, revision, nil
}

// Begin commits files and the change's record, and pushes them. It returns ErrMoved if
// another client has pushed to the branch since the last Read. If the remote is
// unreachable, it returns an error and changes nothing. With Review, it pushes changed
// files to a separate branch and returns a ProposedError.
func (g *Git) Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	if err := checkPaths(g.where(), files); err != nil {
		return err
	}
	return g.with(func(r *repository) error { return r.begin(ctx, base, files, &change, record) })
}

// End adds the outcome as a note to the change's commit, and pushes the note.
func (g *Git) End(ctx context.Context, outcome audit.Outcome) error {
	record, err := encodeOutcome(outcome)
	if err != nil {
		return err
	}
	began, err := time.Parse(idTime, outcome.ID[:len(idTime)])
	if err != nil {
		return fmt.Errorf("recording the outcome of change %s: %w", outcome.ID, err)
	}
	return g.with(func(r *repository) error {
		records, err := r.records(began)
		if err != nil {
			return err
		}
		found, exists := records[outcome.ID]
		if !exists {
			return fmt.Errorf("recording the outcome of change %s: no commit of branch %s contains it: %w", outcome.ID, g.config.Branch, fs.ErrNotExist)
		}
		return r.note(ctx, found.commit, record, outcome.Time)
	})
}

// History fetches, and returns the changes of the branch. It reads records from the
// commits that added them, so later edits of the files cannot remove them. It includes
// changes made before a checkout's directory became a repository.
func (g *Git) History(ctx context.Context, since time.Time) (list []audit.Entry, err error) {
	return g.history(ctx, since, (*repository).pull, nil)
}

// Proofs is like History for the complete history, after audit.Entry.Reduce.
func (g *Git) Proofs(ctx context.Context) ([]audit.Entry, error) {
	return g.history(ctx, time.Time{}, (*repository).pull, (*audit.Entry).Reduce)
}

// Known returns the changes in the clone, without contacting the remote.
func (g *Git) Known(ctx context.Context, since time.Time) (list []audit.Entry, err error) {
	return g.history(ctx, since, func(*repository, context.Context) error { return nil }, nil)
}

func (g *Git) history(
	ctx context.Context, since time.Time, pull func(*repository, context.Context) error, reduce func(*audit.Entry),
) (list []audit.Entry, err error) {
	err = g.with(func(r *repository) error {
		if err := pull(r, ctx); err != nil {
			return err
		}
		records, err := r.records(since)
		if err != nil {
			return err
		}
		notes, notesErr := r.notesTree()
		list, err = entries(slices.Collect(maps.Keys(records)), since, func(id string) loadEntry { return r.entry(notes, notesErr, id, records[id]) }, reduce)
		return err
	})
	if err != nil {
		return nil, err
	}
	if g.config.Dir == "" {
		return list, nil
	}
	before, err := NewDirectory(g.fleetDir()).History(ctx, since)
	if err != nil || len(before) == 0 {
		return list, err
	}
	return joinHistories(before, list, since), nil
}

// joinHistories adds the history from before the directory was a checkout to the committed
// one. Records of that time can be committed, too, but their outcomes are files, not
// notes.
func joinHistories(before, committed []audit.Entry, since time.Time) []audit.Entry {
	entries := map[string]audit.Entry{}
	for _, entry := range before {
		entries[entry.Change.ID] = entry
	}
	for _, entry := range committed {
		if entry.Outcome == nil {
			entry.Outcome = entries[entry.Change.ID].Outcome
		}
		entries[entry.Change.ID] = entry
	}
	list := slices.SortedFunc(maps.Values(entries), func(a, b audit.Entry) int {
		return cmp.Or(a.Change.Time.Compare(b.Change.Time), cmp.Compare(a.Change.ID, b.Change.ID))
	})
	last := list[len(list)-1].Change.ID
	return slices.DeleteFunc(list, func(e audit.Entry) bool { return e.Change.ID != last && e.Change.Time.Before(since) })
}

// with opens the clone and calls f while no other process uses it.
func (g *Git) with(f func(*repository) error) error {
	if err := g.makeClone(); err != nil {
		return err
	}
	return g.locks.exclusive(func() (err error) {
		r, err := g.open()
		if err != nil {
			return g.scrub(err)
		}
		defer func() { err = errors.Join(err, r.close()) }()
		return g.scrub(f(r))
	})
}

// makeClone creates the clone's directory, accessible only to its owner.
func (g *Git) makeClone() error {
	if err := os.MkdirAll(g.config.Clone, 0o700); err != nil {
		return fmt.Errorf("opening the clone of the fleet's repository: %w: set state_dir to a directory that numaform can write", err)
	}
	return nil
}

// where describes the fleet's place for errors.
func (g *Git) where() string {
	at := g.config.Remote
	if at == "" {
		at = g.config.Dir
	}
	at = "branch " + g.config.Branch + " of " + userinfo.ReplaceAllString(at, "://")
	if g.config.Subdir != "" {
		at += ", directory " + g.config.Subdir
	}
	return at
}

// inRepository returns the path in the repository of a file of the fleet.
func (g *Git) inRepository(name string) string {
	if g.config.Subdir == "" {
		return name
	}
	return g.config.Subdir + "/" + name
}

var userinfo = regexp.MustCompile(`://[^/@\s]+@`)

// scrubbedError is an error of a library without the secrets in its text.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }

// scrub removes from an error's text anything that could be a credential or a terminal
// control sequence, because a server writes part of the text.
func (g *Git) scrub(err error) error {
	if err == nil {
		return nil
	}
	text := userinfo.ReplaceAllString(err.Error(), "://")
	if secret := g.config.Auth.Token; secret != "" {
		text = strings.ReplaceAll(text, secret, "[hidden]")
	}
	text = strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
	if text == err.Error() {
		return err
	}
	return &scrubbedError{text: text, err: err}
}
