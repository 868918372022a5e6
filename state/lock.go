package state

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/sys/unix"
)

// run is the record of an operation that takes the state's lock. It exists in the
// directory while the operation runs. If a process that has locked the directory finds a
// record, the operation did not end normally: its process died, its engine was killed, or
// its backend did not respond.
type run struct {
	Operation string    `json:"operation"`
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	Began     time.Time `json:"began"`
	// Until is the latest time at which the operation's engine can have acquired the lock.
	Until time.Time `json:"until"`
	// Dir is the workspace's directory. The record in a copy of the directory proves
	// nothing: the directory's lock, and the mark of its processes, belong to the
	// original.
	Dir string `json:"dir"`
	// Former is the directory in which the operation ran, if the record was moved from
	// another directory.
	Former string `json:"former,omitempty"`
	// seen is set if every engine that ran since Began was started by this process, which
	// saw it end.
	seen bool
}

// lockSlack is how long an engine may take until it requests the lock.
const lockSlack = time.Minute

// markOf returns the value of runVariable that identifies the processes of a directory's
// workspace.
func markOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:16])
}

// readRun returns the record of a run that did not end normally, or nil if there is none or
// it cannot be parsed.
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

func (r *run) write(name string) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = renameio.WriteFile(name, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording run: %w", err)
	}
	return nil
}

// TakeOver copies the record of a failed run from the former directory to dir, which is
// used for the same root from now on. It returns ErrBusy if the former directory is still
// in use. It does nothing if dir already has a record, or if the record cannot be parsed
// or does not name the former directory.
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
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return r.write(name)
}

// locking runs a command that takes the state's lock. If the holder of the lock is provably
// dead, locking waits for the remaining processes of this directory's engines, breaks the
// lock, and runs the command again.
func (w *Workspace) locking(ctx context.Context, operation string, command func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("%s %s: recording run: %w", operation, w.config.Dir, err)
	}
	w.begun = w.config.Clock.Now()
	record := &run{
		Operation: operation,
		Host:      host,
		Dir:       w.config.Dir,
		PID:       os.Getpid(),
		Began:     w.begun,
		Until:     w.begun.Add(w.config.LockTimeout + lockSlack),
		seen:      true,
	}
	if earlier := w.crashed; earlier != nil && earlier.Dir == w.config.Dir {
		// The lock of the earlier run may still exist, so the record covers that run,
		// too.
		record.Began, record.seen, record.Former = earlier.Began, earlier.seen, earlier.Former
	}
	if err := record.write(w.private(runFile)); err != nil {
		return fmt.Errorf("%s %s: %w", operation, w.config.Dir, err)
	}

	err = w.fenced(ctx, command)
	var locked *LockedError
	if errors.As(err, &locked) && w.gone(ctx, locked) {
		if err = w.breakLock(ctx, locked); err == nil {
			err = w.fenced(ctx, command)
		}
	}

	var failed *CommandError
	switch {
	case errors.As(err, &failed) && (failed.killed || failed.Backend != ""):
		// A dead engine may still hold the lock.
		w.crashed = record
		return err
	case err != nil && w.crashed != nil:
		return errors.Join(err, w.crashed.write(w.private(runFile)))
	}
	// After a success, or a failure that releases the lock, no dead engine can still hold
	// it.
	w.crashed = nil
	return errors.Join(err, removeFile(w.private(runFile)))
}

// fenced runs a command of the engine behind a fence, if the backend's lock ends with a
// connection.
func (w *Workspace) fenced(ctx context.Context, command func(context.Context) error) error {
	conn, ok := w.connString()
	if !ok {
		return command(ctx)
	}
	f, err := newFence(conn.target())
	if err != nil {
		return fmt.Errorf("opening a proxy from the engine to PostgreSQL: %w", err)
	}
	env := maps.Clone(w.env.engine)
	env[connVariable] = conn.at(f.address())
	if err = w.client.SetEnv(env); err == nil {
		err = command(ctx)
	}
	broken, closeErr := f.close()
	var failed *CommandError
	if errors.As(err, &failed) && broken != nil && ctx.Err() == nil {
		failed.Backend, failed.Text = "pg", brief(failed.Text)+": "+w.hidden.Replace(broken.Error())
	}
	return errors.Join(err, closeErr, w.client.SetEnv(w.env.engine))
}

// connString returns the connection string of the pg backend's server, and whether the
// engine can reach the server through a fence.
func (w *Workspace) connString() (connString, bool) {
	if _, given := w.root.settings["conn_str"]; w.root.backend != "pg" || given || w.config.BackendConfig["conn_str"] != "" {
		return connString{}, false
	}
	passwords := cmp.Or(w.env.engine["PGPASSFILE"], filepath.Join(w.env.engine["HOME"], ".pgpass"))
	if exists(passwords) {
		// A password file lists passwords by the server's own name.
		return connString{}, false
	}
	return parseConn(w.env.engine[connVariable], w.env.engine)
}

