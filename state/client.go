package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/generator"
)

const (
	plansDir  = "plans"
	stampFile = "init"
	runFile   = "run.json"
	lockFile  = "lock"
)

// open takes the directory for this process and clears away what a process that
// died left in it. The caller holds mu.
func (w *Workspace) open(ctx context.Context) error {
	if w.client != nil {
		return nil
	}
	if err := w.occupy(); err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	client, err := tfexec.NewTerraform(w.config.Dir, w.config.Engine.Path)
	if err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	err = errors.Join(
		client.SetEnv(environment(os.Environ(), w.config.Env, w.mark())),
		client.SetWaitDelay(w.config.WaitDelay),
	)
	if err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	// Asked now, because terraform-exec would mix the answer into the output of
	// the first command that wants to know.
	if _, _, err := client.Version(ctx, false); err != nil {
		return w.failure(ctx, "starting the engine in", err, "")
	}
	w.client = client
	return nil
}

// occupy makes the private directory, locks it against other processes, and
// sweeps it.
func (w *Workspace) occupy() error {
	if w.lock != nil {
		return nil
	}
	if _, err := os.Stat(w.config.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(w.private(), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(w.private(), 0o700); err != nil { //nolint:gosec // a directory needs its x bit
		return err
	}
	lock, err := os.OpenFile(w.private(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(ErrBusy, lock.Close())
	}
	if err := w.sweep(); err != nil {
		return errors.Join(err, lock.Close())
	}
	w.lock = lock
	return nil
}

// sweep removes what a process that died left behind, and remembers its run.
func (w *Workspace) sweep() error {
	crashed, err := readRun(w.private(runFile))
	if err != nil {
		return err
	}
	w.crashed = crashed
	if err := removeFile(filepath.Join(w.config.Dir, generator.ImportFile)); err != nil {
		return err
	}
	if err := os.RemoveAll(w.private(plansDir)); err != nil {
		return err
	}
	return os.Mkdir(w.private(plansDir), 0o700)
}

// removeFile removes a file if it is there.
func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// output is what a command printed.
type output struct{ stdout, stderr bytes.Buffer }

// said returns both, the errors last.
func (o *output) said() string { return strings.TrimSpace(o.stderr.String()) }

// capture makes the next command print to o and to the log.
func (w *Workspace) capture(o *output, logged bool) {
	log := redactingWriter{w.hidden, w.config.Log}
	w.client.SetStderr(io.MultiWriter(&o.stderr, log))
	if logged {
		w.client.SetStdout(io.MultiWriter(&o.stdout, log))
		return
	}
	w.client.SetStdout(&o.stdout)
}

// command runs one command of the engine and turns its failure into ours.
func (w *Workspace) command(ctx context.Context, operation string, logged bool, run func(*tfexec.Terraform) error) (*output, error) {
	o := &output{}
	w.capture(o, logged)
	if err := run(w.client); err != nil {
		return o, w.failure(ctx, operation, err, o.said())
	}
	return o, nil
}

// locking runs a command that takes the state's lock. If an engine of ours that
// died holds it, what is left of that engine is awaited, the lock is broken, and
// the command run once more.
func (w *Workspace) locking(ctx context.Context, operation string, command func(context.Context) error) error {
	record, err := w.beginRun(operation)
	if err != nil {
		return fmt.Errorf("%s %s: %w", operation, w.config.Dir, err)
	}
	err = command(ctx)
	var locked *LockedError
	if errors.As(err, &locked) && locked.Holder == HolderGone {
		if err = w.breakLock(ctx, locked); err == nil {
			err = command(ctx)
		}
	}
	var failed *CommandError
	if errors.As(err, &failed) && failed.killed {
		w.crashed = record
		return err
	}
	return errors.Join(err, w.endRun(err == nil))
}

func (w *Workspace) breakLock(ctx context.Context, locked *LockedError) error {
	if _, err := w.awaitOrphans(ctx); err != nil {
		return err
	}
	if err := w.unlock(ctx, locked.ID); err != nil {
		return err
	}
	w.config.Progress(Event{Kind: EventUnlocked, Message: "broke lock " + locked.ID + " of an engine that died"})
	return nil
}

// Unlock breaks a lock, by the ID of a LockedError. Do it only when its holder is
// surely dead: two applies at once lose what one of them made.
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
