package scheduling

import (
	"slices"

	"github.com/numaform/numaform/topology"
)

// Offer is an offering: an instance type of a NodePool on a host. An empty field matches
// anything: Offer{Host: h} is every offering on that host. A Flexible node's type matches
// all sizes of Flexible nodes, because the next one may have another size.
type Offer struct {
	NodePool     string
	InstanceType string
	Host         topology.HostID
}

// matches reports whether the offering, whose fields may be empty, matches one.
func (o Offer) matches(one offer) bool {
	return (o.NodePool == "" || o.NodePool == one.pool) &&
		(o.InstanceType == "" || o.InstanceType == one.instanceType || isFlexible(o.InstanceType) && isFlexible(one.instanceType)) &&
		(o.Host == topology.HostID{} || o.Host == one.host)
}

// closedOffers are offerings that are unavailable to a decision.
type closedOffers struct {
	// asked are the request's unavailable offerings.
	asked []Offer
	// proved are the offerings on which the planner and the scheduler turned out to
	// disagree.
	proved map[offer]bool
}

func newClosedOffers(asked []Offer) *closedOffers {
	return &closedOffers{asked: asked, proved: map[offer]bool{}}
}

func (c *closedOffers) add(o offer) { c.proved[o] = true }

func (c *closedOffers) has(o offer) bool { return c.proved[o] || c.byRequest(o) }

func (c *closedOffers) byRequest(o offer) bool {
	return slices.ContainsFunc(c.asked, func(asked Offer) bool { return asked.matches(o) })
}
