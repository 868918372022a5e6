package store

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// headers reads the sizes of a repository's objects from their headers alone. The library
// inflates a delta to get its object's size, and a base to apply it.
type headers struct {
	// dir is the objects directory.
	dir string
	// packs are the existing packs; nil until they are listed.
	packs []*packFile
}

// packFile is a pack with its index, both in version 2 of the formats in
// gitformat-pack(5).
type packFile struct {
	data, index *os.File
	fanout      [256]uint32
}

// The layout of an index: a header, a fan-out table, then for each object a hash, a
// checksum and an offset, and 8-byte offsets for the objects that need them.
const (
	indexMagic   = "\xfftOc\x00\x00\x00\x02"
	fanoutOffset = 8
	hashesOffset = fanoutOffset + 256*4
)

// The types of delta entries.
const (
	entryOffsetDelta = 6
	entryHashDelta   = 7
)

// entry is the header of an object in a pack.
type entry struct {
	pack *packFile
	// length is the inflated length of the entry: the content or the delta.
	length int64
	// size is the size of the object itself.
	size int64
	// delta is set for a delta to the object at offset base, or with hash named.
	delta bool
	base  int64
	hash  plumbing.Hash
}

func (h *headers) close() error {
	var errs []error
	for _, p := range h.packs {
		errs = append(errs, p.data.Close(), p.index.Close())
	}
	h.packs = nil
	return errors.Join(errs...)
}

// open opens the existing packs.
func (h *headers) open() error {
	if h.packs != nil {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(h.dir, "pack", "pack-*.idx"))
	if err != nil {
		return err
	}
	h.packs = []*packFile{}
	for _, name := range names {
		p, err := openPack(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by a concurrent repack
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", name, err)
		}
		h.packs = append(h.packs, p)
	}
	return nil
}

func openPack(name string) (p *packFile, err error) {
	p = &packFile{}
	if p.index, err = os.Open(name); err != nil {
		return nil, err
	}
	if p.data, err = os.Open(strings.TrimSuffix(name, ".idx") + ".pack"); err != nil {
		return nil, errors.Join(err, p.index.Close())
	}
	start := make([]byte, hashesOffset)
	_, err = p.index.ReadAt(start, 0)
	if err == nil && string(start[:fanoutOffset]) != indexMagic {
		err = errors.New("it is no index of version 2")
	}
	if err != nil {
		return nil, errors.Join(err, p.index.Close(), p.data.Close())
	}
	for i := range p.fanout {
		p.fanout[i] = binary.BigEndian.Uint32(start[fanoutOffset+4*i:])
	}
	return p, nil
}

// find returns the offset of an object in a pack.
func (p *packFile) find(hash plumbing.Hash) (offset int64, exists bool, err error) {
	first, last := 0, int(p.fanout[hash[0]])
	if hash[0] > 0 {
		first = int(p.fanout[hash[0]-1])
	}
	if last < first {
		return 0, false, errors.New("its index is damaged")
	}
	var at plumbing.Hash
	n := first + sort.Search(last-first, func(i int) bool {
		_, failed := p.index.ReadAt(at[:], hashesOffset+int64(first+i)*int64(len(at)))
		err = errors.Join(err, failed)
		return bytes.Compare(at[:], hash[:]) >= 0
	})
	if err != nil || n == last {
		return 0, false, err
	}
	if _, err := p.index.ReadAt(at[:], hashesOffset+int64(n)*int64(len(at))); err != nil || at != hash {
		return 0, false, err
	}
	all := int64(p.fanout[255])
	offsets := hashesOffset + all*int64(len(at)+4)
	var word [8]byte
	if _, err := p.index.ReadAt(word[:4], offsets+int64(n)*4); err != nil {
		return 0, false, err
	}
	short := binary.BigEndian.Uint32(word[:4])
	if short&(1<<31) == 0 {
		return int64(short), true, nil
	}
	_, err = p.index.ReadAt(word[:], offsets+all*4+int64(short&^(1<<31))*8)
	return int64(binary.BigEndian.Uint64(word[:])), true, err //nolint:gosec // a file is no larger
}

