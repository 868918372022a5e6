package sysfs_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// tree is the part of a Linux host's file system that Collect reads; values have no
// trailing newline.
type tree map[string]string

const (
	cpuDir  = "sys/devices/system/cpu/"
	nodeDir = "sys/devices/system/node/"
)

// linux returns the files with which Linux describes a machine.
func linux(m *topology.Machine) tree {
	t := tree{
		cpuDir + "online": m.OnlineCPUs().String(), cpuDir + "kernel_max": "8191",
		"proc/sys/kernel/arch": "x86_64",
	}
	if m.Arch == "arm64" {
		t["proc/sys/kernel/arch"] = "aarch64"
	}
	if m.Model != "" {
		t["proc/cpuinfo"] = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: " + m.Model + "\nstepping\t: 7"
	}
	if m.MemoryMiB > 0 {
		t["proc/meminfo"] = fmt.Sprintf("MemTotal:       %d kB\nMemFree:  1 kB", m.MemoryMiB<<10)
	}
	present, cores, caches, kinds := []int{}, map[int][]int{}, map[int][]int{}, map[topology.Kind][]int{}
	for _, cpu := range m.CPUs {
		present = append(present, cpu.ID)
		cores[cpu.Core], caches[cpu.L3] = append(cores[cpu.Core], cpu.ID), append(caches[cpu.L3], cpu.ID)
		kinds[cpu.Kind] = append(kinds[cpu.Kind], cpu.ID)
	}
	t[cpuDir+"present"] = topology.CPUs(present...).String()
	capacities := map[topology.Kind]int{"": 1024, topology.KindPerformance: 1024, topology.KindEfficiency: 414, topology.KindLowPower: 120}
	for kind, cpus := range kinds {
		switch unit := map[topology.Kind]string{
			topology.KindPerformance: "cpu_core", topology.KindEfficiency: "cpu_atom", topology.KindLowPower: "cpu_lowpower",
		}[kind]; {
		case m.Arch == "arm64":
			for _, id := range cpus {
				t[fmt.Sprintf("%scpu%d/cpu_capacity", cpuDir, id)] = fmt.Sprint(capacities[kind])
			}
		case unit != "":
			t["sys/devices/"+unit+"/cpus"] = topology.CPUs(cpus...).String()
		}
	}
	for _, cpu := range m.CPUs {
		if cpu.Online {
			t.addCPU(cpu, topology.CPUs(cores[cpu.Core]...).String(), topology.CPUs(caches[cpu.L3]...).String())
		}
	}
	t.addNodes(m)
	return t
}

func (t tree) addCPU(cpu topology.CPU, siblings, cache string) {
	dir := fmt.Sprintf("%scpu%d/", cpuDir, cpu.ID)
	t[dir+"topology/physical_package_id"] = fmt.Sprint(cpu.Socket)
	if cpu.Core != topology.Unknown {
		t[dir+"topology/core_cpus_list"], t[dir+"topology/thread_siblings_list"] = siblings, siblings
	}
	t[dir+"cache/index0/level"], t[dir+"cache/index0/shared_cpu_list"] = "1", siblings
	switch {
	case cpu.L3 == topology.Unknown:
	case cpu.CacheLevel == 2:
		t[dir+"cache/index2/level"], t[dir+"cache/index2/shared_cpu_list"] = "2", cache
	default:
		t[dir+"cache/index10/level"], t[dir+"cache/index10/shared_cpu_list"] = "3", cache
		t[dir+"cache/index2/level"], t[dir+"cache/index2/shared_cpu_list"] = "2", siblings
	}
}

