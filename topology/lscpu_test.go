package topology_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numaform/numaform/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestParseLscpu(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/lscpu/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases, error %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, got := "summary", ""
			m, err := topology.ParseLscpu(string(archive.Files[0].Data))
			if err != nil {
				name, got = "error", err.Error()+"\n"
			} else {
				got = summary(&m)
			}
			if *update {
				archive.Files[1] = txtar.File{Name: name, Data: []byte(got)}
				if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(archive.Files[1].Data); archive.Files[1].Name != name || want != got {
				t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(want, got))
			}
			if strings.Contains(got, "hunter2") {
				t.Error("the result quotes the config of a guest")
			}
		})
	}
}

// summary lists the known facts about a machine, one per line.
func summary(m *topology.Machine) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	if m.Model != "" {
		line("%s", m.Model)
	}
	if m.Arch != "" {
		line("arch %s", m.Arch)
	}
	line("online %s", m.OnlineCPUs())
	nodes := where(m, func(c topology.CPU) int { return c.NUMANode })
	caches := where(m, func(c topology.CPU) int { return c.L3 })
	if offline := all(m).Difference(m.OnlineCPUs()); !offline.IsEmpty() {
		line("offline %s", offline)
	}
	if unplaced, ok := nodes[topology.Unknown]; ok {
		line("node -1: %s", topology.CPUs(unplaced...))
	}
	for _, node := range m.NUMANodes {
		line("node %d: %s", node.ID, topology.CPUs(nodes[node.ID]...))
	}
	if cores := coreSets(m); cores != nil {
		line("cores %s", strings.Join(cores, " "))
	}
	for _, id := range slices.Sorted(maps.Keys(caches)) {
		if id != topology.Unknown {
			line("cache %d: %s", id, topology.CPUs(caches[id]...))
		}
	}
	for _, fact := range []topology.Fact{
		topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory,
	} {
		if source, ok := m.Sources[fact]; ok {
			line("%s: %s", fact, source)
		}
	}
	return out.String()
}

// where returns the IDs of the online CPUs by the value of a fact.
func where(m *topology.Machine, fact func(topology.CPU) int) map[int][]int {
	ids := map[int][]int{}
	for _, cpu := range m.CPUs {
		if cpu.Online {
			ids[fact(cpu)] = append(ids[fact(cpu)], cpu.ID)
		}
	}
	return ids
}

func coreSets(m *topology.Machine) []string {
	var sets []string
	for _, core := range m.Cores() {
		sets = append(sets, core.CPUs.String())
	}
	return sets
}

func all(m *topology.Machine) topology.CPUSet {
	var ids []int
	for _, cpu := range m.CPUs {
		ids = append(ids, cpu.ID)
	}
	return topology.CPUs(ids...)
}

// FuzzParseLscpu checks that every machine that ParseLscpu returns is valid and survives a
// round trip through a collected file.
func FuzzParseLscpu(f *testing.F) {
	archives, err := filepath.Glob("testdata/lscpu/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(archive.Files[0].Data))
	}
	f.Add("# lscpu\nArchitecture: x86_64\nOn-line CPU(s) list: 0-3\nNUMA node(s): 1\nNUMA node0 CPU(s): 0-3\n")
	f.Add("Architecture: x86_64\nOn-line CPU(s) list: 0\nL3: 1 MiB (1 instance)\n")
	f.Add("Architecture:\xfd\nOn-line CPU(s) list:0")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := topology.ParseLscpu(text)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("parsed to an invalid machine: %v", err)
		}
		printed, err := m.Collected()
		if err != nil {
			t.Fatal(err)
		}
		again, err := topology.ParseCollected(printed)
		if err != nil {
			t.Fatalf("%q prints as %s: %v", text, printed, err)
		}
		again.Sources, again.Threads = m.Sources, m.Threads
		if diff := cmp.Diff(m, again); diff != "" {
			t.Fatalf("%q prints as %s, which is another machine:\n%s", text, printed, diff)
		}
	})
}
