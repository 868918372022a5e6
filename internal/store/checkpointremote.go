package store

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/numaform/numaform/internal/translog"
)

// checkpointBranch is the branch of a CheckpointRemote.
const checkpointBranch = "numaform-checkpoints"

// CheckpointRemote is a branch of a git repository, with a directory for each cluster and a
// file for each log. Its commits are never forced, so that a repository that forbids forced
// pushes has all checkpoints.
type CheckpointRemote struct {
	git     *Git
	cluster string
}

var _ CheckpointPlace = (*CheckpointRemote)(nil)

// NewCheckpointRemote returns the place in the repository at url. clone is a directory for a
// clone that no other store uses. It does no I/O.
func NewCheckpointRemote(url, clone, cluster string, auth GitAuth) (*CheckpointRemote, error) {
	git, err := NewGit(GitConfig{Clone: clone, Remote: url, Branch: checkpointBranch, Auth: auth})
	if err != nil {
		return nil, fmt.Errorf("history.checkpoint_remote: %w", err)
	}
	return &CheckpointRemote{git, cluster}, nil
}

// String returns the branch and the URL.
func (c *CheckpointRemote) String() string { return c.git.where() }

// Load fetches the branch and reads the files of the cluster.
func (c *CheckpointRemote) Load(ctx context.Context) (list [][]byte, err error) {
	err = c.git.with(func(r *repository) error {
		head, err := c.fetch(ctx, r)
		if err != nil {
			return err
		}
		tree, err := r.objects.tree(head)
		if err == nil {
			tree, err = r.objects.subtree(tree, c.cluster)
		}
		if err != nil {
			return err
		}
		for _, entry := range tree.Entries {
			if entry.Mode != filemode.Regular || !strings.HasSuffix(entry.Name, checkpointSuffix) {
				continue
			}
			content, err := r.content(entry.Hash)
			if err != nil {
				return err
			}
			list = append(list, translog.Split(content)...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoints of the history: %w", err)
	}
	return list, nil
}

// fetch returns the head of the remote's branch; zero if there is none.
func (c *CheckpointRemote) fetch(ctx context.Context, r *repository) (plumbing.Hash, error) {
	var haves []plumbing.Hash
	known, err := r.hash(r.branch)
	if err != nil {
		return known, err
	}
	if !known.IsZero() {
		haves = append(haves, known)
	}
	at, err := r.remote.fetch(ctx, r.objects, haves, plumbing.NewBranchReferenceName(checkpointBranch))
	if err != nil {
		fix := "correct history.checkpoint_remote or its credential"
		if isUntrusted(err) {
			fix = caFix
		}
		return known, fmt.Errorf("fetching from %s: %w: %s", r.remote.url, err, fix)
	}
	if at[0].IsZero() {
		return at[0], nil
	}
	return at[0], r.setReference(r.branch, at[0])
}

// Save commits the checkpoint, unless the branch has it.
func (c *CheckpointRemote) Save(ctx context.Context, log string, checkpoint []byte) error {
	files := map[string][]byte{path.Join(c.cluster, log+checkpointSuffix): checkpoint}
	err := c.git.with(func(r *repository) (err error) {
		for range notesAttempts { // while other clients push first
			if err = c.add(ctx, r, files); err == nil {
				break
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("copying the checkpoint of the history to %s: %w", c, err)
	}
	return nil
}

// add pushes a commit with the files on top of the remote's branch, unless it has them.
func (c *CheckpointRemote) add(ctx context.Context, r *repository, files map[string][]byte) error {
	head, err := c.fetch(ctx, r)
	if err != nil {
		return err
	}
	tree, err := r.objects.tree(head)
	if err != nil {
		return err
	}
	edits := map[string]blob{}
	for name, content := range files {
		if edits[name], err = r.putBlob(content); err != nil {
			return err
		}
	}
	if edited, err := r.edit(tree, edits); err != nil || edited == tree.Hash {
		return err
	}
	commit, err := r.commit(head, tree, edits, "numaform: checkpoint of "+c.cluster+"\n", time.Now())
	if err != nil {
		return err
	}
	objects, err := r.newObjects(commit, head)
	if err != nil {
		return err
	}
	if err := r.remote.push(ctx, r.objects, plumbing.NewBranchReferenceName(checkpointBranch), head, commit, objects); err != nil {
		return err
	}
	return r.setReference(r.branch, commit)
}
