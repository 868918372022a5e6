package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/numaform/numaform/internal/shell"
)

// proposals is the prefix of the branches that propose changes for review.
const proposals = "numaform/"

// checkNewBranch refuses a branch that the remote does not have if another branch of the
// remote contains a fleet: the branch's name is probably misspelled, and an empty fleet
// would not know the existing VMs.
func (r *repository) checkNewBranch(ctx context.Context) error {
	// The heads are fetched without their history, so they must not get into the clone.
	return r.temporarily("branches", func(fetched *objects) error {
		heads, err := r.remote.heads(ctx, fetched, r.isWithoutFleet)
		if err != nil {
			return fmt.Errorf("fetching the branches of %s: %w: %s, then try again: numaform searches them because the remote has no branch %s",
				r.remote.url, err, remoteFix(err), r.config.Branch)
		}
		return r.checkHeads(heads, fetched)
	})
}

// checkNewLocalBranch is checkNewBranch for a repository without a remote.
func (r *repository) checkNewLocalBranch() error {
	references, err := r.repo.Branches()
	if err != nil {
		return err
	}
	heads := map[string]plumbing.Hash{}
	err = references.ForEach(func(reference *plumbing.Reference) error {
		heads[reference.Name().Short()] = reference.Hash()
		return nil
	})
	if err != nil {
		return err
	}
	return r.checkHeads(heads, r.objects)
}

// checkHeads returns an error that names the branches that contain a fleet.
func (r *repository) checkHeads(heads map[string]plumbing.Hash, objects *objects) error {
	var fleets []string
	for branch, head := range heads {
		if strings.HasPrefix(branch, proposals) || r.isWithoutFleet(head) {
			continue
		}
		if objects.containFleet(head, r.config.Subdir) {
			fleets = append(fleets, branch)
			continue
		}
		r.mu.Lock()
		r.withoutFleet[head] = true
		r.mu.Unlock()
	}
	if len(fleets) == 0 {
		return nil
	}
	slices.Sort(fleets)
	const most = 5
	rest := ""
	if more := len(fleets) - most; more > 0 {
		rest = fmt.Sprintf(" and %d more", more)
		fleets = fleets[:most]
	}
	at := r.config.Dir
	if r.remote != nil {
		at = r.remote.url
	}
	name := shell.Quote(r.config.Branch)
	return fmt.Errorf("branch %s (fleet.git.branch in numaform.yaml) does not exist in %s, but a fleet exists there on %s%s: nothing was changed: "+
		"set fleet.git.branch to the branch of your fleet, or, to start another fleet, create the branch in a clone: "+
		"git switch --orphan %s && git commit --allow-empty -m fleet && git push origin %s",
		r.config.Branch, at, strings.Join(fleets, ", "), rest, name, name)
}

// isWithoutFleet reports whether the head of a branch is known to contain no fleet.
func (g *Git) isWithoutFleet(head plumbing.Hash) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.withoutFleet[head]
}

// containFleet reports whether a commit contains a fleet in a directory. A commit that
// cannot be read contains none that numaform could use.
func (o *objects) containFleet(commit plumbing.Hash, dir string) bool {
	tree, err := o.tree(commit)
	if err != nil {
		return false
	}
	if tree, err = o.subtree(tree, dir); err != nil {
		return false
	}
	entry, err := tree.FindEntry("fleet.json")
	return err == nil && entry.Mode.IsFile()
}
