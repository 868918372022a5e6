package planner

import "slices"

// maxKnown bounds how many costs a finder remembers, which is 6 MiB, and how many
// changes of hosts.
const maxKnown = 1 << 17

// To make a tree takes as long as to scan all hosts for some VMs, and is no slower than
// to bring it up to date once some hosts, or a share of them, have changed.
const (
	treeAsks    = 4
	treeChanges = 8
	treeShares  = 8
)

// finder remembers which of the allowed hosts is best for a want that is asked for
// often, and keeps that up to date as hosts change. It belongs to one Planner, and goes
// on from batch to batch.
type finder struct {
	// changed lists the hosts whose state changed, in turn; last is the position of
	// each host's last change there, from 1 on, or 0.
	changed []int32
	last    []int32
	lists   [][]int // of allowed hosts
	like    map[[3]int][]int
	asked   map[question]*candidates
	known   int // how many costs are remembered in all
	batch   int // how many there were
}

// question is what decides which host is best, as the hosts stand.
type question struct {
	want want
	list int // position in finder.lists
}

// newFinder returns a finder for n hosts.
func newFinder(n int) *finder {
	return &finder{last: make([]int32, n), like: map[[3]int][]int{}, asked: map[question]*candidates{}}
}

// note records that a host changed.
func (f *finder) note(host int) {
	f.changed = append(f.changed, few[int32](host))
	f.last[host] = few[int32](len(f.changed))
}

// begin starts a batch, and forgets everything before if it has become too much.
func (f *finder) begin() {
	if len(f.changed) > maxKnown || len(f.lists) > len(f.last) {
		*f = *newFinder(len(f.last))
	}
	f.batch++
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
		c = &candidates{query: w.query(), hosts: f.lists[list]}
		f.asked[q] = c
		f.known++
	}
	if !c.current(f) {
		if !c.oftenIn(f) {
			o := p.scan(&c.query, c.hosts)
			return o.host, o.plan, o.fits
		}
		c.make(p)
	}
	return c.best(p)
}

// candidates finds the best host for one want among those that are allowed,
// without evaluating each of them: hosts play a knock-out by a lower bound of their
// cost, and only a host that leads by its bound is evaluated.
type candidates struct {
	query query
	hosts []int // ascending
	// batch is the last one in which the want was asked for, so many times.
	batch, asks int

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
	cost        packed
	fits, exact bool
}

// ask sets the bound.
func (k *known) ask(s *state, q *query) {
	k.cost, k.exact = dearest(), false
	k.fits = s.floor(q, &k.cost)
}

// current reports whether there is a tree, and little has changed since it was looked at.
func (c *candidates) current(f *finder) bool {
	return c.winner != nil && len(f.changed)-c.seen <= treeChanges+len(c.hosts)/treeShares
}

// oftenIn counts how often the batch asks, and reports whether a tree pays.
func (c *candidates) oftenIn(f *finder) bool {
	if c.batch != f.batch {
		c.batch, c.asks = f.batch, 0
	}
	c.asks++
	return c.asks > treeAsks
}

// make lets all hosts play.
func (c *candidates) make(p *Planner) {
	n := len(c.hosts)
	if c.winner == nil {
		c.known, c.winner = make([]known, n), make([]int32, 2*n)
		p.finder.known += n
	}
	c.plans, c.seen = map[int]plan{}, len(p.finder.changed)
	for i, h := range c.hosts {
		c.known[i].ask(p.hosts[h], &c.query)
		c.winner[n+i] = int32(i)
	}
	for at := n - 1; at > 0; at-- {
		c.play(at)
	}
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
	case a.cost != b.cost:
		return a.cost.less(&b.cost)
	case !a.cost.blurred():
		return i < j
	case a.exact && b.exact:
		x, y := c.plans[int(i)], c.plans[int(j)]
		return x.cost.less(&y.cost) || x.cost == y.cost && i < j
	case a.exact != b.exact:
		return b.exact // for the other must be evaluated
	}
	return i < j
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
		best, k.fits = p.hosts[host].evaluate(c.query.want)
		k.cost, k.exact = best.cost.pack(), true
		c.plans[first] = best
		c.replay(first)
	}
}

// catchUp takes the hosts that changed since for what they are now.
func (c *candidates) catchUp(p *Planner) {
	f := p.finder
	for ; c.seen < len(f.changed); c.seen++ {
		h := int(f.changed[c.seen])
		i, ok := slices.BinarySearch(c.hosts, h)
		if !ok || int(f.last[h]) != c.seen+1 { // or it changed again later
			continue
		}
		k := &c.known[i]
		k.ask(p.hosts[h], &c.query)
		delete(c.plans, i)
		c.replay(i)
	}
}
