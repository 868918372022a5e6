package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseLscpu parses the output of lscpu, or the text of /nodes/{n}/report, which contains
// it. It ignores the rest of a report and never quotes it in errors, because the rest
// contains the configs of VMs.
//
// lscpu lists the CPUs of each NUMA node, but not siblings or memory, and only the number
// of caches. Other facts stay Unknown:
//
//   - Siblings are known if lscpu reports one thread per core, and cores times sockets
//     is the number of online CPUs, as with SMT disabled. The product is necessary:
//     old versions divide, and report one thread per core on a hybrid machine with 20
//     CPUs and 14 cores.
//   - Caches are known if each CPU has one, or if there is one cache and each core has
//     several threads: every core then shares it, unlike Intel's LP-E cores. Equal
//     numbers of caches and NUMA nodes prove nothing: some machines have two caches for
//     four nodes, others have two in each node.
func ParseLscpu(text string) (Machine, error) {
	block, err := findLscpu(text)
	var m Machine
	if err == nil {
		m, err = block.machine()
	}
	if err != nil {
		return Machine{}, fmt.Errorf("reading lscpu: %w", err)
	}
	return m, nil
}

// lscpuFirstKey is the first key in lscpu's output in every version.
const lscpuFirstKey = "Architecture"

// lscpuBlock is lscpu's output: its values by key, in line order. A machine with several
// kinds of cores repeats some keys.
type lscpuBlock map[string][]string

// findLscpu finds lscpu's output: the whole text, or the first section "# lscpu" of a
// report. It never reads guests' configs, which follow later.
func findLscpu(text string) (lscpuBlock, error) {
	header := ""
	block := lscpuBlock{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch key, _, _ := strings.Cut(line, ":"); {
		case len(block) > 0 && (line == "" || line[0] == '#' || line[0] == '='): // the end of lscpu's output
			return block, nil
		case len(block) > 0:
			block.add(line)
		case key == lscpuFirstKey && (header == "" || header == "# lscpu"):
			block.add(line)
		case line != "":
			header = line
		}
	}
	if len(block) == 0 {
		return nil, errors.New("no section \"# lscpu\" found: pass the text of /nodes/{node}/report")
	}
	return block, nil
}

func (b lscpuBlock) add(line string) {
	if key, value, ok := strings.Cut(line, ":"); ok {
		// Invalid UTF-8 would not survive a round trip through our files.
		b[key] = append(b[key], strings.TrimSpace(strings.ToValidUTF8(value, "?")))
	}
}

func (b lscpuBlock) machine() (Machine, error) {
	online, err := b.cpuList("On-line CPU(s) list")
	if err != nil {
		return Machine{}, err
	}
	if online.IsEmpty() {
		return Machine{}, errors.New("\"On-line CPU(s) list\" is missing or empty: pass the complete text")
	}
	offline, err := b.cpuList("Off-line CPU(s) list")
	if err != nil {
		return Machine{}, err
	}
	nodes, err := b.numaNodes()
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Model: b.model(), Arch: b.first(lscpuFirstKey)}
	switch m.Arch { // translate the kernel names to the Kubernetes names
	case "x86_64":
		m.Arch = ""
	case "aarch64":
		m.Arch = "arm64"
	}
	for _, id := range online.Union(offline).List() {
		m.CPUs = append(m.CPUs, CPU{
			ID: id, Online: online.Contains(id),
			NUMANode: Unknown, Socket: Unknown, Core: Unknown, L3: Unknown,
		})
	}
	for id, cpus := range nodes {
		m.NUMANodes = append(m.NUMANodes, NUMANode{ID: id, MemoryMiB: Unknown})
		for i := range m.CPUs {
			if cpus.Contains(m.CPUs[i].ID) {
				m.CPUs[i].NUMANode = id
			}
		}
	}
	m.sort()
	b.setCoresAndCaches(&m, online.Size())
	m = m.WithSource(SourceReport)
	if len(nodes) == 0 {
		m.assumeNUMANode()
	}
	return m, m.Validate()
}

func (b lscpuBlock) first(key string) string {
	if values := b[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// number returns a key's value, or 0 if the key is missing, is not a number, or has several
// different values.
func (b lscpuBlock) number(key string) int {
	values := slices.Compact(slices.Sorted(slices.Values(b[key])))
	if len(values) != 1 {
		return 0
	}
	number, err := strconv.Atoi(values[0])
	if err != nil || number < 0 {
		return 0
	}
	return number
}

func (b lscpuBlock) cpuList(key string) (CPUSet, error) {
	set, err := ParseCPUSet(b.first(key))
	if err != nil {
		return CPUSet{}, fmt.Errorf("%q: %w", key, err)
	}
	return set, nil
}

func (b lscpuBlock) model() string {
	models := slices.DeleteFunc(slices.Clone(b["Model name"]), func(s string) bool { return s == "" || s == "-" })
	return strings.Join(slices.Compact(models), " + ")
}

// numaNodes returns the CPUs of each NUMA node by its ID. It returns an error if the number
// of listed nodes differs from lscpu's count.
func (b lscpuBlock) numaNodes() (map[int]CPUSet, error) {
	nodes := map[int]CPUSet{}
	for key := range b {
		middle, isNode := strings.CutPrefix(key, "NUMA node")
		number, hasCPUs := strings.CutSuffix(middle, " CPU(s)")
		if !isNode || !hasCPUs {
			continue
		}
		id, err := parseID(number)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		if nodes[id], err = b.cpuList(key); err != nil {
			return nil, err
		}
	}
	if want := b.number("NUMA node(s)"); want != len(nodes) {
		return nil, fmt.Errorf("\"NUMA node(s)\" is %d, but the text lists %d: pass the complete text", want, len(nodes))
	}
	return nodes, nil
}

// setCoresAndCaches sets the facts that ParseLscpu derives from counts.
func (b lscpuBlock) setCoresAndCaches(m *Machine, online int) {
	sockets, cores, threads := b.number("Socket(s)"), b.number("Core(s) per socket"), b.number("Thread(s) per core")
	if threads > 1 { // 1 may be the result of a division
		m.Threads = Threads{PerCore: threads, Even: threads*cores*sockets == online}
	}
	_, instances, _ := strings.Cut(b.first("L3")+b.first("L3 cache"), "(")
	caches, _, _ := strings.Cut(instances, " ")
	for i := range m.CPUs {
		cpu := &m.CPUs[i]
		if !cpu.Online {
			continue
		}
		if sockets == 1 {
			cpu.Socket = 0
		}
		if threads == 1 && cores*sockets == online {
			cpu.Core = cpu.ID
		}
		switch {
		case caches == "1" && m.Threads.Even:
			cpu.L3 = 0
		case caches == strconv.Itoa(online):
			cpu.L3 = cpu.ID
		}
	}
}

// assumeNUMANode puts all CPUs into NUMA node 0, because no source provides the nodes.
func (m *Machine) assumeNUMANode() {
	m.NUMANodes = []NUMANode{{ID: 0, MemoryMiB: Unknown}}
	for i := range m.CPUs {
		m.CPUs[i].NUMANode = 0
	}
	m.Sources[FactNUMA] = SourceAssumed
}
