package store

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// Interrupt sets the function that is called before a write changes a file, and ends the
// write if it returns an error.
func (d *Directory) Interrupt(f func(name string) error) { d.interrupt = f }

// Reading sets the function that is called while the directory's files are read.
func (d *Directory) Reading(f func()) { d.reading = f }

// Interrupt sets the function that is called before each step of a write, and ends the write
// if it returns an error.
func (g *Git) Interrupt(f func(name string) error) { g.interrupt = f }

// Interrupt sets the function that is called before each step of a write, and ends the write
// if it returns an error.
func (c *ConfigMap) Interrupt(f func(name string) error) { c.interrupt = f }

// SetClock sets the clock of locks.
func (c *ConfigMap) SetClock(clock clock.WithTicker) { c.clock = clock }

// SameHost returns the error for a redirect from one URL to another, or nil if it is
// allowed.
func SameHost(to, from string) error {
	next, err := http.NewRequest(http.MethodGet, to, nil)
	if err != nil {
		return err
	}
	first, err := http.NewRequest(http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	return sameHost(next, []*http.Request{first})
}

// Listed returns the names as a message lists them.
func Listed(names []string) string { return listed(names) }

// ObjectSize returns the size of an object of a bare repository, from its header alone.
func ObjectSize(path, hash string) (int64, error) {
	o := openObjects(osfs.New(path))
	size, err := o.bounded(plumbing.NewHash(hash), maxBase)
	return size, errors.Join(err, o.Close())
}

// ReadObject reads a blob of a bare repository.
func ReadObject(path, hash string) error {
	o := openObjects(osfs.New(path))
	_, err := o.EncodedObject(plumbing.BlobObject, plumbing.NewHash(hash))
	return errors.Join(err, o.Close())
}

// SilenceLimit returns a context that ends when nothing was read from reader for
// networkTimeout.
func SilenceLimit(ctx context.Context, from io.Reader) (_ context.Context, reader io.Reader, cancel func()) {
	ctx, received, cancel := silenceLimit(ctx)
	return ctx, receiver{from, received}, cancel
}

// FenceOf returns the lock number that a root records.
func FenceOf(text string) int64 {
	return fenceOf(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fenceAnnotation: text}}})
}

// Fits reports whether a ConfigMap with this many bytes, including keys, is accepted.
func Fits(text, binary int) bool {
	m := &corev1.ConfigMap{Data: map[string]string{"text": strings.Repeat("x", text-4)}}
	if binary > 0 {
		m.BinaryData = map[string][]byte{"binary": make([]byte, binary-6)}
	}
	return checkSize(m) == nil
}

// IsPart reports whether a path below a fleet's directory is part of the fleet.
func IsPart(name string, dir bool) bool { return roleOf(name, dir) != roleRefused }

// Census counts files of a fleet.
type Census struct{ census }

// File adds a file of the desired state, and returns the limit that it exceeds, or "".
func (c *Census) File(name string, size int64) string { return c.count(name, roleFile, size) }

// Record adds a record of the history, and returns the limit that it exceeds, or "".
func (c *Census) Record(name string, size int64) string { return c.count(name, roleRecord, size) }

// Refused returns the error for a file of a fleet in git.
func Refused(name string) error {
	return (&repository{Git: &Git{config: GitConfig{Branch: "main", Remote: "r"}}}).refused(name, "is wrong")
}

// KnownChanges returns how many changes of all logs are remembered.
func (s *Sealed) KnownChanges() (n int) {
	for _, log := range s.read {
		n += len(log.changes)
	}
	return n
}
