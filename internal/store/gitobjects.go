package store

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/objfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// The limits for objects of a repository. Larger objects are never inflated, because a
// push of a megabyte can contain an object of gigabytes.
const (
	// maxHeader limits the header of a loose object: a type and a size.
	maxHeader = 64
	maxCommit = 1 << 20
	maxTree   = 16 << 20
	// maxBase limits the size of objects that serve as delta bases.
	maxBase = 64 << 20
	// maxChain limits the length of delta chains; git creates at most 4,095.
	maxChain = 4096
)

// The limits of the caches: objectCache, of loose objects, and maxUnpacked in bytes, maxChains and
// maxTreeEntries in entries of about 100 bytes, and maxOrdered in trees.
const (
	objectCache    = 32 * cache.MiByte
	maxUnpacked    = 64 << 20
	maxChains      = 200_000
	maxTreeEntries = 200_000
	maxOrdered     = 10_000
)

// objects is a repository's object store with limits on the size of objects. It reads sizes
// from the objects' headers, because the library inflates a delta to determine the size of
// its object, and a base to apply the delta.
type objects struct {
	*filesystem.Storage // for references and loose objects
	// packs are the existing packs; nil until they are listed.
	packs []*packfile.Packfile
	// chains are the lengths of delta chains whose objects do not exceed maxBase.
	chains map[place]int
	// trees are the trees that were read last, with treeEntries entries. The callers do not
	// change them.
	trees       map[plumbing.Hash]*object.Tree
	treeEntries int
	// unpacked are the objects of packs that were read last, with unpackedBytes bytes. The callers
	// do not change them.
	unpacked      map[place]unpacked
	unpackedBytes int
	// ordered has the ends of the entries of trees whose names are in order: see appended.
	ordered map[plumbing.Hash][]int
	// unsynced are the loose objects that may not be on disk yet.
	unsynced []plumbing.Hash
}

// unpacked is an object of a pack.
type unpacked struct {
	kind    plumbing.ObjectType
	content []byte
}

// place is the place of an object in a pack.
type place struct {
	pack   *packfile.Packfile
	offset int64
}

func openObjects(dir billy.Filesystem) *objects {
	return &objects{
		Storage: filesystem.NewStorage(dir, cache.NewObjectLRU(objectCache)), chains: map[place]int{},
		trees: map[plumbing.Hash]*object.Tree{}, unpacked: map[place]unpacked{}, ordered: map[plumbing.Hash][]int{},
	}
}

// tooLargeError reports an object that is too large to read.
type tooLargeError struct {
	hash        plumbing.Hash
	size, limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("object %s has %d bytes, more than the limit of %d: remove it from the history of the branch", e.hash, e.size, e.limit)
}

func checkSizeOf(hash plumbing.Hash, size, limit int64) error {
	if size > limit {
		return &tooLargeError{hash: hash, size: size, limit: limit}
	}
	return nil
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
	// Accept only objects of this repository: the library would also read objects of
	// alternate repositories, if they are below this repository's directory, without a
	// limit.
	if _, err := o.bounded(hash, limit); err != nil {
		return nil, err
	}
	pack, offset, err := o.locate(hash)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return o.Storage.EncodedObject(kind, hash) // loose
	}
	if err != nil {
		return nil, err
	}
	read, err := o.unpack(place{pack, offset})
	if err != nil {
		return nil, fmt.Errorf("reading object %s: %w", hash, err)
	}
	if kind != plumbing.AnyObject && read.kind != kind {
		return nil, plumbing.ErrObjectNotFound
	}
	found := &plumbing.MemoryObject{}
	found.SetType(read.kind)
	_, err = found.Write(read.content)
	return found, err
}

// unpack returns the object at a place, which bounded has checked. The library would hash each
// object, and each of its bases, as the key of a cache.
func (o *objects) unpack(at place) (read unpacked, err error) {
	var chain []place
	var deltas [][]byte
	for {
		known, is := o.unpacked[at]
		if is {
			read = known
			break
		}
		scanner := at.pack.Scanner()
		header, err := scanner.SeekObjectHeader(at.offset)
		if err != nil {
			return read, err
		}
		stored, err := scanner.ReadObject()
		if err != nil {
			return read, err
		}
		content := bytes.NewBuffer(make([]byte, 0, header.Length+bytes.MinRead))
		_, err = content.ReadFrom(stored)
		if err = errors.Join(err, stored.Close()); err != nil {
			return read, err
		}
		if !header.Type.IsDelta() {
			read = unpacked{header.Type, content.Bytes()}
			o.remind(at, read)
			break
		}
		chain, deltas = append(chain, at), append(deltas, content.Bytes())
		at.offset = header.OffsetReference
		if header.Type == plumbing.REFDeltaObject {
			if at.pack, at.offset, err = o.locate(header.Reference); err != nil {
				return read, err
			}
		}
	}
	for i, at := range slices.Backward(chain) {
		if read.content, err = packfile.PatchDelta(read.content, deltas[i]); err != nil {
			return read, err
		}
		o.remind(at, read)
	}
	return read, nil
}

