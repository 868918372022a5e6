package scheduling

import (
	"slices"

	"github.com/numaform/numaform/topology"
)

// Offer is an instance type of a NodePool on a host. An empty field stands for
// any: Offer{Host: h} is everything on that host. A Flexible node's type stands for
// all sizes of such nodes, for the next one need not be of the same.
type Offer struct {
	NodePool     string
	InstanceType string
	Host         topology.HostID
}

// matches reports whether the offer, whose fields may be empty, is about that one.
func (o Offer) matches(one offer) bool {
	return (o.NodePool == "" || o.NodePool == one.pool) &&
		(o.InstanceType == "" || o.InstanceType == one.instanceType || isFlexible(o.InstanceType) && isFlexible(one.instanceType)) &&
		(o.Host == topology.HostID{} || o.Host == one.host)
}

// closedOffers are offers that a decision must not make.
type closedOffers struct {
	// asked are those that the request closes.
	asked []Offer
	// proved are those that the planner or the scheduler proved wrong about.
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
