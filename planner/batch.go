package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// batch is the specs of one call of Place.
type batch struct {
	*Planner
	specs  []fleet.Spec
	wants  []want
	hosts  [][]int // by spec: the allowed hosts, ascending
	placed []*fleet.Placement
	// claimAt is the position of each placed spec's claim on its host.
	claimAt []int
	costs   []cost
	order   []int // hardest to place first
	tries   int
	// lists numbers the specs' lists of hosts: specs with equal lists have the same number.
	lists []int
	// own marks the states that no other planner shares: they may be changed in place.
	own []bool
}

// newBatch resolves the specs' hosts.
func newBatch(p *Planner, specs []fleet.Spec) *batch {
	b := &batch{
		Planner: p, specs: specs, wants: make([]want, len(specs)), hosts: make([][]int, len(specs)),
		placed: make([]*fleet.Placement, len(specs)), claimAt: make([]int, len(specs)), tries: repairTries,
		lists: make([]int, len(specs)), costs: make([]cost, len(specs)), own: make([]bool, len(p.hosts)),
	}
	var lists [][]int
	same := map[hostList]int{} // specs of one pool share their slice of hosts
	for i := range specs {
		b.wants[i] = wantOf(&specs[i])
		key := listOf(specs[i].Hosts)
		list, ok := same[key]
		if !ok {
			hosts := p.positions(specs[i].Hosts)
			list = slices.IndexFunc(lists, func(other []int) bool { return slices.Equal(hosts, other) })
			if list < 0 {
				list = len(lists)
				lists = append(lists, hosts)
			}
			same[key] = list
		}
		b.lists[i], b.hosts[i] = list, lists[list]
	}
	b.order = b.sorted()
	return b
}

// hostList identifies a slice of hosts without reading its elements.
type hostList struct {
	first *topology.HostID
	size  int
}

// listOf returns the slice's identity.
func listOf(hosts []topology.HostID) hostList {
	if len(hosts) == 0 {
		return hostList{}
	}
	return hostList{&hosts[0], len(hosts)}
}

// positions resolves hosts to their positions, ascending and without duplicates.
func (p *Planner) positions(ids []topology.HostID) []int {
	at := make([]int, 0, len(ids))
	for _, id := range ids {
		if i, ok := p.at[id]; ok {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// sorted lists the specs, the hardest to place first.
func (b *batch) sorted() []int {
	order := sequence(len(b.specs))
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(
			cmp.Compare(tier(b.wants[i].policy), tier(b.wants[j].policy)),
			cmp.Compare(b.wants[j].vcpus, b.wants[i].vcpus),
			cmp.Compare(b.wants[j].memory, b.wants[i].memory),
			cmp.Compare(b.wants[j].backing, b.wants[i].backing),
			cmp.Compare(len(b.hosts[i]), len(b.hosts[j])),
		)
	})
	return order
}

// tier ranks policies by how hard they are to place.
func tier(p fleet.Policy) int {
	return slices.Index([]fleet.Policy{
		fleet.PolicyIsolated, fleet.PolicyDedicated, fleet.PolicyNUMA, fleet.PolicyShared,
	}, p)
}

// place puts a spec on the cheapest allowed host that can take it.
func (b *batch) place(i int) {
	if b.wants[i].problem() != "" {
		return
	}
	if host, p, ok := b.best(i); ok {
		b.commit(i, host, &p)
	}
}

// best returns the cheapest allowed host for a spec, and the plan there. The first of
// several equally cheap hosts wins.
func (b *batch) best(i int) (host int, best plan, ok bool) {
	w := b.wants[i]
	verdicts := b.verdicts[w]
	if verdicts == nil {
		if (len(b.verdicts)+1)*len(b.versions) > maxVerdicts {
			clear(b.verdicts)
		}
		verdicts = make([]*verdict, len(b.versions))
		b.verdicts[w] = verdicts
	}

	host = none
	for _, h := range b.hosts[i] {
		v := verdicts[h]
		if v == nil || v.version != b.versions[h] {
			v = &verdict{version: b.versions[h]}
			v.plan, v.fits = b.Planner.hosts[h].evaluate(w)
			verdicts[h] = v
		}
		if v.fits && (host == none || v.plan.cost.less(&verdicts[host].plan.cost)) {
			host = h
		}
	}

	if host == none {
		return none, plan{}, false
	}
	return host, verdicts[host].plan, true
}

// commit places spec i on the host according to the plan.
func (b *batch) commit(i, host int, p *plan) {
	s := b.Planner.hosts[host]
	if !b.own[host] {
		s = s.clone()
	}
	refined := s.refine(p, b.wants[i])
	place := s.materialize(&refined, b.wants[i])
	b.placed[i], b.costs[i] = &place, p.cost
	b.claimAt[i] = len(s.claims)
	s.occupy(s.claimOf(&b.specs[i], &place))
	b.publish(host, s)
	b.own[host] = true
}

// publish replaces the state of a host. The new state must not change afterwards.
func (b *batch) publish(host int, s *state) {
	b.Planner.publish(host, s)
	b.own[host] = false
}

// results returns the placed and the unplaced specs.
func (b *batch) results() ([]Placed, []Unplaced) {
	var placed []Placed
	var unplaced []Unplaced
	type refused struct {
		want
		hostList // an empty list is not a list of unknown hosts
	}
	reasons := map[refused]string{}
	for i := range b.specs {
		if b.placed[i] != nil {
			placed = append(placed, Placed{Index: i, Placement: *b.placed[i]})
			continue
		}
		q := refused{b.wants[i], listOf(b.specs[i].Hosts)}
		reason, asked := reasons[q]
		if !asked {
			reason = b.refusal(i)
			reasons[q] = reason
		}
		unplaced = append(unplaced, Unplaced{Index: i, Reason: reason})
	}
	return placed, unplaced
}
