package topology_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

func load(t *testing.T, name string) topology.Machine {
	t.Helper()
	m, err := machines.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// asReport returns the part of a machine that a report contains: no siblings, caches or
// memory.
func asReport(m topology.Machine) topology.Machine {
	report := topology.Machine{Model: m.Model}
	for _, node := range m.NUMANodes {
		report.NUMANodes = append(report.NUMANodes, topology.NUMANode{ID: node.ID, MemoryMiB: topology.Unknown})
	}
	for _, cpu := range m.CPUs {
		cpu.Core, cpu.L3, cpu.Socket, cpu.Kind = topology.Unknown, topology.Unknown, topology.Unknown, ""
		report.CPUs = append(report.CPUs, cpu)
	}
	return report.WithSource(topology.SourceReport)
}

func TestMergeUsesTheBestSourceOfEachFact(t *testing.T) {
	t.Parallel()
	collected := load(t, "xeon-4108-2s-smt")
	agent := topology.Machine{CPUs: slices.Clone(collected.CPUs), NUMANodes: []topology.NUMANode{
		{ID: 0, MemoryMiB: 40000}, {ID: 1, MemoryMiB: 50000},
	}}
	for i := range agent.CPUs {
		agent.CPUs[i].Core, agent.CPUs[i].L3 = topology.Unknown, topology.Unknown
	}
	status := topology.FromCounts("from status", 2, 16, 32, 95161)
	got, warnings := topology.Merge(status, collected, asReport(collected), agent.WithSource(topology.SourceAgent))
	if warnings != nil {
		t.Errorf("sources that agree give warnings: %q", warnings)
	}
	wantSources := map[topology.Fact]topology.Source{
		topology.FactCPUs: topology.SourceAgent, topology.FactNUMA: topology.SourceAgent, topology.FactMemory: topology.SourceAgent,
		topology.FactSiblings: topology.SourceCollected, topology.FactCaches: topology.SourceCollected,
	}
	if diff := cmp.Diff(wantSources, got.Sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(collected.CPUs, got.CPUs); diff != "" {
		t.Errorf("CPUs (-want +got):\n%s", diff)
	}
	if got.NUMANodes[0].MemoryMiB != 40000 || got.NUMANodes[0].HugePages[2048] != 2048 || got.NUMANodes[1].Distances[0] != 21 {
		t.Errorf("NUMA nodes are %+v: want the agent's memory, the file's huge pages and distances", got.NUMANodes)
	}
	if got.Model != collected.Model || got.MemoryMiB != 95161 {
		t.Errorf("model %q and %d MiB: want the file's model and the memory from Proxmox", got.Model, got.MemoryMiB)
	}
}

func TestMergeDoubtsOutdatedSources(t *testing.T) {
	t.Parallel()
	collected := load(t, "xeon-4108-2s-smt")
	for _, test := range []struct {
		name    string
		live    func() topology.Machine
		warning string
		check   func(m *topology.Machine) bool
	}{
		{
			"siblings were switched off", func() topology.Machine {
				m := asReport(collected)
				for i := 16; i < 32; i++ {
					m.CPUs[i].Online, m.CPUs[i].NUMANode = false, topology.Unknown
				}
				return m
			},
			"the collected file under machines lists CPUs 0-31, but only 0-15 are online and used",
			func(m *topology.Machine) bool { return m.OnlineCPUs().String() == "0-15" && m.SiblingsKnown() },
		},
		{
			"siblings are gone", func() topology.Machine {
				m := asReport(collected)
				m.CPUs = m.CPUs[:16]
				return m
			},
			"the collected file under machines is not used: it lists CPUs 0-31, but the host has 0-15: it describes another machine, or this one before a change; run `numaform topology collect` on the host again",
			func(m *topology.Machine) bool {
				return m.OnlineCPUs().String() == "0-15" && !m.SiblingsKnown() && m.Sources[topology.FactCPUs] == topology.SourceReport
			},
		},
		{
			"it is another machine's", func() topology.Machine {
				m := asReport(collected)
				m.Model = "AMD EPYC 7451"
				return m
			},
			`it is for model "Intel(R) Xeon(R) Silver 4108 CPU @ 1.80GHz", but the host is "AMD EPYC 7451"`,
			func(m *topology.Machine) bool { return !m.SiblingsKnown() && m.Model == "AMD EPYC 7451" },
		},
		{
			"NUMA nodes were switched", func() topology.Machine {
				m := asReport(collected)
				m.CPUs[8].NUMANode, m.CPUs[24].NUMANode = 0, 0
				return m
			},
			"CPUs 8,24 are on different NUMA nodes than in the collected file under machines",
			func(m *topology.Machine) bool {
				return m.CPUs[8].NUMANode == topology.Unknown && m.CPUs[9].NUMANode == 1
			},
		},
		{
			"cores have more threads", func() topology.Machine {
				m := asReport(collected)
				m.Threads = topology.Threads{PerCore: 4, Even: true}
				return m
			},
			"the collected file under machines is not used: it lists CPUs 0,16 as a whole core, but the host's number of threads per core is 4",
			func(m *topology.Machine) bool { return !m.SiblingsKnown() && m.Threads == topology.Threads{} },
		},
		{
			"some cores have more threads", func() topology.Machine {
				m := asReport(collected)
				m.Threads = topology.Threads{PerCore: 4}
				return m
			},
			"its number of threads per core is at most 2, but the host's is 4", func(m *topology.Machine) bool { return !m.SiblingsKnown() },
		},
		{
			"Proxmox counts fewer cores", func() topology.Machine { return topology.FromCounts("", 2, 8, 32, 0) },
			"it lists CPUs 0,16 as a whole core, but the host's number of threads per core is 4", func(m *topology.Machine) bool { return !m.SiblingsKnown() },
		},
		{
			"CPUs are fewer", func() topology.Machine { return topology.FromCounts("", 2, 8, 16, 0) },
			"the collected file under machines is not used: it lists 32 CPUs, but Proxmox counts 16",
			func(m *topology.Machine) bool { return !m.SiblingsKnown() && len(m.CPUs) == 16 },
		},
		{
			"memory was taken out", func() topology.Machine { return topology.FromCounts("", 2, 16, 32, 48000) },
			"the collected file under machines lists 95161 MiB on the NUMA nodes, but the host has 48000 MiB",
			func(m *topology.Machine) bool { return m.NUMANodes[0].MemoryMiB == topology.Unknown },
		},
		{
			"a little less memory is rounding", func() topology.Machine { return topology.FromCounts("", 2, 16, 32, 95000) },
			"", func(m *topology.Machine) bool { return m.NUMANodes[0].MemoryMiB == 46802 && m.MemoryMiB == 95161 },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, warnings := topology.Merge(test.live(), collected)
			if got := strings.Join(warnings, "\n"); !strings.Contains(got, test.warning) || (got == "") != (test.warning == "") {
				t.Errorf("warnings are %q, want one with %q", warnings, test.warning)
			}
			if err := m.Validate(); err != nil {
				t.Error(err)
			}
			if !test.check(&m) {
				t.Errorf("merged to %+v", m)
			}
		})
	}
}

func TestMergeDropsContradictedSiblings(t *testing.T) {
	t.Parallel()
	unknown := topology.CPU{Online: true, Core: topology.Unknown, Socket: topology.Unknown, L3: topology.Unknown}
	for what, change := range map[string]func(m *topology.Machine){
		"NUMA nodes": func(m *topology.Machine) {
			m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: 1})
			m.CPUs[2].NUMANode, m.CPUs[3].NUMANode = 1, 1
		},
		"L3 caches": func(m *topology.Machine) {
			for i := range m.CPUs {
				m.CPUs[i].L3 = i / 2
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			agent := topology.Machine{NUMANodes: []topology.NUMANode{{ID: 0}}}
			for id := range 4 {
				cpu := unknown
				cpu.ID = id
				agent.CPUs = append(agent.CPUs, cpu)
			}
			change(&agent)
			collected := sound()
			if what == "L3 caches" {
				for i := range collected.CPUs {
					collected.CPUs[i].L3 = topology.Unknown
				}
			}
			got, warnings := topology.Merge(collected.WithSource(topology.SourceCollected), agent.WithSource(topology.SourceAgent))
			want := "siblings of the collected file under machines contradict " + what + " of the topology that is published in Proxmox: "
			if got.SiblingsKnown() || len(warnings) != 1 || !strings.Contains(warnings[0], want) {
				t.Errorf("siblings known %t, warnings %q", got.SiblingsKnown(), warnings)
			}
		})
	}
}

