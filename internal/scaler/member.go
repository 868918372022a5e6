package scaler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
)

// Phase says how far a VM of a Writer is.
type Phase string

// The phases. Made says that the apply ended well, not that a Node has joined.
const (
	PhaseReserved Phase = "reserved"
	PhaseMaking   Phase = "making"
	PhaseMade     Phase = "made"
	// PhaseFailed: it was not made, VMState.Err says why. If its file stands, that is
	// retried until it is removed.
	PhaseFailed Phase = "failed"
	// PhaseHeld: a person has to allow it first; it stands in no file.
	PhaseHeld     Phase = "held"
	PhaseRemoving Phase = "removing"
)

// VMState is how far a VM is.
type VMState struct {
	VM    fleet.VM
	Phase Phase
	// Err is why the VM failed or is held, or why its removal waits.
	Err error
	// Since is when the phase began.
	Since time.Time
	// Made tells a VM that was made, whatever became of it later.
	Made bool
	// Filed is true while the VM is in the fleet's files.
	Filed bool
	// Changing tells a VM that is to get other tags, another pool or other security
	// groups and has not got them yet, and ChangeErr why that waits or failed.
	Changing  bool
	ChangeErr error
}

// Places returns the VMs that hold their places on their hosts: pods are those that
// take or will take pods, and rest those that take none: they are being removed, or
// failed and have files all the same. A VM that is in no file and failed, or that
// waits for a person, has no place: it is placed again if it is ever made.
func Places(states []VMState) (pods, rest []fleet.VM) {
	for i := range states {
		switch state := &states[i]; state.Phase {
		case PhaseReserved, PhaseMaking, PhaseMade:
			pods = append(pods, state.VM)
		case PhaseRemoving:
			rest = append(rest, state.VM)
		case PhaseFailed:
			if state.Filed {
				rest = append(rest, state.VM)
			}
		case PhaseHeld:
		}
	}
	return pods, rest
}

func compareStates(a, b VMState) int {
	return cmp.Or(cmp.Compare(a.VM.Host.Region, b.VM.Host.Region), cmp.Compare(a.VM.VMID, b.VM.VMID), cmp.Compare(a.VM.Key, b.VM.Key))
}

// member is a VM as the writer knows it.
type member struct {
	VMState
	// leaving tells one that was asked to go, and moving one that is part of a change
	// that is being applied.
	leaving, moving bool
	// vanished tells one that was made and that somebody else removed.
	vanished bool
	// wish is how the VM shall be, if it is to change in place; nil if it shall not.
	wish  *fleet.Spec
	retry delay
}

// delay puts something off, longer each time.
type delay struct {
	until time.Time
	tries int
}

// Delays grow from shortest to longest.
const (
	shortestDelay = 5 * time.Second
	longestDelay  = 2 * time.Minute
)

// grown returns the next delay.
func (d delay) grown(now time.Time) delay {
	wait := longestDelay
	if d.tries < 5 {
		wait = min(longestDelay, shortestDelay<<d.tries)
	}
	return delay{until: now.Add(wait), tries: d.tries + 1}
}

// drop forgets a VM.
func (w *Writer) drop(key fleet.Key) {
	delete(w.members, key)
	w.tell()
}

// tell lets those know who wait for phases of VMs.
func (w *Writer) tell() {
	close(w.told)
	w.told = make(chan struct{})
}

// Begun waits until none of these VMs is only reserved: each is being made, or was
// refused, or was removed. It returns early when ctx ends.
func (w *Writer) Begun(ctx context.Context, keys ...fleet.Key) {
	for {
		w.mu.Lock()
		told := w.told
		waits := slices.ContainsFunc(keys, func(key fleet.Key) bool {
			m := w.members[key]
			return m != nil && m.Phase == PhaseReserved
		})
		w.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-told:
		case <-ctx.Done():
			return
		}
	}
}

// HeldError says that a person has to allow what the guard does not allow alone.
type HeldError struct {
	Shard   fleet.Shard
	Verdict guard.Verdict
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("shard %s waits for a person: %s", e.Shard, e.Verdict)
}

// excludedError says that a change has to be made without some shards.
type excludedError struct{ shards map[fleet.Shard]error }

func (e *excludedError) Error() string {
	return fmt.Sprintf("%d hosts cannot take part in a change", len(e.shards))
}
