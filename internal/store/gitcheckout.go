package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// maxListed limits the number of names in an error.
const maxListed = 5

// checkout is a person's working copy of the fleet's repository. It is only read: changes
// that exist only there are an error, because they would never be applied.
type checkout struct {
	dir     string
	origins []string
	repo    *git.Repository
	objects *objects
}

// openCheckout opens the checkout in fleet.dir, or returns nil if there is none.
func (g *Git) openCheckout() (*checkout, error) {
	dir := g.config.Dir
	info, err := os.Stat(filepath.Join(dir, ".git"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the checkout %s: %w", dir, err)
	}
	gitDir := filepath.Join(dir, ".git")
	if !info.IsDir() {
		if gitDir, err = linkedGitDir(dir); err != nil {
			return nil, fmt.Errorf("opening the checkout %s: %w", dir, err)
		}
	}
	// go-git cannot open a partial clone with its extension set, and its error gives no
	// hint.
	if err := whole(dir, gitDir); err != nil {
		return nil, err
	}
	c := &checkout{dir: dir}
	if c.repo, err = git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true}); err != nil {
		return nil, fmt.Errorf("opening the checkout %s: %w", dir, err)
	}
	remote, err := c.repo.Remote("origin")
	switch {
	case err == nil:
		c.origins = remote.Config().URLs
	case !errors.Is(err, git.ErrRemoteNotFound):
		return nil, fmt.Errorf("reading the origin of the checkout %s: %w", dir, err)
	}
	c.objects = openObjects(gitDir)
	return c, nil
}

// linkedGitDir returns the directory of a linked checkout's repository.
func linkedGitDir(dir string) (string, error) {
	content, err := readOrdinary(filepath.Join(dir, ".git"), maxFile)
	if err != nil {
		return "", err
	}
	at := strings.TrimSpace(strings.TrimPrefix(string(content), "gitdir:"))
	if !filepath.IsAbs(at) {
		at = filepath.Join(dir, at)
	}
	common, err := readOrdinary(filepath.Join(at, "commondir"), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return at, nil
	}
	if err != nil {
		return "", err
	}
	if up := strings.TrimSpace(string(common)); filepath.IsAbs(up) {
		return up, nil
	}
	return filepath.Join(at, strings.TrimSpace(string(common))), nil
}

// settled refuses a checkout with changes of the fleet that are not on the branch at
// head.
func (c *checkout) settled(r *repository, head plumbing.Hash) error {
	if c == nil {
		return nil
	}
	ref, err := c.repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return c.uncommitted(r, plumbing.ZeroHash) // no commit yet
	}
	if err != nil {
		return fmt.Errorf("reading the head of the checkout %s: %w", c.dir, err)
	}
	if err := c.uncommitted(r, ref.Hash()); err != nil {
		return err
	}
	tips := []plumbing.Hash{ref.Hash()}
	if branch, err := c.repo.Reference(plumbing.NewBranchReferenceName(r.config.Branch), true); err == nil && branch.Hash() != ref.Hash() {
		tips = append(tips, branch.Hash())
	}
	return c.unpushed(r, tips, head)
}

// unpushed refuses commits of the checkout that change the fleet and are not on the
// branch.
func (c *checkout) unpushed(r *repository, tips []plumbing.Hash, head plumbing.Hash) error {
	pushed := map[plumbing.Hash]bool{}
	var list []string
	for len(tips) > 0 {
		tip := tips[0]
		tips = tips[1:]
		if tip == head || pushed[tip] {
			continue
		}
		if len(pushed) == 0 && !head.IsZero() {
			if is, err := r.isAncestor(tip, head); err != nil {
				return err
			} else if is {
				pushed[tip] = true
				continue
			}
			if err := r.ancestors(head, func(commit plumbing.Hash) { pushed[commit] = true }); err != nil {
				return err
			}
			tips = append(tips, tip)
			continue
		}
		pushed[tip] = true
		commit, err := object.GetCommit(c.objects, tip)
		if err != nil {
			return fmt.Errorf("reading commit %s of the checkout %s: %w", tip, c.dir, err)
		}
		changes, err := c.changesFleet(r, commit)
		if err != nil {
			return err
		}
		if changes {
			list = append(list, tip.String()[:12])
		}
		tips = append(tips, commit.ParentHashes...)
	}
	if len(list) == 0 {
		return nil
	}
	return fmt.Errorf("the checkout %s has commits of the fleet that %s does not: %s: push them, git -C %s push origin HEAD:%s, or drop them, git -C %s reset --keep origin/%s: nothing was done",
		c.dir, r.where(), some(list), quoted(c.dir), r.config.Branch, quoted(c.dir), r.config.Branch)
}

