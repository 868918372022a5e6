package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// erroredState is the file that the engine writes if the backend does not accept the
// state.
const erroredState = "errored.tfstate"

// orphanPoll is the interval between searches for leftover processes.
const orphanPoll = 250 * time.Millisecond

// orphanIdle is how long a leftover provider may neither read nor write. Proxmox requests
// time out within 30 seconds; after that the provider only waits for its dead engine, and
// is ended.
const orphanIdle = 45 * time.Second

// Recovery is what Recover found and did.
type Recovery struct {
	// Crashed reports that a process died here during an operation. VMs may then exist
	// that are not in the state: look for them before planning.
	Crashed bool
	// Orphans are the processes of a killed engine that Recover waited for.
	Orphans []int
	// Pushed reports that a previously unsaved state has been saved.
	Pushed bool
	// SetAside is the path of an unsaved state that is older than the backend's, or
	// empty. Resources that only it contains must be imported.
	SetAside string
	// Lost are the resources that only the state at SetAside contains.
	Lost []string
	// Outside are the writes to the backend that no plan contains, one line each: a
	// broken lock with the proof that its holder is gone, or a saved state. They include
	// writes by earlier operations of this workspace.
	Outside []string
}

// LineageError reports that a state to be saved has another lineage than the backend's.
type LineageError struct{ File, Local, Remote string }

// Error says which file is wrong and how to fix it.
func (e *LineageError) Error() string {
	return fmt.Sprintf("state %s has lineage %s, the backend's has %s: it belongs to another backend or directory; "+
		"look at the backend's configuration, and remove the file if it is not wanted", e.File, e.Local, e.Remote)
}

// Recover cleans up after a crash: it waits for leftover processes, removes leftover
// files, and saves an unsaved state. Call it before the first plan, and after a failed
// apply.
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
	orphans, err := w.awaitOrphans(ctx)
	recovery.Orphans = orphans
	if err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
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

// awaitOrphans waits until all processes started by this workspace's engines have ended,
// and returns the ones it waited for. The provider of a killed engine first finishes its
// call, and only then does Proxmox show what it created. A process that has become idle
// is ended. No other process may work in the directory meanwhile. On systems other than
// Linux it finds no processes. The caller holds mu.
func (w *Workspace) awaitOrphans(ctx context.Context) ([]int, error) {
	w.dismiss()
	left := w.left()
	found := left
	if len(left) == 0 {
		return nil, nil
	}
	ticker := w.config.Clock.NewTicker(orphanPoll)
	defer ticker.Stop()
	fmt.Fprintf(w.config.Log, "waiting in %s for processes %v of an engine that was killed\n", w.config.Dir, left)
	watched := map[int]activity{}
	for len(left) > 0 {
		if err := w.endIdle(left, watched); err != nil {
			return found, err
		}
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("waiting in %s for processes %v of an engine that was killed: %w", w.config.Dir, left, context.Cause(ctx))
		case <-ticker.C():
			left = w.left()
		}
	}
	return found, nil
}

// activity is how much a process has read and written, and since when it has not changed.
type activity struct {
	done  string
	since time.Time
}

// endIdle ends leftover processes that have been idle for orphanIdle.
func (w *Workspace) endIdle(left []int, watched map[int]activity) error {
	now := w.config.Clock.Now()
	for _, pid := range left {
		done := doneBy(pid)
		if last, ok := watched[pid]; !ok || last.done != done {
			watched[pid] = activity{done, now}
			continue
		}
		if now.Sub(watched[pid].since) < orphanIdle {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending process %d, which an engine of %s left behind: %w", pid, w.config.Dir, err)
		}
	}
	return nil
}
