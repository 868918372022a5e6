package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// lockFile, in PrivateDir, is held by the process that changes the fleet, from
	// its plan to the end of its apply. It says who that is.
	lockFile = "lock"
	// gateFile, in PrivateDir, is held while files are written, and shared while they
	// are read: one who only looks sees a write as a whole.
	gateFile = "gate"
)

// maxHolder bounds what is read of a lock file.
const maxHolder = 256

// Lock takes the fleet for one process until unlock is called, or returns
// ErrLocked at once. The system frees it if the process dies.
func (d *Directory) Lock(_ context.Context) (unlock func() error, err error) {
	if err := os.MkdirAll(d.private, 0o755); err != nil {
		return nil, d.failed("locking", err)
	}
	file, err := os.OpenFile(filepath.Join(d.private, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, d.failed("locking", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = lockedBy(file)
		}
		return nil, errors.Join(d.failed("locking", err), file.Close())
	}
	if err := sign(file); err != nil {
		return nil, errors.Join(d.failed("locking", err), file.Close())
	}
	return func() error { return errors.Join(file.Truncate(0), file.Close()) }, nil
}

// sign writes into a lock file who holds it.
func sign(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(self()), 0)
	return err
}

// self names this process to a person.
func self() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}

// lockedBy returns ErrLocked with what the holder wrote into the lock file.
func lockedBy(file *os.File) error {
	holder, err := io.ReadAll(io.LimitReader(file, maxHolder))
	if text := strings.TrimSpace(string(holder)); err == nil && text != "" {
		return fmt.Errorf("held by %s: %w", strings.ToValidUTF8(text, "?"), ErrLocked)
	}
	return ErrLocked
}

func (d *Directory) gatePath() string { return filepath.Join(d.private, gateFile) }

// shared lets f read while no process writes. Reading needs no right to write.
func (d *Directory) shared(f func() error) error {
	for {
		gate, err := os.Open(d.gatePath())
		if err == nil {
			return errors.Join(flock(gate, unix.LOCK_SH, f), gate.Close())
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return d.failed("reading", err)
		}
		err = f()
		if _, statErr := os.Stat(d.gatePath()); statErr != nil {
			return err // nobody wrote meanwhile
		}
	}
}

// alone lets f write while no other process reads or writes.
func (d *Directory) alone(f func() error) error {
	if err := os.MkdirAll(d.private, 0o755); err != nil {
		return d.failed("writing", err)
	}
	gate, err := os.OpenFile(d.gatePath(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return d.failed("writing", err)
	}
	return errors.Join(flock(gate, unix.LOCK_EX, f), gate.Close())
}

// flock runs f with the gate held.
func flock(gate *os.File, how int, f func() error) error {
	for {
		err := unix.Flock(int(gate.Fd()), how)
		if err == nil {
			return f()
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for %s: %w", gate.Name(), err)
		}
	}
}
