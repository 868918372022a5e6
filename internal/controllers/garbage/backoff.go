package garbage

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
)

const (
	// firstClosing is how long an offering is unavailable after the first failure of a
	// class, and longestClosing the maximum after repeated failures. If the offerings of the
	// class have been available for forgetAfter, the next failure counts as the first again.
	firstClosing   = time.Minute
	longestClosing = 30 * time.Minute
	forgetAfter    = time.Hour
)

// backoff makes offerings unavailable, for longer after each further failure of a class.
type backoff struct {
	unavailable UnavailableOfferings

	// mu guards the field below.
	mu      sync.Mutex
	classes map[string]failing
}

// failing is the failure state of a class.
type failing struct {
	until    time.Time
	duration time.Duration
}

// close makes offerings of a class unavailable after a failure now, and returns until when.
// A failure while offerings of the class are unavailable is assumed to have the same cause,
// so it does not double the duration.
func (b *backoff) close(class string, offerings []scheduling.OfferingSelector, now time.Time) time.Time {
	b.mu.Lock()
	maps.DeleteFunc(b.classes, func(_ string, f failing) bool { return now.Sub(f.until) >= forgetAfter })
	f, again := b.classes[class]
	until := now.Add(f.duration)
	if !now.Before(f.until) {
		f.duration = min(2*f.duration, longestClosing)
		if !again {
			f.duration = firstClosing
		}
		until = now.Add(f.duration)
		f.until = until
		b.classes[class] = f
	}
	b.mu.Unlock()

	for _, offering := range offerings {
		b.unavailable.Mark(offering, until)
	}
	return until
}

// affectedOfferings returns the offerings that may fail for the same reason as the VM: none,
// or offerings on the VM's host only, so that the pods can be placed on other hosts.
func (v *view) affectedOfferings(vm fleet.VM, err error) []scheduling.OfferingSelector {
	var (
		down   *scaler.HostDownError
		lost   *scaler.HostLostError
		locked *state.LockedError
		plan   *scaler.PlanError
		pins   *scaler.RootOnlyError
		part   scaler.PartialError
		vmid   *scaler.VMIDTakenError
		cpus   *scaler.CPUsTakenError
		taken  *scaler.AddressTakenError
		moved  *scaler.MovedError
	)
	switch {
	case errors.As(err, &part) && part.Concerns(vm.Key):
		return nil // only this VM has the problem
	case errors.As(err, &vmid), errors.As(err, &cpus), errors.As(err, &taken):
		return nil // the next attempt uses another VMID, or avoids the CPUs and addresses in use
	case errors.As(err, &moved) && moved.VM == vm.Name:
		return nil // the next attempt uses another VM
	case errors.As(err, &down), errors.As(err, &lost), errors.As(err, &locked), errors.As(err, &plan):
		return []scheduling.OfferingSelector{{Host: vm.Host}}
	case errors.As(err, &pins), scaler.StorageFull(err):
		var offerings []scheduling.OfferingSelector
		for _, pool := range v.poolsOf(vm.NodeClass) {
			offerings = append(offerings, scheduling.OfferingSelector{NodePool: pool, Host: vm.Host})
		}
		return offerings
	}
	return []scheduling.OfferingSelector{{NodePool: vm.Pool, InstanceType: vm.InstanceType, Host: vm.Host}}
}
