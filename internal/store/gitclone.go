package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// The limits for objects of a repository. Larger objects are never inflated, because a
// push of a megabyte can contain an object of gigabytes.
const (
	maxCommit = 1 << 20
	maxTree   = 16 << 20
	// maxBase limits the size of objects that serve as delta bases.
	maxBase = 64 << 20
	// maxChain limits the length of delta chains; git itself creates at most 4,095.
	maxChain = 4096
)

// objectCache limits the size of the object cache.
const objectCache = 32 * cache.MiByte

// objects is a repository's object store, with limits on what it reads.
type objects struct {
	*filesystem.Storage
	// path is the repository's directory, to which the program that indexes packs writes.
	path    string
	headers headers
}

func openObjects(path string) *objects {
	return &objects{path: path, headers: headers{dir: filepath.Join(path, "objects")}, Storage: filesystem.NewStorageWithOptions(osfs.New(path), cache.NewObjectLRU(objectCache),
		filesystem.Options{KeepDescriptors: true})}
}

// tooLargeError reports an object that is too large to read.
type tooLargeError struct {
	hash        plumbing.Hash
	size, limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("object %s has %d bytes, and may have %d: remove what holds it from the branch's history", e.hash, e.size, e.limit)
}

// EncodedObject reads an object, if it does not exceed the limit for its type.
func (o *objects) EncodedObject(kind plumbing.ObjectType, hash plumbing.Hash) (plumbing.EncodedObject, error) {
	limit := int64(maxTree)
	switch kind {
	case plumbing.BlobObject:
		limit = maxRecord
	case plumbing.CommitObject, plumbing.TagObject:
		limit = maxCommit
	}
	_, err := o.headers.bounded(hash, limit)
	if err != nil && !errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, err
	}
	// A missing object may be in an alternate repository.
	return o.Storage.EncodedObject(kind, hash)
}

// size returns the size of a file, without a limit.
func (o *objects) size(hash plumbing.Hash) (int64, error) {
	size, err := o.headers.bounded(hash, math.MaxInt64)
	var large *tooLargeError
	if errors.As(err, &large) {
		return max(size, large.size), nil
	}
	return size, err
}

// Close closes the files of packs.
func (o *objects) Close() error { return errors.Join(o.headers.close(), o.Storage.Close()) }

// PackfileWriter returns a writer that stores a pack. It prefers the git program, which
// indexes a pack several times faster than the library, on all processors; the program
// gets neither the network nor a credential. If git is not installed, the library stores
// the pack.
func (o *objects) PackfileWriter() (io.WriteCloser, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		w, err := o.Storage.PackfileWriter()
		return &packWriter{WriteCloser: w, objects: o}, err
	}
	command := exec.Command(program, "-c", "core.hooksPath=/dev/null", "-c", "core.bigFileThreshold=1m", "index-pack", "--stdin") //nolint:gosec // a constant command
	command.Dir = o.path
	command.Env = []string{
		"GIT_DIR=" + o.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"LC_ALL=C", "HOME=/nonexistent", "PATH=" + os.Getenv("PATH"),
	}
	w := &packIndexer{objects: o, command: command}
	command.Stderr = &w.says
	if w.WriteCloser, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	enlarge(w.WriteCloser)
	return w, command.Start()
}

// packWriter is the library's writer.
type packWriter struct {
	io.WriteCloser
	objects *objects
}

func (w *packWriter) Close() error {
	return errors.Join(w.WriteCloser.Close(), w.objects.headers.close())
}

// packIndexer is a running git program that indexes a pack.
type packIndexer struct {
	io.WriteCloser
	objects *objects
	command *exec.Cmd
	says    strings.Builder
}

// Close waits until the pack is stored.
func (w *packIndexer) Close() error {
	err := w.WriteCloser.Close()
	if waited := w.command.Wait(); waited != nil {
		return fmt.Errorf("indexing a pack with %s: %w: %s", w.command.Path, waited, strings.TrimSpace(w.says.String()))
	}
	w.objects.Reindex()
	return errors.Join(err, w.objects.headers.close())
}

// repository is an open clone, or the bare repository itself if there is no clone.
type repository struct {
	*Git
	objects *objects
	repo    *git.Repository
	remote  *remote // nil if there is none
	// checkout is a person's working copy; nil if there is none.
	checkout *checkout
	// branch and notes are the references of the desired state and of the outcomes. With
	// a remote, branch and seenNotes are the remote's as last fetched, and notes also
	// contains the notes that are not pushed yet.
	branch, notes, seenNotes plumbing.ReferenceName
	// read is the number of bytes of files and records that were read.
	read int64
}

// localNotes is the reference of the notes in a repository without a remote, and on
// remotes.
const localNotes plumbing.ReferenceName = "refs/notes/numaform"

// open locates the repository, and opens or creates the clone.
func (g *Git) open() (r *repository, err error) {
	url, copied, err := g.locate()
	if err != nil {
		return nil, err
	}
	if url == "" {
		return g.openBare()
	}
	r = &repository{Git: g, checkout: copied}
	if r.remote, err = newRemote(url, g.config.Auth, g.interrupted); err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", url, err), r.close())
	}
	// Each remote and branch has its own references in the clone.
	prefix := "refs/numaform/" + plumbing.ComputeHash(plumbing.BlobObject, []byte(url+"\n"+g.config.Branch)).String()
	r.branch, r.notes, r.seenNotes = plumbing.ReferenceName(prefix+"/branch"), plumbing.ReferenceName(prefix+"/notes"), plumbing.ReferenceName(prefix+"/seen-notes")
	_, err = git.PlainOpen(g.config.Clone)
	if errors.Is(err, git.ErrRepositoryNotExists) {
		_, err = git.PlainInit(g.config.Clone, true)
	}
	if err == nil {
		err = r.openAt(g.config.Clone)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the clone %s: %w: remove the directory, and it is made again", g.config.Clone, err), r.close())
	}
	return r, nil
}

