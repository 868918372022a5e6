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

// Phase is a VM's progress in a Writer.
type Phase string

// The phases. Made means that the apply succeeded, not that a Node has joined.
const (
	PhaseReserved Phase = "reserved"
	PhaseMaking   Phase = "making"
	PhaseMade     Phase = "made"
	// PhaseFailed means that it was not created; VMState.Err says why. If it has a file,
	// the creation is retried until the VM is removed.
	PhaseFailed Phase = "failed"
	// PhaseHeld means that it is pending approval and has no file.
	PhaseHeld     Phase = "held"
	PhaseRemoving Phase = "removing"
)

// VMState is the state of a VM in a Writer.
type VMState struct {
	VM    fleet.VM
	Phase Phase
	// Err is why the VM failed or is pending approval, or why its removal waits.
	Err error
	// Since is when the phase began.
	Since time.Time
	// Made is set if the VM was created, whatever happened to it later.
	Made bool
	// Filed is true while the VM is in the fleet's files.
	Filed bool
	// Changing is set if the VM has a pending change of tags, pool or security groups,
	// and ChangeErr is why that waits or failed.
	Changing  bool
	ChangeErr error
}

// Places returns the VMs that use resources of their hosts: pods are the VMs that run or
// will run pods, and rest the VMs that do not: they are being removed, or have failed but
// have files. A VM without a file that has failed or is pending approval uses no
// resources: it is placed again before it is created.
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

// member is the writer's record of a VM.
type member struct {
	VMState
	// leaving is set if removal was requested, and moving if the VM is part of a change
	// in progress.
	leaving, moving bool
	// vanished is set if the VM was created and then removed by another client.
	vanished bool
	// wish is the desired Spec of an update in place, or nil.
	wish  *fleet.Spec
	retry delay
}

// delay postpones something, longer each time.
type delay struct {
	until time.Time
	tries int
}

// Delays grow from shortest to longest.
const (
	shortestDelay = 5 * time.Second
	longestDelay  = 2 * time.Minute
)

// grown returns the next, longer delay.
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

// tell notifies the goroutines that wait for phases of VMs.
func (w *Writer) tell() {
	close(w.told)
	w.told = make(chan struct{})
}

// Begun waits until no VM with these keys is in PhaseReserved: each is being created, was
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

// HeldError reports that a change needs approval because the guard does not allow it by
// itself.
type HeldError struct {
	Shard   fleet.Shard
	Verdict guard.Verdict
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("shard %s waits for a person: %s", e.Shard, e.Verdict)
}

// excludedError reports that a change has to continue without some hosts.
type excludedError struct{ shards map[fleet.Shard]error }

func (e *excludedError) Error() string {
	return fmt.Sprintf("%d hosts cannot take part in a change", len(e.shards))
}
