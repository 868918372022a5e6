package state

import "context"

// Locked takes the state's lock and lets it go again: it returns a *LockedError if
// somebody holds it, and nil if it is free. Nothing is planned and no lock is broken,
// but for one that an engine of this very directory left behind.
func (w *Workspace) Locked(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	return w.tryLock(ctx, soon)
}
