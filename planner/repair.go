package planner

import (
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// repairTries limits the exchanges of new VMs that one Place tries, both for unplaced specs
// and for better places.
const repairTries = 2000

// cutTries is the number of tries that splitting a VM counts as, because it takes longer.
const cutTries = 20

// repair makes room for unplaced specs, and finds better places for split ones. Only new
// VMs move; VMs placed before the batch never do.
func (b *batch) repair() {
	type question struct {
		want
		list int
	}
	missed := map[question]bool{}
	for _, i := range b.order {
		q := question{b.wants[i], b.lists[i]}
		if b.placed[i] == nil && b.wants[i].problem() == "" && !missed[q] {
			missed[q] = !b.improve(i)
		}
	}
	b.repack()
	for _, i := range b.order {
		if b.tries > 0 && b.placed[i] != nil && b.isPoor(i) {
			b.improve(i)
		}
	}
	b.forUnplaced(b.place) // some exchanges leave more room than before
	b.forUnplaced(b.placeHalves)
}

// forUnplaced calls do for each unplaced spec, hardest first.
func (b *batch) forUnplaced(do func(i int)) {
	for _, i := range b.order {
		if b.placed[i] == nil {
			do(i)
		}
	}
}

// score is the sum of the most significant costs of some VMs: lower is better.
type score [costCaches + 2]int64

// scoreOf returns the summed costs of specs. An unplaced spec outweighs everything.
func (b *batch) scoreOf(specs ...int) score {
	var sum score
	for _, i := range specs {
		if b.placed[i] == nil {
			sum[0]++
			continue
		}
		sum.add(&b.costs[i])
	}
	return sum
}

func (s *score) add(c *cost) {
	for at := range costCaches + 1 {
		s[at+1] += c[at]
	}
}

func (s *score) less(o score) bool { return slices.Compare(s[:], o[:]) < 0 }

// isPoor reports whether a VM uses more NUMA nodes than its host would need for it if
// empty, or was placed by a last resort.
func (b *batch) isPoor(i int) bool {
	c := &b.costs[i]
	if c[costNodes] <= 1 && c[costResort]&^resortUnknown == 0 {
		return false
	}
	b.tries--
	empty, ok := newState(b.Planner.hosts[b.at[b.placed[i].Host]].index).evaluate(b.wants[i])
	return ok && (empty.cost[costNodes] < c[costNodes] || empty.cost[costResort] < c[costResort])
}

// improve puts spec i in the place of another new VM and moves that one elsewhere, if such
// an exchange is better for both together.
func (b *batch) improve(i int) bool {
	for _, j := range b.order {
		if b.placed[j] == nil || b.wants[i] == b.wants[j] {
			continue
		}
		host := b.at[b.placed[j].Host]
		if _, ok := slices.BinarySearch(b.hosts[i], host); !ok {
			continue
		}
		if b.tries--; b.tries < 0 {
			return false
		}
		if b.exchange(i, j, host) {
			return true
		}
	}
	return false
}

// exchange gives spec i a place on the host without VM j, and j the best remaining place,
// or changes nothing.
func (b *batch) exchange(i, j, host int) bool {
	before, saved := b.scoreOf(i, j), b.save(i, j)
	b.takeOut(j)
	if b.placed[i] != nil {
		b.takeOut(i)
	}
	if p, ok := b.Planner.hosts[host].evaluate(b.wants[i]); ok {
		b.tries -= cutTries * b2i(len(p.parts) > 1)
		b.commit(i, host, &p)
		to, q, ok := b.best(j)
		after := b.scoreOf(i)
		after.add(&q.cost)
		if ok && after.less(before) {
			b.commit(j, to, &q)
			return true
		}
	}
	b.restore(saved)
	return false
}

// takeOut removes a placed spec from its host.
func (b *batch) takeOut(i int) {
	host, claim := b.at[b.placed[i].Host], b.claimAt[i]
	for n, p := range b.placed {
		if p != nil && p.Host == b.placed[i].Host && b.claimAt[n] > claim {
			b.claimAt[n]--
		}
	}
	b.publish(host, b.Planner.hosts[host].without(claim))
	b.placed[i] = nil
}

// saved is the state that an exchange may have to restore.
type saved struct {
	hosts   map[int]*state
	placed  []placedSpec
	claimAt []int
}

// placedSpec is the place of a spec.
type placedSpec struct {
	spec  int
	place *fleet.Placement
	cost  cost
}

// save records the places of some specs and the states of their hosts.
func (b *batch) save(specs ...int) saved {
	s := saved{hosts: map[int]*state{}, claimAt: slices.Clone(b.claimAt)}
	for _, i := range specs {
		s.placed = append(s.placed, placedSpec{spec: i, place: b.placed[i], cost: b.costs[i]})
		if b.placed[i] != nil {
			host := b.at[b.placed[i].Host]
			s.hosts[host] = b.Planner.hosts[host]
		}
	}
	return s
}

// restore reverts everything since save. No other host may have changed.
func (b *batch) restore(s saved) {
	for _, host := range slices.Sorted(maps.Keys(s.hosts)) {
		b.publish(host, s.hosts[host])
	}
	for _, p := range s.placed {
		b.placed[p.spec], b.costs[p.spec] = p.place, p.cost
	}
	b.claimAt = s.claimAt
}