func (t tree) addNodes(m *topology.Machine) {
	for i, node := range m.NUMANodes {
		dir := fmt.Sprintf("%snode%d/", nodeDir, node.ID)
		var on []int
		for _, cpu := range m.CPUs {
			if cpu.Online && cpu.NUMANode == node.ID {
				on = append(on, cpu.ID)
			}
		}
		t[dir+"cpulist"] = topology.CPUs(on...).String()
		if node.MemoryMiB != topology.Unknown {
			t[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:  %d kB\nNode %d MemFree:  5 kB", node.ID, node.MemoryMiB<<10+int64(i), node.ID)
		}
		t[dir+"hugepages/hugepages-1048576kB/nr_hugepages"] = "0"
		for size, pages := range node.HugePages {
			t[fmt.Sprintf("%shugepages/hugepages-%dkB/nr_hugepages", dir, size)] = fmt.Sprint(pages)
		}
		if node.Distances != nil {
			var row []string
			for _, id := range slices.Sorted(maps.Keys(node.Distances)) {
				row = append(row, fmt.Sprint(node.Distances[id]))
			}
			t[dir+"distance"] = strings.Join(row, " ")
		}
	}
}

func (t tree) fs() fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range t {
		files[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return files
}

// shell runs the script on the files, or on this machine if files is nil.
func shell(t testing.TB, files tree) ([]byte, error) {
	t.Helper()
	dir := "/"
	if files != nil {
		dir = t.TempDir()
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	command := exec.CommandContext(t.Context(), "sh", "-s", "--", dir)
	command.Stdin = strings.NewReader(sysfs.Script())
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return text, err
}

// TestThisMachine checks that the program and the script print the same topology on the
// machine that runs the test.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	file, err := sysfs.Collect(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := file.Print()
	if err != nil {
		t.Fatal(err)
	}
	got, err := shell(t, nil)
	if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
		t.Errorf("error %v, the script prints (-program +script):\n%s", err, diff)
	}
	if len(file.CPUs) == 0 || file.MemoryMiB == 0 || file.NUMANodes[0].MemoryMiB <= 0 {
		t.Errorf("collected %s", want)
	}
}

// TestMachines checks that the program and the script read each machine of
// topology/machines from the files with which Linux describes it.
func TestMachines(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Concat(machines.Names(), machines.Constructed()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := machines.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			want, err := m.Collected()
			if err != nil {
				t.Fatal(err)
			}
			files := linux(&m)
			file, err := sysfs.Collect(files.fs())
			if err != nil {
				t.Fatal(err)
			}
			got, err := file.Print()
			if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
				t.Errorf("error %v, the program reads (-want +got):\n%s", err, diff)
			}
			got, err = shell(t, files)
			if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
				t.Errorf("error %v, the script prints (-want +got):\n%s", err, diff)
			}
		})
	}
}

