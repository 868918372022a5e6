package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"

	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/internal/shell"
)

// repository is an open clone, or the bare repository itself if there is no clone.
type repository struct {
	*Git
	objects *objects
	repo    *git.Repository
	remote  *remote // nil if there is none
	// checkout is a user's working copy; nil if there is none.
	checkout *checkout
	// branch and notes are the references of the desired state and of the outcomes. With a
	// remote, branch and seenNotes are as last fetched, and notes also contains the notes
	// that are not pushed yet.
	branch, notes, seenNotes plumbing.ReferenceName
	// kept is the last commit of the branch that numaform itself wrote, or relied on: see
	// Git.PutBack. Only a repository with a remote has it.
	kept plumbing.ReferenceName
	// read is the number of bytes of files and records read so far.
	read int64
}

// localNotes is the reference of the notes on remotes and in a repository without a remote.
const localNotes plumbing.ReferenceName = "refs/notes/numaform"

// open locates the repository, and opens or creates the clone, or the bare repository in
// fleet.dir.
func (g *Git) open() (r *repository, err error) {
	r = &repository{Git: g}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	url, err := r.locate()
	if err != nil {
		return r, err
	}
	if url == "" {
		dir := g.config.Dir
		r.branch = plumbing.NewBranchReferenceName(g.config.Branch)
		r.notes = localNotes
		if err := checkRegular(dir); err != nil {
			return r, fmt.Errorf("opening the repository %s: %w", dir, err)
		}
		err := r.openAt(dir)
		if errors.Is(err, git.ErrRepositoryNotExists) {
			if err := checkVacant(dir); err != nil {
				return r, err
			}
			err = r.create(dir)
		}
		return r, checkComplete(dir, r.repo, err)
	}

	if r.remote, err = newRemote(url, g.config.Auth, g.interrupt); err != nil {
		return r, fmt.Errorf("opening %s: %w", url, err)
	}
	// Each remote and branch has its own references in the clone.
	prefix := "refs/numaform/" + plumbing.ComputeHash(plumbing.BlobObject, []byte(url+"\n"+g.config.Branch)).String()
	r.branch = plumbing.ReferenceName(prefix + "/branch")
	r.notes = plumbing.ReferenceName(prefix + "/notes")
	r.seenNotes = plumbing.ReferenceName(prefix + "/seen-notes")
	r.kept = plumbing.ReferenceName(prefix + "/kept")
	err = r.openAt(g.config.Clone)
	if errors.Is(err, git.ErrRepositoryNotExists) {
		err = r.create(g.config.Clone)
	}
	if err != nil {
		return r, fmt.Errorf("opening the clone %s: %w: remove the directory, and numaform creates it again", g.config.Clone, err)
	}
	return r, nil
}

// openAt opens a bare repository.
func (r *repository) openAt(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	r.objects = openObjects(osfs.New(path))
	r.repo, err = git.Open(r.objects, nil)
	return err
}

// create creates a bare repository and opens it.
func (r *repository) create(path string) error {
	_, err := git.PlainInitWithOptions(path, &git.PlainInitOptions{
		Bare: true, InitOptions: git.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName(r.config.Branch)},
	})
	if err != nil {
		return fmt.Errorf("creating a bare repository: %w", err)
	}
	return r.openAt(path)
}

// temporarily calls f with the objects of an empty repository, which it then removes.
func (g *Git) temporarily(purpose string, f func(*objects) error) (err error) {
	dir, err := scratch.New(purpose)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	r := &repository{Git: g}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.create(dir.Path()); err != nil {
		return err
	}
	return f(r.objects)
}

func (r *repository) close() error {
	var errs []error
	if r.objects != nil {
		errs = append(errs, r.objects.Close())
	}
	if r.checkout != nil {
		errs = append(errs, r.checkout.objects.Close())
	}
	return errors.Join(errs...)
}

