package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// gap describes what a host lacks for a request, and how to fix that.
type gap struct{ has, fix string }

// lowerCPU is the hint for a lack of CPUs.
const lowerCPU = "add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"

// refusal explains why spec i was not placed: the request, the best host and what it lacks,
// the unavailable hosts, and a fix. For an invalid request, it returns only the problem.
func (b *batch) refusal(i int) string {
	w := b.requests[i]
	if problem := w.problem(); problem != "" {
		return problem
	}
	noun := strings.ToLower(string(w.policy)) + " CPU"
	switch w.policy {
	case fleet.PolicyNUMA:
		noun = "NUMA vCPU"
	case fleet.PolicyShared:
		noun = "shared vCPU"
	}
	text := fmt.Sprintf("%s, %s%s: ", topology.Count(w.vcpus, noun), gib(w.memory), w.backing.in())
	if len(b.specs[i].Hosts) == 0 {
		return text + "no host has the template, storage and zone that the ProxmoxNodeClass and NodePool require: add such a host, or correct the requirements"
	}
	var best *state
	var most int64
	var explain func() gap
	var unavailable []string
	for _, h := range b.hosts[i] {
		s := b.Planner.hosts[h]
		if s.problem != "" {
			unavailable = append(unavailable, s.id.String()+" ("+s.problem+")")
			continue
		}
		if has, why := s.lacks(w); best == nil || has > most {
			best, most, explain = s, has, why
		}
	}
	if len(b.hosts[i]) == 0 {
		return text + "none of the allowed hosts exists: check their names and the connection to their region"
	}
	if best == nil {
		return text + "no allowed host is available: " + first(unavailable, 3) + ": make one of them available again"
	}
	g := explain()
	text += best.id.String() + " " + g.has
	if others := len(b.hosts[i]) - len(unavailable) - 1; others > 0 {
		text += ", no more on " + topology.Count(others, "other host")
	}
	if len(unavailable) > 0 {
		text += ", unavailable: " + first(unavailable, 3)
	}
	return text + ": " + g.fix
}

// first joins the first n texts and adds the number of the rest.
func first(texts []string, n int) string {
	if len(texts) > n {
		return strings.Join(texts[:n], "; ") + fmt.Sprintf("; and %d more", len(texts)-n)
	}
	return strings.Join(texts, "; ")
}

// lacks finds the first resource of which the host has too little for a request that does
// not fit it. It returns how much the host has, in parts per million of the request: the
// host with the most is the best one. explain composes the text only when called, because
// the texts of all hosts would take longer than the search.
func (s *state) lacks(w request) (has int64, explain func() gap) {
	vcpus := int64(w.vcpus)
	switch {
	case w.backing != ordinary && !s.pagesKnown:
		return 0, func() gap {
			return gap{
				has: "does not report its huge pages",
				fix: "install numaform-agent on the host, or run numaform topology collect there and add the file to machines",
			}
		}

	case w.vcpus > s.online:
		return share(int64(s.online), vcpus), func() gap {
			return gap{has: fmt.Sprintf("has only %s, and a VM with more vCPUs cannot start", topology.Count(s.online, "CPU")), fix: lowerCPU}
		}

	case !s.hasDevices(&w):
		return 0, func() gap { return s.deviceGap(&w) }

	case w.memory > s.memoryRoom(&w):
		return share(s.memoryRoom(&w), w.memory), func() gap {
			return gap{has: "has " + w.of(s.memoryRoom(&w)) + " free" + w.backing.in(), fix: s.memoryFix(&w)}
		}

	case !w.policy.Pinned() && s.floatRoom(w.ratio, s.allFree) < s.floating+w.vcpus:
		left := max(0, s.floatRoom(w.ratio, s.allFree)-s.floating)
		return share(int64(left), vcpus), func() gap {
			g := gap{has: fmt.Sprintf("has %s and room for %d more", topology.Count(s.floating, "floating vCPU"), left), fix: lowerCPU}
			if w.policy == fleet.PolicyShared {
				g.fix = "add a host or raise overcommit in the ProxmoxNodeClass"
			}
			return g
		}

	case w.policy.Pinned() && w.vcpus > s.pinRoom(w.ratio):
		return share(int64(s.pinRoom(w.ratio)), vcpus), func() gap {
			return gap{has: fmt.Sprintf("has %s beside %s", topology.Count(s.pinRoom(w.ratio), "free CPU"), topology.Count(s.floating, "floating vCPU")), fix: lowerCPU}
		}

	case w.agent && w.vcpus > s.agentRoom():
		return share(int64(s.agentRoom()), vcpus), func() gap {
			return gap{
				has: fmt.Sprintf("has a numaform-agent that allows pinning of %s, including siblings", topology.Count(s.agentRoom(), "more CPU")),
				fix: "raise max_pinned_percent in /etc/numaform-agent.yaml on the host and restart numaform-agent, add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool",
			}
		}

	case s.tooBusy(w):
		return million - 1, func() gap {
			return gap{
				has: fmt.Sprintf("has a CPU load of at least %d %%, and placement.maxHostLoad is %d", s.load.CPUPercent, w.maxLoad),
				fix: "wait until its load falls, move guests to other hosts, add a host, or raise placement.maxHostLoad in the ProxmoxNodeClass",
			}
		}
	}
	return s.lacksNodes(w)
}

