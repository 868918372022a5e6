package pvesim

import (
	"fmt"
	"slices"
	"strings"
)

const (
	kernelRelease = "6.14.11-2-pve"
	cpuFlags      = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx lm constant_tsc"
)

// counts are the numbers that lscpu and cpuinfo report: of all CPUs, of online CPUs, and of
// their sockets and cores.
type counts struct {
	all, online, sockets, cores int
}

// countCPUs counts the machine's CPUs, and the sockets and cores of its online CPUs.
func countCPUs(m *Machine) counts {
	sockets, cores := map[int]bool{}, map[int]bool{}
	t := counts{all: len(m.CPUs)}
	for _, c := range m.CPUs {
		if !c.Online {
			continue
		}
		t.online++
		sockets[c.Socket] = true
		core := c.Core
		if core == Unknown {
			core = -1 - c.ID
		}
		cores[core] = true
	}
	t.sockets, t.cores = max(len(sockets), 1), len(cores)
	return t
}

func machineArch(m *Machine) string {
	if m.Arch == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// lscpu prints the machine as util-linux does in the C locale.
func lscpu(m *Machine) string {
	t := countCPUs(m)
	var b strings.Builder
	line := func(indent int, label, format string, args ...any) {
		text := strings.Repeat(" ", indent) + label + ":"
		fmt.Fprintf(&b, "%-37s %s\n", text, fmt.Sprintf(format, args...))
	}
	line(0, "Architecture", "%s", machineArch(m))
	line(2, "CPU op-mode(s)", "32-bit, 64-bit")
	line(2, "Byte Order", "Little Endian")
	line(0, "CPU(s)", "%d", t.all)
	line(2, "On-line CPU(s) list", "%s", m.OnlineCPUs())
	if offline := offlineCPUs(m); !offline.IsEmpty() {
		line(2, "Off-line CPU(s) list", "%s", offline)
	}
	line(0, "Vendor ID", "%s", vendor(m.Model))
	line(2, "Model name", "%s", m.Model)
	line(4, "Thread(s) per core", "%d", max(t.online/max(t.cores, 1), 1))
	line(4, "Core(s) per socket", "%d", max(t.cores/t.sockets, 1))
	line(4, "Socket(s)", "%d", t.sockets)
	line(4, "Flags", "%s", cpuFlags)
	if n := countL3(m); n > 0 {
		b.WriteString("Caches (sum of all):\n")
		line(2, "L3", "%d MiB (%d %s)", 32*n, n, plural(n, "instance"))
	}
	b.WriteString("NUMA:\n")
	line(2, "NUMA node(s)", "%d", len(m.NUMANodes))
	for _, node := range m.NUMANodes {
		line(2, fmt.Sprintf("NUMA node%d CPU(s)", node.ID), "%s", cpusOfNode(m, node.ID))
	}
	b.WriteString("Vulnerabilities:\n")
	line(2, "Meltdown", "Not affected")
	return b.String()
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func vendor(model string) string {
	switch {
	case strings.Contains(model, "AMD"):
		return "AuthenticAMD"
	case strings.Contains(model, "Kunpeng"):
		return "HiSilicon"
	}
	return "GenuineIntel"
}

func offlineCPUs(m *Machine) CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if !c.Online {
			ids = append(ids, c.ID)
		}
	}
	return CPUs(ids...)
}

// cpusOfNode returns the online CPUs of a NUMA node. If the nodes of all CPUs are unknown,
// all CPUs are on the first node.
func cpusOfNode(m *Machine, node int) CPUSet {
	known := slices.ContainsFunc(m.CPUs, func(c CPU) bool { return c.NUMANode != Unknown })
	var ids []int
	for _, c := range m.CPUs {
		at := c.NUMANode
		if !known && len(m.NUMANodes) > 0 {
			at = m.NUMANodes[0].ID
		}
		if c.Online && at == node {
			ids = append(ids, c.ID)
		}
	}
	return CPUs(ids...)
}

func countL3(m *Machine) int {
	var ids []int
	for _, c := range m.CPUs {
		if c.Online && c.CacheLevel != 2 && c.L3 != Unknown && !slices.Contains(ids, c.L3) {
			ids = append(ids, c.L3)
		}
	}
	return len(ids)
}
