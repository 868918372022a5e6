package garbage

import (
	"errors"
	"sync"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
)

const (
	// firstClosing is how long an offer stays closed after the first failure of a
	// class, and longestClosing after many; forgetAfter is how long a class has to do
	// well until its next failure counts as the first again.
	firstClosing   = time.Minute
	longestClosing = 30 * time.Minute
	forgetAfter    = time.Hour
)

// closing closes offers, for longer each time that a class fails again.
type closing struct {
	closer Closer

	// mu guards the field below.
	mu      sync.Mutex
	classes map[string]failing
}

// failing is how a class has been doing.
type failing struct {
	until time.Time
	long  time.Duration
}

func newClosing(closer Closer) *closing {
	return &closing{closer: closer, classes: map[string]failing{}}
}

// until returns when offers of a class may be made again after it failed now.
// Failures that happen while offers are closed come of the same fault, so they make
// it no longer.
func (c *closing) until(class string, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.classes[class]
	switch {
	case f.long == 0 || now.Sub(f.until) >= forgetAfter:
		f = failing{until: now.Add(firstClosing), long: firstClosing}
	case !now.Before(f.until):
		f.long = min(2*f.long, longestClosing)
		f.until = now.Add(f.long)
	default:
		return now.Add(f.long)
	}
	c.classes[class] = f
	return f.until
}

// close closes offers of a class.
func (c *closing) close(class string, offers []scheduling.Offer, now time.Time, why string) time.Time {
	until := c.until(class, now)
	for _, offer := range offers {
		c.closer.Close(offer, until, why)
	}
	return until
}

// offersOf returns the offers that a failure speaks against. None of them is what is
// left of the cluster: pods find another place, and if there is none, they wait.
func (v *view) offersOf(vm fleet.VM, err error) []scheduling.Offer {
	var (
		down   *scaler.HostDownError
		lost   *scaler.HostLostError
		locked *state.LockedError
		engine *state.CommandError
		plan   *scaler.PlanError
		pins   *scaler.RootOnlyError
		number *scaler.VMIDTakenError
		cpus   *scaler.CPUsTakenError
	)
	switch {
	case errors.As(err, &number), errors.As(err, &cpus):
		return nil // the next try takes another number, or sees what is taken
	case errors.As(err, &down), errors.As(err, &lost), errors.As(err, &locked), errors.As(err, &plan), errors.As(err, &engine) && engine.Backend != "":
		return []scheduling.Offer{{Host: vm.Host}}
	case errors.As(err, &pins), scaler.StorageFull(err):
		var offers []scheduling.Offer
		for _, pool := range v.poolsOf(vm.NodeClass) {
			offers = append(offers, scheduling.Offer{NodePool: pool, Host: vm.Host})
		}
		return offers
	}
	return []scheduling.Offer{{NodePool: vm.Pool, InstanceType: vm.InstanceType, Host: vm.Host}}
}
