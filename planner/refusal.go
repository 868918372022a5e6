package planner

import (
	"fmt"
	"strings"

	"github.com/numaform/numaform/fleet"
)

// gap is what one host lacks for a want. The host with the largest met share, in
// parts per million, is the best one.
type gap struct {
	host *state
	met  int64
	has  string
	mend string
}

// refusal says why spec i found no place: what it wants, the best host and what
// that lacks, how many hosts are out of use, and how to mend it.
func (b *batch) refusal(i int) string {
	w := b.wants[i]
	if problem := w.problem(); problem != "" {
		return problem
	}
	text := fmt.Sprintf("%d %s, %s: ", w.vcpus, vcpuNoun(w), gib(w.memory))
	if len(b.specs[i].Hosts) == 0 {
		return text + "no host is allowed: no host has the template, storage and zone that the ProxmoxNodeClass and NodePool ask for"
	}
	var best gap
	var closed []string
	for _, h := range b.hosts[i] {
		s := b.Planner.hosts[h]
		if s.problem != "" {
			closed = append(closed, s.id.String()+" ("+s.problem+")")
			continue
		}
		if g := s.gap(w); best.host == nil || g.met > best.met {
			best = g
		}
	}
	if len(b.hosts[i]) == 0 {
		return text + "none of the allowed hosts was found: check their names and the connection to their region"
	}
	if best.host == nil {
		return text + "no allowed host can be used: " + first(closed, 3) + ": bring one of them back"
	}
	text += best.host.id.String() + " " + best.has
	if others := len(b.hosts[i]) - len(closed) - 1; others > 0 {
		text += fmt.Sprintf(", %s less", count(others, "other host"))
	}
	if len(closed) > 0 {
		text += ", out of use: " + first(closed, 3)
	}
	return text + ": " + best.mend
}

// vcpuNoun names the vCPUs of a want by its policy.
func vcpuNoun(w want) string {
	noun := strings.ToLower(string(w.policy)) + " CPU"
	if !w.policy.Pinned() {
		noun = strings.TrimSuffix(noun, "CPU") + "vCPU"
	}
	if w.policy == fleet.PolicyNUMA {
		noun = "NUMA vCPU"
	}
	if w.vcpus != 1 {
		noun += "s"
	}
	return noun
}

// first joins at most n texts.
func first(texts []string, n int) string {
	if len(texts) > n {
		return strings.Join(texts[:n], "; ") + fmt.Sprintf("; and %d more", len(texts)-n)
	}
	return strings.Join(texts, "; ")
}

// gap tells what the host lacks for a want that does not fit it.
func (s *state) gap(w want) gap {
	g := gap{host: s, mend: "add a host or lower cpu in the NodePool"}
	room := s.pinRoom(w.ratio)
	switch {
	case w.vcpus > s.online:
		g.met = share(int64(s.online), int64(w.vcpus))
		g.has = fmt.Sprintf("has %s in all, more vCPUs cannot start", count(s.online, "CPU"))
	case w.memory > s.freeMemory():
		g.met = share(s.freeMemory(), w.memory)
		g.has, g.mend = "has "+gib(s.freeMemory())+" free", "add a host or lower memory in the NodePool"
	case !w.policy.Pinned() && s.floatRoom(w.ratio, s.allFree) < s.floating+w.vcpus:
		left := max(0, s.floatRoom(w.ratio, s.allFree)-s.floating)
		g.met = share(int64(left), int64(w.vcpus))
		g.has = fmt.Sprintf("has room for %s beside %d", count(left, "vCPU"), s.floating)
		g.mend = "add a host or raise overcommit in the ProxmoxNodeClass"
	case w.policy.Pinned() && w.vcpus > room:
		g.met = share(int64(room), int64(w.vcpus))
		g.has = fmt.Sprintf("has %d free beside %s floating", room, count(s.floating, "vCPU"))
	default:
		s.gapOfNodes(&g, w)
	}
	return g
}

// gapOfNodes tells what is free on the largest node and on all that may be bound.
func (s *state) gapOfNodes(g *gap, w want) {
	all := s.supplyFor(w)
	if len(all) == 0 {
		g.has = "has no free whole core"
		if w.policy == fleet.PolicyIsolated && s.siblingsUnknown() {
			g.has = "does not tell which CPUs are siblings"
			g.mend = "run numaform-agent on it, or add a collected topology file"
		}
		return
	}
	best, cpus := all[0], 0
	var memory int64
	for _, n := range all {
		if n.whole > best.whole {
			best = n
		}
		cpus += n.whole
		memory += n.memory
	}
	g.met = min(share(int64(cpus), int64(w.vcpus)), share(memory, w.memory), million-1)
	g.has = fmt.Sprintf("NUMA %d has %d free with %s", s.nodes[best.node].id, best.whole, gib(best.memory))
	if len(all) > 1 {
		g.has += fmt.Sprintf(", %d NUMA nodes together %d with %s", len(all), cpus, gib(memory))
	}
	if memory < w.memory || best.memory < w.memory && best.whole >= w.vcpus {
		g.mend = "add a host or lower memory in the NodePool"
	}
}

// supplyFor lists what the nodes could give to a want with the most liberal pass.
func (s *state) supplyFor(w want) []supply {
	q := search{state: s, want: w, loose: looseShared}
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

// siblingsUnknown reports whether no group's siblings are known.
func (s *state) siblingsUnknown() bool {
	for _, g := range s.groups {
		if g.known {
			return false
		}
	}
	return true
}
