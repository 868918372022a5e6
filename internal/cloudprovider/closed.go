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

// ClosedOffer is an offering that is temporarily unavailable.
type ClosedOffer struct {
	scheduling.Offer
	Until time.Time
	Why   string
}

// Closed is the set of temporarily unavailable offerings, where creating VMs failed
// recently. It is safe for concurrent use.
type Closed struct {
	clock clock.PassiveClock

	// mu guards the fields below.
	mu     sync.Mutex
	offers map[scheduling.Offer]ClosedOffer
}

// NewClosed returns an empty set.
func NewClosed(passive clock.PassiveClock) *Closed {
	return &Closed{clock: passive, offers: map[scheduling.Offer]ClosedOffer{}}
}

// Close makes an offering unavailable until the given time, or longer if a previous call
// said so. Empty fields of offer match any value.
func (c *Closed) Close(offer scheduling.Offer, until time.Time, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.offers[offer]; ok && known.Until.After(until) {
		return
	}
	c.offers[offer] = ClosedOffer{Offer: offer, Until: until, Why: why}
}

// Entries returns the unavailable offerings, sorted by pool, host and type.
func (c *Closed) Entries() []ClosedOffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.offers, func(_ scheduling.Offer, entry ClosedOffer) bool { return !entry.Until.After(now) })
	return slices.SortedFunc(maps.Values(c.offers), func(a, b ClosedOffer) int {
		return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), a.Host.Compare(b.Host), cmp.Compare(a.InstanceType, b.InstanceType))
	})
}

// List returns the unavailable offerings, in the order of Entries.
func (c *Closed) List() []scheduling.Offer {
	var offers []scheduling.Offer
	for _, entry := range c.Entries() {
		offers = append(offers, entry.Offer)
	}
	return offers
}