// remind adds an object to unpacked.
func (o *objects) remind(at place, read unpacked) {
	if o.unpackedBytes += len(read.content); o.unpackedBytes > maxUnpacked {
		clear(o.unpacked)
		o.unpackedBytes = len(read.content)
	}
	o.unpacked[at] = read
}

// SetEncodedObject stores a loose object, which is on disk only after sync. It replaces an
// object that a loss of power left empty or cut off, which the library would keep.
func (o *objects) SetEncodedObject(object plumbing.EncodedObject) (plumbing.Hash, error) {
	_, err := o.looseSize(object.Hash())
	if _, unread := errors.AsType[*fs.PathError](err); err != nil && !unread && !errors.Is(err, plumbing.ErrObjectNotFound) {
		if err := o.DeleteLooseObject(object.Hash()); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	hash, err := o.Storage.SetEncodedObject(object)
	if err == nil {
		o.unsynced = append(o.unsynced, hash)
	}
	return hash, err
}

// sync waits until the stored objects are on disk. Otherwise, a loss of power can leave empty
// files for a commit that a reference names.
func (o *objects) sync() error {
	for _, hash := range o.unsynced {
		name := hash.String()
		if err := syncPath(filepath.Join(o.Filesystem().Root(), "objects", name[:2], name[2:])); err != nil {
			return err
		}
	}
	o.unsynced = nil
	return nil
}

// removeEmpty removes loose objects that are empty or cut off, so that a fetch stores them
// again. It reports whether there were any.
func (o *objects) removeEmpty() (removed bool, err error) {
	err = o.ForEachObjectHash(func(hash plumbing.Hash) error {
		_, err := o.looseSize(hash)
		if _, unread := errors.AsType[*fs.PathError](err); err == nil || unread {
			return err
		}
		removed = true
		return o.DeleteLooseObject(hash)
	})
	return removed, err
}

// HasEncodedObject returns nil if an object exists, and plumbing.ErrObjectNotFound if it
// does not.
func (o *objects) HasEncodedObject(hash plumbing.Hash) error {
	_, err := o.bounded(hash, math.MaxInt64)
	return err
}

// bounded returns the size of an object. It returns a tooLargeError for an object larger
// than limit, and for a delta if one of its bases, which would be inflated first, exceeds
// both limit and maxBase. It returns plumbing.ErrObjectNotFound if the object does not
// exist.
func (o *objects) bounded(hash plumbing.Hash, limit int64) (int64, error) {
	pack, offset, err := o.locate(hash)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		size, err := o.looseSize(hash)
		if err == nil {
			err = checkSizeOf(hash, size, limit)
		}
		return size, err
	}
	if err != nil {
		return 0, err
	}

	var size int64
	var chain []place
	for len(chain) < maxChain {
		at := place{pack, offset}
		known := o.chains[at]
		if len(chain) > 0 && known > 0 && len(chain)+known <= maxChain {
			o.remember(chain, known, limit)
			return size, nil
		}
		entry, inflated, err := readHeader(pack.Scanner(), offset)
		if err != nil {
			return size, fmt.Errorf("reading object %s at offset %d of its pack: %w", hash, offset, err)
		}
		if len(chain) == 0 {
			size = inflated
			err = checkSizeOf(hash, size, limit)
		}
		if err == nil {
			err = checkSizeOf(hash, max(entry.Length, inflated), max(limit, maxBase))
		}
		chain = append(chain, at)
		switch {
		case err != nil:
		case entry.Type == plumbing.OFSDeltaObject:
			offset = entry.OffsetReference
		case entry.Type == plumbing.REFDeltaObject:
			pack, offset, err = o.locate(entry.Reference)
		default:
			o.remember(chain, 0, limit)
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
	return size, fmt.Errorf("object %s has a delta chain of more than %d objects: run git repack -a -d -F in its repository", hash, maxChain)
}

// remember stores the lengths of the chains of objects that were checked with a limit. Each is a
// delta of the next one, and the last one is a delta of an object with a chain of length known.
func (o *objects) remember(chain []place, known int, limit int64) {
	if limit > maxBase {
		return
	}
	if len(o.chains)+len(chain) > maxChains {
		clear(o.chains)
	}
	for _, at := range slices.Backward(chain) {
		known++
		o.chains[at] = known
	}
}

// locate returns the pack that contains an object, and the object's offset in the pack.
func (o *objects) locate(hash plumbing.Hash) (*packfile.Packfile, int64, error) {
	if err := o.list(); err != nil {
		return nil, 0, err
	}
	for _, pack := range o.packs {
		offset, err := pack.FindOffset(hash)
		if !errors.Is(err, plumbing.ErrObjectNotFound) {
			return pack, offset, err
		}
	}
	return nil, 0, plumbing.ErrObjectNotFound
}

// list opens the existing packs, unless it has done so.
func (o *objects) list() error {
	if o.packs != nil {
		return nil
	}
	o.packs = []*packfile.Packfile{}
	entries, err := o.Filesystem().ReadDir("objects/pack")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		name := "objects/pack/" + entry.Name()
		if path.Ext(name) != ".idx" {
			continue
		}
		err := o.openPack(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed by a concurrent repack
			return fmt.Errorf("opening %s: %w", name, err)
		}
	}
	return nil
}

// borrow moves the packs of other objects to o until o is closed.
func (o *objects) borrow(other *objects) error {
	if err := errors.Join(o.list(), other.list()); err != nil {
		return err
	}
	o.packs = append(o.packs, other.packs...)
	other.packs = nil
	return nil
}

// openPack opens a pack, given the name of its index.
func (o *objects) openPack(name string) error {
	file, err := o.Filesystem().Open(name)
	if err != nil {
		return err
	}
	index := idxfile.NewMemoryIndex()
	if err := errors.Join(idxfile.NewDecoder(file).Decode(index), file.Close()); err != nil {
		return err
	}
	data, err := o.Filesystem().Open(strings.TrimSuffix(name, ".idx") + ".pack")
	if err != nil {
		return err
	}
	o.packs = append(o.packs, packfile.NewPackfile(index, nil, data, 0))
	return nil
}

// Close closes the packs. The next read lists them again.
func (o *objects) Close() error {
	var errs []error
	for _, pack := range o.packs {
		errs = append(errs, pack.Close())
	}
	o.packs = nil
	clear(o.chains)
	clear(o.unpacked)
	o.unpackedBytes = 0
	o.Reindex()
	return errors.Join(errs...)
}

// readHeader reads the header of an entry of a pack, and the size of its object.
func readHeader(scanner *packfile.Scanner, offset int64) (header *packfile.ObjectHeader, size int64, err error) {
	header, err = scanner.SeekObjectHeader(offset)
	if err != nil {
		return nil, 0, err
	}
	if !header.Type.IsDelta() {
		return header, header.Length, nil
	}
	delta, err := scanner.ReadObject()
	if err != nil {
		return nil, 0, err
	}
	reader := bufio.NewReaderSize(delta, 2*binary.MaxVarintLen64)
	_, err = binary.ReadUvarint(reader) // the base's size
	var result uint64
	if err == nil {
		result, err = binary.ReadUvarint(reader)
	}
	if err == nil && result > math.MaxInt64 {
		err = errors.New("the delta is corrupt")
	}
	return header, int64(result), errors.Join(err, delta.Close())
}

// looseSize returns the size of a loose object.
func (o *objects) looseSize(hash plumbing.Hash) (int64, error) {
	name := hash.String()
	file, err := o.Filesystem().Open(path.Join("objects", name[:2], name[2:]))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, plumbing.ErrObjectNotFound
	}
	if err != nil {
		return 0, err
	}
	size, err := headerSize(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("reading object %s: %w", hash, err)
	}
	return size, nil
}