// openBare opens the bare repository in fleet.dir.
func (g *Git) openBare() (*repository, error) {
	r := &repository{Git: g, branch: plumbing.NewBranchReferenceName(g.config.Branch), notes: localNotes}
	if err := r.openAt(g.config.Dir); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the repository %s: %w", g.config.Dir, err), r.close())
	}
	return r, nil
}

func (r *repository) openAt(path string) (err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	r.objects = openObjects(path)
	r.repo, err = git.Open(r.objects, nil)
	return err
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

// locate returns the URL of the repository, which is empty for a bare one in fleet.dir,
// and the checkout in fleet.dir if there is one.
func (g *Git) locate() (url string, found *checkout, err error) {
	dir, wanted := g.config.Dir, g.config.Remote
	if dir == "" {
		return wanted, nil, nil
	}
	found, err = g.openCheckout()
	if err != nil {
		return "", nil, err
	}
	if found == nil {
		url, err = g.locateBare()
		return url, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, found.objects.Close())
			found = nil
		}
	}()
	origins := found.origins
	switch {
	case len(origins) > 1:
		keep := wanted
		if keep == "" {
			keep = userinfo.ReplaceAllString(origins[0], "://")
		}
		return "", found, fmt.Errorf("the origin of the checkout %s has %d URLs, and only one is the fleet's repository: "+
			"git -C %s config --replace-all remote.origin.url %s", dir, len(origins), quoted(dir), quoted(keep))
	case wanted != "" && len(origins) == 1 && origins[0] != wanted:
		return "", found, fmt.Errorf("the origin of the checkout %s is %s, and fleet.git.remote is %s: name another fleet.dir, or "+
			"git -C %s remote set-url origin %s", dir, userinfo.ReplaceAllString(origins[0], "://"), wanted, quoted(dir), quoted(wanted))
	case wanted != "":
		return wanted, found, nil
	case len(origins) == 1:
		return origins[0], found, nil
	}
	bare := filepath.Clean(dir) + ".git"
	return "", found, fmt.Errorf("%s is a checkout without an origin, and numaform never writes into a checkout: nothing was written: "+
		"make a bare repository of it, git clone --bare %s %s, and set fleet.git.remote to %s", dir, quoted(dir), quoted(bare), bare)
}

// locateBare checks a fleet.dir that is not a checkout.
func (g *Git) locateBare() (url string, err error) {
	dir, wanted := g.config.Dir, g.config.Remote
	if wanted != "" {
		_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(g.config.Subdir), "fleet.json"))
		if err == nil {
			return "", fmt.Errorf("%s holds a fleet and is no checkout of %s: commit its files there, "+
				"and name another fleet.dir or move these elsewhere", g.FleetDir(), wanted)
		}
		return wanted, nil
	}
	if isBare(dir) {
		return "", whole(dir, dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("opening the fleet's repository: %w", err)
	}
	for _, entry := range entries {
		if !leftBehind(entry.Name()) {
			return "", fmt.Errorf("%s holds %s and is no git repository: name an empty fleet.dir, or make a repository of it: "+
				"git -C %[3]s init && git -C %[3]s add -A && git -C %[3]s commit -m fleet && git clone --bare %[3]s %[4]s, and set fleet.git.remote to %[5]s",
				dir, shown(entry.Name()), quoted(dir), quoted(filepath.Clean(dir)+".git"), filepath.Clean(dir)+".git")
		}
	}
	_, err = git.PlainInitWithOptions(dir, &git.PlainInitOptions{
		Bare: true, InitOptions: git.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName(g.config.Branch)},
	})
	if err != nil {
		return "", fmt.Errorf("making the bare repository %s: %w", dir, err)
	}
	return "", nil
}

// FleetDir returns the fleet's directory in the checkout.
func (g *Git) FleetDir() string {
	return filepath.Join(g.config.Dir, filepath.FromSlash(g.config.Subdir))
}

// isBare reports whether a directory is a bare repository.
func isBare(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// whole refuses a repository that lacks part of its history or objects.
func whole(dir, gitDir string) error {
	if info, err := os.Stat(filepath.Join(gitDir, "shallow")); err == nil && info.Size() > 0 {
		return fmt.Errorf("the repository %s is shallow, and the fleet's history is in all of its commits: git -C %s fetch --unshallow", dir, quoted(dir))
	}
	config, err := readOrdinary(filepath.Join(gitDir, "config"), maxFile)
	if err != nil {
		return fmt.Errorf("reading the configuration of the repository %s: %w", dir, err)
	}
	for line := range strings.Lines(strings.ToLower(string(config))) {
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "partialclone" || key == "promisor" && value != "false" {
			return fmt.Errorf("the repository %[1]s is a partial clone, and lacks some of its objects: "+
				"git -C %[2]s config --unset extensions.partialClone; git -C %[2]s config --unset remote.origin.promisor; git -C %[2]s fetch --refetch --no-filter", dir, quoted(dir))
		}
	}
	return nil
}
