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

// scan returns the host that costs least for a want and the plan there, if one can take
// it. It evaluates only the host with the least bound, and those whose bound the cost
// there does not undercut.
func (p *Planner) scan(q *query, hosts []int) (host int, best plan, ok bool) {
	host = none
	least := dearest()
	for _, h := range hosts {
		if p.hosts[h].floor(q, &least) {
			host = h
		}
	}
	if host == none {
		return none, plan{}, false
	}
	best, ok = p.hosts[host].evaluate(q.want)
	if price := best.cost.pack(); ok && price == least && !price.blurred() {
		return host, best, true
	}
	first, limit := host, dearest()
	if ok {
		limit = best.cost.pack()
	}
	for _, other := range p.within(q, hosts, limit) {
		if price := best.cost.pack(); ok && price.less(&other.cost) {
			break
		}
		if other.host == first {
			continue
		}
		found, fits := p.hosts[other.host].evaluate(q.want)
		if fits && (!ok || found.cost.less(&best.cost) || found.cost == best.cost && other.host < host) {
			host, best, ok = other.host, found, true
		}
	}
	return host, best, ok
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
