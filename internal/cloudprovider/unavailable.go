package cloudprovider

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/scheduling"
)

// UnavailableOfferings is the set of temporarily unavailable offerings, where creating VMs
// failed recently. It is safe for concurrent use.
type UnavailableOfferings struct {
	clock clock.PassiveClock

	// mu guards the field below.
	mu    sync.Mutex
	until map[scheduling.OfferingSelector]time.Time
}

// NewUnavailableOfferings returns an empty set.
func NewUnavailableOfferings(passive clock.PassiveClock) *UnavailableOfferings {
	return &UnavailableOfferings{clock: passive, until: map[scheduling.OfferingSelector]time.Time{}}
}

// Mark makes offerings unavailable until the given time, or longer if an earlier call set a
// later time. Empty fields of the selector match any value.
func (c *UnavailableOfferings) Mark(selector scheduling.OfferingSelector, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.After(c.until[selector]) {
		c.until[selector] = until
	}
}

// List returns the unavailable offerings, sorted by pool, host and type.
func (c *UnavailableOfferings) List() []scheduling.OfferingSelector {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.until, func(_ scheduling.OfferingSelector, until time.Time) bool { return !until.After(now) })
	return slices.SortedFunc(maps.Keys(c.until), func(a, b scheduling.OfferingSelector) int {
		return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), a.Host.Compare(b.Host), cmp.Compare(a.InstanceType, b.InstanceType))
	})
}
