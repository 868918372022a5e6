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
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/numaform/numaform/internal/shell"
)

// checkout is a user's working copy of the fleet's repository. numaform only reads it.
// Changes that are only in a checkout are an error, because they would never be applied.
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
	if err == nil {
		err = checkGitDir(dir, info)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the checkout %s: %w", dir, err)
	}
	repo, err := git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err := checkComplete(dir, repo, err); err != nil {
		return nil, err
	}
	storage, ok := repo.Storer.(*filesystem.Storage)
	if !ok {
		return nil, fmt.Errorf("opening the checkout %s: its storage has the unexpected type %T", dir, repo.Storer)
	}
	c := &checkout{dir: dir, repo: repo, objects: openObjects(storage.Filesystem())}
	remote, err := repo.Remote("origin")
	if err == nil {
		c.origins = remote.Config().URLs
	} else if !errors.Is(err, git.ErrRemoteNotFound) {
		return nil, fmt.Errorf("reading the origin of the checkout %s: %w", dir, err)
	}
	return c, nil
}

// checkGitDir refuses a checkout if go-git must not open its .git or a directory that .git
// names.
func checkGitDir(dir string, info fs.FileInfo) error {
	at := filepath.Join(dir, ".git")
	switch {
	case info.IsDir():
		return checkRegular(at)
	case !info.Mode().IsRegular():
		return errors.New(".git is neither a directory nor a regular file: clone the repository again")
	}

	// In a linked worktree, .git is a file that names a directory, and the file commondir in
	// that directory names the repository's directory.
	for _, name := range []string{at, "commondir"} {
		if !filepath.IsAbs(name) {
			name = filepath.Join(at, name)
		}
		content, err := readRegular(name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		linked := strings.TrimSpace(strings.TrimPrefix(string(content), "gitdir:"))
		if !filepath.IsAbs(linked) {
			linked = filepath.Join(filepath.Dir(name), linked)
		}
		at = linked
		if err := checkRegular(at); err != nil {
			return err
		}
	}
	return nil
}

// checkRegular refuses a repository's directory if a file that go-git opens is not a regular
// file. Opening a named pipe, for example, would never end.
func checkRegular(gitDir string) error {
	for _, name := range []string{"config", "HEAD", "commondir", "packed-refs", "shallow"} {
		info, err := os.Stat(filepath.Join(gitDir, name))
		if err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file: clone the repository again", filepath.Join(gitDir, name))
		}
	}
	return nil
}

// checkClean refuses a checkout with changes of the fleet that are not on the branch at
// head.
func (c *checkout) checkClean(r *repository, head plumbing.Hash) error {
	if c == nil {
		return nil
	}
	ref, err := c.repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return c.checkCommitted(r, plumbing.ZeroHash) // no commit yet
	}
	if err != nil {
		return fmt.Errorf("reading the head of the checkout %s: %w", c.dir, err)
	}
	if err := c.checkCommitted(r, ref.Hash()); err != nil {
		return err
	}
	tips := []plumbing.Hash{ref.Hash()}
	if branch, err := c.repo.Reference(plumbing.NewBranchReferenceName(r.config.Branch), true); err == nil {
		tips = append(tips, branch.Hash())
	}
	return c.checkPushed(r, tips, head)
}