// complete completes the engine's description of a lock with the directory, the command
// that releases it and, if they are known, Lease, Holder and Proof. Some backends (http, pg) do not report the holder,
// and the engine then describes its own attempt: such a description is more recent than
// the start of the operation, and is dropped.
func (w *Workspace) complete(lock *LockedError) {
	lock.Dir, lock.Command = w.config.Dir, w.config.UnlockCommand
	if lock.Created.IsZero() || !lock.Created.Before(w.begun) {
		lock.Who, lock.Operation, lock.Created = "someone", "an operation", time.Time{}
		if w.root.backend == "pg" {
			lock.ID = "" // it is the ID of the attempt
		}
		return
	}
	if lock.Operation == "init" {
		// The first init locks a state in Kubernetes. The engine cannot break this lock:
		// its force-unlock first reads the state, which also takes the lock.
		lock.Lease = LeasePrefix + w.root.settings["secret_suffix"]
	}
	host, err := os.Hostname()
	if err == nil && enginesDie && w.crashed.proves(lock, host, w.config.Dir) {
		lock.Holder, lock.Proof = HolderGone, w.crashed.proof(lock)
	}
}

// proves reports whether the record shows, for a directory on a host, that a lock was
// left behind: it was acquired on that host, in the period in which the run's engine can
// have acquired it. An engine dies with its parent, so the lock has no holder. No backend
// identifies the process that acquired a lock. For a false match, another process on that
// host, with another working copy of the same state, would have to acquire it within that
// same period.
func (r *run) proves(lock *LockedError, host, dir string) bool {
	_, where, _ := strings.Cut(lock.Who, "@")
	return r != nil && r.Dir == dir && where == host && r.Host == host &&
		!lock.Created.Before(r.Began) && !lock.Created.After(r.Until)
}

// proof returns the reason for considering a lock's holder dead, for the record.
func (r *run) proof(lock *LockedError) string {
	gone := "the process that used this directory has released it, so it has ended, and its engine with it"
	if r.seen {
		gone = "that process is this one, and saw its engine end"
	}
	return fmt.Sprintf("%s acquired the lock on this host at %s for %s; an engine of this directory may have acquired it between %s and %s "+
		"in a run that failed (process %d, %s); %s; no process that it started remains; "+
		"it is unknown whether another client on this host acquired it in that time, from another working copy",
		lock.Who, lock.Created.UTC().Format(time.RFC3339), lock.Operation,
		r.Began.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339), r.PID, r.Operation, gone)
}

// gone reports whether a lock's holder is dead, by the record of a run in this directory or
// by Config.Gone. If so, it sets the lock's Holder and Proof.
func (w *Workspace) gone(ctx context.Context, lock *LockedError) bool {
	if lock.Holder == HolderGone || w.config.Gone == nil {
		return lock.Holder == HolderGone
	}
	_, host, named := strings.Cut(lock.Who, "@")
	self, err := os.Hostname()
	if !named || err != nil {
		return false
	}
	if host == self {
		// Another numaform on this host may use the same state.
		others, known := strangers(w.env.engine[clusterVariable], w.env.cluster)
		if !known || len(others) > 0 {
			return false
		}
	}
	proof, gone := w.config.Gone(ctx, host)
	if gone {
		lock.Holder = HolderGone
		lock.Proof = fmt.Sprintf("%s acquired the lock at %s for %s; %s", lock.Who, lock.Created.UTC().Format(time.RFC3339), lock.Operation, proof)
	}
	return gone
}

func (w *Workspace) breakLock(ctx context.Context, locked *LockedError) error {
	if _, err := w.awaitOrphans(ctx); err != nil {
		return err
	}
	if err := w.unlock(ctx, locked.ID); err != nil {
		return err
	}
	broke := fmt.Sprintf("broke lock %s of the state of %s: %s", locked.ID, w.config.Dir, locked.Proof)
	w.outside = append(w.outside, broke)
	w.config.Progress(Event{Kind: EventUnlocked, Message: broke})
	return nil
}

// Unlock breaks a lock, by the ID of a LockedError. Call it only if the holder is
// certainly dead: with two concurrent applies, one loses its changes.
func (w *Workspace) Unlock(ctx context.Context, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	return w.unlock(ctx, id)
}

// OtherEngines returns the engines that another numaform runs on this machine for the same
// state, and their providers: processes in directories with the same backend block. known
// is false if the operating system does not list them, or before the first operation of
// the workspace. Processes of other users are not seen, unless this user is root.
func (w *Workspace) OtherEngines() (pids []int, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.root == nil {
		return nil, false
	}
	return enginesIn(func(dir string) bool {
		there, err := readConfiguration(dir)
		return err == nil && there.backend == w.root.backend && maps.Equal(there.settings, w.root.settings)
	})
}

func (w *Workspace) unlock(ctx context.Context, id string) error {
	return w.command(ctx, "unlocking", func(tf *tfexec.Terraform) error { return tf.ForceUnlock(ctx, id) })
}

// Locked acquires and releases the state's lock: it returns a *LockedError if another
// client holds it, and nil if it is free. It plans nothing, and breaks the lock only if its
// holder is provably dead.
func (w *Workspace) Locked(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	return w.tryLock(ctx, soon)
}

// soon is how long Locked waits for the lock, and Recover for a lock that a dead run may
// have left behind.
const soon = time.Second

// nowhere is an address that no state contains.
const nowhere = "terraform_data.numaform_lock"

// tryLock acquires and releases the state's lock. It waits for at most timeout.
func (w *Workspace) tryLock(ctx context.Context, timeout time.Duration) error {
	const operation = "taking the lock of"
	return w.locking(ctx, operation, func(ctx context.Context) error {
		return w.command(ctx, operation, func(tf *tfexec.Terraform) error {
			return tf.Untaint(ctx, nowhere, tfexec.AllowMissing(true), tfexec.LockTimeout(timeout.String()))
		})
	})
}
