package planner

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// PlaceForgetting is like Place but evaluates every allowed host for every VM.
func (p *Planner) PlaceForgetting(specs []fleet.Spec) ([]Placed, []Unplaced) {
	b := newBatch(p, specs)
	for _, i := range b.order {
		clear(p.verdicts)
		b.place(i)
	}
	clear(p.verdicts)
	b.repair()
	return b.results()
}

// Cheapest returns the first of the cheapest hosts for a VM, or the zero value.
func (p *Planner) Cheapest(spec fleet.Spec) (cheapest topology.HostID) {
	requests := []request{requestOf(&spec)}
	if partial, may := requests[0].onPartialCores(); may {
		requests = append(requests, partial)
	}
	for _, w := range requests {
		var least cost
		for _, s := range p.hosts {
			best, fits := s.evaluate(w)
			if fits && slices.Contains(spec.Hosts, s.id) && (cheapest == topology.HostID{} || best.cost.less(&least)) {
				cheapest, least = s.id, best.cost
			}
		}
		if cheapest != (topology.HostID{}) {
			return cheapest
		}
	}
	return cheapest
}

// Outdated lists cached results that differ from a fresh evaluation.
func (p *Planner) Outdated() []string {
	var outdated []string
	for w, verdicts := range p.verdicts {
		for h, v := range verdicts {
			if v == nil || v.version != p.versions[h] {
				continue
			}
			best, fits := p.hosts[h].evaluate(w)
			if fits != v.fits || !reflect.DeepEqual(best, v.plan) {
				outdated = append(outdated, fmt.Sprintf("%s: %+v: %+v, now %+v", p.hosts[h].id, w, v.plan, best))
			}
		}
	}
	return outdated
}

// Verdicts returns the size of the cache, including its empty entries.
func (p *Planner) Verdicts() int {
	n := 0
	for _, verdicts := range p.verdicts {
		n += len(verdicts)
	}
	return n
}

// Cost returns the cost of the best place for a VM on the host, part by part, or nil.
func (p *Planner) Cost(spec fleet.Spec, host topology.HostID) []int64 {
	if best, fits := p.hosts[p.at[host]].evaluate(requestOf(&spec)); fits {
		return best.cost[:]
	}
	return nil
}
