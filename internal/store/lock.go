package store

import (
	"cmp"
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
	// lockFile, in Directory.private, is locked by the process that changes the fleet, from
	// its plan to the end of its apply. It contains the holder's name.
	lockFile = "lock"
	// gateFile, in Directory.private, is locked exclusively while files are written and
	// shared while they are read, so that a reader sees a write completely or not at all.
	gateFile = "gate"
)

// maxHolder limits how much of a lock file is read.
const maxHolder = 256

// Lock locks the fleet for one process until unlock is called, or returns ErrLocked at
// once. The operating system releases the lock if the process dies.
func (d *Directory) Lock(_ context.Context) (unlock func() error, err error) {
	if err := os.MkdirAll(d.private, 0o755); err != nil {
		return nil, d.failed("locking", err)
	}
	file, err := os.OpenFile(filepath.Join(d.private, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, d.failed("locking", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
		holder, readErr := io.ReadAll(io.LimitReader(file, maxHolder))
		if text := strings.TrimSpace(string(holder)); readErr == nil && text != "" {
			err = fmt.Errorf("held by %s: %w", strings.ToValidUTF8(text, "?"), ErrLocked)
		}
	}
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.WriteAt([]byte(processName()), 0)
	}
	if err != nil {
		return nil, errors.Join(d.failed("locking", err), file.Close())
	}
	return func() error {
		// Closing alone does not release the lock while a child process that was just
		// forked has the file open.
		return errors.Join(file.Truncate(0), unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
	}, nil
}

// Holder names the process that holds the lock, or returns "" if the lock is free. It writes
// nothing.
func (d *Directory) Holder(_ context.Context) (string, error) {
	file, err := os.Open(filepath.Join(d.private, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", d.failed("reading the lock of", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) { // closing the file releases the shared lock
		return "", errors.Join(err, file.Close())
	}
	holder, err := io.ReadAll(io.LimitReader(file, maxHolder))
	return cmp.Or(strings.ToValidUTF8(strings.TrimSpace(string(holder)), "?"), "another process"), errors.Join(err, file.Close())
}

// processName identifies this process in messages.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}

// shared calls f while no process writes. It requires no write permission. If the fleet's
// first write begins meanwhile, it calls f again.
func (d *Directory) shared(f func() error) error {
	path := filepath.Join(d.private, gateFile)
	for {
		gate, err := os.Open(path)
		if err == nil {
			return errors.Join(flock(gate, unix.LOCK_SH, f), gate.Close())
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return d.failed("reading", err)
		}
		err = f()
		if _, statErr := os.Stat(path); statErr != nil {
			return err // no write happened meanwhile
		}
	}
}

// exclusive calls f while no other process reads or writes.
func (d *Directory) exclusive(f func() error) error {
	if err := os.MkdirAll(d.private, 0o755); err != nil {
		return d.failed("writing", err)
	}
	gate, err := os.OpenFile(filepath.Join(d.private, gateFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return d.failed("writing", err)
	}
	return errors.Join(flock(gate, unix.LOCK_EX, f), gate.Close())
}

// flock calls f while holding the gate.
func flock(gate *os.File, how int, f func() error) error {
	for {
		err := unix.Flock(int(gate.Fd()), how)
		if err == nil {
			return errors.Join(f(), unix.Flock(int(gate.Fd()), unix.LOCK_UN))
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for %s: %w", gate.Name(), err)
		}
	}
}
