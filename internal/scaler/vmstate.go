package scaler

import (
	"hash/maphash"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Phase is a VM's progress in a Writer.
type Phase string

// The phases. Made means that the apply succeeded, not that a Node has joined.
const (
	PhaseReserved Phase = "reserved"
	PhaseMaking   Phase = "making"
	PhaseMade     Phase = "made"
	// PhaseFailed means that the VM was not created or woken, no longer exists, or
	// conflicts with another guest; VMState.Err is the reason. If the VM has a file, its
	// creation or wake is retried unless it is being removed.
	PhaseFailed Phase = "failed"
	// PhasePendingApproval means that the VM is pending approval. It has no file, unless it
	// is a standby VM to be woken.
	PhasePendingApproval Phase = "held"
	PhaseRemoving        Phase = "removing"
)

// VMState is the state of a VM in a Writer.
type VMState struct {
	VM    fleet.VM
	Phase Phase
	// Err is why the VM failed or is pending approval, or why its creation, wake or
	// removal waits; nil otherwise.
	Err error
	// Since is when the phase began.
	Since time.Time
	// Made is set once the VM has been created, and stays set whatever happens to the VM
	// later. Wake clears it until the VM has been woken.
	Made bool
	// Filed is true while the VM is in the fleet's files.
	Filed bool
	// Origin is the change that created or woke the VM; nil if it has not begun, or is no
	// longer in the recent history.
	Origin *Origin
	// Trace is the span of the decision that requested the VM or, once it has begun, of the
	// change that creates or wakes it. It is invalid if that is not traced, or was traced by
	// another process.
	Trace trace.SpanContext
	// Changing is set if the VM has a pending change of tags, pool, security groups or
	// emulator, and ChangeErr is why that waits or failed.
	Changing  bool
	ChangeErr error
}

// Places returns the VMs that use resources of their hosts: pods are the VMs that run or
// will run pods, including standby VMs; rest are the other VMs: they are being removed,
// or they have files but failed or are pending approval. A VM without a file that has
// failed or is pending approval uses no resources: it is placed again before it is
// created.
func Places(states []VMState) (pods, rest []fleet.VM) {
	pods = make([]fleet.VM, 0, len(states))
	for i := range states {
		switch state := &states[i]; {
		case state.runsPods():
			pods = append(pods, state.VM)
		case state.usesResources():
			rest = append(rest, state.VM)
		}
	}
	return pods, rest
}

// runsPods reports whether the VM runs or will run pods.
func (s *VMState) runsPods() bool {
	return s.Phase == PhaseReserved || s.Phase == PhaseMaking || s.Phase == PhaseMade
}

// usesResources reports whether the VM uses resources of its host.
func (s *VMState) usesResources() bool {
	return s.runsPods() || s.Phase == PhaseRemoving || (s.Phase == PhaseFailed || s.Phase == PhasePendingApproval) && s.Filed
}

// digestSeed makes the digests of a process comparable.
var digestSeed = maphash.MakeSeed()

// PlacesDigest returns a digest of the VMs that Places returns. It does not depend on their
// order.
func PlacesDigest(states []VMState) (digest uint64) {
	for i := range states {
		digest += states[i].placeDigest()
	}
	return digest
}

// placeDigest returns a digest of the resources that the VM uses, or 0 if it uses none. A VM
// never changes its place or its size, but a standby VM may reserve nothing until it is woken.
func (s *VMState) placeDigest() uint64 {
	if !s.usesResources() {
		return 0
	}
	return maphash.Comparable(digestSeed, struct {
		key          fleet.Key
		host         topology.HostID
		instanceType string
		reserves     bool
	}{s.VM.Key, s.VM.Host, s.VM.InstanceType, s.VM.Reserves()})
}
