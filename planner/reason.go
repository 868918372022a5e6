package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// reason explains the placement of a VM in one line.
func (s *state) reason(p *plan, seats []seat, w request) string {
	if len(p.parts) == 0 {
		limit := s.floatRoom(w.ratio, s.allFree)
		return fmt.Sprintf("runs on %s; leaves room for %s, %s",
			topology.Count(s.allFree, "shared CPU"), topology.Count(limit-s.floating-w.vcpus, "vCPU"), gib(s.memoryRoom(&w)-w.memory)) + s.overcommitText(w) + s.deviceText(&w) + s.selectionText(p, w) + beside(p, w)
	}
	text := s.place(p, seats, w) + ": " + s.coresText(p, w)
	switch {
	case p.interleaved != nil:
		memory := "memory"
		if shared := p.interleavedMemory(w); shared < w.memory {
			memory = gib(shared) + " of the memory"
		}
		text += ", " + memory + " in equal parts from " + topology.Count(len(p.interleaved), "NUMA node") + " because no single node has room for the VM"
	case p.unbound:
		text += ", memory not bound to a NUMA node because none has room"
	case !s.flat:
		text += ", " + s.nodesText(p, w)
	}
	cpus, memory := 0, int64(0) // left on the plan's nodes
	q := search{state: s, request: w}
	for _, part := range p.parts {
		cpus += s.nodeFree[part.node] - q.taken(part)
		memory += s.nodeMemFree(part.node, w.backing) - part.memory
	}
	if p.unbound || p.interleaved != nil {
		memory = s.left[ordinary] - w.memory
	}
	text += fmt.Sprintf("; leaves %s, %s%s", topology.Count(cpus, "CPU"), gib(memory), w.backing.in()) + s.deviceText(&w) + s.selectionText(p, w) + beside(p, w)
	if notes := s.notes(p); len(notes) > 0 {
		text += "; " + strings.Join(notes, ", ")
	}
	return text
}

// overcommitText reports that the guests of the host have more memory than it has for them.
func (s *state) overcommitText(w request) string {
	beyond := w.memory - s.balance
	if beyond <= 0 {
		return ""
	}
	return "; overcommits the memory of the host by " + gib(beyond)
}

// beside describes how many other VMs of the pool are on the host. It returns an empty
// string for a pool that is not spread over hosts.
func beside(p *plan, w request) string {
	switch {
	case w.group == "":
		return ""
	case p.cost[costSpread] == 0:
		return "; spread over hosts: first VM of its pool on this host"
	}
	return fmt.Sprintf("; spread over hosts: %s of its pool on this host", topology.Count(int(p.cost[costSpread]), "other VM"))
}

// selectionText returns how the host was selected. It returns an empty string for packing
// by default, whose reason is what the placement leaves.
func (s *state) selectionText(p *plan, w request) string {
	if w.selection == "" {
		return ""
	}
	cpus, memory := s.allocated(p, w)
	text := fmt.Sprintf("; %s: %d %% of the host's CPUs and %d %% of its memory allocated", w.selection, cpus*100/million, memory*100/million)
	switch {
	case w.selection != fleet.Balanced:
		return text
	case s.load == nil:
		return text + ", load unknown"
	}
	return text + fmt.Sprintf(", %d %% of its CPUs and %d %% of its memory in use", s.load.CPUPercent, s.load.MemoryPercent)
}

// place names the NUMA nodes of a plan, and the last-level caches of its pinned vCPUs.
func (s *state) place(p *plan, seats []seat, w request) string {
	var nodes []string
	for _, part := range p.parts {
		nodes = append(nodes, strconv.Itoa(s.nodes[part.node].id))
	}
	text := "NUMA " + strings.Join(nodes, "+")
	if s.flat {
		text = "the only NUMA node"
	}
	if !w.policy.Pinned() {
		return text
	}
	var l3, l2 []string
	for _, id := range s.lastLevels(seats) {
		if s.level2[id] {
			l2 = append(l2, strconv.Itoa(id))
		} else {
			l3 = append(l3, strconv.Itoa(id))
		}
	}
	if len(l3)+len(l2) == 0 {
		return text + ", L3 unknown"
	}
	if len(l3) > 0 {
		text += ", L3 " + strings.Join(l3, "+")
	}
	if len(l2) > 0 {
		text += ", L2 " + strings.Join(l2, "+")
	}
	return text
}

