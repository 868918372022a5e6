package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
)

// erroredState is the file that the engine writes if the backend does not accept the
// state.
const erroredState = "errored.tfstate"

// orphanPoll is the interval between searches for leftover processes.
const orphanPoll = 250 * time.Millisecond

// orphanIdle is how long a leftover provider may neither read nor write before it is
// killed. Proxmox requests time out within 30 seconds; after that, the provider only waits
// for its dead engine.
const orphanIdle = 45 * time.Second

// Recovery is the result of Recover.
type Recovery struct {
	// Crashed reports that an earlier operation here did not end normally: a process died,
	// or the backend did not respond. VMs may then exist that are not in the state: look
	// for them before planning.
	Crashed bool
	// Orphans are the processes of a killed engine that Recover waited for.
	Orphans []int
	// Pushed reports that a previously unsaved state has been saved.
	Pushed bool
	// SetAside is the new path of an unsaved state that must not replace the backend's, or
	// empty. The unsaved state has no lineage, is not newer, or lacks other clients'
	// resources. Resources that only this state contains must be imported.
	SetAside string
	// Lost are the resources that only the state at SetAside contains.
	Lost []string
	// Outside are the writes to the backend that no plan contains, one line each: a
	// broken lock with the proof that its holder is gone, or a saved state. They include
	// writes by earlier operations of this workspace.
	Outside []string
}

// LineageError reports that the lineage of a state to be saved differs from the
// backend's.
type LineageError struct{ File, Local, Remote string }

// Error names the file and the fix.
func (e *LineageError) Error() string {
	return fmt.Sprintf("state %s has lineage %s, but the backend's state has %s: the file belongs to another backend or directory; "+
		"check the backend's configuration, and remove the file if nothing needs it", e.File, e.Local, e.Remote)
}

// Recover cleans up after a crash: it waits for leftover processes, breaks a lock that a
// dead engine left behind, and saves an unsaved state, or sets it aside if it must not
// replace the backend's. Call it before the first plan, and after a failed apply.
func (w *Workspace) Recover(ctx context.Context) (*Recovery, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	recovery := &Recovery{}
	err := w.recover(ctx, recovery)
	recovery.Outside, w.outside = w.outside, nil
	return recovery, err
}

func (w *Workspace) recover(ctx context.Context, recovery *Recovery) error {
	if err := w.open(ctx); err != nil {
		return err
	}
	recovery.Crashed = w.crashed != nil
	var err error
	if recovery.Orphans, err = w.awaitOrphans(ctx); err != nil {
		return err
	}
	if w.crashed != nil {
		// A lock left behind by the dead run is broken now, or found to be another
		// client's. The record of the dead run remains until an operation succeeds.
		if err := w.prepare(ctx); err != nil {
			return err
		}
		crashed := w.crashed
		// Do not wait for a lock that was provably left behind.
		err := w.tryLock(ctx, min(soon, w.config.LockTimeout))
		if locked := (*LockedError)(nil); errors.As(err, &locked) {
			err = w.tryLock(ctx, w.config.LockTimeout)
		}
		if err != nil {
			return err
		}
		w.crashed = crashed
		if err := crashed.write(w.private(runFile)); err != nil {
			return err
		}
	}
	if err := w.secure(); err != nil {
		return err
	}
	if _, err := os.Stat(w.errored()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := w.prepare(ctx); err != nil {
		return err
	}
	return w.saveErrored(ctx, recovery)
}

// awaitOrphans ends the workspace's own provider, waits until all other processes started
// by this workspace's engines have ended, and returns the processes that it waited for.
// The provider of a killed engine first finishes its call, and only then does Proxmox show
// what the provider created. awaitOrphans kills a process that has not read or written
// anything for orphanIdle. No other process may work in the directory meanwhile. On
// systems other than Linux, awaitOrphans finds no processes. The caller holds mu.
func (w *Workspace) awaitOrphans(ctx context.Context) ([]int, error) {
	w.dismiss()
	find := func() []int {
		found := marked(markOf(w.config.Dir))
		if w.crashed != nil && w.crashed.Former != "" {
			found = append(found, marked(markOf(w.crashed.Former))...)
		}
		return found
	}
	left := find()
	found := left
	if len(left) == 0 {
		return nil, nil
	}
	fmt.Fprintf(w.config.Log, "waiting in %s for processes %v of an engine that was killed\n", w.config.Dir, left)
	ticker := w.config.Clock.NewTicker(orphanPoll)
	defer ticker.Stop()
	// activity is how much a process has read and written, and since when this has not
	// changed.
	type activity struct {
		done  string
		since time.Time
	}
	watched := map[int]activity{}
	for len(left) > 0 {
		now := w.config.Clock.Now()
		for _, pid := range left {
			done := doneBy(pid)
			last, known := watched[pid]
			if !known || last.done != done {
				watched[pid] = activity{done: done, since: now}
				continue
			}
			if now.Sub(last.since) < orphanIdle {
				continue
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return found, fmt.Errorf("ending process %d, left behind by an engine of %s: %w", pid, w.config.Dir, err)
			}
		}
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("waiting in %s for processes %v of an engine that was killed: %w", w.config.Dir, left, context.Cause(ctx))
		case <-ticker.C():
			left = find()
		}
	}
	return found, nil
}