// changesFleet reports whether a commit's fleet differs from each parent's.
func (c *checkout) changesFleet(r *repository, commit *object.Commit) (bool, error) {
	mine, err := fleetHash(c.objects, commit.TreeHash, r.config.Subdir)
	if err != nil {
		return false, fmt.Errorf("reading commit %s of the checkout %s: %w", commit.Hash, c.dir, err)
	}
	for _, hash := range commit.ParentHashes {
		parent, err := object.GetCommit(c.objects, hash)
		if err != nil {
			return false, fmt.Errorf("reading commit %s of the checkout %s: %w", hash, c.dir, err)
		}
		theirs, err := fleetHash(c.objects, parent.TreeHash, r.config.Subdir)
		if err != nil || theirs == mine {
			return false, err
		}
	}
	return !mine.IsZero() || len(commit.ParentHashes) > 0, nil
}

// fleetHash returns the hash of the fleet's tree in a commit's tree, or zero.
func fleetHash(from *objects, tree plumbing.Hash, subdir string) (plumbing.Hash, error) {
	if subdir == "" {
		return tree, nil
	}
	for part := range strings.SplitSeq(subdir, "/") {
		found, err := object.GetTree(from, tree)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		i := slices.IndexFunc(found.Entries, func(e object.TreeEntry) bool { return e.Name == part && e.Mode == filemode.Dir })
		if i < 0 {
			return plumbing.ZeroHash, nil
		}
		tree = found.Entries[i].Hash
	}
	return tree, nil
}

// uncommitted refuses a checkout whose fleet files differ from its commit: uncommitted
// edits are neither applied nor ignored.
func (c *checkout) uncommitted(r *repository, head plumbing.Hash) error {
	committed := map[string]plumbing.Hash{}
	if !head.IsZero() {
		commit, err := object.GetCommit(c.objects, head)
		if err != nil {
			return fmt.Errorf("reading commit %s of the checkout %s: %w", head, c.dir, err)
		}
		tree, err := fleetHash(c.objects, commit.TreeHash, r.config.Subdir)
		if err == nil && !tree.IsZero() {
			err = wantedBlobs(c.objects, tree, "", committed)
		}
		if err != nil {
			return fmt.Errorf("reading commit %s of the checkout %s: %w", head, c.dir, err)
		}
	}
	edited, err := c.edited(r, committed)
	if err != nil {
		return fmt.Errorf("comparing the checkout %s with its commit: %w", c.dir, err)
	}
	if len(edited) == 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(c.dir, filepath.FromSlash(r.config.Subdir), PrivateDir, "git", stagedFile)); err == nil {
		return fmt.Errorf("an older numaform was cut off while it wrote the checkout %[1]s (%[2]s): bring it to what is committed, "+
			"git -C %[3]s fetch && git -C %[3]s reset --hard origin/%[4]s, and remove %[5]s: nothing was done",
			c.dir, some(edited), quoted(c.dir), r.config.Branch, filepath.Join(c.dir, filepath.FromSlash(r.config.Subdir), PrivateDir, "git"))
	}
	return fmt.Errorf("the checkout %[1]s has changes of the fleet that are not committed: %[2]s: commit them and push, "+
		"git -C %[3]s add -A %[4]s && git -C %[3]s commit && git -C %[3]s push, or drop them, git -C %[3]s checkout HEAD -- %[4]s: nothing was done",
		c.dir, some(edited), quoted(c.dir), quoted(cmp.Or(r.config.Subdir, ".")))
}

// wantedBlobs adds the files of a tree that belong to the desired state.
func wantedBlobs(from *objects, tree plumbing.Hash, prefix string, blobs map[string]plumbing.Hash) error {
	found, err := object.GetTree(from, tree)
	if err != nil {
		return err
	}
	for _, entry := range found.Entries {
		name := prefix + entry.Name
		switch roleOf(name, entry.Mode == filemode.Dir) {
		case roleFile:
			if blobs[name] = entry.Hash; len(blobs) > maxFiles {
				return fmt.Errorf("it has more than %d files", maxFiles)
			}
		case roleDir:
			if strings.HasPrefix(name, HistoryDir+"/") || name == HistoryDir {
				continue
			}
			if err := wantedBlobs(from, entry.Hash, name+"/", blobs); err != nil {
				return err
			}
		}
	}
	return nil
}

