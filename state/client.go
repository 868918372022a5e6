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
	plansDir     = "plans"
	temporaryDir = "tmp"
	stampFile    = "init"
	runFile      = "run.json"
	lockFile     = "lock"
)

// open locks the directory for this process and cleans up after a process that died in
// it. The caller holds mu.
func (w *Workspace) open(ctx context.Context) error {
	if w.client != nil {
		return w.restore()
	}
	if err := w.occupy(); err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	// The files determine which backend's variables the engine gets.
	if err := w.restore(); err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	files, err := configFiles(w.config.Dir)
	if err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	w.env = environmentsOf(os.Environ(), &w.config, backendIn(files).kind, w.mark())
	w.env.engine["TMPDIR"] = w.private(temporaryDir)
	client, err := w.config.Engine.client(ctx, w.config.Dir, func(tf *tfexec.Terraform) error {
		w.client = tf
		return errors.Join(tf.SetEnv(w.env.engine), w.restrict(files), tf.SetWaitDelay(w.config.WaitDelay))
	})
	if err != nil {
		w.client = nil
		return w.failure(ctx, "starting the engine in", err)
	}
	w.client = client
	return nil
}

// occupy creates the private directory, locks it against other processes, and sweeps it.
func (w *Workspace) occupy() error {
	if w.lock != nil {
		return nil
	}
	if err := w.makeDir(); err != nil {
		return err
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

// sweep removes what a dead process left behind, and remembers its run.
func (w *Workspace) sweep() error {
	crashed, err := readRun(w.private(runFile))
	if err != nil {
		return err
	}
	w.crashed = crashed
	if err := removeFile(filepath.Join(w.config.Dir, generator.ImportFile)); err != nil {
		return err
	}
	for _, dir := range []string{plansDir, temporaryDir} {
		if err := errors.Join(os.RemoveAll(w.private(dir)), os.Mkdir(w.private(dir), 0o700)); err != nil {
			return err
		}
	}
	return nil
}

// removeFile removes a file if it exists.
func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// output is the output of a command.
type output struct{ stdout, stderr bytes.Buffer }

// said returns the trimmed stderr.
func (o *output) said() string { return strings.TrimSpace(o.stderr.String()) }

// capture sends the output of the next command to o, and to the log if logged is set.
func (w *Workspace) capture(o *output, logged bool) {
	log := redactingWriter{w.hidden, w.config.Log}
	w.client.SetStderr(io.MultiWriter(&o.stderr, log))
	if logged {
		w.client.SetStdout(io.MultiWriter(&o.stdout, log))
		return
	}
	w.client.SetStdout(&o.stdout)
}

// provided runs a command that needs the provider.
func (w *Workspace) provided(ctx context.Context, operation string, run func(*tfexec.Terraform, *tfexec.ReattachOption) error) (*output, error) {
	at, err := w.reattach(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", operation, w.config.Dir, err)
	}
	return w.command(ctx, operation, false, func(tf *tfexec.Terraform) error { return run(tf, at) })
}

// command runs one command of the engine and converts its error.
func (w *Workspace) command(ctx context.Context, operation string, logged bool, run func(*tfexec.Terraform) error) (*output, error) {
	o := &output{}
	if err := w.restore(); err != nil {
		return o, err
	}
	w.capture(o, logged)
	if err := run(w.client); err != nil {
		return o, w.failure(ctx, operation, err, o.said(), w.fallen())
	}
	return o, nil
}
