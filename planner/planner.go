// Package planner decides which host, which of its CPUs and which NUMA nodes each
// wanted VM gets, and says why. It is pure and deterministic: it never talks to
// Proxmox, never moves a VM that is placed, and gives the same answer for any
// order of hosts. It does not decide how many VMs are needed, and spreads them over
// hosts only where a Spec says so. Start at New and Place; DESIGN.md beside this
// file holds the cost order and the rules of counting.
package planner

import (
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Planner knows what is taken of every host, and takes more as it places VMs.
// Fits, View, Room and Clone may run side by side; Place needs the Planner for itself.
type Planner struct {
	// hosts are sorted by id. No state changes once it stands here, so that clones
	// share it: a batch copies what it changes.
	hosts []*state
	at    map[topology.HostID]int
	// versions count, by host, how often its state changed.
	versions []int
	// verdicts remembers, for Place, what evaluate said of a want on each host.
	verdicts map[want][]*verdict
}

// verdict is the best plan for a want on one host, if there is one, at some version of the
// host.
type verdict struct {
	version int
	fits    bool
	plan    plan
}

// maxVerdicts is how many a Planner remembers, before it forgets them all: some 12 MiB.
const maxVerdicts = 1 << 15

// Placed is where one of the specs goes.
type Placed struct {
	// Index is the spec's position among those given to Place.
	Index int
	fleet.Placement
}

// Unplaced is a spec that no allowed host can take.
type Unplaced struct {
	// Index is the spec's position among those given to Place.
	Index int
	// Reason names the best host, what it lacks, and how to mend it.
	Reason string
}

// New returns a planner for the hosts of the snapshot. kept are all our VMs, those
// in the making and those on hosts that are down included; they stay where they
// are. Guests of the snapshot that are not kept are counted as foreign.
func New(snapshot *topology.Snapshot, kept []fleet.VM) *Planner {
	p := &Planner{at: map[topology.HostID]int{}, verdicts: map[want][]*verdict{}}
	quorate := map[topology.RegionName]bool{}
	for i := range snapshot.Regions {
		quorate[snapshot.Regions[i].Name] = snapshot.Regions[i].Quorate
	}
	byHost := map[topology.HostID][]*fleet.VM{}
	for i := range kept {
		byHost[kept[i].Host] = append(byHost[kept[i].Host], &kept[i])
	}
	hosts := map[topology.HostID]*topology.Host{}
	for i := range snapshot.Hosts {
		hosts[snapshot.Hosts[i].ID()] = &snapshot.Hosts[i]
	}
	for _, id := range slices.SortedFunc(maps.Keys(hosts), topology.HostID.Compare) {
		s := newState(newIndex(hosts[id], quorate[id.Region]))
		for _, c := range occupants(s.index, hosts[id], byHost[id]) {
			s.occupy(c)
		}
		p.at[id] = len(p.hosts)
		p.hosts = append(p.hosts, s)
	}
	p.versions = make([]int, len(p.hosts))
	return p
}

// Clone returns a planner that stands where p stands and goes its own way.
func (p *Planner) Clone() *Planner {
	c := *p
	c.hosts, c.versions = slices.Clone(p.hosts), slices.Clone(p.versions)
	c.verdicts = map[want][]*verdict{}
	return &c
}

// Fits reports whether the host could take the VM now. It ignores spec.Hosts and
// changes nothing.
func (p *Planner) Fits(spec fleet.Spec, host topology.HostID) bool {
	at, ok := p.at[host]
	w := wantOf(&spec)
	if !ok || w.problem() != "" {
		return false
	}
	_, fits := p.hosts[at].evaluateAll(w)
	return fits
}

// Place finds a place for every spec, jointly: the order of specs does not matter,
// except between equals. What it places is taken from then on. Both results are
// sorted by Index, and every spec is in exactly one of them.
func (p *Planner) Place(specs []fleet.Spec) ([]Placed, []Unplaced) {
	b := newBatch(p, specs)
	for _, i := range b.order {
		b.place(i)
	}
	b.repair()
	return b.results()
}
