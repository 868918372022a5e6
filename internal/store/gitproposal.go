package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/numaform/numaform/generator"
)

// proposalDir is the directory, in the fleet's, with proposals that were merged and whose
// change has not ended yet, and their pictures. It contains no part of the desired state.
const proposalDir = "proposals"

// Proposal is a change that is pending approval, as one file on a branch, with pictures
// beside it. A merge of the branch changes no file of the desired state: numaform does that
// once the change begins.
type Proposal struct {
	// Branch is the branch, without refs/heads, and Name the name of the file.
	Branch, Name string
	Content      []byte
	// Pictures are SVG images for reviewers, by their own names, such as lab.pve-1. They are
	// no part of the proposal: HasProposal does not compare them.
	Pictures map[string][]byte
	Message  string
	Time     time.Time
}

// proposalPath returns the path of a proposal's file in the repository.
func (g *Git) proposalPath(name string) string {
	return g.inRepository(path.Join(proposalDir, name+".diff"))
}

// PicturePath returns the path of a proposal's picture in the repository, or "" if its file
// name would be longer than a file system allows.
func (g *Git) PicturePath(name, picture string) string {
	file := name + "." + picture + ".svg"
	if len(file) > 255 || !pictureFile.MatchString(file) {
		return ""
	}
	return g.inRepository(path.Join(proposalDir, file))
}

// ErrNoRemote is returned for proposals in a repository without a remote.
var ErrNoRemote = errors.New("the fleet's repository has no remote, so it has no pull requests: set fleet.git.remote")

// Propose sets the proposal's branch to a commit that adds the proposal's file and its
// pictures, and nothing else, to the fleet's branch, and returns that commit. If the branch
// has such a commit, based on a commit since which the fleet's branch did not have the file,
// it stays. Otherwise Propose replaces whatever the branch has, unless another client changes
// the branch at the same time. A fleet without a branch gets one, with an empty commit.
func (g *Git) Propose(ctx context.Context, p Proposal) (commit string, err error) {
	if !proposalFile.MatchString(p.Name + ".diff") {
		return "", fmt.Errorf("proposing %s: not a valid name of a proposal", printable(p.Name))
	}
	name := plumbing.NewBranchReferenceName(p.Branch)
	err = g.with(func(r *repository) error {
		seen, err := r.fetchOther(ctx, name)
		if err != nil {
			return err
		}
		base, err := r.hash(r.branch)
		if err != nil {
			return err
		}
		if base.IsZero() {
			if base, err = r.startBranch(ctx, p.Time); err != nil {
				return err
			}
		}
		file, err := r.putBlob(p.Content)
		if err != nil {
			return err
		}
		edits := map[string]blob{g.proposalPath(p.Name): file}
		for picture, content := range p.Pictures {
			if name := g.PicturePath(p.Name, picture); name != "" {
				if edits[name], err = r.putBlob(content); err != nil {
					return err
				}
			}
		}
		if same, err := r.addsOnly(seen, base, p.Name, edits); same || err != nil {
			commit = seen.String()
			return err
		}

		tree, err := r.objects.tree(base)
		if err != nil {
			return err
		}
		made, err := r.commit(base, tree, edits, p.Message, p.Time)
		if err != nil {
			return err
		}
		commit = made.String()
		return r.push(ctx, name, seen, made)
	})
	if err != nil {
		return "", fmt.Errorf("pushing the proposal %s to branch %s: %w", p.Name, p.Branch, err)
	}
	return commit, nil
}

// startBranch creates the fleet's branch with an empty commit.
func (r *repository) startBranch(ctx context.Context, at time.Time) (plumbing.Hash, error) {
	tree, err := r.objects.tree(plumbing.ZeroHash)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	first, err := r.commit(plumbing.ZeroHash, tree, nil, "numaform: start the fleet\n", at)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return first, r.publish(ctx, plumbing.ZeroHash, first)
}

