package cpumap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// layout is the common part of both drawings: the order of nodes, groups and owners.
type layout struct {
	host    *topology.Host
	owners  Ownership
	nodes   []nodeBox
	offline topology.CPUSet
	// marks are the owners' signs, in order of appearance.
	marks []mark
	byCPU map[int]*mark
	// free, owned and reserved are the numbers of CPUs.
	free, owned, reserved int
	// sharedVCPUs is the number of vCPUs of the guests without CPUs of their own. They run
	// on the free CPUs.
	sharedVCPUs int
}

// shared reports whether guests without CPUs of their own run on the free CPUs.
func (l *layout) shared() bool { return len(l.owners.Floating) > 0 }

// nodeBox is a NUMA node, or the CPUs without one.
type nodeBox struct {
	title  string
	memory string
	// boundShare is the bound share of the node's memory, from 0 to 1, or -1 if unknown.
	boundShare float64
	// near lists the nearest NUMA nodes, or is empty.
	near string
	// huge describes the reserved huge pages, or is empty.
	huge string
	// empty is the text for a node without CPUs, including whether VMs may use its memory.
	empty  string
	groups []groupBox
}

// groupBox is the CPUs that share a NUMA node, last-level cache and kind.
type groupBox struct {
	label string
	cpus  topology.CPUSet
	cores []coreBox
}

// coreBox is a core's threads, ascending; if siblings are unknown, one CPU.
type coreBox struct {
	cpus    []int
	sibling bool
}

// mark is the sign of an owner.
type mark struct {
	sign  string
	owner string
	kind  markKind
	// color is the number of the owner's color; the host and disputed CPUs have none.
	color int
	cpus  topology.CPUSet
}

type markKind int

const (
	markOwned markKind = iota
	markReserved
	markDisputed
)

// The signs that are not in ownerSigns.
const (
	signFree     = "."
	signShared   = "~"
	signReserved = "#"
	signDisputed = "!"
	signOther    = "+"
)

// ownerSigns are assigned in this order; further owners share signOther.
const ownerSigns = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func newLayout(host *topology.Host, owners Ownership) *layout {
	l := &layout{host: host, owners: owners, byCPU: map[int]*mark{}}
	var offline []int
	for _, cpu := range host.CPUs {
		if !cpu.Online {
			offline = append(offline, cpu.ID)
		}
	}
	l.offline = topology.CPUs(offline...)
	for _, guest := range owners.Floating {
		l.sharedVCPUs += guest.VCPUs
	}

	groups := map[int][]topology.Group{}
	for _, group := range host.Groups() {
		groups[group.NUMANode] = append(groups[group.NUMANode], group)
	}
	for i := range host.NUMANodes {
		node := &host.NUMANodes[i]
		box := nodeBox{
			title: fmt.Sprintf("NUMA node %d", node.ID), boundShare: -1, near: nearest(node), huge: huge(node),
			empty: "no CPUs", groups: l.boxes(groups[node.ID]),
		}
		switch bound := owners.BoundMiB[node.ID]; {
		case node.MemoryMiB == topology.Unknown && bound > 0:
			box.memory = "memory unknown, " + gib(bound) + " bound"
		case node.MemoryMiB == topology.Unknown:
			box.memory = "memory unknown"
		case node.MemoryMiB == 0:
			box.memory = "no memory"
		default:
			box.memory = gib(bound) + " of " + gib(node.MemoryMiB) + " bound"
			box.boundShare = float64(bound) / float64(node.MemoryMiB)
		}
		switch {
		case node.MemoryMiB <= 0:
		case host.LendsMemory(node.ID):
			box.empty += ", memory for VMs"
		default:
			box.empty += ", memory not for VMs"
		}
		l.nodes = append(l.nodes, box)
	}
	if unplaced := groups[topology.Unknown]; unplaced != nil {
		l.nodes = append(l.nodes, nodeBox{title: "no NUMA node known", boundShare: -1, groups: l.boxes(unplaced)})
	}
	l.assignMarks()
	return l
}

// huge describes the huge pages that are reserved on a NUMA node.
func huge(node *topology.NUMANode) string {
	var parts []string
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(node.HugePages))) {
		unit, amount := "KiB", size
		switch {
		case size%(1<<20) == 0:
			unit, amount = "GiB", size>>20
		case size%(1<<10) == 0:
			unit, amount = "MiB", size>>10
		}
		parts = append(parts, fmt.Sprintf("%d huge pages of %d %s", node.HugePages[size], amount, unit))
	}
	return strings.Join(parts, ", ")
}