// coresText describes the cores that a plan takes.
func (s *state) coresText(p *plan, w request) string {
	cores, odd := 0, 0
	for _, part := range p.parts {
		for _, k := range part.picks {
			cores += k.count
		}
		odd += part.oddThreads + part.partialThreads()
	}
	switch {
	case w.policy == fleet.PolicyNUMA:
		return "memory bound, " + topology.Count(w.vcpus, "vCPU") + " floating"
	case w.policy == fleet.PolicyIsolated:
		return "one thread of " + topology.Count(cores, "whole core")
	case p.cost[costResort]&resortUnknown != 0:
		return topology.Count(w.vcpus, "CPU") + ", siblings unknown"
	case odd > 0 && cores > 0:
		return topology.Count(cores, "whole core") + " and " + topology.Count(odd, "odd thread")
	case odd > 0:
		return topology.Count(odd, "odd thread")
	}
	return topology.Count(cores, "whole core")
}

// nodesText describes the number of NUMA nodes of a plan, and the minimum on an empty host.
func (s *state) nodesText(p *plan, w request) string {
	k, possible := len(p.parts), len(p.parts)
	if k > 1 {
		if q, ok := newState(s.index).evaluate(w); ok {
			possible = min(k, len(q.parts))
		}
	}
	switch k {
	case 1:
		return "1 NUMA node (the minimum)"
	case possible:
		return topology.Count(k, "NUMA node") + " (the minimum)"
	}
	return fmt.Sprintf("%s (minimum on an empty host: %d)", topology.Count(k, "NUMA node"), possible)
}

// notes lists additional facts for the reviewer of a plan.
func (s *state) notes(p *plan) []string {
	var notes []string
	c := &p.cost
	if c[costResort]&resortMixed != 0 {
		notes = append(notes, "mixes kinds of core")
	} else if c[costEfficiency] > 0 {
		part := &p.parts[0] // all cores have the same kind
		var g int
		switch {
		case len(part.picks) > 0:
			g = part.picks[0].group
		case part.odd != none:
			g = s.cores[part.odd].group
		default:
			g = s.cores[part.partial[0].core].group
		}
		notes = append(notes, string(s.groups[g].kind)+" cores")
	}
	partial, shared := false, []int(nil)
	for _, part := range p.parts {
		for _, t := range part.partial {
			partial = true
			if s.byVM[t.core] {
				shared = append(shared, s.ids[s.freeThreads(t.core)[0]])
			}
		}
	}
	// Other NUMA nodes may have free whole cores, but too few of them or too little memory.
	lacking := ", as no NUMA node had enough whole cores and memory free"
	if s.flat {
		lacking = ", as the host did not have enough whole cores free"
	}
	if shared != nil {
		notes = append(notes, "shares the cores of CPUs "+topology.CPUs(shared...).String()+" with other guests"+lacking)
	} else if partial {
		notes = append(notes, "threads of partially allocated cores"+lacking)
	}
	for _, part := range p.parts {
		if s.sharesCore(part) {
			notes = append(notes, "shares the core of CPU "+strconv.Itoa(s.ids[s.freeThreads(part.odd)[0]])+" with another guest")
		}
	}
	if c[costSkew] != 0 {
		notes = append(notes, "memory per NUMA node not proportional to its CPUs")
	}
	if c[costOverload] > 0 { // set only for floating vCPUs
		notes = append(notes, "more floating vCPUs on these NUMA nodes than their free CPUs allow at the overcommit")
	}
	assumed := slices.ContainsFunc(p.parts, func(part part) bool { return s.nodes[part.node].assumed })
	if assumed && !s.flat && !p.unbound {
		notes = append(notes, "memory per NUMA node is assumed")
	}
	return notes
}

// sharesCore reports whether the odd thread's siblings belong to another guest.
func (s *state) sharesCore(p part) bool {
	return p.odd != none && s.byVM[p.odd] && !s.isWhole(p.odd)
}

// gib formats MiB as GiB with at most one decimal, rounded down, or as MiB below 1 GiB.
func gib(mib int64) string {
	if mib < 1024 {
		return strconv.FormatInt(mib, 10) + " MiB"
	}
	text := strconv.FormatFloat(float64(mib*10/1024)/10, 'f', 1, 64)
	if mib%1024 == 0 {
		text = strconv.FormatInt(mib/1024, 10)
	}
	return strings.TrimSuffix(text, ".0") + " GiB"
}
