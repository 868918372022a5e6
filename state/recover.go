package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// erroredState is what the engine writes when the backend does not take the state.
const erroredState = "errored.tfstate"

// orphanPoll is how often leftover processes are looked for.
const orphanPoll = 250 * time.Millisecond

// orphanIdle is how long a leftover provider may neither read nor write: Proxmox gives
// up what it was asked within 30 seconds. After that it waits for an engine that is
// dead, and is ended.
const orphanIdle = 45 * time.Second

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
	// Lost are the resources that only the state knows which was set aside.
	Lost []string
	// Outside are the writes to the backend that no plan holds, a line each: a
	// broken lock with the proof that its holder is gone, a state that was saved.
	// They include those of earlier operations of this workspace.
	Outside []string
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

// awaitOrphans waits until no process is left that an engine of this workspace
// started: the provider of a killed engine finishes its call first, and only then
// does Proxmox show what it made. One that does nothing any more is ended. It returns those that it
// waited for. It must not run while another process works in the directory. On other
// systems than Linux it finds none. The caller holds mu.
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

// activity is what a process has read and written, and since when that is all.
type activity struct {
	done  string
	since time.Time
}

// endIdle ends those of the leftover processes that have done nothing for a while.
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
