package startcheck_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/startcheck"
	"github.com/numaform/numaform/topology"
)

// testHost returns a host with CPUs 0-3 on node 0 and 4-7 on node 1 with 4 GiB each, CPU 7
// offline, node 2 with CPU 8 and without memory, and node 3 without CPUs and with unknown
// memory. CPU 0 and 1 GiB are reserved.
func testHost() *topology.Host {
	h := &topology.Host{Region: "r1", Name: "pve-1", Online: true, ReservedCPUs: topology.CPUs(0), ReservedMemoryMiB: 1024}
	for id := range 9 {
		h.CPUs = append(h.CPUs, topology.CPU{ID: id, Online: id != 7, NUMANode: id / 4, Core: id})
	}
	h.NUMANodes = []topology.NUMANode{
		{ID: 0, MemoryMiB: 4096}, {ID: 1, MemoryMiB: 4096}, {ID: 2}, {ID: 3, MemoryMiB: topology.Unknown},
	}
	h.MemoryMiB = 9216
	return h
}

func numa(guestCPUs, hostNodes string, memory int64, policy topology.NUMAPolicy) topology.NUMACell {
	guest, err := topology.ParseCPUSet(guestCPUs)
	if err != nil {
		panic(err)
	}
	nodes, err := topology.ParseCPUSet(hostNodes)
	if err != nil {
		panic(err)
	}
	return topology.NUMACell{GuestCPUs: guest, HostNodes: nodes, MemoryMiB: memory, Policy: policy}
}

// good returns a VM without faults.
func good() startcheck.Guest {
	return startcheck.Guest{
		VMID: 1, Sockets: 2, Cores: 2, MemoryMiB: 2048, NUMAEnabled: true,
		NUMA: map[int]topology.NUMACell{
			0: numa("0-1", "0", 1024, topology.NUMABind),
			1: numa("2-3", "1", 1024, topology.NUMABind),
		},
		Affinity: topology.CPUs(1, 2, 4, 5), Pins: []int{1, 2, 4, 5}, Exclusive: true,
	}
}