// gib formats MiB as GiB with one decimal if necessary.
func gib(mib int64) string {
	if mib%1024 == 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%.1f GiB", float64(mib)/1024)
}

// nearest lists the NUMA nodes at the smallest distance, or returns "" if all distances are
// equal or fewer than two are known.
func nearest(node *topology.NUMANode) string {
	others := maps.Clone(node.Distances)
	delete(others, node.ID)
	if len(others) < 2 {
		return ""
	}
	distances := slices.Sorted(maps.Values(others))
	if distances[0] == distances[len(distances)-1] {
		return ""
	}
	var ids []int
	for id, distance := range others {
		if distance == distances[0] {
			ids = append(ids, id)
		}
	}
	return fmt.Sprintf("near %s", topology.CPUs(ids...))
}

// boxes lists the groups of a NUMA node by their first CPU.
func (l *layout) boxes(groups []topology.Group) []groupBox {
	boxes := make([]groupBox, len(groups))
	for i, group := range groups {
		box := groupBox{label: l.groupLabel(group), cpus: group.CPUs}
		for _, core := range l.host.Cores() {
			if core.CPUs.IsSubsetOf(group.CPUs) {
				box.cores = append(box.cores, coreBox{cpus: core.CPUs.List(), sibling: true})
			}
		}
		for _, id := range group.CPUs.List() {
			if l.host.CPU(id).Core == topology.Unknown {
				box.cores = append(box.cores, coreBox{cpus: []int{id}})
			}
		}
		slices.SortFunc(box.cores, func(a, b coreBox) int { return cmp.Compare(a.cpus[0], b.cpus[0]) })
		boxes[i] = box
	}
	slices.SortStableFunc(boxes, func(a, b groupBox) int { return cmp.Compare(a.cpus.List()[0], b.cpus.List()[0]) })
	return boxes
}

// groupLabel names a group's cache, and the other NUMA nodes that it spans.
func (l *layout) groupLabel(group topology.Group) string {
	label := "L3 unknown"
	if group.L3 != topology.Unknown {
		label = fmt.Sprintf("%s %d", level(l.host.CPU(group.CPUs.List()[0])), group.L3)
		var others []int
		for _, cpu := range l.host.CPUs {
			if cpu.Online && cpu.L3 == group.L3 && cpu.NUMANode != group.NUMANode && cpu.NUMANode != topology.Unknown {
				others = append(others, cpu.NUMANode)
			}
		}
		if others != nil {
			label += ", also on node " + topology.CPUs(others...).String()
		}
	}
	if group.Kind != "" {
		label += ", " + string(group.Kind)
	}
	return label
}

// inOrder returns the CPUs in drawing order.
func (l *layout) inOrder() []int {
	var ids []int
	for _, node := range l.nodes {
		for _, group := range node.groups {
			for _, core := range group.cores {
				ids = append(ids, core.cpus...)
			}
		}
	}
	return ids
}

// assignMarks assigns signs to the owners in the order of their first CPU in the drawing.
func (l *layout) assignMarks() {
	cpus := map[string][]int{}
	var order []string
	for _, id := range l.inOrder() {
		owner, owned := l.owners.CPUs[id]
		if !owned {
			l.free++
			continue
		}
		if cpus[owner] == nil {
			order = append(order, owner)
		}
		cpus[owner] = append(cpus[owner], id)
	}

	signs := 0
	for _, owner := range order {
		m := mark{owner: printable(owner), cpus: topology.CPUs(cpus[owner]...)}
		switch {
		case l.owners.Disputed.Contains(cpus[owner][0]):
			m.kind, m.sign = markDisputed, signDisputed
		case owner == Reserved:
			m.kind, m.sign = markReserved, signReserved
		default:
			m.sign, m.color = signOther, signs
			if signs < len(ownerSigns) {
				m.sign = ownerSigns[signs : signs+1]
			}
			signs++
		}
		l.marks = append(l.marks, m)
	}
	for i := range l.marks {
		m := &l.marks[i]
		for _, id := range m.cpus.List() {
			l.byCPU[id] = m
		}
		if m.kind == markReserved {
			l.reserved += m.cpus.Size()
		} else {
			l.owned += m.cpus.Size()
		}
	}
}