func TestMergeDropsDisputedSiblings(t *testing.T) {
	t.Parallel()
	collected := load(t, "xeon-4108-2s-smt")
	for _, test := range []struct {
		name  string
		forge func(*topology.CPU)
		known bool
	}{
		{"no threads", func(c *topology.CPU) { c.Core = c.ID }, false},
		{"other pairs", func(c *topology.CPU) { c.Core = c.ID / 2 }, false},
		{"other numbers of the same cores", func(c *topology.CPU) { c.Core = 100 - c.Core }, true},
		{"unknown", func(c *topology.CPU) { c.Core = topology.Unknown }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			published := topology.Machine{CPUs: slices.Clone(collected.CPUs), NUMANodes: collected.NUMANodes}
			for i := range published.CPUs {
				test.forge(&published.CPUs[i])
			}
			got, warnings := topology.Merge(collected, published.WithSource(topology.SourceAgent), asReport(collected))
			if got.SiblingsKnown() != test.known || (len(warnings) == 0) != test.known {
				t.Errorf("siblings known %t, want %t; warnings %q", got.SiblingsKnown(), test.known, warnings)
			}
			if !test.known && !strings.Contains(strings.Join(warnings, ""), "published in Proxmox and the collected file under machines have different siblings") {
				t.Errorf("warnings %q", warnings)
			}
		})
	}
}