// locate opens the checkout in fleet.dir if there is one, and returns the repository's URL,
// which is empty for a bare repository in fleet.dir.
func (r *repository) locate() (url string, err error) {
	dir := r.config.Dir
	remote := r.config.Remote
	if dir == "" {
		return remote, nil
	}
	if r.checkout, err = r.openCheckout(); err != nil {
		return "", err
	}
	if r.checkout == nil {
		_, err := os.Lstat(filepath.Join(r.fleetDir(), "fleet.json"))
		if remote != "" && err == nil {
			return "", fmt.Errorf("%s contains a fleet but is not a checkout of %s: commit its files to that repository, "+
				"then set fleet.dir to another directory or move these files elsewhere", r.fleetDir(), remote)
		}
		return remote, nil
	}

	origins := r.checkout.origins
	switch {
	case len(origins) > 1:
		return "", fmt.Errorf("the origin of the checkout %s has %d URLs, but the fleet has one repository: run "+
			"git -C %s config --replace-all remote.origin.url %s",
			dir, len(origins), shell.Quote(dir), shell.Quote(cmp.Or(remote, userinfo.ReplaceAllString(origins[0], "://"))))
	case remote != "" && len(origins) == 1 && origins[0] != remote:
		return "", fmt.Errorf("the origin of the checkout %s is %s, but fleet.git.remote is %s: set fleet.dir to another directory, or run "+
			"git -C %s remote set-url origin %s", dir, userinfo.ReplaceAllString(origins[0], "://"), remote, shell.Quote(dir), shell.Quote(remote))
	case remote != "":
		return remote, nil
	case len(origins) == 1:
		return origins[0], nil
	}
	bare := filepath.Clean(dir) + ".git"
	return "", fmt.Errorf("%s is a checkout without a remote named origin, but numaform does not write to checkouts: nothing was written: "+
		"create a bare clone with `git clone --bare %s %s` and set fleet.git.remote to %s", dir, shell.Quote(dir), shell.Quote(bare), bare)
}

// checkVacant returns an error if a directory contains files and must not become a
// repository.
func checkVacant(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("opening the fleet's repository: %w", err)
	}
	for _, entry := range entries {
		if !isIgnored(entry.Name()) {
			return fmt.Errorf("%s contains %s and is not a git repository: set fleet.dir to an empty directory, or convert this one: "+
				"git -C %[3]s init && git -C %[3]s add -A && git -C %[3]s commit -m fleet && git clone --bare %[3]s %[4]s, and set fleet.git.remote to %[5]s",
				dir, printable(entry.Name()), shell.Quote(dir), shell.Quote(filepath.Clean(dir)+".git"), filepath.Clean(dir)+".git")
		}
	}
	return nil
}

// fleetDir returns the fleet's directory in the checkout.
func (g *Git) fleetDir() string {
	return filepath.Join(g.config.Dir, filepath.FromSlash(g.config.Subdir))
}

// checkComplete explains the error of opening a repository, and refuses one that lacks
// part of its history or objects.
func checkComplete(dir string, repo *git.Repository, err error) error {
	completed := fmt.Sprintf("git -C %[1]s config --unset extensions.partialClone; git -C %[1]s config --unset remote.origin.promisor; "+
		"git -C %[1]s fetch --refetch --no-filter", shell.Quote(dir))
	if errors.Is(err, git.ErrUnknownExtension) || errors.Is(err, git.ErrUnsupportedExtensionRepositoryFormatVersion) {
		return fmt.Errorf("opening the repository %s: %w: if it is a partial clone, run %s", dir, err, completed)
	}
	if err != nil {
		return fmt.Errorf("opening the repository %s: %w", dir, err)
	}

	shallow, err := repo.Storer.Shallow()
	if err != nil {
		return fmt.Errorf("opening the repository %s: %w", dir, err)
	}
	if len(shallow) > 0 {
		return fmt.Errorf("the repository %s is shallow, but the fleet's history requires all of its commits: run git -C %s fetch --unshallow", dir, shell.Quote(dir))
	}
	config, err := repo.Storer.Config()
	if err != nil {
		return fmt.Errorf("reading the configuration of the repository %s: %w", dir, err)
	}
	for _, remote := range config.Raw.Section("remote").Subsections {
		if remote.HasOption("promisor") && remote.Option("promisor") != "false" {
			return fmt.Errorf("the repository %s is a partial clone without some of its objects: run %s", dir, completed)
		}
	}
	return nil
}
