package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// repairTries bounds how many moves of new VMs one Place tries in order to make
// room for those that found none.
const repairTries = 2000

// batch is the specs of one Place.
type batch struct {
	*Planner
	specs  []fleet.Spec
	wants  []want
	hosts  [][]int // by spec: the allowed hosts, ascending
	placed []*fleet.Placement
	// claimAt is the position of a placed spec's claim on its host.
	claimAt []int
	order   []int // hardest first
	tries   int
}

// newBatch resolves the specs' hosts.
func newBatch(p *Planner, specs []fleet.Spec) *batch {
	b := &batch{
		Planner: p, specs: specs, wants: make([]want, len(specs)), hosts: make([][]int, len(specs)),
		placed: make([]*fleet.Placement, len(specs)), claimAt: make([]int, len(specs)), tries: repairTries,
	}
	same := map[hostList][]int{} // specs of one pool share their slice of hosts
	for i := range specs {
		b.wants[i] = wantOf(&specs[i])
		if len(specs[i].Hosts) == 0 {
			continue
		}
		key := listOf(specs[i].Hosts)
		if _, ok := same[key]; !ok {
			same[key] = p.positions(specs[i].Hosts)
		}
		b.hosts[i] = same[key]
	}
	b.order = b.sorted()
	return b
}

// hostList tells slices of hosts apart without reading them.
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

// positions resolves hosts to their positions, ascending and without doubles.
func (p *Planner) positions(ids []topology.HostID) []int {
	var at []int
	for _, id := range ids {
		if i, ok := p.at[id]; ok {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// sorted lists the specs, those that are hardest to place first.
func (b *batch) sorted() []int {
	order := sequence(len(b.specs))
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(
			cmp.Compare(tier(b.wants[i].policy), tier(b.wants[j].policy)),
			cmp.Compare(b.wants[j].vcpus, b.wants[i].vcpus),
			cmp.Compare(b.wants[j].memory, b.wants[i].memory),
			cmp.Compare(len(b.hosts[i]), len(b.hosts[j])),
		)
	})
	return order
}

// tier ranks policies by how much they ask of a place.
func tier(p fleet.Policy) int {
	return slices.Index([]fleet.Policy{
		fleet.PolicyIsolated, fleet.PolicyDedicated, fleet.PolicyNUMA, fleet.PolicyShared,
	}, p)
}

// place puts a spec on the host that costs least, if one can take it.
func (b *batch) place(i int) bool {
	w := b.wants[i]
	if w.problem() != "" {
		return false
	}
	best, known := none, b.verdicts(w)
	for _, h := range b.hosts[i] {
		v := &known[h]
		v.refresh(b.Planner.hosts[h], w)
		if v.fits && (best == none || v.cost.less(known[best].cost)) {
			best = h
		}
	}
	if best == none {
		return false
	}
	b.commit(i, best)
	return true
}

// commit takes the best place on a host that is known to fit.
func (b *batch) commit(i, host int) {
	s := b.Planner.hosts[host]
	found, _ := s.evaluate(b.wants[i])
	place := s.materialize(&found, b.wants[i])
	b.placed[i] = &place
	b.claimAt[i] = len(s.claims)
	s.occupy(s.claimOf(&b.specs[i], &place))
}

// repair makes room for specs that found none, by moving one new VM each to
// another place. VMs that stood before the batch never move.
func (b *batch) repair() {
	for _, i := range b.order {
		if b.placed[i] == nil && b.wants[i].problem() == "" {
			b.makeRoom(i)
		}
	}
}

// makeRoom moves one new VM so that spec i fits, if there is such a move.
func (b *batch) makeRoom(i int) {
	for _, j := range b.order {
		if b.placed[j] == nil {
			continue
		}
		host, ok := b.at[b.placed[j].Host]
		if !ok || !slices.Contains(b.hosts[i], host) {
			continue
		}
		if b.tries--; b.tries < 0 {
			return
		}
		if b.swap(i, j, host) {
			return
		}
	}
}

// swap gives spec i a place on the host without VM j, and j another one, or
// changes nothing.
func (b *batch) swap(i, j, host int) bool {
	old := b.Planner.hosts[host]
	fresh := old.without(b.claimAt[j])
	if _, ok := fresh.evaluate(b.wants[i]); !ok {
		return false
	}
	was, wasAt := b.placed[j], slices.Clone(b.claimAt)
	for n := range b.claimAt {
		if b.placed[n] != nil && b.placed[n].Host == old.id && b.claimAt[n] > b.claimAt[j] {
			b.claimAt[n]--
		}
	}
	fresh.version = old.version + 1
	b.Planner.hosts[host] = fresh
	b.commit(i, host)
	if b.place(j) {
		return true
	}
	// Versions only grow: what the cache learned meanwhile must not come back.
	old.version = fresh.version + 1
	b.Planner.hosts[host] = old
	b.placed[i], b.placed[j], b.claimAt = nil, was, wasAt
	return false
}

// results lists what became of each spec.
func (b *batch) results() ([]Placed, []Unplaced) {
	var placed []Placed
	var unplaced []Unplaced
	type question struct {
		want
		hostList
	}
	reasons := map[question]string{}
	for i := range b.specs {
		if b.placed[i] != nil {
			placed = append(placed, Placed{Index: i, Placement: *b.placed[i]})
			continue
		}
		q := question{b.wants[i], listOf(b.specs[i].Hosts)}
		reason, asked := reasons[q]
		if !asked {
			reason = b.refusal(i)
			reasons[q] = reason
		}
		unplaced = append(unplaced, Unplaced{Index: i, Reason: reason})
	}
	return placed, unplaced
}
