package placement

import (
	"regexp"
	"strings"
)

// epyc returns the match of an EPYC's name in model, followed by the four digits of its
// number, or nil for other models.
func epyc(model string) []string {
	return regexp.MustCompile(`AMD EPYC (\d)(\d)(\d)(\d)\w*\s`).FindStringSubmatch(model)
}

// guessLayout returns the layout that karpenter-provider-proxmox assumes for a machine,
// from the counts in Proxmox's node status and the name of the CPU model. CPUs are numbered
// socket by socket, and the second threads follow all first threads. A NUMA node is a
// socket, or a quarter of it for EPYC models with certain last digits. It returns nil for
// models of other vendors, and for EPYC models without a four-digit number.
func guessLayout(m *Machine) *layout {
	model := m.Host.Model
	sockets, cores, cpus := counts(m)
	nodes, caches := sockets, 1
	switch digits := epyc(model); {
	case digits != nil:
		if strings.Contains("1245", digits[4]) {
			nodes *= 4
		}
		perCache := map[string]int{"2": 4, "3": 4, "4": 6, "5": 8, "6": 8, "7": 8, "8": 8}[digits[2]]
		caches = cores / sockets / max(1, perCache)
	case strings.Contains(model, "AMD EPYC"):
		return nil
	case strings.Contains(model, "AMD"):
	case strings.Contains(model, "Intel"):
		caches = sockets
	default:
		return nil
	}
	threads, perNode := cpus/cores, cores/nodes
	believed := perNode * nodes
	spots := map[int]spot{}
	for core := range believed {
		s := spot{
			node: core / perNode, socket: core / max(1, believed/sockets) % sockets, core: core,
			cache: core / max(1, believed/max(1, caches)),
		}
		spots[core] = s
		if threads > 1 {
			spots[core+cores] = s
		}
	}
	return newLayout(spots)
}

// counts returns a machine's counts as in Proxmox's node status.
func counts(m *Machine) (sockets, cores, cpus int) {
	socketIDs, coreIDs := map[int]bool{}, map[int]bool{}
	for _, c := range m.CPUs {
		coreIDs[c.Core] = true
		if c.Socket >= 0 {
			socketIDs[c.Socket] = true
		}
	}
	return max(1, len(socketIDs)), len(coreIDs), len(m.CPUs)
}