// errored returns the path for a state that the backend did not accept.
func (w *Workspace) errored() string {
	return cmp.Or(w.config.Errored, filepath.Join(w.config.Dir, erroredState))
}

// secure moves an unsaved state from the directory to Config.Errored, if that is set. At
// any time, the state is in at least one of the two files.
func (w *Workspace) secure() error {
	name := filepath.Join(w.config.Dir, erroredState)
	info, err := os.Lstat(name)
	if w.config.Errored == "" || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	failed := func(err error) error {
		return fmt.Errorf("moving the unsaved state %s to %s: %w", name, w.config.Errored, err)
	}
	if err == nil && !info.Mode().IsRegular() {
		return failed(fmt.Errorf("%s is not a regular file: remove it", name))
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return failed(err)
	}
	existing, err := os.ReadFile(w.config.Errored)
	if err == nil && !slices.Equal(existing, content) {
		return failed(fmt.Errorf("%s contains a different state: move one of the two files elsewhere; the next run imports existing VMs that the state lacks", w.config.Errored))
	}
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(w.config.Errored), 0o700); err == nil {
			err = renameio.WriteFile(w.config.Errored, content, 0o600)
		}
	}
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		return failed(err)
	}
	return nil
}

// header identifies a state and its version.
type header struct {
	Version int    `json:"version"`
	Lineage string `json:"lineage"`
	Serial  uint64 `json:"serial"`
	// Encrypted replaces version and resources in a state that OpenTofu encrypted.
	Encrypted string `json:"encrypted_data"`
}

// saveErrored pushes a state that could not be saved. If the backend has a state,
// saveErrored sets the unsaved one aside instead if it has no lineage, is not newer, or
// lacks other clients' resources. It returns a LineageError if the lineages of the two
// states differ.
func (w *Workspace) saveErrored(ctx context.Context, recovery *Recovery) error {
	name := w.errored()
	content, local, err := w.readErrored(ctx, name)
	if err != nil {
		return err
	}
	pulled, err := w.pull(ctx)
	if err != nil {
		return err
	}
	var remote header
	if pulled != "" {
		if err := json.Unmarshal([]byte(pulled), &remote); err != nil {
			return fmt.Errorf("reading state of %s: %w", w.config.Dir, err)
		}
	}
	if remote.Lineage != "" { // OpenTofu prints no lineage if there is no state at all
		if local.Lineage != "" && remote.Lineage != local.Lineage {
			return &LineageError{File: name, Local: local.Lineage, Remote: remote.Lineage}
		}
		lost, others, err := w.difference(content, []byte(pulled))
		if err != nil {
			return fmt.Errorf("reading state of %s: %w", w.config.Dir, err)
		}
		// The very first state has no lineage if even reading the backend failed.
		if local.Lineage == "" || remote.Serial >= local.Serial || len(others) > 0 {
			recovery.Lost = lost
			return w.setAside(name, local, recovery)
		}
	}
	if err := w.push(ctx, content, local); err != nil {
		return err
	}
	recovery.Pushed = true
	w.outside = append(w.outside, fmt.Sprintf("saved the state of %s that the backend had not accepted: serial %d replaces serial %d, lineage %s",
		w.config.Dir, local.Serial, remote.Serial, local.Lineage))
	if err := os.Remove(name); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// setAside moves a state that must not replace the backend's to a file
// superseded-SERIAL.tfstate, in the directory for errored states, or in the private part of
// a directory that the caller owns.
func (w *Workspace) setAside(name string, local header, recovery *Recovery) error {
	dir := w.private()
	if w.config.Errored != "" {
		dir = filepath.Dir(w.config.Errored)
	}
	base := filepath.Join(dir, "superseded-"+strconv.FormatUint(local.Serial, 10))
	aside := base + ".tfstate"
	for n := 2; ; n++ {
		_, err := os.Lstat(aside)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("setting %s aside: %w", name, err)
		}
		aside = base + "-" + strconv.Itoa(n) + ".tfstate"
	}
	if err := os.Rename(name, aside); err != nil {
		return fmt.Errorf("setting %s aside: %w", name, err)
	}
	recovery.SetAside = aside
	return nil
}

