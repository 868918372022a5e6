package planner

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
)

// maxCells is the number of numaN options that Proxmox supports.
const maxCells = 8

// minCellMiB is the minimum memory of a cell for the provider (bpg 0.111.1,
// proxmoxtf/resource/vm/vm.go:1287). Proxmox has none.
const minCellMiB = 64

// Linux's default distances, for hosts that do not report their own.
const (
	localDistance  = 10
	remoteDistance = 20
)

// index is the constant part of a host: its CPUs by core, group and NUMA node. CPUs, cores,
// groups and nodes are identified by their position in the slices.
type index struct {
	id topology.HostID
	// problem is the reason why no VM may be placed here, or empty.
	problem string
	// flat hosts have at most one NUMA node: their VMs get cells only for huge pages.
	flat bool
	// online and usable count CPUs; reserved CPUs are online but not usable.
	online, usable int
	// pinnable is the number of online CPUs that the host agent allows to be pinned,
	// including siblings of pinned CPUs; all CPUs if the host has no agent.
	pinnable int
	// load is the measured load, or nil if it is unknown.
	load *topology.Load
	// backup is set while guests of the host are backed up.
	backup bool
	// surplus is the memory that the host uses itself, for caches of ZFS, for example; see
	// surplusOf.
	surplus int64
	// memory is the memory available to all guests together, by kind; pagesKnown reports
	// whether a source reported the reserved huge pages.
	memory     [backings]int64
	pagesKnown bool

	ids      []int       // CPU ids, ascending, online ones only
	at       map[int]int // CPU id to position
	reserved []bool      // by CPU
	coreOf   []int       // by CPU
	nodeOf   []int       // by CPU; none if it has no NUMA node

	cores  []core
	groups []group
	level2 map[int]bool // last-level caches that are not L3, by id
	nodes  []node
	nodeAt map[int]int // NUMA node id to position
	// lends is set if some node lends memory; unlent lists the ids of nodes that have
	// memory but no CPUs and may not lend it.
	lends    bool
	unlent   []int
	distance [][]int64
	passes   []pass
	pci      *pciIndex // nil if the host has no mapped devices
}

// none marks an absent position.
const none = -1

// core is a set of sibling threads.
type core struct {
	cpus  []int
	group int // none after a contradiction: no VM is pinned to such a core
	size  int // position in the group's sizes
}

// groupKey contains the properties that the CPUs of a group share. A machine is not a tree:
// an L3 may span NUMA nodes, and a NUMA node may have several L3 caches.
type groupKey struct {
	node, l3 int
	kind     topology.Kind
	// known is false for CPUs whose siblings no source reported.
	known bool
}

// contradiction returns the key of cores without a group: their CPUs have no NUMA node, or
// siblings differ in properties that they must share.
func contradiction() groupKey { return groupKey{node: none} }

// group is the unit of placement: NUMA node × L3 × kind of core.
type group struct {
	groupKey
	cores []int
	sizes []int // distinct numbers of threads per core, descending
}

// node is a NUMA node, or the whole of a flat host.
type node struct {
	id     int
	usable int
	// memory is the node's memory that is available to guests, by kind; assumed is set if
	// no source reported it.
	memory  [backings]int64
	assumed bool
	// bindable is set for nodes that have usable CPUs and memory of the kind: the hostnodes
	// of any cell may name them.
	bindable [backings]bool
	// lends is set for a node without CPUs whose memory VMs may use in addition to the
	// memory of other nodes.
	lends  bool
	groups []int
}

// pass is one way to choose among a host's groups. Passes are tried in order of resort;
// passes of equal resort compete by cost.
type pass struct {
	resort  int64
	allowed []bool // by group
}

// The last resorts, by weight: they are the first part of a cost.
const (
	resortUnknown = 1 << iota // siblings are not known
	resortMixed               // two kinds of core in one VM
	resortShared              // the sibling of the odd thread belongs to another VM
	resortUnbound             // memory is bound to no single NUMA node
	resortPartial             // threads of several partially allocated cores
)

