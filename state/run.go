package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// run is the record of an operation that takes the state's lock. It exists in the
// directory while the operation runs. Finding one means that its process died, because
// the directory's own lock is gone.
type run struct {
	Operation string    `json:"operation"`
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	Began     time.Time `json:"began"`
	// Until is the latest time at which its engine can have acquired the lock.
	Until time.Time `json:"until"`
	// Dir is the workspace's directory. The record in a copy of the directory proves
	// nothing: the directory's lock, and the mark of its processes, belong to the
	// original.
	Dir string `json:"dir"`
	// Former is the directory in which the operation ran, if the record was moved from
	// another directory.
	Former string `json:"former,omitempty"`
	// seen is set if this process saw every engine of the whole period end.
	seen bool
}

// lockSlack is how long an engine may take until it requests the lock.
const lockSlack = time.Minute

// mark returns what distinguishes this workspace's processes from all others.
func (w *Workspace) mark() string { return markOf(w.config.Dir) }

func markOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:16])
}

// left returns the leftover processes of this workspace's engines, and of the directory
// that a record was moved from.
func (w *Workspace) left() []int {
	found := marked(w.mark())
	if w.crashed != nil && w.crashed.Former != "" {
		found = append(found, marked(markOf(w.crashed.Former))...)
	}
	return found
}

// TakeOver copies the record of a failed run from one directory to another that is used
// for the same root from now on. It returns ErrBusy if the former directory is still in
// use, and does nothing if the other one already has a record.
func TakeOver(record []byte, former, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("taking over the record of a run in %s: %w", former, err)
		}
	}()
	var r run
	if err := json.Unmarshal(record, &r); err != nil || r.Dir != former {
		return nil // like a record read in place, it proves nothing
	}
	lock, err := os.OpenFile(filepath.Join(former, ".terraform", "numaform", lockFile), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err == nil {
		defer func() { err = errors.Join(err, lock.Close()) }()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return ErrBusy
		}
	}
	name := filepath.Join(dir, ".terraform", "numaform", runFile)
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	r.Dir, r.Former = dir, former
	content, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(name), 0o700)
	}
	if err != nil {
		return err
	}
	return renameio.WriteFile(name, content, 0o600)
}

// beginRun records the start of a locking operation. While the lock of an earlier run may
// still exist, the record extends back to that run.
func (w *Workspace) beginRun(operation string) (*run, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("recording run: %w", err)
	}
	now := w.config.Clock.Now()
	w.begun = now
	record := &run{Operation: operation, Host: host, Dir: w.config.Dir, PID: os.Getpid(), Began: now, Until: now.Add(w.config.LockTimeout + lockSlack), seen: true}
	if w.crashed.in(w.config.Dir) {
		record.Began, record.seen, record.Former = w.crashed.Began, w.crashed.seen, w.crashed.Former
	}
	return record, w.writeRun(record)
}

func (w *Workspace) writeRun(record *run) error {
	content, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("recording run: %w", err)
	}
	if err := renameio.WriteFile(w.private(runFile), content, 0o600); err != nil {
		return fmt.Errorf("recording run: %w", err)
	}
	return nil
}

// endRun records the end of an operation. It drops the record of an earlier dead run once
// an operation acquired the lock and succeeded.
func (w *Workspace) endRun(well bool) error {
	if w.crashed != nil && !well {
		return w.writeRun(w.crashed)
	}
	w.crashed = nil
	if err := removeFile(w.private(runFile)); err != nil {
		return fmt.Errorf("recording end of run: %w", err)
	}
	return nil
}

// readRun returns the record of a run that did not end, or nil.
func readRun(name string) (*run, error) {
	content, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record is the usual case
	}
	if err != nil {
		return nil, err
	}
	var r run
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, nil //nolint:nilnil,nilerr // a record that cannot be read proves nothing
	}
	return &r, nil
}

// judge completes the engine's description of a lock. Some backends (http, pg) do not
// know the holder, and the engine then describes its own attempt: such a description is
// more recent than the start of the operation, and is dropped.
func (w *Workspace) judge(lock *LockedError) {
	lock.Dir = w.config.Dir
	if lock.Created.IsZero() || !lock.Created.Before(w.begun) {
		lock.Who, lock.Operation, lock.Created = "someone", "an operation", time.Time{}
		if backendOf(w.config.Dir).kind == "pg" {
			lock.ID = "" // it is the attempt's
		}
		return
	}
	host, err := os.Hostname()
	if err == nil && enginesDie && w.crashed.proves(lock, host, w.config.Dir) {
		lock.Holder, lock.Proof = HolderGone, w.crashed.proof(lock)
	}
}

// in reports whether the run belongs to the workspace in a directory.
func (r *run) in(dir string) bool { return r != nil && r.Dir == dir }

// proves reports whether the record shows, for a directory on a host, that the lock was
// left behind.
func (r *run) proves(lock *LockedError, host, dir string) bool {
	return r.in(dir) && r.held(lock, host)
}

// held reports whether a lock is considered a dead run's: acquired on its host, in the
// period in which its engine can have acquired it. An engine dies with its parent, so the
// lock has no holder. No backend identifies the process that acquired a lock. For a false
// match, another process on that host, with another working copy of the same state, would
// have to acquire it within that same period.
func (r *run) held(lock *LockedError, host string) bool {
	_, where, _ := strings.Cut(lock.Who, "@")
	return r != nil && where == host && r.Host == host &&
		!lock.Created.Before(r.Began) && !lock.Created.After(r.Until)
}