// lacksNodes is lacks for a request that fits the host as a whole, but not its NUMA nodes.
// It describes the node with the most room for vCPUs, and all bindable nodes together.
func (s *state) lacksNodes(w request) (has int64, explain func() gap) {
	all := s.supplyFor(w)
	var cpus int
	var memory int64
	for _, n := range all {
		cpus += n.whole
		memory += n.memory
	}
	return min(share(int64(cpus), int64(w.vcpus)), share(memory, w.memory), million-1), func() gap {
		g := gap{fix: lowerCPU}
		if len(all) == 0 {
			g.has = "has no NUMA node with both a free whole core and free memory"
			if w.policy == fleet.PolicyNUMA {
				g.has = "has no NUMA node with both free CPUs and free memory"
			}
			g.fix = "add a host"
			siblingsKnown := slices.ContainsFunc(s.groups, func(g group) bool { return g.known })
			if w.policy == fleet.PolicyIsolated && !siblingsKnown {
				g.has = "does not report which CPUs are siblings"
				g.fix = "install numaform-agent on the host, or run numaform topology collect there and add the file to machines"
			}
			return g
		}

		best := slices.MaxFunc(all, func(a, b supply) int { return cmp.Compare(a.whole, b.whole) })
		g.has = fmt.Sprintf("has room for %s and %s%s on NUMA node %d", topology.Count(best.whole, "vCPU"), w.of(best.memory), w.backing.in(), s.nodes[best.node].id)
		if len(all) > 1 {
			g.has += fmt.Sprintf("; %d NUMA nodes together have room for %s and %s", len(all), topology.Count(cpus, "vCPU"), w.of(memory))
		}
		if w.wholeOnly {
			prefers := w
			prefers.wholeOnly = false
			if _, fits := s.evaluateAll(prefers); fits {
				g.fix = "add a host, lower the CPU requests of the pods, allow smaller instance types in the NodePool, or set wholeCores: Prefer in the ProxmoxNodeClass"
			}
		}
		if memory < w.memory || best.memory < w.memory && best.whole >= w.vcpus {
			g.fix = s.memoryFix(&w)
		}
		return g
	}
}

// of formats available memory. It prints the exact amount if rounding would hide that it is
// less than the requested one.
func (w *request) of(mib int64) string {
	if mib < w.memory && gib(mib) == gib(w.memory) {
		return fmt.Sprintf("%d of %d MiB", mib, w.memory)
	}
	return gib(mib)
}

// memoryFix returns the fix for a lack of memory on the host.
func (s *state) memoryFix(w *request) string {
	if w.backing != ordinary {
		return "reserve more of these huge pages at boot (Proxmox uses only those on NUMA nodes 0 to 9), or lower the memory requests of the pods"
	}
	fix := "add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool"
	if s.unlent != nil {
		fix += ", or list NUMA nodes " + topology.CPUs(s.unlent...).String() + " under memorynodes of the host in topology_file"
	}
	return fix
}

// supplyFor lists the capacity of the nodes for a request, on all groups of cores that its
// policy permits. It returns nil if no node has capacity.
func (s *state) supplyFor(w request) []supply {
	q := search{state: s, request: w, loose: looseShared, scope: scope{only: none}}
	if !w.policy.Pinned() {
		return s.bindSupplies(w)
	}
	for _, pass := range s.passes {
		if w.policy != fleet.PolicyIsolated || pass.resort&resortUnknown == 0 {
			q.allowed = pass.allowed
		}
	}
	if q.allowed == nil {
		return nil
	}
	return q.supplies()
}