// at reads the header of the object at an offset.
func (p *packFile) at(offset int64) (e entry, err error) {
	e.pack = p
	start := make([]byte, 64)
	n, err := p.data.ReadAt(start, offset)
	if err != nil && !errors.Is(err, io.EOF) || n == 0 {
		return e, fmt.Errorf("reading the pack %s at %d: %w", p.data.Name(), offset, err)
	}
	reader := bytes.NewReader(start[:n])
	first, _ := reader.ReadByte()
	kind := first >> 4 & 7
	e.length = int64(first & 15)
	for shift := 4; first&0x80 != 0; shift += 7 {
		if first, err = reader.ReadByte(); err != nil || shift > 56 {
			return e, fmt.Errorf("reading the pack %s at %d: it is damaged", p.data.Name(), offset)
		}
		e.length |= int64(first&0x7f) << shift
	}
	switch e.size = e.length; kind {
	case entryOffsetDelta:
		e.delta = true
		back, err := readOffset(reader)
		if err != nil || back <= 0 || back > offset {
			return e, fmt.Errorf("reading the pack %s at %d: it is damaged", p.data.Name(), offset)
		}
		e.base = offset - back
	case entryHashDelta:
		e.delta = true
		if _, err := io.ReadFull(reader, e.hash[:]); err != nil {
			return e, fmt.Errorf("reading the pack %s at %d: %w", p.data.Name(), offset, err)
		}
	default:
		return e, nil
	}
	used := reader.Size() - int64(reader.Len())
	inflated, err := zlib.NewReader(io.NewSectionReader(p.data, offset+used, 1<<62-offset))
	if err != nil {
		return e, fmt.Errorf("reading the pack %s at %d: %w", p.data.Name(), offset, err)
	}
	sizes := make([]byte, 20)
	n, err = io.ReadFull(inflated, sizes)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return e, fmt.Errorf("reading the pack %s at %d: %w", p.data.Name(), offset, err)
	}
	_, m := binary.Uvarint(sizes[:n]) // the first is the base's size, the second the object's
	size, k := binary.Uvarint(sizes[max(m, 0):n])
	if m <= 0 || k <= 0 || size > 1<<62 {
		return e, fmt.Errorf("reading the pack %s at %d: it is damaged", p.data.Name(), offset)
	}
	e.size = int64(size)
	return e, inflated.Close()
}

// readOffset reads the distance back to a base.
func readOffset(reader io.ByteReader) (int64, error) {
	b, err := reader.ReadByte()
	back := int64(b & 0x7f)
	for b&0x80 != 0 && err == nil && back < 1<<55 {
		b, err = reader.ReadByte()
		back = (back+1)<<7 | int64(b&0x7f)
	}
	return back, err
}

// locate returns the header of an object in a pack.
func (h *headers) locate(hash plumbing.Hash) (e entry, exists bool, err error) {
	if err := h.open(); err != nil {
		return e, false, err
	}
	for _, p := range h.packs {
		offset, exists, err := p.find(hash)
		if err != nil {
			return e, false, fmt.Errorf("reading %s: %w", p.index.Name(), err)
		}
		if exists {
			e, err = p.at(offset)
			return e, err == nil, err
		}
	}
	return e, false, nil
}

// loose returns the size of a loose object.
func (h *headers) loose(hash plumbing.Hash) (size int64, exists bool, err error) {
	name := hash.String()
	file, err := os.Open(filepath.Join(h.dir, name[:2], name[2:]))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	inflated, err := zlib.NewReader(file)
	start := make([]byte, 64)
	n := 0
	if err == nil {
		n, err = io.ReadFull(inflated, start)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if err = errors.Join(err, file.Close()); err == nil {
		header, _, _ := bytes.Cut(start[:n], []byte{0})
		_, number, _ := strings.Cut(string(header), " ")
		size, err = strconv.ParseInt(number, 10, 64)
	}
	if err != nil {
		return 0, false, fmt.Errorf("reading object %s: %w", name, err)
	}
	return size, true, nil
}

// bounded refuses an object larger than limit, and a delta with bases larger than
// maxBase, which would be inflated first. It returns the object's size.
func (h *headers) bounded(hash plumbing.Hash, limit int64) (size int64, err error) {
	size, exists, err := h.loose(hash)
	if err != nil {
		return 0, err
	}
	if exists {
		return size, tooLarge(hash, size, limit)
	}
	e, exists, err := h.locate(hash)
	if err != nil {
		return 0, err
	}
	if !exists {
		return 0, plumbing.ErrObjectNotFound
	}
	size = e.size
	if err := tooLarge(hash, size, limit); err != nil {
		return size, err
	}
	for range maxChain {
		if !e.delta {
			return size, tooLarge(hash, e.size, max(limit, maxBase))
		}
		if err := tooLarge(hash, e.length, maxBase); err != nil {
			return size, err
		}
		if e.hash.IsZero() {
			e, err = e.pack.at(e.base)
		} else if e, exists, err = h.locate(e.hash); err == nil && !exists {
			err = plumbing.ErrObjectNotFound
		}
		if err != nil {
			return size, err
		}
	}
	return size, fmt.Errorf("object %s is a difference to more than %d others", hash, maxChain)
}

func tooLarge(hash plumbing.Hash, size, limit int64) error {
	if size <= limit {
		return nil
	}
	return &tooLargeError{hash: hash, size: size, limit: limit}
}
