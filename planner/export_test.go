package planner

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Scanning returns a clone that evaluates every allowed host for every VM.
func (p *Planner) Scanning() *Planner {
	c := p.Clone()
	c.look = func(b *batch, i int) (host int, best plan, ok bool) {
		for _, h := range b.hosts[i] {
			p, fits := b.Planner.hosts[h].evaluate(b.wants[i])
			if fits && (!ok || p.cost.less(&best.cost)) {
				host, best, ok = h, p, true
			}
		}
		return host, best, ok
	}
	return c
}

// Remembering returns a clone that compares every allowed host for every VM, and
// evaluates only those that changed since an equal want was looked for.
func (p *Planner) Remembering() *Planner {
	type verdict struct {
		change int
		fits   bool
		cost   cost
	}
	c := p.Clone()
	var at *batch
	var known map[want][]verdict
	c.look = func(b *batch, i int) (int, plan, bool) {
		if at != b {
			at, known = b, map[want][]verdict{}
		}
		w := b.wants[i]
		if known[w] == nil {
			known[w] = make([]verdict, len(b.Planner.hosts))
		}
		best := none
		for _, h := range b.hosts[i] {
			v := &known[w][h]
			// 0 is "never looked at", 1 "not changed since the batch began".
			if now := int(b.finder.last[h]) + 1; v.change != now {
				p, fits := b.Planner.hosts[h].evaluate(w)
				*v = verdict{now, fits, p.cost}
			}
			if v.fits && (best == none || v.cost.less(&known[w][best].cost)) {
				best = h
			}
		}
		if best == none {
			return none, plan{}, false
		}
		p, _ := b.Planner.hosts[best].evaluate(w)
		return best, p, true
	}
	return c
}

// Floor says whether the bound of a VM's cost on the host holds, and whether the
// bound is the cost itself.
func (p *Planner) Floor(spec fleet.Spec, host topology.HostID) (holds, exact bool) {
	s, w := p.hosts[p.at[host]], wantOf(&spec)
	q := w.query()
	bound := dearest()
	possible := s.floor(&q, &bound)
	best, fits := s.evaluate(w)
	if !fits || !possible {
		return !fits, fits == possible
	}
	price := best.cost.pack()
	return !price.less(&bound), price == bound && !price.blurred()
}

// Cost returns the cost of the best place for a VM on the host, part by part, or nil.
func (p *Planner) Cost(spec fleet.Spec, host topology.HostID) []int64 {
	if best, fits := p.hosts[p.at[host]].evaluate(wantOf(&spec)); fits {
		return best.cost[:]
	}
	return nil
}

// CostParts is how many parts a cost has.
const CostParts = int(costParts)

// Packed packs a cost, and tells whether it is blurred.
func Packed(parts []int64) (words []uint64, blurred bool) {
	p := (*cost)(parts).pack()
	return p[:], p.blurred()
}

// Next returns the packed cost that comes after one.
func Next(words []uint64) []uint64 {
	next := packed(words).next()
	return next[:]
}