// addsOnly reports whether a commit makes exactly the edits of a proposal to its only parent,
// the parent is a commit of the branch with the head base, and no later commit of that branch
// has the proposal's file. If one has it, the proposal was merged and removed: a rebase then
// drops the commit, because its change is in the branch already, so that the forge merges
// nothing, and Gitea leaves the pull request open.
func (r *repository) addsOnly(commit, base plumbing.Hash, name string, edits map[string]blob) (bool, error) {
	if commit.IsZero() {
		return false, nil
	}
	found, err := object.GetCommit(r.objects, commit)
	if err != nil || len(found.ParentHashes) != 1 {
		return false, nil //nolint:nilerr // an unreadable commit is replaced
	}
	known := false
	err = r.ancestors(base, func(at plumbing.Hash) error {
		if known = at == found.ParentHashes[0]; known {
			return storer.ErrStop
		}
		merged, err := r.proposal(at, name)
		if err == nil && !merged.IsZero() {
			return storer.ErrStop
		}
		return err
	})
	if err != nil || !known {
		return false, err
	}
	tree, err := r.objects.tree(found.ParentHashes[0])
	if err != nil {
		return false, err
	}
	want, err := r.edit(tree, edits)
	return want == found.TreeHash, err
}

// Pictures fetches a proposal's branch, and returns which of the pictures its commit has. It
// returns none if the branch is not at the commit.
func (g *Git) Pictures(ctx context.Context, branch, commit, name string, pictures ...string) (have []string, err error) {
	err = g.with(func(r *repository) error {
		at, err := r.fetchOther(ctx, plumbing.NewBranchReferenceName(branch))
		if err != nil || at.String() != commit {
			return err
		}
		tree, err := r.objects.tree(at)
		if err != nil {
			return err
		}
		if tree, err = r.objects.subtree(tree, path.Dir(g.proposalPath(name))); err != nil {
			return err
		}
		for _, picture := range pictures {
			file := path.Base(g.PicturePath(name, picture))
			if slices.ContainsFunc(tree.Entries, func(e object.TreeEntry) bool { return e.Name == file && e.Mode.IsFile() }) {
				have = append(have, picture)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the pictures of the proposal %s from branch %s: %w", name, branch, err)
	}
	return have, nil
}

// HasProposal fetches, and reports whether the fleet's branch has the file of a proposal
// with exactly that content, however it was merged.
func (g *Git) HasProposal(ctx context.Context, name string, content []byte) (has bool, err error) {
	err = g.with(func(r *repository) error {
		if _, err := r.fetchOther(ctx); err != nil {
			return err
		}
		head, err := r.hash(r.branch)
		if err != nil {
			return err
		}
		at, err := r.proposal(head, name)
		has = at == plumbing.ComputeHash(plumbing.BlobObject, content)
		return err
	})
	return has, err
}

// proposal returns the hash of a proposal's file in a commit; zero if there is none.
func (r *repository) proposal(commit plumbing.Hash, name string) (plumbing.Hash, error) {
	entries, err := r.proposalEntries(commit)
	for _, entry := range entries {
		if entry.Name == name+".diff" {
			return entry.Hash, err
		}
	}
	return plumbing.ZeroHash, err
}

// proposalEntries returns the files with proposals and pictures in a commit.
func (r *repository) proposalEntries(commit plumbing.Hash) ([]object.TreeEntry, error) {
	tree, err := r.objects.tree(commit)
	if err != nil {
		return nil, err
	}
	if tree, err = r.objects.subtree(tree, r.inRepository(proposalDir)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(tree.Entries), func(e object.TreeEntry) bool { return !e.Mode.IsFile() }), nil
}

// fetchProposals fetches the fleet's branch, and returns its head and the files of the directory
// with proposals.
func (r *repository) fetchProposals(ctx context.Context) (head plumbing.Hash, entries []object.TreeEntry, err error) {
	if _, err := r.fetchOther(ctx); err != nil {
		return head, nil, err
	}
	if head, err = r.hash(r.branch); err != nil {
		return head, nil, err
	}
	entries, err = r.proposalEntries(head)
	return head, entries, err
}

// DropProposals removes the files and the pictures of proposals from the fleet's branch. It returns ErrMoved
// if another client pushes to the branch at the same time.
func (g *Git) DropProposals(ctx context.Context, at time.Time, names ...string) error {
	err := g.with(func(r *repository) error {
		head, entries, err := r.fetchProposals(ctx)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e object.TreeEntry) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return isOf(e, name) })
		})
		return r.dropFiles(ctx, head, entries, "numaform: remove finished proposals\n", at)
	})
	if err != nil {
		return fmt.Errorf("removing finished proposals: %w", err)
	}
	return nil
}

// isOf reports whether a file of the directory with proposals is the one of a proposal, or one
// of its pictures.
func isOf(entry object.TreeEntry, name string) bool {
	return entry.Name == name+".diff" || strings.HasPrefix(entry.Name, name+".") && pictureFile.MatchString(entry.Name)
}