// difference returns the resources that only the unsaved state has, and the backend's
// resources that this workspace neither created nor was going to delete: another client
// created them meanwhile, and pushing would lose them.
func (w *Workspace) difference(unsaved, remote []byte) (lost, others []string, err error) {
	known, err := w.readKnown()
	if err != nil {
		return nil, nil, err
	}
	ours, err := addressesOf(unsaved)
	if err != nil {
		return nil, nil, err
	}
	theirs, err := addressesOf(remote)
	if err != nil {
		return nil, nil, err
	}
	if known == nil {
		known = &knownState{Addresses: ours}
	}
	return without(ours, theirs), without(without(theirs, known.Addresses), known.Deleting), nil
}

// push saves a state to the backend. A state without a lineage gets one.
func (w *Workspace) push(ctx context.Context, content []byte, local header) (err error) {
	const operation = "saving the state of"
	if local.Lineage == "" {
		var fields map[string]json.RawMessage
		if err = json.Unmarshal(content, &fields); err == nil {
			fields["lineage"] = json.RawMessage(strconv.Quote(rand.Text()))
			content, err = json.Marshal(fields)
		}
	}
	name := w.private(pushFile)
	if err == nil {
		err = os.WriteFile(name, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", operation, w.config.Dir, err)
	}
	defer func() { err = errors.Join(err, removeFile(name)) }()
	return w.locking(ctx, operation, func(ctx context.Context) error {
		return w.command(ctx, operation, func(tf *tfexec.Terraform) error { return tf.StatePush(ctx, name) })
	})
}

// readErrored reads an unsaved state, and decrypts it if it is encrypted.
func (w *Workspace) readErrored(ctx context.Context, name string) ([]byte, header, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, header{}, fmt.Errorf("reading state: %w", err)
	}
	var h header
	if err := json.Unmarshal(content, &h); err != nil {
		return nil, header{}, fmt.Errorf("reading state %s: %w: the file is damaged: move it elsewhere: the next run imports the VMs that exist", name, err)
	}
	if h.Encrypted != "" {
		if content, err = w.decrypt(ctx, content); err == nil {
			h = header{}
			err = json.Unmarshal(content, &h)
		}
		if err != nil {
			return nil, header{}, fmt.Errorf("decrypting state %s: %w", name, err)
		}
	}
	if h.Version != 4 {
		return nil, header{}, fmt.Errorf("reading state %s: it has format %d: must be 4: move it elsewhere: the next run imports the VMs that exist", name, h.Version)
	}
	return content, h, nil
}

// decrypt decrypts a state with OpenTofu, which decrypts states in a backend, but not in
// a file to be pushed.
func (w *Workspace) decrypt(ctx context.Context, content []byte) (plain []byte, err error) {
	dir, err := os.MkdirTemp(w.private(), decryptDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, "terraform.tfstate"), content, 0o600); err != nil {
		return nil, err
	}
	client, err := tfexec.NewTerraform(dir, cmp.Or(w.config.Engine.Helper, w.config.Engine.Path))
	if err != nil {
		return nil, err
	}
	if err := client.SetEnv(w.env.engine); err != nil {
		return nil, err
	}
	out, err := client.StatePull(ctx)
	if err != nil {
		return nil, w.failure(ctx, "reading the state of", err, "")
	}
	return []byte(out), nil
}

// pull returns the backend's state, or "" if there is none.
func (w *Workspace) pull(ctx context.Context) (string, error) {
	out, err := w.quiet(ctx, "reading the state of", func(tf *tfexec.Terraform) error {
		_, err := tf.StatePull(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(out.stdout.String()), nil
}