func TestCheckOne(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*startcheck.Guest)
		want   []string
	}{
		{"good", func(*startcheck.Guest) {}, nil},
		{"too many vCPUs", func(g *startcheck.Guest) {
			*g = startcheck.Guest{VMID: 1, Sockets: 3, Cores: 3, MemoryMiB: 1}
		}, []string{"starting vm 1: MAX 8 vcpus allowed per VM on this node"}},
		{
			"no memory", func(g *startcheck.Guest) { *g = startcheck.Guest{VMID: 1} },
			[]string{"starting vm 1: memory must be at least 1 MiB"},
		},
		{"numa off: cells are ignored", func(g *startcheck.Guest) {
			g.NUMAEnabled, g.NUMA[0] = false, numa("0-9", "9", 0, "")
		}, nil},
		{
			"sum of memory", func(g *startcheck.Guest) { g.MemoryMiB++ },
			[]string{"starting vm 1: total memory for NUMA nodes must be equal to vm static memory"},
		},
		{"the whole memory in each cell", func(g *startcheck.Guest) {
			g.NUMA[0], g.NUMA[1] = numa("0-1", "0", 2048, topology.NUMABind), numa("2-3", "1", 2048, topology.NUMABind)
		}, []string{"starting vm 1: total memory for NUMA nodes must be equal to vm static memory"}},
		{"missing memory", func(g *startcheck.Guest) {
			g.NUMA[0], g.NUMA[1] = numa("0-1", "0", 0, topology.NUMABind), numa("2-3", "1", 2048, topology.NUMABind)
		}, []string{"starting vm 1: missing NUMA node0 memory value"}},
		{
			"missing policy", func(g *startcheck.Guest) { g.NUMA[0] = numa("0-1", "0", 1024, "") },
			[]string{"starting vm 1: you need to define a policy for hostnode 0"},
		},
		{"no such host node", func(g *startcheck.Guest) {
			g.NUMA[1], g.Pins = numa("2-3", "5", 1024, topology.NUMABind), nil
			g.Affinity = topology.CPUs(1)
		}, []string{"starting vm 1: host NUMA node5 doesn't exist"}},
		{"host node without memory", func(g *startcheck.Guest) {
			g.NUMA[1], g.Pins, g.Affinity = numa("2-3", "2", 1024, topology.NUMABind), nil, topology.CPUSet{}
		}, []string{"starting vm 1: numa1: host NUMA node2 has no memory", "1024 MiB are bound to host NUMA nodes 2, which have 0"}},
		{"host node without CPUs", func(g *startcheck.Guest) {
			g.NUMA[1], g.Pins, g.Affinity = numa("2-3", "3", 1024, topology.NUMAPreferred), nil, topology.CPUSet{}
		}, nil},
		{
			"memory hotplug", func(g *startcheck.Guest) { g.MemoryHotplug = true },
			[]string{"starting vm 1: cannot enable memory hotplugging with custom NUMA topology"},
		},
		{
			"ids with a gap", func(g *startcheck.Guest) { g.NUMA[8] = g.NUMA[1]; delete(g.NUMA, 1) },
			[]string{"starting vm 1: numa: Node ID missing: 1", "starting vm 1: unknown setting 'numa8'"},
		},
		{
			"guest CPU beyond the last", func(g *startcheck.Guest) { g.NUMA[1] = numa("2-4", "1", 1024, topology.NUMABind) },
			[]string{"starting vm 1: CPU index (4) should be smaller than maxcpus (4)"},
		},
		{
			"guest CPU twice", func(g *startcheck.Guest) { g.NUMA[0] = numa("0-2", "0-1", 1024, topology.NUMABind) },
			[]string{"starting vm 1: CPU 2 is in numa0 and numa1"},
		},
		{
			"guest CPU left out", func(g *startcheck.Guest) { g.NUMA[0] = numa("0", "0", 1024, topology.NUMABind) },
			[]string{"starting vm 1: numaN name 3 of 4 vCPUs"},
		},
		{"affinity without a CPU", func(g *startcheck.Guest) {
			*g = startcheck.Guest{VMID: 1, MemoryMiB: 1, Affinity: topology.CPUs(7, 99)}
		}, []string{
			"starting vm 1: taskset: failed to set pid 0's affinity: Invalid argument",
			"starting vm 1: pinned to CPUs 7,99, which are not online",
		}},
		{
			"reserved CPU", func(g *startcheck.Guest) { g.Pins, g.Affinity = []int{0, 1, 4, 5}, topology.CPUs(0, 1, 4, 5) },
			[]string{"starting vm 1: pinned to CPUs 0, which are reserved for the host"},
		},
		{
			"pins outside the affinity", func(g *startcheck.Guest) { g.Pins = []int{1, 3, 4, 5} },
			[]string{"starting vm 1: pins [1 3 4 5] are outside the affinity 1-2,4-5"},
		},
		{
			"too few pins", func(g *startcheck.Guest) { g.Pins = []int{1, 2, 4} },
			[]string{"starting vm 1: pins [1 2 4] are not one CPU for each of 4 vCPUs"},
		},
		{
			"a pin twice", func(g *startcheck.Guest) { g.Pins = []int{1, 1, 4, 5} },
			[]string{"starting vm 1: pins [1 1 4 5] are not one CPU for each of 4 vCPUs"},
		},
		{"pins on the wrong node", func(g *startcheck.Guest) { g.Pins = []int{1, 4, 2, 5} }, []string{
			"starting vm 1: vCPU 1 of numa0 is pinned to CPU 4 outside host NUMA nodes 0",
			"starting vm 1: vCPU 2 of numa1 is pinned to CPU 2 outside host NUMA nodes 1",
		}},
		{
			"affinity on the wrong node", func(g *startcheck.Guest) { g.Pins, g.Affinity = nil, topology.CPUs(1, 8) },
			[]string{"starting vm 1: affinity has CPUs 8 outside host NUMA nodes 0-1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := good()
			tt.change(&g)
			if diff := cmp.Diff(tt.want, texts(startcheck.Check(testHost(), []startcheck.Guest{g}))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// texts returns the messages of errors.
func texts(errs []error) []string {
	var out []string
	for _, err := range errs {
		out = append(out, err.Error())
	}
	return out
}

func TestCheckTogether(t *testing.T) {
	t.Parallel()
	floating := func(id int, memory int64, cells map[int]topology.NUMACell) startcheck.Guest {
		return startcheck.Guest{VMID: id, Cores: 1, MemoryMiB: memory, NUMAEnabled: len(cells) > 0, NUMA: cells}
	}
	on := func(nodes string, memory int64) map[int]topology.NUMACell {
		return map[int]topology.NUMACell{0: numa("0", nodes, memory, topology.NUMABind)}
	}
	pinned := func(id int, exclusive bool, cpus ...int) startcheck.Guest {
		return startcheck.Guest{VMID: id, Cores: len(cpus), MemoryMiB: 1, Pins: cpus, Exclusive: exclusive}
	}
	tests := []struct {
		name   string
		guests []startcheck.Guest
		want   []string
	}{
		{"nobody", nil, nil},
		{"apart", []startcheck.Guest{good(), pinned(2, true, 3, 6)}, nil},
		{"one CPU twice", []startcheck.Guest{pinned(9, true, 3, 6), pinned(2, true, 3, 4)}, []string{"CPU 3 is pinned for vm 2 and vm 9"}},
		{"shared pins may overlap", []startcheck.Guest{pinned(1, true, 3), pinned(2, false, 3)}, nil},
		{"host memory to the brim", []startcheck.Guest{floating(1, 8192, nil)}, nil},
		{"host memory", []startcheck.Guest{floating(1, 8000, nil), floating(2, 193, nil)}, []string{"guests have 8193 MiB of the host's 8192"}},
		{"node memory to the brim", []startcheck.Guest{floating(1, 4096, on("0", 4096))}, nil},
		{
			"node memory",
			[]startcheck.Guest{floating(1, 4000, on("0", 4000)), floating(2, 97, on("0", 97))},
			[]string{"4097 MiB are bound to host NUMA nodes 0, which have 4096"},
		},
		{"two nodes together", []startcheck.Guest{floating(1, 4096, on("0", 4096)), floating(2, 4090, on("0-1", 4090))}, nil},
		{
			"memory that nobody told",
			[]startcheck.Guest{floating(1, 8000, on("1,3", 8000))},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, texts(startcheck.Check(testHost(), tt.guests))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHugePages checks the faults of guests that are backed by huge pages. Node 1 has 4 GiB
// of huge pages besides its ordinary memory.
func TestHugePages(t *testing.T) {
	t.Parallel()
	h := testHost()
	h.NUMANodes[1] = topology.NUMANode{ID: 1, MemoryMiB: 8192, HugePages: map[int]int64{2048: 2048}}
	h.NUMANodes = append(h.NUMANodes, topology.NUMANode{ID: 10, MemoryMiB: 8192, HugePages: map[int]int64{2048: 4096}})
	h.MemoryMiB += 4096 + 8192
	guest := func(pages int64, nodes string, memory int64) startcheck.Guest {
		return startcheck.Guest{
			VMID: int(pages), Cores: 1, MemoryMiB: memory, HugePagesMiB: pages, NUMAEnabled: true,
			NUMA: map[int]topology.NUMACell{0: numa("0", nodes, memory, topology.NUMABind)},
		}
	}
	off := guest(2, "1", 2048)
	off.NUMAEnabled = false
	tests := []struct {
		name   string
		guests []startcheck.Guest
		want   []string
	}{
		{"beside ordinary memory", []startcheck.Guest{guest(0, "1", 4096), guest(2, "1", 4096)}, nil},
		{
			"more than are reserved",
			[]startcheck.Guest{guest(0, "1", 4096), guest(2, "1", 4098)},
			[]string{"4098 MiB are bound to host NUMA nodes 1, which have 4096"},
		},
		{
			"of another size",
			[]startcheck.Guest{guest(0, "1", 4096), guest(1024, "1", 1024)},
			[]string{"5120 MiB are bound to host NUMA nodes 1, which have 4096"},
		},
		{"numa off", []startcheck.Guest{off}, []string{"starting vm 2: numa needs to be enabled to use hugepages"}},
		{
			"two host nodes",
			[]startcheck.Guest{guest(2, "0-1", 2048)},
			[]string{"starting vm 2: more than 1 hostnode value in numa node is not supported when hugepages are enabled"},
		},
		{
			"a host node of two digits",
			[]startcheck.Guest{guest(2, "10", 2048)},
			[]string{"starting vm 2: more than 1 hostnode value in numa node is not supported when hugepages are enabled"},
		},
		{"no host node", []startcheck.Guest{guest(2, "", 2048)}, []string{"starting vm 2: numa hostnodes need to be defined to use hugepages"}},
		{
			"parts of a page",
			[]startcheck.Guest{guest(1024, "1", 1536)},
			[]string{"starting vm 1024: Memory size 1536 is not a multiple of the requested hugepages size 1024"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, texts(startcheck.Check(h, tt.guests))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