// newIndex indexes a host. quorate reports whether the host's region has quorum.
func newIndex(host *topology.Host, quorate bool) *index {
	x := &index{id: host.ID(), load: host.Load, backup: host.Backup, at: map[int]int{}, nodeAt: map[int]int{}}
	x.readNodes(host)
	cpus := x.readCPUs(host)
	x.pinnable = x.online
	if host.Agent != nil { // the agent always leaves a core unpinned
		x.pinnable = min(x.online*host.Agent.MaxPinnedPercent/100, x.online-1)
	}
	x.readCores(cpus)
	x.readMemory(host)
	x.readDistances(host)
	x.pci = newPCIIndex(x, host)
	x.listPasses()
	x.problem = hostProblem(x, host, quorate)
	return x
}

// hostProblem returns the reason why no VM may be placed on a host, or an empty string.
func hostProblem(x *index, host *topology.Host, quorate bool) string {
	switch {
	case !quorate:
		return "its region has no quorum"
	case !host.Online:
		return "offline"
	case host.Problem != "":
		return host.Problem
	case host.Maintenance:
		return "in HA maintenance"
	case len(x.ids) == 0:
		return "its CPUs are unknown: grant the token Sys.Audit, or add the host to machines or topology_file"
	case sum(x.memory[:]) <= 0:
		return "it has no memory for guests: set memory in topology_file, or reserve less of it"
	}
	return ""
}

// readNodes lists the NUMA nodes that have online CPUs or memory. If there are none, it
// lists one node with ID 0.
func (x *index) readNodes(host *topology.Host) {
	hasCPU := map[int]bool{}
	for _, c := range host.CPUs {
		hasCPU[c.NUMANode] = hasCPU[c.NUMANode] || c.Online
	}
	present := map[int]bool{}
	for _, n := range host.NUMANodes {
		if hasCPU[n.ID] || n.MemoryMiB != 0 {
			present[n.ID] = true
		}
	}
	x.flat = len(present) <= 1
	if len(present) == 0 {
		present[0] = true
	}
	for i, id := range slices.Sorted(maps.Keys(present)) {
		x.nodes = append(x.nodes, node{id: id})
		x.nodeAt[id] = i
	}
}

// readCPUs reads the online CPUs and their NUMA nodes. It returns the CPUs, ascending and
// without duplicates.
func (x *index) readCPUs(host *topology.Host) []topology.CPU {
	cpus := make([]topology.CPU, 0, len(host.CPUs))
	for _, c := range host.CPUs {
		if c.Online {
			cpus = append(cpus, c)
		}
	}
	slices.SortStableFunc(cpus, func(a, b topology.CPU) int { return cmp.Compare(a.ID, b.ID) })
	cpus = slices.CompactFunc(cpus, func(a, b topology.CPU) bool { return a.ID == b.ID })

	x.online = len(cpus)
	x.ids, x.reserved, x.nodeOf = make([]int, x.online), make([]bool, x.online), make([]int, x.online)
	x.level2 = map[int]bool{}
	for i, c := range cpus {
		if c.CacheLevel == 2 {
			x.level2[c.L3] = true
		}
		at, ok := x.nodeAt[c.NUMANode]
		if x.flat {
			at = 0
		} else if !ok {
			at = none
		}
		x.at[c.ID] = i
		x.ids[i], x.nodeOf[i], x.reserved[i] = c.ID, at, host.ReservedCPUs.Contains(c.ID)
		if x.reserved[i] {
			continue
		}
		x.usable++
		if at != none {
			x.nodes[at].usable++
		}
	}
	return cpus
}