// headerSize returns the size in the header of a loose object, such as "blob 12" and a zero
// byte. It inflates at most maxHeader bytes; objfile.Reader has no limit.
func headerSize(file io.Reader) (int64, error) {
	inflated, err := zlib.NewReader(file)
	if err != nil {
		return 0, err
	}
	start, err := io.ReadAll(io.LimitReader(inflated, maxHeader))
	if err != nil && len(start) == 0 {
		return 0, err
	}
	header, _, complete := bytes.Cut(start, []byte{0})
	_, digits, found := bytes.Cut(header, []byte{' '})
	if !complete || !found {
		return 0, objfile.ErrHeader
	}
	return strconv.ParseInt(string(digits), 10, 64)
}

// tree returns the tree of a commit; an empty tree for the zero hash.
func (o *objects) tree(commit plumbing.Hash) (*object.Tree, error) {
	if commit.IsZero() {
		return &object.Tree{}, nil
	}
	found, err := object.GetCommit(o, commit)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", commit, err)
	}
	return o.readTree(found.TreeHash)
}

// readTree returns the tree with a hash, which the caller must not change; an empty tree for the
// zero hash. Consecutive commits have most trees in common.
func (o *objects) readTree(hash plumbing.Hash) (*object.Tree, error) {
	if hash.IsZero() {
		return &object.Tree{}, nil
	}
	if tree := o.trees[hash]; tree != nil {
		return tree, nil
	}
	tree, err := object.GetTree(o, hash)
	if err != nil {
		return nil, err
	}
	if o.treeEntries += 1 + len(tree.Entries); o.treeEntries > maxTreeEntries {
		clear(o.trees)
		o.treeEntries = 1 + len(tree.Entries)
	}
	o.trees[hash] = tree
	return tree, nil
}