// odd returns hosts unlike any recorded machine.
func odd(t testing.TB) map[string]tree {
	t.Helper()
	nuc, err := machines.Load("nuc-i7-1165g7-4c8t")
	if err != nil {
		t.Fatal(err)
	}
	change := func(edit func(tree)) tree {
		files := linux(&nuc)
		edit(files)
		return files
	}
	drop := func(part string) func(tree) {
		return func(files tree) {
			maps.DeleteFunc(files, func(name, _ string) bool { return strings.Contains(name, part) })
		}
	}
	memoryOnly := change(func(files tree) {
		for _, node := range []string{"node2", "node10"} {
			files[nodeDir+node+"/cpulist"] = ""
			files[nodeDir+node+"/meminfo"] = "Node " + strings.TrimPrefix(node, "node") + " MemTotal: 4096 kB"
		}
		for _, node := range []string{"node0", "node2", "node10"} {
			files[nodeDir+node+"/distance"] = "10 21 31"
		}
	})
	wide := tree{cpuDir + "online": "0", nodeDir + "node0/cpulist": "0", "proc/sys/kernel/arch": "riscv64"}
	for id := range 40 {
		wide[fmt.Sprintf("%snode%d/distance", nodeDir, id)] = strings.Repeat("20 ", 40)
	}
	return map[string]tree{
		"no NUMA nodes":          change(drop("/node/")),
		"no caches":              change(drop("/cache/")),
		"no level 3":             change(drop("/index10/")),
		"no siblings":            change(drop("_list")),
		"old names":              change(drop("core_cpus_list")),
		"nothing but CPUs":       {cpuDir + "online": "0-1", "proc/sys/kernel/arch": "x86_64"},
		"memory-only nodes":      memoryOnly,
		"40 NUMA nodes":          wide,
		"row of another length":  change(func(files tree) { files[nodeDir+"node0/distance"] = "10 21" }),
		"a socket of none":       change(func(files tree) { files[cpuDir+"cpu1/topology/physical_package_id"] = "-1"; drop("_list")(files) }),
		"quotes in the model":    change(func(files tree) { files["proc/cpuinfo"] = "model name\t: a \"b\" \\ c: d <e>" }),
		"odd bytes in the model": change(func(files tree) { files["proc/cpuinfo"] = "model name\t: a\tb\xff c\x1b[2J " }),
		"one kind of core":       change(func(files tree) { files["sys/devices/cpu_core/cpus"] = "0-7" }),
		"an L4 cache": change(func(files tree) {
			files[cpuDir+"cpu0/cache/index11/level"] = "4"
			files[cpuDir+"cpu0/cache/index11/shared_cpu_list"] = "0"
		}),
		"three clusters": change(func(files tree) {
			drop("_list")(files)
			for id, capacity := range []string{"250", "250", "251", "620", "600", "1024", "900", "1000"} {
				files[fmt.Sprintf("%scpu%d/cpu_capacity", cpuDir, id)] = capacity
			}
		}),
		"four clusters": change(func(files tree) {
			drop("_list")(files)
			for id, capacity := range []string{"100", "100", "300", "300", "500", "500", "1024", "1024"} {
				files[fmt.Sprintf("%scpu%d/cpu_capacity", cpuDir, id)] = capacity
			}
		}),
		"a capacity missing": change(func(files tree) {
			files[cpuDir+"cpu1/cpu_capacity"] = "1024"
			files[cpuDir+"cpu0/cpu_capacity"] = "512"
		}),
		"distances that are none": change(func(files tree) {
			files[nodeDir+"node3/cpulist"], files[nodeDir+"node0/distance"], files[nodeDir+"node3/distance"] = "", "10 0", "256 x"
		}),
		"a second socket's list": change(func(files tree) { files["proc/cpuinfo"] += "\nmodel name\t: another" }),
	}
}

func TestScriptReadsWhatTheProgramReads(t *testing.T) {
	t.Parallel()
	for name, files := range odd(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, files)
		})
	}
}

// same checks that the program and the script print the same output.
func same(t testing.TB, files tree) {
	t.Helper()
	file, err := sysfs.Collect(files.fs())
	if err != nil {
		t.Fatal(err)
	}
	want, err := file.Print()
	if err != nil {
		t.Fatal(err)
	}
	got, err := shell(t, files)
	if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
		t.Errorf("error %v, the script prints (-program +script):\n%s", err, diff)
	}
}

