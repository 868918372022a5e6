// Package store keeps a fleet: the files that say what is wanted, and the records
// of what was done to it. It reads the files that numaform writes, leaves alone
// those of the engine and of people, and writes exactly the difference, all of it
// or nothing. What stands in the files, and which are numaform's, generator knows.
// A fleet lives in a directory, in a git repository or in ConfigMaps: start at
// Store. How each survives a crash, and people, DESIGN.md beside the code says.
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
var ErrLocked = errors.New("another numaform is changing this fleet: wait for it to end")

// ErrMoved is returned by Begin if the fleet is no longer what it was when it was
// read. Nothing was written; read it and decide again.
var ErrMoved = errors.New("the fleet was changed meanwhile: plan again")

// Store keeps a fleet: what is wanted, and what was done to it. One writer at a
// time; anybody may read meanwhile, and sees all of a change or nothing of it.
type Store interface {
	// Read returns the fleet's files and the revision that they are of.
	Read(ctx context.Context) (generator.Files, Revision, error)
	// Begin makes files what is wanted, together with the record of the change, all
	// of it or nothing. It returns ErrMoved if the fleet is no longer at base, and a
	// ProposedError if the store only proposes.
	Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error
	// End adds the outcome of a change.
	End(ctx context.Context, outcome audit.Outcome) error
	// History returns the changes that began at or after since, oldest first; always
	// at least the last one, if there is any. The zero time means all.
	History(ctx context.Context, since time.Time) ([]audit.Entry, error)
	// Lock takes the fleet for one writer until unlock is called, or returns
	// ErrLocked, wrapped in who holds it where that is known.
	Lock(ctx context.Context) (unlock func() error, err error)
}

// Revision names the content of a fleet's files: equal revisions, equal files.
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

// ProposedError says that a change waits for review: nothing was applied, and what
// is wanted is as before.
type ProposedError struct {
	// Branch holds the change as one commit.
	Branch, Commit string
	// Remote is where the branch was pushed to, or empty.
	Remote string
}

// Error says where the change is and what to do with it.
func (e *ProposedError) Error() string {
	where := ""
	if e.Remote != "" {
		where = " of " + e.Remote
	}
	return fmt.Sprintf("the change waits for review on branch %s%s (commit %.12s): merge it, then apply", e.Branch, where, e.Commit)
}