// dropFiles removes files of the directory with proposals from the fleet's branch.
func (r *repository) dropFiles(ctx context.Context, head plumbing.Hash, entries []object.TreeEntry, message string, at time.Time) error {
	if len(entries) == 0 {
		return nil
	}
	edits := map[string]blob{}
	for _, entry := range entries {
		edits[r.inRepository(path.Join(proposalDir, entry.Name))] = blob{}
	}
	tree, err := r.objects.tree(head)
	if err != nil {
		return err
	}
	commit, err := r.commit(head, tree, edits, message, at)
	if err != nil {
		return err
	}
	return r.publish(ctx, head, commit)
}

// ClearProposal removes from the fleet's branch what conflicts with the branch of a proposal,
// whose head is commit: files that another client pushed under the names of the proposal's
// own, with another content. It returns their paths in the repository. It returns ErrMoved if
// another client pushes to the fleet's branch at the same time.
func (g *Git) ClearProposal(ctx context.Context, at time.Time, branch, commit, name string) (removed []string, err error) {
	err = g.with(func(r *repository) error {
		head, entries, err := r.fetchProposals(ctx)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e object.TreeEntry) bool { return !isOf(e, name) })
		if len(entries) == 0 {
			return nil
		}
		proposed, err := r.fetchOther(ctx, plumbing.NewBranchReferenceName(branch))
		if err != nil || proposed.String() != commit {
			return err
		}
		ours, err := r.proposalEntries(proposed)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e object.TreeEntry) bool {
			return !slices.ContainsFunc(ours, func(our object.TreeEntry) bool {
				return our.Name == e.Name && (our.Hash != e.Hash || our.Mode != e.Mode)
			})
		})
		for _, entry := range entries {
			removed = append(removed, r.inRepository(path.Join(proposalDir, entry.Name)))
		}
		return r.dropFiles(ctx, head, entries, fmt.Sprintf("numaform: remove files that conflict with the proposal %s\n", name), at)
	})
	if err != nil {
		return nil, fmt.Errorf("removing files that conflict with the proposal %s from branch %s: %w", name, g.config.Branch, err)
	}
	return removed, nil
}

// DropBranch deletes a branch of the remote if it is still at the commit.
func (g *Git) DropBranch(ctx context.Context, branch, commit string) error {
	return g.with(func(r *repository) error {
		if r.remote == nil {
			return ErrNoRemote
		}
		if err := r.remote.remove(ctx, plumbing.NewBranchReferenceName(branch), plumbing.NewHash(commit)); err != nil {
			return fmt.Errorf("deleting branch %s of %s: %w", branch, r.remote.url, err)
		}
		return nil
	})
}

// MergeError reports that a reference cannot be merged into the fleet's branch.
type MergeError struct {
	Problem string
	// Moved is set if the reference is not at the expected commit, for example because the
	// forge has not updated it yet.
	Moved bool
}

func (e *MergeError) Error() string { return e.Problem }

