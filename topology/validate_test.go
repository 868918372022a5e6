package topology_test

import (
	"testing"

	"github.com/numaform/numaform/topology"
)

// sound returns a valid machine: two cores with two threads each, on two NUMA nodes.
func sound() topology.Machine {
	return topology.Machine{
		MemoryMiB: 2048,
		NUMANodes: []topology.NUMANode{
			{ID: 0, MemoryMiB: 1024, HugePages: map[int]int64{2048: 512}, Distances: map[int]int{0: 10, 1: 21}},
			{ID: 1, MemoryMiB: 1024, Distances: map[int]int{0: 21, 1: 10}},
		},
		CPUs: []topology.CPU{
			{ID: 0, Online: true, NUMANode: 0, Core: 0, L3: 0},
			{ID: 1, Online: true, NUMANode: 1, Core: 1, L3: 0},
			{ID: 2, Online: true, NUMANode: 0, Core: 0, L3: 0},
			{ID: 3, Online: true, NUMANode: 1, Core: 1, L3: 0},
		},
		Sources: map[topology.Fact]topology.Source{topology.FactCPUs: topology.SourceAgent, topology.FactNUMA: topology.SourceAgent},
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		spoil func(m *topology.Machine)
		err   string
	}{
		{"sound", func(*topology.Machine) {}, ""},
		{"nothing known", func(m *topology.Machine) { *m = topology.Machine{} }, ""},
		{"a cache over two nodes is real", func(m *topology.Machine) { m.CPUs[1].L3 = 0 }, ""},
		{"a CPU without node is real", func(m *topology.Machine) { m.CPUs[0].NUMANode, m.CPUs[2].NUMANode = -1, -1 }, ""},
		{"twice", func(m *topology.Machine) { m.CPUs[1].ID = 0 }, "cpu 0 is listed twice: remove one"},
		{"unsorted", func(m *topology.Machine) { m.CPUs[0].ID = 9 }, "cpu 1 is after cpu 9: sort cpus by id"},
		{"absent node", func(m *topology.Machine) { m.CPUs[3].NUMANode = 7 }, "cpu 3: NUMA node 7 does not exist: add it to numa_nodes"},
		{"no nodes", func(m *topology.Machine) { m.NUMANodes, m.MemoryMiB = nil, 0 }, "numa_nodes is empty"},
		{"negative core", func(m *topology.Machine) { m.CPUs[0].Core = -2 }, "cpu 0: core is -2: must be at least 0, or -1 if it is unknown"},
		{"kind", func(m *topology.Machine) { m.CPUs[0].Kind = "big" }, `cpu 0: kind is "big": must be performance, efficiency`},
		{"three kinds are real", func(m *topology.Machine) {
			m.CPUs[0].Kind, m.CPUs[2].Kind, m.CPUs[1].Kind, m.CPUs[3].Kind = topology.KindLowPower, topology.KindLowPower, topology.KindEfficiency, topology.KindEfficiency
		}, ""},
		{"cache level", func(m *topology.Machine) { m.CPUs[0].CacheLevel = 3 }, "cpu 0: cache_level is 3: must be 2 where l3 is a level 2 cache; remove it elsewhere"},
		{"cpu id", func(m *topology.Machine) { m.CPUs[3].ID = 65536 }, "cpu 65536: must be an ID from 0 to 65535"},
		{"siblings on two nodes", func(m *topology.Machine) { m.CPUs[2].NUMANode = 1 }, "cpu 0 and cpu 2 are siblings of core 0 but have different NUMA nodes"},
		{"siblings on two caches", func(m *topology.Machine) { m.CPUs[2].L3 = 1 }, "siblings of core 0 but have different L3 caches"},
		{"siblings on two sockets", func(m *topology.Machine) { m.CPUs[2].Socket = 1 }, "different sockets"},
		{"siblings of two kinds", func(m *topology.Machine) { m.CPUs[2].Kind = topology.KindEfficiency }, "different kinds"},
		{"node twice", func(m *topology.Machine) { m.NUMANodes[1].ID = 0 }, "NUMA node 0 is listed twice"},
		{"nodes unsorted", func(m *topology.Machine) { m.NUMANodes[0].ID = 3 }, "NUMA node 1 is after NUMA node 3"},
		{"negative memory", func(m *topology.Machine) { m.NUMANodes[0].MemoryMiB = -2 }, "NUMA node 0: memory_mib is -2"},
		{"negative total", func(m *topology.Machine) { m.MemoryMiB = -1 }, "memory_mib is -1"},
		{"more than the total", func(m *topology.Machine) { m.NUMANodes[0].MemoryMiB = 1025 }, "the NUMA nodes have 2049 MiB, more than the machine's 2048 MiB"},
		{"huge pages beyond memory", func(m *topology.Machine) { m.NUMANodes[0].HugePages[2048] = 513 }, "513 pages of 2048 KiB, more than the node's memory"},
		{"memory whose sum overflows", func(m *topology.Machine) {
			m.NUMANodes[0].MemoryMiB, m.NUMANodes[1].MemoryMiB = 1<<63-1, 1<<63-1
		}, "NUMA node 0: memory_mib is 9223372036854775807: must be from 0 to 268435456, or -1 if it is unknown"},
		{"impossible total", func(m *topology.Machine) { m.MemoryMiB = 1<<28 + 1 }, "memory_mib is 268435457: must be the machine's memory, at most 268435456"},
		{"huge pages that overflow", func(m *topology.Machine) {
			m.NUMANodes[0].MemoryMiB, m.NUMANodes[0].HugePages[2048] = -1, 1<<53
		}, "huge_pages has 9007199254740992 pages of 2048 KiB, more than 268435456 MiB: correct it"},
		{"negative pages", func(m *topology.Machine) { m.NUMANodes[0].HugePages[2048] = -1 }, "the count must not be negative"},
		{"page size", func(m *topology.Machine) { m.NUMANodes[0].HugePages[0] = 1 }, "the page size must be positive"},
		{"distance", func(m *topology.Machine) { m.NUMANodes[0].Distances[1] = 0 }, "the distance to NUMA node 1 is 0: must be from 1 to 255"},
		{"distance to nowhere", func(m *topology.Machine) { m.NUMANodes[0].Distances[5] = 10 }, "names NUMA node 5, which does not exist"},
		{"fact", func(m *topology.Machine) { m.Sources["color"] = topology.SourceAgent }, `unknown fact "color"`},
		{"source", func(m *topology.Machine) { m.Sources[topology.FactNUMA] = "guess" }, `unknown source "guess" of numa`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := sound()
			test.spoil(&m)
			checkError(t, m.Validate(), test.err)
		})
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	m := sound()
	m.CPUs[0].Kind, m.NUMANodes[1].MemoryMiB = "big", -5
	checkError(t, m.Validate(), "cpu 0: kind")
	checkError(t, m.Validate(), "NUMA node 1: memory_mib")
}
