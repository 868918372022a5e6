// Package store persists a fleet: the files of the desired state, and the records of its
// changes. It reads and writes only files that numaform renders, and each write is atomic.
// Package generator defines their content. A fleet is stored in a directory, in a git
// repository or in ConfigMaps: start at Store. DESIGN.md in this directory describes how
// each store survives a crash and concurrent edits.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// ErrLocked is returned by Lock while another process changes the fleet.
var ErrLocked = errors.New("another numaform is changing this fleet: wait until it ends, then try again")

// ErrMoved is returned by Begin if the fleet has changed since it was read. Begin wrote
// nothing: the caller reads the fleet and decides again.
var ErrMoved = errors.New("the fleet has changed since it was read: plan again")

// Store persists a fleet: its desired state, and the history of its changes. A fleet has
// one writer at a time. Readers see either all or nothing of a change.
type Store interface {
	// Read returns the fleet's files and their revision.
	Read(ctx context.Context) (generator.Files, Revision, error)
	// Begin makes files the desired state and records the change, both or neither. It
	// returns ErrMoved if the fleet is no longer at base, and a ProposedError if the store
	// only proposes changes.
	Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error
	// End adds the outcome of a change. It fails if the change already has one.
	End(ctx context.Context, outcome audit.Outcome) error
	// History returns the changes that began at or after since, oldest first, and always
	// at least the last one, if any. The zero time means all.
	History(ctx context.Context, since time.Time) ([]audit.Entry, error)
	// Lock locks the fleet for one writer until unlock is called, or returns ErrLocked,
	// wrapped with the holder if it is known.
	Lock(ctx context.Context) (unlock func() error, err error)
}

// Revision identifies the content of a fleet's files: equal revisions mean equal files.
type Revision string

// RevisionOf returns the revision of files.
func RevisionOf(files generator.Files) Revision {
	hash := sha256.New()
	var size [8]byte
	write := func(content []byte) {
		binary.BigEndian.PutUint64(size[:], uint64(len(content)))
		hash.Write(size[:])
		hash.Write(content)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		write([]byte(name))
		write(files[name])
	}
	return Revision(hex.EncodeToString(hash.Sum(nil)))
}

// ProposedError reports that a change awaits review: nothing was applied, and the desired
// state is unchanged.
type ProposedError struct {
	// Branch contains the change as one commit.
	Branch, Commit string
	// Remote is the URL that the branch was pushed to, or empty.
	Remote string
}

// Error names the branch of the change and the next step.
func (e *ProposedError) Error() string {
	where := ""
	if e.Remote != "" {
		where = " of " + e.Remote
	}
	return fmt.Sprintf("the change waits for review on branch %s%s (commit %.12s): merge it, then apply", e.Branch, where, e.Commit)
}

// interrupt is a test hook that ends a write before one of its steps.
type interrupt func(step string) error

func (i interrupt) before(step string) error {
	if i == nil {
		return nil
	}
	return i(step)
}