// AfterMerge fetches a reference of the remote, which must be at the commit, and returns the
// fleet's files as they are now and as they would be after a merge. It compares only files
// of the fleet, and refuses a reference with other files as Read does. It returns a
// MergeError if the reference is elsewhere, if its commits are too large, or if both sides
// changed the same file.
//
// Everyone who can read the repository can open a pull request. So its commits do not get
// into the clone, and other calls do not wait until they are fetched and compared.
func (g *Git) AfterMerge(ctx context.Context, reference, commit string) (now, after generator.Files, err error) {
	defer func() { err = g.scrub(err) }()
	theirs := plumbing.NewHash(commit)
	var r *repository
	var head plumbing.Hash
	var haves []plumbing.Hash
	err = g.with(func(current *repository) (err error) {
		r = current
		if _, err = r.fetchOther(ctx); err != nil {
			return err
		}
		if head, err = r.hash(r.branch); err != nil {
			return err
		}
		if haves, err = r.newest(head); err == nil && r.objects.HasEncodedObject(theirs) == nil {
			haves = append(haves, theirs)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = g.temporarily("merge", func(fetched *objects) (err error) {
		at, err := r.remote.fetchCommit(ctx, fetched, haves, plumbing.ReferenceName(reference), theirs)
		if _, large := errors.AsType[*MergeError](err); err != nil && !large {
			err = fmt.Errorf("fetching %s from %s: %w: %s", reference, r.remote.url, err, remoteFix(err))
		}
		if err != nil {
			return err
		}
		if at != theirs {
			return &MergeError{Problem: fmt.Sprintf("%s is at commit %.12s, not at %.12s", reference, at, commit), Moved: true}
		}
		// Packs must not be listed while another process writes one.
		if err := g.locks.exclusive(func() error { return r.objects.borrow(fetched) }); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.objects.Close()) }()
		now, after, err = r.mergeOf(head, theirs)
		return err
	})
	return now, after, err
}

// mergeOf returns the fleet's files in a commit, and after a merge of another commit.
func (r *repository) mergeOf(ours, theirs plumbing.Hash) (now, after generator.Files, err error) {
	base, err := r.mergeBase(ours, theirs)
	if err != nil {
		return nil, nil, err
	}
	sides := make([]generator.Files, 3)
	for i, at := range []plumbing.Hash{base, ours, theirs} {
		files, err := r.committed(at)
		if err != nil {
			return nil, nil, err
		}
		sides[i] = generator.Select(files)
	}
	after, err = merged(sides[0], sides[1], sides[2])
	return sides[1], after, err
}

// mergeBase returns the newest common ancestor of two commits.
func (r *repository) mergeBase(ours, theirs plumbing.Hash) (plumbing.Hash, error) {
	if ours.IsZero() {
		return plumbing.ZeroHash, &MergeError{Problem: "the fleet's branch has no commit"}
	}
	mine, err := object.GetCommit(r.objects, ours)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("reading commit %s: %w", ours, err)
	}
	other, err := object.GetCommit(r.objects, theirs)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("reading commit %s: %w", theirs, err)
	}
	bases, err := mine.MergeBase(other)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("comparing commits %s and %s: %w", ours, theirs, err)
	}
	if len(bases) == 0 {
		return plumbing.ZeroHash, &MergeError{Problem: "it has no common ancestor with the fleet's branch"}
	}
	return bases[0].Hash, nil
}

// merged returns the files of ours with the changes between base and theirs.
func merged(base, ours, theirs generator.Files) (generator.Files, error) {
	after := generator.Files{}
	names := map[string]bool{}
	for _, side := range []generator.Files{base, ours, theirs} {
		for name := range side {
			names[name] = true
		}
	}
	var conflicts []string
	for name := range names {
		same := func(a, b generator.Files) bool {
			x, inA := a[name]
			y, inB := b[name]
			return inA == inB && bytes.Equal(x, y)
		}
		from := theirs
		switch {
		case same(base, theirs):
			from = ours
		case !same(base, ours) && !same(ours, theirs):
			conflicts = append(conflicts, name)
		}
		if content, exists := from[name]; exists {
			after[name] = content
		}
	}
	if len(conflicts) > 0 {
		slices.Sort(conflicts)
		return nil, &MergeError{Problem: "it conflicts with the fleet's branch in " + listed(conflicts)}
	}
	return after, nil
}

// fetchOther fetches the fleet's branch, and another reference of the remote into the clone.
// It returns the commit of that reference; zero if it does not exist or is not requested.
func (r *repository) fetchOther(ctx context.Context, names ...plumbing.ReferenceName) (plumbing.Hash, error) {
	if r.remote == nil {
		return plumbing.ZeroHash, ErrNoRemote
	}
	if err := r.fetch(ctx); err != nil || len(names) == 0 {
		return plumbing.ZeroHash, err
	}
	head, err := r.hash(r.branch)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	haves, err := r.newest(head)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	at, err := r.remote.fetch(ctx, r.objects, haves, names[0])
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("fetching %s from %s: %w: %s", names[0], r.remote.url, err, remoteFix(err))
	}
	return at[0], nil
}

// remove deletes a reference of the remote if it is at a commit.
func (r *remote) remove(ctx context.Context, name plumbing.ReferenceName, at plumbing.Hash) (err error) {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	session, err := openSession(ctx, r, r.transport.NewReceivePackSession)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreClosed(session.Close())) }()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return err
	}
	if advertised.References[name.String()] != at || at.IsZero() {
		return nil // it does not exist, or another client changed it
	}
	request := packp.NewReferenceUpdateRequestFromCapabilities(advertised.Capabilities)
	request.Commands = []*packp.Command{{Name: name, Old: at, New: plumbing.ZeroHash}}
	report, err := session.ReceivePack(ctx, request)
	if err == nil && report != nil {
		err = report.Error()
	}
	return err
}
