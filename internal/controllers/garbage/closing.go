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
	// firstClosing is how long an offering stays unavailable after the first failure of a
	// class, and longestClosing the maximum after repeated failures; forgetAfter is how
	// long a class must have no failure before the next one counts as the first again.
	firstClosing   = time.Minute
	longestClosing = 30 * time.Minute
	forgetAfter    = time.Hour
)

// closing makes offerings unavailable, for longer after each further failure of a class.
type closing struct {
	closer Closer

	// mu guards the field below.
	mu      sync.Mutex
	classes map[string]failing
}

// failing is the failure state of a class.
type failing struct {
	until time.Time
	long  time.Duration
}

func newClosing(closer Closer) *closing {
	return &closing{closer: closer, classes: map[string]failing{}}
}

// until returns when offerings of a class may become available after a failure now.
// Failures while offerings are unavailable have the same cause, so they do not extend the
// time.
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

// close makes offerings of a class unavailable.
func (c *closing) close(class string, offers []scheduling.Offer, now time.Time, why string) time.Time {
	until := c.until(class, now)
	for _, offer := range offers {
		c.closer.Close(offer, until, why)
	}
	return until
}

// offersOf returns the offerings that a failure makes doubtful. They are never all
// offerings of the cluster: the pods find another place or wait.
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
		return nil // the next attempt takes another VMID, or sees what is in use
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
