package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
)

const (
	remoteName = "origin"
	// notesRef holds the outcomes, as git notes keeps them; seenNotes is the remote's
	// as last fetched.
	notesRef  plumbing.ReferenceName = "refs/notes/numaform"
	seenNotes plumbing.ReferenceName = "refs/numaform/notes/numaform"
)

// networkTimeout bounds one exchange with the remote.
const networkTimeout = 2 * time.Minute

// worktree is an open working copy.
type worktree struct {
	*Git
	repo   *git.Repository
	remote *git.Remote // nil if there is none
	branch plumbing.ReferenceName
	// seen is the remote's branch as last fetched.
	seen plumbing.ReferenceName
}

// open opens the working copy, or makes an empty one.
func (g *Git) open() (*worktree, error) {
	w := &worktree{
		Git: g, branch: plumbing.NewBranchReferenceName(g.config.Branch),
		seen: plumbing.NewRemoteReferenceName(remoteName, g.config.Branch),
	}
	var err error
	w.repo, err = git.PlainOpenWithOptions(g.config.Dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if errors.Is(err, git.ErrRepositoryNotExists) {
		err = w.create()
	}
	if err != nil {
		return nil, err
	}
	if err := w.onBranch(); err != nil {
		return nil, err
	}
	w.remote, err = w.findRemote()
	return w, err
}

// create makes a repository. Where it takes the content of a remote, there must be
// nothing yet.
func (w *worktree) create() (err error) {
	if w.config.Remote != "" {
		empty, err := w.empty()
		if err != nil {
			return err
		}
		if !empty {
			return fmt.Errorf("it holds files and is no git repository: move them elsewhere, so that %s can be cloned there, "+
				"or make it one with git init", w.config.Remote)
		}
	}
	w.repo, err = git.PlainInitWithOptions(w.config.Dir, &git.PlainInitOptions{InitOptions: git.InitOptions{DefaultBranch: w.branch}})
	return err
}

// onBranch refuses a working copy that a person uses for something else.
func (w *worktree) onBranch() error {
	head, err := w.repo.Reference(plumbing.HEAD, false)
	if err != nil {
		return err
	}
	if head.Type() != plumbing.SymbolicReference || head.Target() != w.branch {
		at := head.Target().Short()
		if at == "" {
			at = "no branch"
		}
		return fmt.Errorf("it is on %s: check %s out, which holds the fleet, or name the branch in the configuration", at, w.config.Branch)
	}
	return nil
}

// findRemote returns the remote of the configuration, which the working copy then
// knows as origin too, or the origin that it has.
func (w *worktree) findRemote() (*git.Remote, error) {
	wanted := w.config.Remote
	remote, err := w.repo.Remote(remoteName)
	switch {
	case errors.Is(err, git.ErrRemoteNotFound) && wanted == "":
		return nil, nil
	case errors.Is(err, git.ErrRemoteNotFound):
		return w.createRemote(wanted)
	case err != nil:
		return nil, err
	}
	if wanted != "" && !slices.Contains(remote.Config().URLs, wanted) {
		return nil, fmt.Errorf("its origin is %s, not %s: name another directory, or change it with git remote set-url",
			strings.Join(remote.Config().URLs, ", "), wanted)
	}
	return remote, nil
}

// createRemote notes the remote as git clone does, so that git pull works here.
func (w *worktree) createRemote(url string) (*git.Remote, error) {
	remote, err := w.repo.CreateRemote(&config.RemoteConfig{Name: remoteName, URLs: []string{url}})
	if err != nil {
		return nil, err
	}
	err = w.repo.CreateBranch(&config.Branch{Name: w.config.Branch, Remote: remoteName, Merge: w.branch})
	if errors.Is(err, git.ErrBranchExists) {
		err = nil
	}
	return remote, err
}

func (w *worktree) url() string { return w.remote.Config().URLs[0] }

// auth returns what opens the remote, or nil for what git does by itself.
func (w *worktree) auth() (transport.AuthMethod, error) {
	endpoint, err := transport.NewEndpoint(w.url())
	if err != nil {
		return nil, err
	}
	secrets := w.config.Auth
	switch {
	case endpoint.Protocol == "ssh" && secrets.SSHKey != "":
		user := endpoint.User
		if user == "" {
			user = ssh.DefaultUsername
		}
		return ssh.NewPublicKeysFromFile(user, filepath.Clean(secrets.SSHKey), "")
	case endpoint.Protocol == "http" && secrets.Token != "" && !loopback(endpoint.Host):
		return nil, errors.New("the token would cross the network in clear text: use https")
	case strings.HasPrefix(endpoint.Protocol, "http") && secrets.Token != "":
		user := secrets.Username
		if user == "" {
			user = "numaform"
		}
		return &http.BasicAuth{Username: user, Password: secrets.Token}, nil
	}
	return nil, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// fetch brings the remote's branch and notes as they are now.
func (w *worktree) fetch(ctx context.Context) error {
	notes := config.RefSpec("+" + notesRef.String() + "*:" + seenNotes.String() + "*")
	branch := config.RefSpec("+" + w.branch.String() + ":" + w.seen.String())
	err := w.fetchRefs(ctx, branch, notes)
	if errors.Is(err, git.NoMatchingRefSpecError{}) {
		if _, known := w.repo.Reference(w.seen, true); known == nil {
			return fmt.Errorf("%s no longer has the branch %s: restore it, or name another one in the configuration", w.url(), w.config.Branch)
		}
		err = w.fetchRefs(ctx, notes)
	}
	if err != nil {
		return fmt.Errorf("fetching from %s: nothing was changed: try again once it can be reached, since nobody can know "+
			"what is wanted without it (git log --notes=numaform shows what this working copy has): %w", w.url(), err)
	}
	return nil
}

func (w *worktree) fetchRefs(ctx context.Context, specs ...config.RefSpec) error {
	auth, err := w.auth()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	err = w.remote.FetchContext(ctx, &git.FetchOptions{RemoteName: remoteName, RefSpecs: specs, Auth: auth, Tags: git.NoTags})
	if errors.Is(err, git.NoErrAlreadyUpToDate) || errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return nil
	}
	return err
}

// push makes a reference of the remote commit, if it is still at seen; zero means
// that there is none yet.
func (w *worktree) push(ctx context.Context, commit, seen plumbing.Hash, name plumbing.ReferenceName) error {
	auth, err := w.auth()
	if err != nil {
		return err
	}
	options := &git.PushOptions{RemoteName: remoteName, Auth: auth, RefSpecs: []config.RefSpec{
		config.RefSpec(commit.String() + ":" + name.String()),
	}}
	if !seen.IsZero() {
		options.RequireRemoteRefs = []config.RefSpec{config.RefSpec(seen.String() + ":" + name.String())}
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	if err := w.root.interrupted("push"); err != nil {
		return err
	}
	err = w.remote.PushContext(ctx, options)
	if errors.Is(err, git.NoErrAlreadyUpToDate) {
		err = nil
	}
	return errors.Join(err, w.root.interrupted("pushed"))
}

// publish makes commit the head of the remote's branch. Nothing is forced: if the
// remote is no longer where it was fetched, the fleet has moved.
func (w *worktree) publish(ctx context.Context, commit string) error {
	if w.remote == nil {
		return nil
	}
	before, err := w.hash(w.seen)
	if err != nil {
		return err
	}
	pushed := w.push(ctx, plumbing.NewHash(commit), before, w.branch)
	if pushed == nil {
		return w.repo.Storer.SetReference(plumbing.NewHashReference(w.seen, plumbing.NewHash(commit)))
	}
	// The library tells reasons as text only; what the remote holds is certain.
	pushed = fmt.Errorf("pushing to %s: nothing was applied: %w", w.url(), pushed)
	if err := w.fetch(ctx); err != nil {
		return pushed
	}
	after, err := w.hash(w.seen)
	switch {
	case err != nil:
		return errors.Join(pushed, err)
	case after == plumbing.NewHash(commit):
		return nil // it arrived, only the answer was lost
	case after != before:
		return fmt.Errorf("pushing to %s: %w", w.url(), ErrMoved)
	}
	return pushed
}

// propose puts commit on a branch of its own.
func (w *worktree) propose(ctx context.Context, commit, id string) error {
	proposed := &ProposedError{Branch: "numaform/" + id, Commit: commit}
	name := plumbing.NewBranchReferenceName(proposed.Branch)
	if w.remote == nil {
		if err := w.repo.Storer.SetReference(plumbing.NewHashReference(name, plumbing.NewHash(commit))); err != nil {
			return err
		}
		return proposed
	}
	proposed.Remote = userinfo.ReplaceAllString(w.url(), "://")
	if err := w.push(ctx, plumbing.NewHash(commit), plumbing.ZeroHash, name); err != nil {
		return fmt.Errorf("pushing %s to %s: nothing was proposed: %w", proposed.Branch, w.url(), err)
	}
	return proposed
}

// hash returns what a reference points to; zero if it is not there.
func (w *worktree) hash(name plumbing.ReferenceName) (plumbing.Hash, error) {
	ref, err := w.repo.Reference(name, true)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("reading %s: %w", name, err)
	}
	return ref.Hash(), nil
}

func replaceAll(text, secret string) string { return strings.ReplaceAll(text, secret, "[hidden]") }
