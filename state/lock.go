package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// locking runs a command that takes the state's lock. If a dead engine of this workspace
// holds the lock, locking waits for that engine's remaining processes, breaks the lock,
// and runs the command again.
func (w *Workspace) locking(ctx context.Context, operation string, command func(context.Context) error) error {
	record, err := w.beginRun(operation)
	if err != nil {
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
	if errors.As(err, &failed) && (failed.killed || failed.Backend != "") {
		// A dead engine may still hold the lock.
		w.crashed = record
		return err
	}
	return errors.Join(err, w.endRun(err == nil))
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
		return fmt.Errorf("opening a way from the engine to PostgreSQL: %w", err)
	}
	env := maps.Clone(w.env.engine)
	env[connVariable] = conn.at(f.address())
	if err = w.client.SetEnv(env); err == nil {
		err = command(ctx)
	}
	broken, closeErr := f.close()
	var failed *CommandError
	if errors.As(err, &failed) && broken != nil && ctx.Err() == nil {
		failed.Backend, failed.Text = "pg", brief(failed.Text)+": "+w.hidden.hide(broken.Error())
	}
	return errors.Join(err, closeErr, w.client.SetEnv(w.env.engine))
}

// connString returns the connection string of the pg backend's server, if the server can
// be reached through a fence.
func (w *Workspace) connString() (connString, bool) {
	backend := backendOf(w.config.Dir)
	if _, given := backend.settings["conn_str"]; backend.kind != "pg" || given || w.config.BackendConfig["conn_str"] != "" {
		return connString{}, false
	}
	passwords := orElse(w.env.engine["PGPASSFILE"], filepath.Join(w.env.engine["HOME"], ".pgpass"))
	if _, err := os.Stat(passwords); err == nil {
		// A password file lists passwords by the server's own name.
		return connString{}, false
	}
	return parseConn(w.env.engine[connVariable], w.env.engine)
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

// nowhere is an address that no state contains.
const nowhere = "terraform_data.numaform_lock"

// settle acquires and releases the state's lock, so that a lock left behind by a dead run
// is broken now, or found to be another client's. The dead run stays recorded until an
// operation succeeds.
func (w *Workspace) settle(ctx context.Context) error {
	if w.crashed == nil {
		return nil
	}
	if err := w.prepare(ctx); err != nil {
		return err
	}
	crashed := w.crashed
	// There is no need to wait for a lock that was provably left behind.
	err := w.tryLock(ctx, min(soon, w.config.LockTimeout))
	if locked := (*LockedError)(nil); errors.As(err, &locked) {
		err = w.tryLock(ctx, w.config.LockTimeout)
	}
	if err != nil {
		return err
	}
	w.crashed = crashed
	return w.writeRun(crashed)
}

// soon is how long to wait for a lock that probably belongs to this workspace's own dead
// run.
const soon = time.Second

// tryLock acquires and releases the state's lock.
func (w *Workspace) tryLock(ctx context.Context, timeout time.Duration) error {
	return w.locking(ctx, "taking the lock of", func(ctx context.Context) error {
		_, err := w.command(ctx, "taking the lock of", true, func(tf *tfexec.Terraform) error {
			return tf.Untaint(ctx, nowhere, tfexec.AllowMissing(true), tfexec.LockTimeout(timeout.String()))
		})
		return err
	})
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

func (w *Workspace) unlock(ctx context.Context, id string) error {
	_, err := w.command(ctx, "unlocking", true, func(tf *tfexec.Terraform) error { return tf.ForceUnlock(ctx, id) })
	return err
}

// proof returns the reason for considering a lock's holder dead, for the record.
func (r *run) proof(lock *LockedError) string {
	gone := "whoever had this directory has let go of it, so it is gone, and its engine with it"
	if r.seen {
		gone = "that process is this one, and saw its engine end"
	}
	return fmt.Sprintf("%s took it on this host at %s for %s; an engine of this directory can have taken it between %s and %s "+
		"in a run that did not end well (process %d, %s); %s; no process that it started is left; "+
		"that nobody else on this host took it in that time, from another working copy, is not known",
		lock.Who, lock.Created.UTC().Format(time.RFC3339), lock.Operation,
		r.Began.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339), r.PID, r.Operation, gone)
}
