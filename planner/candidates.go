package planner

import "slices"

// maxKnown bounds how many costs a finder remembers, which is 16 MiB, and how many
// changes of hosts.
const maxKnown = 1 << 17

// finder remembers, for each want and list of allowed hosts, which of them is best,
// and keeps that up to date as hosts change. It belongs to one Planner, and goes on
// from batch to batch.
type finder struct {
	// changed lists the hosts whose state changed, in turn; last is the position of
	// each host's last change there, or none.
	changed []int
	last    []int
	lists   [][]int // of allowed hosts
	like    map[[3]int][]int
	asked   map[question]*candidates
	known   int // how many costs are remembered in all
}

// question is what decides which host is best, as the hosts stand.
type question struct {
	want want
	list int // position in finder.lists
}

// newFinder returns a finder for n hosts.
func newFinder(n int) *finder {
	return &finder{last: slices.Repeat([]int{none}, n), like: map[[3]int][]int{}, asked: map[question]*candidates{}}
}

// note records that a host changed.
func (f *finder) note(host int) {
	f.last[host] = len(f.changed)
	f.changed = append(f.changed, host)
}

// trim forgets everything before a batch if it has become too much.
func (f *finder) trim() {
	if len(f.changed) > maxKnown || len(f.lists) > len(f.last) {
		*f = *newFinder(len(f.last))
	}
}

// listOf returns the position of a list of hosts.
func (f *finder) listOf(hosts []int) int {
	key := [3]int{len(hosts)}
	if len(hosts) > 0 {
		key[1], key[2] = hosts[0], hosts[len(hosts)-1]
	}
	for _, i := range f.like[key] {
		if slices.Equal(f.lists[i], hosts) {
			return i
		}
	}
	i := len(f.lists)
	f.lists = append(f.lists, hosts)
	f.like[key] = append(f.like[key], i)
	return i
}

// best returns the host that costs least for a want and the plan there, if one of
// the list can take it.
func (p *Planner) best(w want, list int) (host int, best plan, ok bool) {
	f, q := p.finder, question{w, list}
	c := f.asked[q]
	if c == nil {
		if f.known > maxKnown {
			clear(f.asked)
			f.known = 0
		}
		c = newCandidates(p, w, f.lists[list])
		f.asked[q] = c
		f.known += len(c.hosts)
	}
	return c.best(p)
}

// candidates finds the best host for one want among those that are allowed,
// without evaluating each of them: hosts play a knock-out by a lower bound of their
// cost, and only a host that leads by its bound is evaluated.
type candidates struct {
	want  want
	hosts []int // ascending
	known []known
	plans map[int]plan // by position in hosts, where known exactly
	// winner is a tree: the leaves are the hosts, from len(hosts) on, and each node
	// above names the better one of the two below it. The winner of all is at 1.
	winner []int32
	// seen counts the changes of hosts that are accounted for.
	seen int
}

// known is what is known of one host: a bound of its cost, or the cost.
type known struct {
	cost        cost
	fits, exact bool
}

// newCandidates lets the hosts play.
func newCandidates(p *Planner, w want, hosts []int) *candidates {
	n := len(hosts)
	c := &candidates{
		want: w, hosts: hosts, known: make([]known, n), plans: map[int]plan{},
		winner: make([]int32, 2*n), seen: len(p.finder.changed),
	}
	for i, h := range hosts {
		c.known[i].fits = p.hosts[h].floor(&c.known[i].cost, &c.want)
		c.winner[n+i] = int32(i)
	}
	for at := n - 1; at > 0; at-- {
		c.play(at)
	}
	return c
}

// play sets the winner of one node of the tree.
func (c *candidates) play(at int) {
	left, right := c.winner[2*at], c.winner[2*at+1]
	if c.beats(right, left) {
		left = right
	}
	c.winner[at] = left
}

// beats compares by cost, then by id.
func (c *candidates) beats(i, j int32) bool {
	a, b := &c.known[i], &c.known[j]
	switch {
	case a.fits != b.fits:
		return a.fits
	case a.cost == b.cost:
		return i < j
	}
	return a.cost.less(&b.cost)
}

// replay plays again what a host takes part in.
func (c *candidates) replay(i int) {
	for at := (len(c.hosts) + i) / 2; at > 0; at /= 2 {
		c.play(at)
	}
}

// best returns the host that costs least and the plan there, if one can take the want.
func (c *candidates) best(p *Planner) (host int, best plan, ok bool) {
	c.catchUp(p)
	if len(c.hosts) == 0 {
		return none, plan{}, false
	}
	for {
		first := int(c.winner[1])
		k := &c.known[first]
		host = c.hosts[first]
		switch {
		case !k.fits:
			return none, plan{}, false
		case k.exact:
			return host, c.plans[first], true
		}
		best, k.fits = p.hosts[host].evaluate(c.want)
		k.cost, k.exact = best.cost, true
		c.plans[first] = best
		c.replay(first)
	}
}

// catchUp takes the hosts that changed since for what they are now.
func (c *candidates) catchUp(p *Planner) {
	f := p.finder
	for ; c.seen < len(f.changed); c.seen++ {
		h := f.changed[c.seen]
		i, ok := slices.BinarySearch(c.hosts, h)
		if !ok || f.last[h] != c.seen { // or it changed again later
			continue
		}
		k := &c.known[i]
		k.fits, k.exact = p.hosts[h].floor(&k.cost, &c.want), false
		delete(c.plans, i)
		c.replay(i)
	}
}
