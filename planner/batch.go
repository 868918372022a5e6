package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// batch holds the specs of one call of Place and their results so far.
type batch struct {
	*Planner
	specs    []fleet.Spec
	requests []request
	hosts    [][]int // by spec: the allowed hosts, ascending
	// lists identifies each spec's list of hosts by number: equal lists have the same
	// number.
	lists  []int
	order  []int // hardest to place first
	placed []placedSpec
	tries  int
	// own marks the hosts whose states belong to this batch alone: it may change them in
	// place.
	own []bool
}

// placedSpec is the result for one spec. place is nil until the spec is placed.
type placedSpec struct {
	place *fleet.Placement
	claim *claim
	cost  cost
}

// hostList identifies a slice of hosts without reading its elements.
type hostList struct {
	first *topology.HostID
	size  int
}

// listOf returns the identity of a slice. All empty slices have the same identity.
func listOf(hosts []topology.HostID) hostList {
	if len(hosts) == 0 {
		return hostList{}
	}
	return hostList{first: &hosts[0], size: len(hosts)}
}

// newBatch looks up the hosts of each spec, ignores unknown ones, and sorts the specs from
// the hardest to place to the easiest.
func newBatch(p *Planner, specs []fleet.Spec) *batch {
	b := &batch{
		Planner: p, specs: specs, requests: make([]request, len(specs)), hosts: make([][]int, len(specs)), lists: make([]int, len(specs)),
		order: sequence(len(specs)), placed: make([]placedSpec, len(specs)), tries: repairTries, own: make([]bool, len(p.hosts)),
	}
	var lists [][]int
	same := map[hostList]int{} // specs of one pool share their slice of hosts
	for i := range specs {
		b.requests[i] = requestOf(&specs[i])
		key := listOf(specs[i].Hosts)
		list, ok := same[key]
		if !ok {
			hosts := make([]int, 0, len(specs[i].Hosts))
			for _, id := range specs[i].Hosts {
				if at, known := p.at[id]; known {
					hosts = append(hosts, at)
				}
			}
			slices.Sort(hosts)
			hosts = slices.Compact(hosts)
			list = slices.IndexFunc(lists, func(other []int) bool { return slices.Equal(hosts, other) })
			if list < 0 {
				list = len(lists)
				lists = append(lists, hosts)
			}
			same[key] = list
		}
		b.lists[i], b.hosts[i] = list, lists[list]
	}

	hardest := []fleet.Policy{fleet.PolicyIsolated, fleet.PolicyDedicated, fleet.PolicyNUMA, fleet.PolicyShared}
	slices.SortStableFunc(b.order, func(i, j int) int {
		v, w := &b.requests[i], &b.requests[j]
		return cmp.Or(
			cmp.Compare(slices.Index(hardest, v.policy), slices.Index(hardest, w.policy)),
			cmp.Compare(w.vcpus, v.vcpus),
			cmp.Compare(w.memory, v.memory),
			cmp.Compare(w.backing, v.backing),
			cmp.Compare(len(b.hosts[i]), len(b.hosts[j])),
		)
	})
	return b
}

// place puts a spec on the cheapest allowed host that fits it. The spec remains unplaced if
// none does.
func (b *batch) place(i int) {
	if b.requests[i].problem() != "" {
		return
	}
	if host, p, ok := b.best(i); ok {
		b.commit(i, host, &p)
	}
}

// best returns the cheapest allowed host for a spec and the plan there, or false if no host
// fits. The first of several equally cheap hosts wins.
func (b *batch) best(i int) (host int, best plan, ok bool) {
	w := b.requests[i]
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

// commit places spec i on the host, according to the plan or to a better one from refine.
func (b *batch) commit(i, host int, p *plan) {
	s := b.Planner.hosts[host]
	if !b.own[host] {
		s = s.clone()
	}
	refined := s.refine(p, b.requests[i])
	place := s.materialize(&refined, b.requests[i])
	b.placed[i] = placedSpec{place: &place, claim: s.claimOf(&b.specs[i], &place), cost: p.cost}
	s.occupy(b.placed[i].claim)
	b.publish(host, s)
	b.own[host] = true
}

// publish replaces the state of a host. The batch must clone the new state before changing
// it.
func (b *batch) publish(host int, s *state) {
	b.Planner.publish(host, s)
	b.own[host] = false
}

// results returns the placed and the unplaced specs.
func (b *batch) results() ([]Placed, []Unplaced) {
	var placed []Placed
	var unplaced []Unplaced
	type refused struct {
		request
		hostList // distinguishes an empty list from a list of unknown hosts
	}
	reasons := map[refused]string{}
	for i := range b.specs {
		if place := b.placed[i].place; place != nil {
			placed = append(placed, Placed{Index: i, Placement: *place})
			continue
		}
		key := refused{b.requests[i], listOf(b.specs[i].Hosts)}
		reason, known := reasons[key]
		if !known {
			reason = b.refusal(i)
			reasons[key] = reason
		}
		unplaced = append(unplaced, Unplaced{Index: i, Reason: reason})
	}
	return placed, unplaced
}