// appended returns the entries of a tree after the entries of an earlier one. is is set if the
// earlier tree is the beginning of the tree, and if all names are in order, so that none is a
// duplicate. It decodes only these entries: a directory of records has thousands, and each commit
// adds one.
func (o *objects) appended(tree, earlier plumbing.Hash) (entries []object.TreeEntry, is bool, err error) {
	if tree.IsZero() || earlier.IsZero() {
		return nil, false, nil
	}
	var contents [2][]byte
	for i, hash := range []plumbing.Hash{tree, earlier} {
		if _, err := o.bounded(hash, maxTree); err != nil {
			return nil, false, err
		}
		pack, offset, err := o.locate(hash)
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			return nil, false, nil // loose
		}
		if err != nil {
			return nil, false, err
		}
		read, err := o.unpack(place{pack, offset})
		if err != nil {
			return nil, false, fmt.Errorf("reading tree %s: %w", hash, err)
		}
		if read.kind != plumbing.TreeObject {
			return nil, false, nil
		}
		contents[i] = read.content
	}
	after, before := contents[0], contents[1]
	if len(after) == len(before) || !bytes.HasPrefix(after, before) {
		return nil, false, nil
	}
	if len(o.ordered) > maxOrdered {
		clear(o.ordered)
	}
	ends := o.ordered[tree]
	if ends == nil {
		if ends = endsOf(after); ends == nil {
			return nil, false, nil
		}
		o.ordered[tree] = ends
	}
	last, is := slices.BinarySearch(ends, len(before))
	if !is {
		return nil, false, nil
	}
	o.ordered[earlier] = ends[:last+1] // usually compared next
	rest := &plumbing.MemoryObject{}
	rest.SetType(plumbing.TreeObject)
	if _, err := rest.Write(after[len(before):]); err != nil {
		return nil, false, err
	}
	var decoded object.Tree
	if err := decoded.Decode(rest); err != nil {
		return nil, false, fmt.Errorf("reading tree %s: %w", tree, err)
	}
	return decoded.Entries, true, nil
}

// endsOf returns the offsets of the ends of a tree's entries, or nil if their names are not in
// order.
func endsOf(content []byte) (ends []int) {
	var last []byte
	for at := 0; at < len(content); at = ends[len(ends)-1] {
		length := bytes.IndexByte(content[at:], 0)
		if length < 0 {
			return nil
		}
		_, name, _ := bytes.Cut(content[at:at+length], []byte{' '})
		end := at + length + 1 + len(plumbing.ZeroHash)
		if bytes.Compare(last, name) >= 0 || end > len(content) {
			return nil
		}
		last, ends = name, append(ends, end)
	}
	return ends
}

// subtree returns the tree at a path; an empty tree if the path does not exist.
func (o *objects) subtree(tree *object.Tree, name string) (*object.Tree, error) {
	if name == "" || name == "." {
		return tree, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		i := slices.IndexFunc(tree.Entries, func(e object.TreeEntry) bool { return e.Name == part && isTree(e) })
		if i < 0 {
			return &object.Tree{}, nil
		}
		var err error
		if tree, err = o.readTree(tree.Entries[i].Hash); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// PackfileWriter returns a writer that stores a pack. It prefers the git program, which uses
// all processors and indexes a pack several times faster than the library. The program gets
// no credential and does not use the network. Without git, the library stores the pack.
func (o *objects) PackfileWriter() (io.WriteCloser, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		w, err := o.Storage.PackfileWriter()
		return &packWriter{WriteCloser: w, finish: o.Close}, err
	}
	dir := o.Filesystem().Root()
	var output strings.Builder
	command := exec.Command(program, "-c", "core.hooksPath=/dev/null", "-c", "core.bigFileThreshold=1m", "index-pack", "--stdin") //nolint:gosec // a constant command
	command.Dir = dir
	command.Env = []string{
		"GIT_DIR=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"LC_ALL=C", "HOME=/nonexistent", "PATH=" + os.Getenv("PATH"),
	}
	command.Stderr = &output
	pipe, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	enlarge(pipe)
	finish := func() error {
		if err := command.Wait(); err != nil {
			return fmt.Errorf("indexing a pack with %s: %w: %s", program, err, strings.TrimSpace(output.String()))
		}
		return o.Close()
	}
	return &packWriter{WriteCloser: pipe, finish: finish}, command.Start()
}

// packWriter calls finish after the last byte of a pack.
type packWriter struct {
	io.WriteCloser
	finish func() error
}

// Close waits until the pack is stored.
func (w *packWriter) Close() error {
	return errors.Join(w.WriteCloser.Close(), w.finish())
}
