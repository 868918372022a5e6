package planner

import (
	"math"

	"github.com/numaform/numaform/fleet"
)

// want is all of a Spec that decides how well it goes on a host: Specs of equal
// wants share what was worked out for one of them.
type want struct {
	policy fleet.Policy
	vcpus  int
	memory int64
	ratio  float64
}

// wantOf returns the want of a spec.
func wantOf(spec *fleet.Spec) want {
	return want{policy: spec.Policy, vcpus: spec.VCPUs, memory: spec.MemoryMiB, ratio: ratioOf(spec)}
}

// problem says why no host could ever hold the want, or is empty.
func (w want) problem() string {
	switch {
	case w.vcpus < 1 || w.memory < 1:
		return "a VM needs at least 1 vCPU and 1 MiB: raise cpu and memory"
	case !(w.ratio > 0) || math.IsInf(w.ratio, 0):
		return "the overcommit must be a number above 0: correct it in the ProxmoxNodeClass"
	}
	switch w.policy {
	case fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated:
		return ""
	}
	return "the policy " + string(w.policy) + " is unknown: use Shared, NUMA, Dedicated or Isolated"
}

// plan is one way to put a want on a host.
type plan struct {
	cost  cost
	parts []part
}

// part is what a plan takes of one NUMA node.
type part struct {
	node   int
	vcpus  int
	memory int64
	picks  []pick
	// odd is the core of which only some threads are taken, or none.
	odd, oddThreads int
}

// pick is a number of whole cores of one size in a group.
type pick struct{ group, size, count int }

// evaluate returns the best way to put a want on the host, and whether there is one.
func (s *state) evaluate(w want) (plan, bool) {
	if s.problem != "" || w.vcpus > s.online || w.memory > s.freeMemory() {
		return plan{}, false
	}
	switch {
	case w.policy.Pinned():
		return s.pinned(w)
	case s.floatRoom(w.ratio, s.allFree) < s.floating+w.vcpus:
		return plan{}, false
	case w.policy == fleet.PolicyNUMA && !s.flat:
		return s.bindOnly(w)
	}
	return s.shared(w), true
}

// shared prices a VM that floats with its memory anywhere.
func (s *state) shared(w want) plan {
	limit := int64(s.floatRoom(w.ratio, s.allFree))
	var p plan
	p.cost.setLeft(
		share(limit-int64(s.floating+w.vcpus), limit),
		share(s.freeMemory()-w.memory, s.memory),
	)
	p.cost[costCrowd] = int64(len(s.claims))
	return p
}

// bindOnly finds NUMA nodes for the memory of a VM whose vCPUs float. Each node
// must have as many CPUs, at the VM's ratio, as the VM has vCPUs at home there.
func (s *state) bindOnly(w want) (plan, bool) {
	q := search{state: s, want: w}
	return q.run(s.bindSupplies(w))
}

// bindSupplies lists what the nodes can give to a VM whose vCPUs float.
func (s *state) bindSupplies(w want) []supply {
	var all []supply
	for i := range s.nodes {
		cpus := s.floatRoom(w.ratio, s.nodeFree[i])
		if s.nodes[i].bindable && cpus > 0 && s.memFree[i] > 0 {
			all = append(all, supply{node: i, whole: cpus, sizes: []sizeCount{{1, cpus}}, memory: s.memFree[i]})
		}
	}
	return all
}

// pinned finds CPUs for a VM that owns them.
func (s *state) pinned(w want) (plan, bool) {
	if w.vcpus > s.pinRoom(w.ratio) {
		return plan{}, false
	}
	for _, loose := range []looseness{looseReserved, looseShared} {
		if p, ok := s.pinnedAt(w, loose); ok {
			return p, true
		}
		if w.policy == fleet.PolicyIsolated {
			break
		}
	}
	return plan{}, false
}

// looseness says which broken cores may give an odd thread.
type looseness int

const (
	// looseReserved cores were broken by the host's own reservation only.
	looseReserved looseness = iota
	// looseShared cores may be in use by another guest.
	looseShared
)

// pinnedAt tries the passes of the host in order, and returns the best plan of the
// first resort that has one.
func (s *state) pinnedAt(w want, loose looseness) (plan, bool) {
	var best plan
	found, resort := false, int64(0)
	for _, pass := range s.passes {
		if found && pass.resort != resort {
			break
		}
		q := search{state: s, want: w, allowed: pass.allowed, loose: loose, resort: pass.resort}
		if loose == looseShared {
			q.resort |= resortShared
		}
		if w.policy == fleet.PolicyIsolated && pass.resort&resortUnknown != 0 {
			continue
		}
		if p, ok := q.run(q.supplies()); ok && (!found || p.cost.less(best.cost)) {
			best, found, resort = p, true, pass.resort
		}
	}
	return best, found
}
