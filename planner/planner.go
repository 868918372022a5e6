// Package planner decides the host, CPUs and NUMA nodes of each requested VM, and explains
// each decision. It is pure and deterministic: it never talks to Proxmox, never moves a
// placed VM, and returns the same result for any order of hosts. It does not decide how
// many VMs are needed, and spreads them over hosts only if a Spec requests it. Start at New
// and Place; DESIGN.md in this directory describes the cost order and the counting rules.
package planner

import (
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Planner tracks the used resources of every host, and updates them as it places VMs.
// Fits, View, Room and Clone are safe for concurrent use; Place, Remove and Start require
// exclusive access.
type Planner struct {
	// hosts are sorted by id. Clones share the states: a batch clones a state before its
	// first change.
	hosts []*state
	at    map[topology.HostID]int
	// versions counts, by host, the changes of its state.
	versions []int
	// verdicts caches, for Place, the result of evaluate for a request on each host.
	verdicts map[request][]*verdict
}

// verdict is the best plan, if any, for a request on one host at some version of the host.
type verdict struct {
	version int
	fits    bool
	plan    plan
}

// maxVerdicts is the maximum number of cached verdicts, about 12 MiB. A full cache is
// cleared.
const maxVerdicts = 1 << 15

// Placed is a spec with its placement.
type Placed struct {
	// Index is the spec's position in the argument of Place.
	Index int
	fleet.Placement
}

// Unplaced is a spec that fits no allowed host.
type Unplaced struct {
	// Index is the spec's position in the argument of Place.
	Index int
	// Reason explains why: the best host, what it lacks and a fix, or why no host can fit
	// the spec.
	Reason string
}

// New returns a planner for the hosts of the snapshot. existing lists all our VMs, including
// VMs in creation and VMs on hosts that are down; they keep their places. A stopped standby
// VM that reserves nothing uses nothing before Start. Guests of the snapshot that are not
// in existing count as unmanaged.
func New(snapshot *topology.Snapshot, existing []fleet.VM) *Planner {
	p := &Planner{at: map[topology.HostID]int{}, verdicts: map[request][]*verdict{}}
	quorate := map[topology.RegionName]bool{}
	for i := range snapshot.Regions {
		quorate[snapshot.Regions[i].Name] = snapshot.Regions[i].Quorate
	}
	byHost := map[topology.HostID][]*fleet.VM{}
	for i := range existing {
		byHost[existing[i].Host] = append(byHost[existing[i].Host], &existing[i])
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

// Clone returns an independent copy of the planner.
func (p *Planner) Clone() *Planner {
	c := *p
	c.hosts, c.versions = slices.Clone(p.hosts), slices.Clone(p.versions)
	c.verdicts = map[request][]*verdict{}
	return &c
}

// Fits reports whether the host could take the VM now. It ignores spec.Hosts and changes
// nothing.
func (p *Planner) Fits(spec fleet.Spec, host topology.HostID) bool {
	at, ok := p.at[host]
	w := requestOf(&spec)
	if !ok || w.problem() != "" {
		return false
	}
	_, fits := p.hosts[at].evaluateAll(w)
	return fits
}

// Place looks for a place for every spec, jointly: the order of specs does not matter,
// except between equal ones. Placed specs use their resources from then on. Both results
// are sorted by Index, and every spec is in exactly one of them.
func (p *Planner) Place(specs []fleet.Spec) ([]Placed, []Unplaced) {
	b := newBatch(p, specs)
	for _, i := range b.order {
		b.place(i)
	}
	b.repair()
	return b.results()
}

// Remove releases the resources of VMs that were passed to New or placed since. The
// planner is then the same as if New had never received them: a guest of the snapshot
// that was one of them counts as unmanaged. Unknown VMs are ignored. Like Place, Remove
// requires exclusive access.
func (p *Planner) Remove(vms ...fleet.VM) {
	for i := range vms {
		host, ok := p.at[vms[i].Host]
		if !ok {
			continue
		}
		s := p.hosts[host]
		owner := ownerOf(&vms[i])
		at := slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == owner })
		if at < 0 { // a claim from Place has no owner yet: remove any equal claim
			same := s.claimOf(&vms[i].Spec, &vms[i].Placement)
			at = slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == guestKey{} && !c.unmanaged && c.equal(same) })
		}
		if at >= 0 {
			p.publish(host, s.without(s.claims[at]))
		}
	}
}

// Start takes the resources of a standby VM that reserved none, at its own placement, and
// reports whether they were free. If not, it changes nothing. Like Place, it requires
// exclusive access.
func (p *Planner) Start(vm fleet.VM) bool {
	host, ok := p.at[vm.Host]
	if !ok || !p.Fits(vm.Spec, vm.Host) {
		return false
	}
	s := p.hosts[host]
	c := s.claimOf(&vm.Spec, &vm.Placement)
	for _, id := range c.pins {
		cpu, known := s.at[id]
		if !known || s.taken[cpu] {
			return false
		}
		for _, sibling := range s.cores[s.coreOf[cpu]].cpus {
			if c.isolated && s.taken[sibling] {
				return false
			}
		}
	}
	for b := range c.bound {
		for n, mib := range c.bound[b] {
			if mib > s.nodeMemFree(n, backing(b)) {
				return false
			}
		}
	}

	c.owner = ownerOf(&vm)
	s = s.clone()
	s.occupy(c)
	p.publish(host, s)
	return true
}

// publish replaces the state of a host and increments its version, which invalidates the
// cached verdicts of the host.
func (p *Planner) publish(host int, s *state) {
	p.hosts[host] = s
	p.versions[host]++
}
