package planner

import (
	"cmp"
	"slices"
)

// bounded is a host and a lower bound of what a want costs there.
type bounded struct {
	host int
	cost packed
}

// offer is a plan on a host, or none.
type offer struct {
	host int
	plan plan
	fits bool
}

// beats reports whether an offer is better than another, by cost, then by id.
func (o *offer) beats(other *offer) bool {
	switch {
	case !o.fits || !other.fits:
		return o.fits
	case o.plan.cost == other.plan.cost:
		return o.host < other.host
	}
	return o.plan.cost.less(&other.plan.cost)
}

// price is the packed cost of an offer; nothing costs more than none.
func (o *offer) price() packed {
	if !o.fits {
		return dearest()
	}
	return o.plan.cost.pack()
}

// offerOf evaluates a want on a host.
func (p *Planner) offerOf(w want, host int) offer {
	best, fits := p.hosts[host].evaluate(w)
	return offer{host, best, fits}
}

// scan returns the host that costs least for a want and the plan there, if one can take
// it. It evaluates only the host with the least bound, and those whose bounds are not
// above the cost there.
func (p *Planner) scan(q *query, hosts []int) offer {
	first, least := none, dearest()
	for _, h := range hosts {
		if p.hosts[h].floor(q, &least) {
			first = h
		}
	}
	if first == none {
		return offer{}
	}
	best := p.offerOf(q.want, first)
	price := best.price()
	if price == least && !price.blurred() {
		return best
	}
	for _, other := range p.within(q, hosts, price) {
		if price.less(&other.cost) {
			break
		}
		if found := p.offerOf(q.want, other.host); found.beats(&best) {
			best, price = found, found.price()
		}
	}
	return best
}

// within lists the hosts whose bounds are not above a limit, the least first.
func (p *Planner) within(q *query, hosts []int, limit packed) []bounded {
	var list []bounded
	above := limit.next()
	for _, h := range hosts {
		b := bounded{h, above}
		if p.hosts[h].floor(q, &b.cost) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b bounded) int {
		return cmp.Or(slices.Compare(a.cost[:], b.cost[:]), cmp.Compare(a.host, b.host))
	})
	return list
}