// checkPushed refuses commits of the checkout that change the fleet and are not on the
// branch.
func (c *checkout) checkPushed(r *repository, tips []plumbing.Hash, head plumbing.Hash) error {
	var pushed map[plumbing.Hash]bool // the commits of the branch; nil until they are needed
	var unpushed []string
	onHead := false // whether commits of the checkout's head, the first tip, are unpushed
	for i, tip := range tips {
		if pushed[tip] {
			continue
		}
		if !head.IsZero() {
			if is, err := r.isAncestor(tip, head); is || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		if pushed == nil {
			pushed = map[plumbing.Hash]bool{}
			err := r.ancestors(head, func(commit plumbing.Hash) error {
				pushed[commit] = true
				return nil
			})
			if err != nil {
				return err
			}
		}
		commit, err := object.GetCommit(c.objects, tip)
		if err == nil {
			err = object.NewCommitIterBSF(commit, pushed, nil).ForEach(func(commit *object.Commit) error {
				changes, err := c.changesFleet(r, commit)
				if changes {
					unpushed = append(unpushed, commit.Hash.String()[:12])
					onHead = onHead || i == 0
				}
				pushed[commit.Hash] = true // do not list it again
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("reading the commits of the checkout %s: %w", c.dir, err)
		}
	}
	if len(unpushed) == 0 {
		return nil
	}
	from, drop := "HEAD", "reset --keep origin/"+r.config.Branch
	if !onHead {
		from, drop = r.config.Branch, "branch --force "+r.config.Branch+" origin/"+r.config.Branch
	}
	return fmt.Errorf("the checkout %s has commits of the fleet that are not on %s: %s: nothing was done: push them with git -C %s push origin %s:%s, or drop them with git -C %s %s",
		c.dir, r.where(), listed(unpushed), shell.Quote(c.dir), from, r.config.Branch, shell.Quote(c.dir), drop)
}

// changesFleet reports whether a commit's fleet differs from the fleet of each parent.
func (c *checkout) changesFleet(r *repository, commit *object.Commit) (bool, error) {
	mine, err := c.fleetTree(r, commit.Hash)
	if err != nil {
		return false, err
	}
	for _, parent := range commit.ParentHashes {
		theirs, err := c.fleetTree(r, parent)
		if err != nil || theirs.Hash == mine.Hash {
			return false, err
		}
	}
	return !mine.Hash.IsZero() || len(commit.ParentHashes) > 0, nil
}

// fleetTree returns the fleet's tree in a commit, or an empty tree if the commit has no
// fleet.
func (c *checkout) fleetTree(r *repository, commit plumbing.Hash) (*object.Tree, error) {
	tree, err := c.objects.tree(commit)
	if err != nil {
		return nil, err
	}
	return c.objects.subtree(tree, r.config.Subdir)
}

// checkCommitted refuses a checkout whose fleet files differ from its commit. Uncommitted
// edits must be neither applied nor ignored.
func (c *checkout) checkCommitted(r *repository, head plumbing.Hash) error {
	committed := map[string]plumbing.Hash{}
	tree, err := c.fleetTree(r, head)
	if err == nil {
		err = c.listFiles(tree, "", committed)
	}
	if err != nil {
		return fmt.Errorf("reading commit %s of the checkout %s: %w", head, c.dir, err)
	}

	edited := map[string]bool{}
	sparse, err := c.compareIndex(r, committed, edited)
	var present map[string]bool
	if err == nil {
		present, err = c.compareFiles(r, committed, edited)
	}
	if err != nil {
		return fmt.Errorf("comparing the checkout %s with its commit: %w", c.dir, err)
	}
	for name := range committed {
		if !present[name] && !sparse[name] {
			edited[name] = true
		}
	}
	if len(edited) == 0 {
		return nil
	}

	names := listed(slices.Sorted(maps.Keys(edited)))
	old := filepath.Join(c.dir, filepath.FromSlash(r.config.Subdir), PrivateDir, "git")
	if _, err := os.Lstat(filepath.Join(old, stagedFile)); err == nil {
		return fmt.Errorf("an older numaform was interrupted while it wrote the checkout %[1]s (%[2]s): nothing was done: reset it with "+
			"git -C %[3]s fetch && git -C %[3]s reset --hard origin/%[4]s, and remove %[5]s",
			c.dir, names, shell.Quote(c.dir), r.config.Branch, old)
	}
	return fmt.Errorf("the checkout %[1]s has changes of the fleet that are not committed: %[2]s: nothing was done: commit and push them with "+
		"git -C %[3]s add -A %[4]s && git -C %[3]s commit && git -C %[3]s push, or drop them with git -C %[3]s checkout HEAD -- %[4]s",
		c.dir, names, shell.Quote(c.dir), shell.Quote(cmp.Or(r.config.Subdir, ".")))
}

// listFiles adds the files of a tree that belong to the desired state to files, by path.
func (c *checkout) listFiles(tree *object.Tree, prefix string, files map[string]plumbing.Hash) error {
	for _, entry := range tree.Entries {
		name := prefix + entry.Name
		switch roleOf(name, isTree(entry)) {
		case roleFile:
			if files[name] = entry.Hash; len(files) > maxFiles {
				return fmt.Errorf("it has more than %d files in directories of the fleet: move files that do not belong to the fleet elsewhere", maxFiles)
			}
		case roleDir:
			if strings.HasPrefix(name, HistoryDir+"/") || name == HistoryDir {
				continue
			}
			below, err := object.GetTree(c.objects, entry.Hash)
			if err == nil {
				err = c.listFiles(below, name+"/", files)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// compareIndex adds the files that differ between the index and the commit to edited. It
// returns, for each file in the index, whether a sparse checkout excludes it.
func (c *checkout) compareIndex(r *repository, committed map[string]plumbing.Hash, edited map[string]bool) (sparse map[string]bool, err error) {
	index, err := c.repo.Storer.Index()
	if err != nil {
		return nil, err
	}
	sparse = map[string]bool{}
	staged := map[string]bool{}
	for _, entry := range index.Entries {
		name := entry.Name
		if r.config.Subdir != "" {
			var below bool
			if name, below = strings.CutPrefix(entry.Name, r.config.Subdir+"/"); !below {
				continue
			}
		}
		if roleOf(name, false) != roleFile {
			continue
		}
		staged[name] = true
		sparse[name] = entry.SkipWorktree
		if entry.Hash != committed[name] {
			edited[name] = true
		}
	}
	for name := range committed {
		if !staged[name] {
			edited[name] = true
		}
	}
	return sparse, nil
}

// compareFiles adds the files that differ between the directory and the commit to edited,
// and returns all existing files. It compares content hashes, so no filter or hook of the
// repository runs, and it follows no links.
func (c *checkout) compareFiles(r *repository, committed map[string]plumbing.Hash, edited map[string]bool) (present map[string]bool, err error) {
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
		role := roleOf(name, entry != nil && entry.IsDir())
		switch {
		case isIgnored(name) || isForgeFile(name) || role != roleDir && role != roleFile || name == HistoryDir:
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case err != nil:
			return err
		case role == roleDir:
			return nil
		}
		if present[name] = true; len(present) > maxFiles {
			return fmt.Errorf("it has more than %d files in directories of the fleet: move files that do not belong to the fleet elsewhere", maxFiles)
		}
		if !entry.Type().IsRegular() {
			edited[name] = true
			return nil
		}
		content, err := readLimited(root.FS(), name, maxFile)
		if err != nil {
			return err
		}
		// A checkout on Windows may have CRLF line endings.
		unix := bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
		if plumbing.ComputeHash(plumbing.BlobObject, content) != committed[name] && plumbing.ComputeHash(plumbing.BlobObject, unix) != committed[name] {
			edited[name] = true
		}
		return nil
	})
	return present, err
}

// importNotes imports the outcomes that an older numaform recorded in the checkout and could
// not push. A reference records which notes of the checkout were imported.
func (c *checkout) importNotes(r *repository) error {
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
	imported := plumbing.ReferenceName(strings.TrimSuffix(r.notes.String(), "notes") + "taken/" + ref.Hash().String())
	known, err := r.hash(imported)
	if err != nil || !known.IsZero() {
		return err
	}
	head, err := r.hash(r.notes)
	if err == nil && !head.IsZero() && r.objects.HasEncodedObject(ref.Hash()) == nil {
		if included, err := r.isAncestor(ref.Hash(), head); included || err != nil {
			return err
		}
	}
	if err == nil {
		err = r.addNotes(head, c.objects, ref.Hash(), "numaform: import the outcomes of a checkout\n")
	}
	if err == nil {
		head, err = r.hash(r.notes)
	}
	if err != nil {
		return fmt.Errorf("importing the notes of the checkout %s: %w", c.dir, err)
	}
	return r.setReference(imported, head)
}