// edited returns the paths of the fleet's files that differ from the committed ones, in
// the index or in the directory. It compares content hashes, so no filter or hook of the
// repository runs, and it follows no links.
func (c *checkout) edited(r *repository, committed map[string]plumbing.Hash) ([]string, error) {
	found := map[string]bool{}
	index, err := c.repo.Storer.Index()
	if err != nil {
		return nil, err
	}
	staged, sparse := map[string]bool{}, map[string]bool{}
	for _, entry := range index.Entries {
		name, below := entry.Name, true
		if r.config.Subdir != "" {
			name, below = strings.CutPrefix(entry.Name, r.config.Subdir+"/")
		}
		if !below || roleOf(name, false) != roleFile {
			continue
		}
		staged[name], sparse[name] = true, entry.SkipWorktree
		if entry.Hash != committed[name] {
			found[name] = true
		}
	}
	for name := range committed {
		if !staged[name] {
			found[name] = true
		}
	}
	present, err := c.compareFiles(r, committed, found)
	if err != nil {
		return nil, err
	}
	for name := range committed {
		if !present[name] && !sparse[name] {
			found[name] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// compareFiles adds to found the files in the directory that differ from the committed
// ones, and returns all existing files.
func (c *checkout) compareFiles(r *repository, committed map[string]plumbing.Hash, found map[string]bool) (present map[string]bool, err error) {
	present = map[string]bool{}
	root, err := os.OpenRoot(filepath.Join(c.dir, filepath.FromSlash(r.config.Subdir)))
	if errors.Is(err, fs.ErrNotExist) {
		return present, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if name == "." {
			return err
		}
		what := roleOf(name, entry != nil && entry.IsDir())
		switch {
		case leftBehind(name) || beside(name) || what != roleDir && what != roleFile || name == HistoryDir:
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case err != nil:
			return err
		case what == roleDir:
			return nil
		}
		if present[name] = true; len(present) > maxFiles {
			return fmt.Errorf("it has more than %d files", maxFiles)
		}
		if !entry.Type().IsRegular() {
			found[name] = true
			return nil
		}
		content, err := readLimited(root.FS(), name, maxFile)
		if err != nil {
			return err
		}
		// A checkout on another system may have that system's line endings.
		unix := bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
		if plumbing.ComputeHash(plumbing.BlobObject, content) != committed[name] && plumbing.ComputeHash(plumbing.BlobObject, unix) != committed[name] {
			found[name] = true
		}
		return nil
	})
	return present, err
}

// some lists names for a person, up to maxListed.
func some(names []string) string {
	var list []string
	for _, name := range names[:min(len(names), maxListed)] {
		list = append(list, shown(name))
	}
	text := strings.Join(list, ", ")
	if more := len(names) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// takeNotes copies the outcomes that an older numaform recorded in the checkout and could
// not push. It remembers the checkout's notes that it has seen.
func (c *checkout) takeNotes(r *repository) error {
	if c == nil {
		return nil
	}
	ref, err := c.repo.Reference(localNotes, true)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the notes of the checkout %s: %w", c.dir, err)
	}
	taken := plumbing.ReferenceName(strings.TrimSuffix(r.notes.String(), "notes") + "taken-notes")
	known, err := r.hash(taken)
	if err != nil || known == ref.Hash() {
		return err
	}
	if err := c.copyCommits(r, ref.Hash()); err != nil {
		return fmt.Errorf("taking over the notes of the checkout %s: %w", c.dir, err)
	}
	if err := r.joinNotes(ref.Hash()); err != nil {
		return err
	}
	return r.repo.Storer.SetReference(plumbing.NewHashReference(taken, ref.Hash()))
}

// copyCommits copies a commit and everything reachable from it to the clone. It stores no
// commit before its parents, so it can repeat an interrupted copy.
func (c *checkout) copyCommits(r *repository, tip plumbing.Hash) error {
	var missing []plumbing.Hash
	seen := map[plumbing.Hash]bool{}
	for next := []plumbing.Hash{tip}; len(next) > 0; {
		hash := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[hash] || r.objects.HasEncodedObject(hash) == nil {
			continue
		}
		seen[hash] = true
		commit, err := object.GetCommit(c.objects, hash)
		if err != nil {
			return err
		}
		if err := c.copyTree(r, commit.TreeHash, 0); err != nil {
			return err
		}
		missing = append(missing, hash)
		next = append(next, commit.ParentHashes...)
	}
	for _, hash := range slices.Backward(missing) {
		if err := c.copyObject(r, plumbing.CommitObject, hash); err != nil {
			return err
		}
	}
	return nil
}

func (c *checkout) copyTree(r *repository, hash plumbing.Hash, depth int) error {
	const maxDepth = 8 // of notes trees
	if depth > maxDepth {
		return errors.New("its trees are too deep for notes")
	}
	if r.objects.HasEncodedObject(hash) == nil {
		return nil
	}
	tree, err := object.GetTree(c.objects, hash)
	if err != nil {
		return err
	}
	for _, entry := range tree.Entries {
		switch entry.Mode {
		case filemode.Dir:
			err = c.copyTree(r, entry.Hash, depth+1)
		case filemode.Regular:
			err = c.copyObject(r, plumbing.BlobObject, entry.Hash)
		}
		if err != nil {
			return err
		}
	}
	return c.copyObject(r, plumbing.TreeObject, hash)
}

func (c *checkout) copyObject(r *repository, kind plumbing.ObjectType, hash plumbing.Hash) error {
	if r.objects.HasEncodedObject(hash) == nil {
		return nil
	}
	found, err := c.objects.EncodedObject(kind, hash)
	if err != nil {
		return err
	}
	_, err = r.objects.SetEncodedObject(found)
	return err
}