func TestMergeAssignsAllMemoryToTheOnlyNode(t *testing.T) {
	t.Parallel()
	status := topology.FromCounts("", 1, 4, 8, 32000)
	got, _ := topology.Merge(status, asReport(load(t, "nuc-i7-1165g7-4c8t")))
	if got.NUMANodes[0].MemoryMiB != 32000 || got.Sources[topology.FactMemory] != topology.SourceReport {
		t.Errorf("the only NUMA node has %+v", got.NUMANodes[0])
	}
	assumed, _ := topology.Merge(status)
	if assumed.NUMANodes[0].MemoryMiB != topology.Unknown {
		t.Error("an assumed NUMA node was given all memory")
	}
}

func TestMergeOfNothing(t *testing.T) {
	t.Parallel()
	if m, warnings := topology.Merge(); len(m.CPUs) != 0 || warnings != nil {
		t.Errorf("nothing merges to %+v, warnings %q", m, warnings)
	}
}

func TestMergeIsSoundAndIgnoresOrder(t *testing.T) {
	t.Parallel()
	names := machines.Names()
	sources := []topology.Source{
		topology.SourceAgent, topology.SourceCollected, topology.SourceCapacity, topology.SourceReport, topology.SourceStatus,
	}
	rapid.Check(t, func(rt *rapid.T) {
		var parts []topology.Machine
		for _, source := range sources {
			if rapid.Bool().Draw(rt, string(source)) {
				m := load(t, rapid.SampledFrom(names).Draw(rt, "machine"))
				parts = append(parts, m.WithSource(source))
			}
		}
		want, wantWarnings := topology.Merge(parts...)
		if err := want.Validate(); err != nil {
			rt.Fatalf("merged to an invalid machine: %v", err)
		}
		got, warnings := topology.Merge(rapid.Permutation(parts).Draw(rt, "order")...)
		if diff := cmp.Diff(want, got) + cmp.Diff(wantWarnings, warnings); diff != "" {
			rt.Fatalf("another order merges differently:\n%s", diff)
		}
	})
}
