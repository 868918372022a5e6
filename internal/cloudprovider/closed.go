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

// ClosedOffer is an offer that is not made for now.
type ClosedOffer struct {
	scheduling.Offer
	Until time.Time
	Why   string
}

// Closed are the offers that are not made for now, because VMs could not be made
// there a moment ago. It may be used from several goroutines.
type Closed struct {
	clock clock.PassiveClock

	// mu guards what follows.
	mu     sync.Mutex
	offers map[scheduling.Offer]ClosedOffer
}

// NewClosed returns a set in which nothing is closed.
func NewClosed(passive clock.PassiveClock) *Closed {
	return &Closed{clock: passive, offers: map[scheduling.Offer]ClosedOffer{}}
}

// Close keeps an offer from being made until then, or longer if that was said
// before. Its empty fields stand for any.
func (c *Closed) Close(offer scheduling.Offer, until time.Time, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.offers[offer]; ok && known.Until.After(until) {
		return
	}
	c.offers[offer] = ClosedOffer{Offer: offer, Until: until, Why: why}
}

// Entries returns what is closed now, sorted by pool, host and type.
func (c *Closed) Entries() []ClosedOffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.offers, func(_ scheduling.Offer, entry ClosedOffer) bool { return !entry.Until.After(now) })
	return slices.SortedFunc(maps.Values(c.offers), func(a, b ClosedOffer) int {
		return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), a.Host.Compare(b.Host), cmp.Compare(a.InstanceType, b.InstanceType))
	})
}

// List returns the offers that are closed now, in the order of Entries.
func (c *Closed) List() []scheduling.Offer {
	var offers []scheduling.Offer
	for _, entry := range c.Entries() {
		offers = append(offers, entry.Offer)
	}
	return offers
}
