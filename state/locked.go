package state

import "context"

// Locked acquires and releases the state's lock: it returns a *LockedError if another
// client holds it, and nil if it is free. It plans nothing and breaks no lock except one
// left behind by an engine of this directory.
func (w *Workspace) Locked(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	return w.tryLock(ctx, soon)
}