func TestWhatIsRead(t *testing.T) {
	t.Parallel()
	hosts := odd(t)
	for _, test := range []struct {
		name  string
		check func(*topology.Machine) bool
	}{
		{"no NUMA nodes", func(m *topology.Machine) bool { return len(m.NUMANodes) == 1 && m.CPUs[7].NUMANode == 0 }},
		{"no caches", func(m *topology.Machine) bool { return m.CPUs[0].L3 == topology.Unknown && m.SiblingsKnown() }},
		{"no level 3", func(m *topology.Machine) bool {
			return m.CPUs[0].L3 == 0 && m.CPUs[1].L3 == 1 && m.CPUs[0].CacheLevel == 2
		}},
		{"three clusters", func(m *topology.Machine) bool {
			return m.CPUs[2].Kind == topology.KindLowPower && m.CPUs[4].Kind == topology.KindEfficiency && m.CPUs[6].Kind == topology.KindPerformance
		}},
		{"four clusters", func(m *topology.Machine) bool {
			return m.CPUs[0].Kind == topology.KindLowPower && m.CPUs[2].Kind == topology.KindEfficiency && m.CPUs[4].Kind == topology.KindEfficiency
		}},
		{"a capacity missing", func(m *topology.Machine) bool { return m.CPUs[0].Kind == "" && m.CPUs[1].Kind == "" }},
		{"distances that are none", func(m *topology.Machine) bool {
			return cmp.Equal(m.NUMANode(0).Distances, map[int]int{0: 10}) && m.NUMANode(3).Distances == nil
		}},
		{"no siblings", func(m *topology.Machine) bool { return !m.SiblingsKnown() }},
		{"old names", func(m *topology.Machine) bool { return m.SiblingsKnown() && len(m.Cores()) == 4 }},
		{"nothing but CPUs", func(m *topology.Machine) bool { return len(m.CPUs) == 2 && m.MemoryMiB == 0 }},
		{"memory-only nodes", func(m *topology.Machine) bool {
			return m.NUMANode(10).MemoryMiB == 4 && m.NUMANode(0).Distances[10] == 31
		}},
		{"row of another length", func(m *topology.Machine) bool { return m.NUMANodes[0].Distances == nil }},
		{"an L4 cache", func(m *topology.Machine) bool { return m.CPUs[0].L3 == m.CPUs[1].L3 }},
		{"one kind of core", func(m *topology.Machine) bool { return m.CPUs[0].Kind == "" }},
	} {
		file, err := sysfs.Collect(hosts[test.name].fs())
		if err != nil {
			t.Fatal(err)
		}
		if m := file.Machine(); !test.check(&m) {
			t.Errorf("%s: read %+v", test.name, m)
		}
	}
}

func TestCollectRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		files tree
		err   string
	}{
		{"no Linux", tree{"etc/hosts": ""}, "sys/devices/system/cpu/online is missing or empty: run this on a Linux host with /sys"},
		{"a bad list", tree{cpuDir + "online": "0-x"}, `reading sys/devices/system/cpu/online: parsing cpu list "0-x"`},
		{"a bad number", tree{cpuDir + "online": "0", cpuDir + "cpu0/topology/physical_package_id": "one"}, `physical_package_id: "one": must be a number`},
		{"a core on two nodes", tree{
			cpuDir + "online": "0-1", nodeDir + "node0/cpulist": "0", nodeDir + "node1/cpulist": "1",
			cpuDir + "cpu0/topology/core_cpus_list": "0-1", cpuDir + "cpu1/topology/core_cpus_list": "0-1",
		}, "the facts in /sys and /proc are inconsistent: parsing topology: cpu 0 and cpu 1 are siblings of core 0 but have different NUMA nodes"},
	} {
		_, err := sysfs.Collect(test.files.fs())
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.err)
		}
	}
	if _, err := shell(t, tree{"etc/hosts": ""}); err == nil || !strings.Contains(err.Error(), "online is missing or empty") {
		t.Errorf("the script returned %v", err)
	}
}

// TestRandomMachines checks that the program reads machines of any shape.
func TestRandomMachines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := topology.Machine{MemoryMiB: 1 << 20}
		nodes := rapid.IntRange(1, 5).Draw(rt, "nodes")
		for id := range nodes {
			m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: 3 * id, MemoryMiB: rapid.Int64Range(0, 1000).Draw(rt, "memory")})
		}
		id := 0
		for core := range rapid.IntRange(1, 12).Draw(rt, "cores") {
			for range rapid.IntRange(1, 4).Draw(rt, "threads") {
				m.CPUs = append(m.CPUs, topology.CPU{ID: id, Online: true, NUMANode: core % nodes * 3, Socket: 0, Core: core, L3: core})
				id += rapid.IntRange(1, 3).Draw(rt, "gap")
			}
		}
		files := linux(&m)
		file, err := sysfs.Collect(files.fs())
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(m.WithSource(topology.SourceCollected), file.Machine()); diff != "" {
			rt.Fatalf("read (-want +got):\n%s", diff)
		}
	})
}
