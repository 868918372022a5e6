package state

import (
	"context"
	"encoding/json"
	"fmt"
)

// Pull returns the backend's state for a backup, decrypted; nil if there is none. It reads the
// state without its lock.
func (w *Workspace) Pull(ctx context.Context) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	pulled, err := w.pull(ctx)
	if err != nil || pulled == "" {
		return nil, err
	}
	addresses, err := addressesOf([]byte(pulled))
	if err != nil {
		return nil, fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
	}
	if len(addresses) == 0 {
		return nil, nil // the engine prints an empty state if there is none
	}
	return []byte(pulled), nil
}

// Restore saves a state from a backup. If the backend has a state with resources that is not
// an older version of this one, Restore changes nothing and returns the reason: the next run
// imports the VMs that the backend's state lacks.
func (w *Workspace) Restore(ctx context.Context, content []byte) (kept string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var saved header
	if err := json.Unmarshal(content, &saved); err != nil {
		return "", fmt.Errorf("reading the state to restore in %s: %w", w.config.Dir, err)
	}
	if saved.Version != 4 || saved.Lineage == "" {
		return "", fmt.Errorf("reading the state to restore in %s: it has format %d and lineage %q: must be format 4 with a lineage", w.config.Dir, saved.Version, saved.Lineage)
	}
	if err := w.prepare(ctx); err != nil {
		return "", err
	}
	pulled, err := w.pull(ctx)
	if err != nil {
		return "", err
	}
	addresses, err := addressesOf([]byte(pulled))
	if err != nil {
		return "", fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
	}
	if len(addresses) > 0 {
		var current header
		if err := json.Unmarshal([]byte(pulled), &current); err != nil {
			return "", fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
		}
		switch {
		case current.Lineage != saved.Lineage:
			return fmt.Sprintf("the backend has another state, with lineage %s", current.Lineage), nil
		case current.Serial >= saved.Serial:
			return fmt.Sprintf("the backend has serial %d of this state, and the backup serial %d", current.Serial, saved.Serial), nil
		}
	}
	return "", w.push(ctx, content, saved)
}
