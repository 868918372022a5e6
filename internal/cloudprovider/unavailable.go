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

// UnavailableOffering is an offering that is temporarily unavailable.
type UnavailableOffering struct {
	scheduling.OfferingSelector
	Until time.Time
	Why   string
}

// UnavailableOfferings is the set of temporarily unavailable offerings, where creating VMs
// failed recently. It is safe for concurrent use.
type UnavailableOfferings struct {
	clock clock.PassiveClock

	// mu guards the fields below.
	mu        sync.Mutex
	offerings map[scheduling.OfferingSelector]UnavailableOffering
}

// NewUnavailableOfferings returns an empty set.
func NewUnavailableOfferings(passive clock.PassiveClock) *UnavailableOfferings {
	return &UnavailableOfferings{clock: passive, offerings: map[scheduling.OfferingSelector]UnavailableOffering{}}
}

// Mark makes offerings unavailable until the given time, or longer if an earlier call set a
// later time. Empty fields of the selector match any value.
func (c *UnavailableOfferings) Mark(selector scheduling.OfferingSelector, until time.Time, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.offerings[selector]; ok && known.Until.After(until) {
		return
	}
	c.offerings[selector] = UnavailableOffering{OfferingSelector: selector, Until: until, Why: why}
}

// Entries returns the unavailable offerings, sorted by pool, host and type.
func (c *UnavailableOfferings) Entries() []UnavailableOffering {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.offerings, func(_ scheduling.OfferingSelector, entry UnavailableOffering) bool { return !entry.Until.After(now) })
	return slices.SortedFunc(maps.Values(c.offerings), func(a, b UnavailableOffering) int {
		return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), a.Host.Compare(b.Host), cmp.Compare(a.InstanceType, b.InstanceType))
	})
}

// List returns the unavailable offerings, in the order of Entries.
func (c *UnavailableOfferings) List() []scheduling.OfferingSelector {
	var offerings []scheduling.OfferingSelector
	for _, entry := range c.Entries() {
		offerings = append(offerings, entry.OfferingSelector)
	}
	return offerings
}
