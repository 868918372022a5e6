package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// erroredState is what the engine writes when the backend does not take the state.
const erroredState = "errored.tfstate"

// orphanPoll is how often leftover processes are looked for.
const orphanPoll = 250 * time.Millisecond

// Recovery is what Recover found and did.
type Recovery struct {
	// Crashed reports that a process died here during an operation. Then VMs may
	// exist that the state does not know: look for them before planning.
	Crashed bool
	// Orphans are processes of a killed engine that were awaited.
	Orphans []int
	// Pushed reports that a state that could not be saved was saved now.
	Pushed bool
	// SetAside is where a state was put that the backend has outgrown, or empty.
	// What it alone knows must be imported.
	SetAside string
}

// LineageError says that a state that was to be saved belongs to another one.
type LineageError struct{ File, Local, Remote string }

// Error says which file is wrong and what to do.
func (e *LineageError) Error() string {
	return fmt.Sprintf("state %s has lineage %s, the backend's has %s: it belongs to another backend or directory; "+
		"look at the backend's configuration, and remove the file if it is not wanted", e.File, e.Local, e.Remote)
}

// Recover repairs what a crash left behind: it waits for leftover processes,
// removes leftover files, and saves a state that could not be saved. Call it
// before the first plan, and after an apply that failed.
func (w *Workspace) Recover(ctx context.Context) (*Recovery, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	recovery := &Recovery{}
	if err := w.open(ctx); err != nil {
		return recovery, err
	}
	recovery.Crashed = w.crashed != nil
	orphans, err := w.awaitOrphans(ctx)
	recovery.Orphans = orphans
	if err != nil {
		return recovery, err
	}
	if _, err := os.Stat(filepath.Join(w.config.Dir, erroredState)); errors.Is(err, os.ErrNotExist) {
		return recovery, nil
	}
	if err := w.prepare(ctx); err != nil {
		return recovery, err
	}
	return recovery, w.saveErrored(ctx, recovery)
}

// AwaitOrphans waits until no process is left that an engine of this workspace
// started: the provider of a killed engine finishes its call first, and only then
// does Proxmox show what it made. It returns those that it waited for. It must not
// run while another process works in the directory. On other systems than Linux
// it finds none.
func (w *Workspace) AwaitOrphans(ctx context.Context) ([]int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.awaitOrphans(ctx)
}

func (w *Workspace) awaitOrphans(ctx context.Context) ([]int, error) {
	left := marked(w.mark())
	found := left
	if len(left) == 0 {
		return nil, nil
	}
	ticker := w.config.Clock.NewTicker(orphanPoll)
	defer ticker.Stop()
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("waiting in %s for processes %v of an engine that was killed: %w", w.config.Dir, left, context.Cause(ctx))
		case <-ticker.C():
			left = marked(w.mark())
		}
	}
	return found, nil
}

// header is what tells states apart.
type header struct {
	Version int    `json:"version"`
	Lineage string `json:"lineage"`
	Serial  uint64 `json:"serial"`
}

// saveErrored pushes a state that could not be saved, or sets it aside.
func (w *Workspace) saveErrored(ctx context.Context, recovery *Recovery) error {
	name := filepath.Join(w.config.Dir, erroredState)
	local, err := readHeader(name)
	if err != nil {
		return err
	}
	remote, err := w.remoteHeader(ctx)
	if err != nil {
		return err
	}
	if remote.Lineage != "" && remote.Lineage != local.Lineage {
		return &LineageError{File: name, Local: local.Lineage, Remote: remote.Lineage}
	}
	if remote.Lineage != "" && remote.Serial >= local.Serial {
		recovery.SetAside = w.private("superseded-" + strconv.FormatUint(local.Serial, 10) + ".tfstate")
		if err := os.Rename(name, recovery.SetAside); err != nil {
			return fmt.Errorf("setting %s aside: %w", name, err)
		}
		return nil
	}
	err = w.locking(ctx, "saving the state of", func(ctx context.Context) error {
		_, err := w.command(ctx, "saving the state of", true, func(tf *tfexec.Terraform) error { return tf.StatePush(ctx, name) })
		return err
	})
	if err != nil {
		return err
	}
	recovery.Pushed = true
	if err := os.Remove(name); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// remoteHeader reads the header of the backend's state; it is zero if there is none.
func (w *Workspace) remoteHeader(ctx context.Context) (header, error) {
	pulled, err := w.pull(ctx)
	if err != nil || pulled == "" {
		return header{}, err
	}
	var h header
	if err := json.Unmarshal([]byte(pulled), &h); err != nil {
		return header{}, fmt.Errorf("reading state of %s: %w", w.config.Dir, err)
	}
	return h, nil
}

func readHeader(name string) (header, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return header{}, fmt.Errorf("reading state: %w", err)
	}
	var h header
	if err := json.Unmarshal(content, &h); err != nil {
		return header{}, fmt.Errorf("reading state %s: %w: it was cut off; move it away, and import what it made", name, err)
	}
	if h.Version != 4 || h.Lineage == "" {
		return header{}, fmt.Errorf("reading state %s: not a state of format 4: move it away, and import what it made", name)
	}
	return h, nil
}

// pull returns the backend's state, or "" if there is none.
func (w *Workspace) pull(ctx context.Context) (string, error) {
	out, err := w.command(ctx, "reading the state of", false, func(tf *tfexec.Terraform) error {
		_, err := tf.StatePull(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(out.stdout.String()), nil
}