// readCores combines siblings into cores, and cores with equal keys into groups.
func (x *index) readCores(cpus []topology.CPU) {
	coreAt, keys := map[int]int{}, make([]groupKey, 0, len(cpus)) // by core
	x.coreOf = make([]int, len(cpus))
	for cpu, c := range cpus {
		known := c.Core != topology.Unknown
		key := groupKey{node: x.nodeOf[cpu], l3: c.L3, kind: c.Kind, known: known}
		if key.node == none {
			key = contradiction()
		}
		at, ok := coreAt[c.Core]
		if !ok || !known {
			at = len(keys)
			keys = append(keys, key)
			x.cores = append(x.cores, core{})
			coreAt[c.Core] = at
		}
		if keys[at] != key {
			keys[at] = contradiction()
		}
		x.coreOf[cpu] = at
		x.cores[at].cpus = append(x.cores[at].cpus, cpu)
	}

	// Groups are ordered by their properties, so that CPU ids do not matter.
	groupAt := map[groupKey]int{}
	for _, key := range keys {
		groupAt[key] = none
	}
	delete(groupAt, contradiction())
	byProperties := func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.l3, b.l3), cmp.Compare(a.kind, b.kind), cmp.Compare(b2i(a.known), b2i(b.known)))
	}
	for g, key := range slices.SortedFunc(maps.Keys(groupAt), byProperties) {
		groupAt[key] = g
		x.groups = append(x.groups, group{groupKey: key})
		x.nodes[key.node].groups = append(x.nodes[key.node].groups, g)
	}
	groupAt[contradiction()] = none
	for i, key := range keys {
		g := groupAt[key]
		x.cores[i].group = g
		if g == none {
			continue
		}
		x.groups[g].cores = append(x.groups[g].cores, i)
		if size := len(x.cores[i].cpus); !slices.Contains(x.groups[g].sizes, size) {
			x.groups[g].sizes = append(x.groups[g].sizes, size)
		}
	}
	for g := range x.groups {
		sizes := x.groups[g].sizes
		slices.SortFunc(sizes, func(a, b int) int { return cmp.Compare(b, a) })
		for _, c := range x.groups[g].cores {
			x.cores[c].size = slices.Index(sizes, len(x.cores[c].cpus))
		}
	}
}

// readDistances fills the matrix of distances. If two nodes report different distances to
// each other, the larger applies.
func (x *index) readDistances(host *topology.Host) {
	x.distance = make([][]int64, len(x.nodes))
	for i := range x.nodes {
		x.distance[i] = make([]int64, len(x.nodes))
		for j := range x.nodes {
			x.distance[i][j] = remoteDistance
			if i == j {
				x.distance[i][j] = localDistance
			}
		}
	}
	reported := map[[2]int]int64{}
	for _, n := range host.NUMANodes {
		from, ok := x.nodeAt[n.ID]
		for id, d := range n.Distances {
			if to, known := x.nodeAt[id]; ok && known {
				reported[[2]int{from, to}] = int64(d)
			}
		}
	}
	for pair, d := range reported {
		there, back := pair, [2]int{pair[1], pair[0]}
		x.distance[there[0]][there[1]] = max(d, reported[back])
		x.distance[back[0]][back[1]] = max(d, reported[back])
	}
}

// listPasses lists the ways to choose groups, from a single kind of core with known
// siblings to all groups.
func (x *index) listPasses() {
	kinds, unknown := map[topology.Kind]bool{}, false
	for _, g := range x.groups {
		kinds[g.kind] = true
		unknown = unknown || !g.known
	}
	for _, resort := range []int64{0, resortUnknown, resortMixed, resortMixed | resortUnknown} {
		mixed := resort&resortMixed != 0
		if resort&resortUnknown != 0 && !unknown || mixed && len(kinds) < 2 {
			continue
		}
		for i, kind := range slices.Sorted(maps.Keys(kinds)) {
			if mixed && i > 0 { // one pass has all kinds
				break
			}
			allowed := make([]bool, len(x.groups))
			for g := range x.groups {
				allowed[g] = (mixed || x.groups[g].kind == kind) && (x.groups[g].known || resort&resortUnknown != 0)
			}
			x.passes = append(x.passes, pass{resort: resort, allowed: allowed})
		}
	}
}
