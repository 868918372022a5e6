package store

import (
	"errors"
	"net/http"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing"
	"k8s.io/utils/clock"
)

// Interrupt lets f end writes before they touch a file.
func (d *Directory) Interrupt(f func(name string) error) { d.interrupt = f }

// Reading has f called while the directory's files are read.
func (d *Directory) Reading(f func()) { d.reading = f }

// Interrupt lets f end writes before each of their steps.
func (g *Git) Interrupt(f func(name string) error) { g.interrupt = f }

// Interrupt lets f end writes before each of their steps.
func (c *ConfigMap) Interrupt(f func(name string) error) { c.interrupt = f }

// SetClock replaces the clock of locks.
func (c *ConfigMap) SetClock(clock clock.WithTicker) { c.clock = clock }

// SameHost returns the error of a redirection from a URL to another.
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

// Some lists names for a person.
func Some(names []string) string { return some(names) }

// ObjectSize returns the size of an object of a bare repository, from its header alone.
func ObjectSize(path, hash string) (int64, error) {
	h := headers{dir: filepath.Join(path, "objects")}
	size, err := h.bounded(plumbing.NewHash(hash), maxBase)
	return size, errors.Join(err, h.close())
}
