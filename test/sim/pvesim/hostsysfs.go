package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// host writes the constant files of a host.
func (x *hostFiles) host(h *host) {
	x.write("proc/uptime", uptime)
	x.write("run/qemu-server/.keep", "")
	// pve-container and qemu-server create these groups; systemd enables the controllers.
	x.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
	x.cpuset("lxc", h.machine.OnlineCPUs())
	x.machine(&h.machine)
	x.devices(h)
}

// machine writes the hardware as presented by Linux:
// Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node, and
// Documentation/admin-guide/cputopology.rst of 6.14.
func (x *hostFiles) machine(m *Machine) {
	x.write("proc/sys/kernel/arch", machineArch(m)+"\n")
	x.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: "+m.Model+"\n")
	x.write("proc/meminfo", fmt.Sprintf("MemTotal:       %d kB\n", m.MemoryMiB<<10))
	present, nodes, cores, caches, kinds := []int{}, map[int][]int{}, map[int][]int{}, map[int][]int{}, map[Kind][]int{}
	for _, cpu := range m.CPUs {
		present = append(present, cpu.ID)
		if cpu.Online {
			nodes[cpu.NUMANode] = append(nodes[cpu.NUMANode], cpu.ID)
			cores[cpu.Core] = append(cores[cpu.Core], cpu.ID)
			caches[cpu.L3] = append(caches[cpu.L3], cpu.ID)
			kinds[cpu.Kind] = append(kinds[cpu.Kind], cpu.ID)
		}
	}
	list := func(ids []int) string { return CPUs(ids...).String() + "\n" }
	const dir = "sys/devices/system/"
	x.write(dir+"cpu/online", m.OnlineCPUs().String()+"\n")
	x.write(dir+"cpu/present", list(present))
	for _, cpu := range m.CPUs {
		if !cpu.Online {
			continue
		}
		at := fmt.Sprintf("%scpu/cpu%d/", dir, cpu.ID)
		if cpu.Socket != Unknown {
			x.write(at+"topology/physical_package_id", strconv.Itoa(cpu.Socket)+"\n")
		}
		if cpu.Core != Unknown {
			x.write(at+"topology/core_cpus_list", list(cores[cpu.Core]))
		}
		if cpu.L3 != Unknown {
			level := cpu.CacheLevel
			if level == 0 {
				level = 3
			}
			x.write(at+"cache/index3/level", strconv.Itoa(level)+"\n")
			x.write(at+"cache/index3/shared_cpu_list", list(caches[cpu.L3]))
		}
		if capacity := capacities()[cpu.Kind]; m.Arch == "arm64" && capacity != 0 {
			x.write(at+"cpu_capacity", strconv.Itoa(capacity)+"\n")
		}
	}
	for kind, unit := range map[Kind]string{
		KindPerformance: "cpu_core", KindEfficiency: "cpu_atom", KindLowPower: "cpu_lowpower",
	} {
		if m.Arch != "arm64" && len(kinds[kind]) > 0 {
			x.write("sys/devices/"+unit+"/cpus", list(kinds[kind]))
		}
	}
	for i := range m.NUMANodes {
		node := &m.NUMANodes[i]
		at := fmt.Sprintf("%snode/node%d/", dir, node.ID)
		x.write(at+"cpulist", list(nodes[node.ID]))
		if node.MemoryMiB != Unknown {
			x.write(at+"meminfo", fmt.Sprintf("Node %d MemTotal:  %d kB\n", node.ID, node.MemoryMiB<<10))
		}
		for size, pages := range node.HugePages {
			x.write(fmt.Sprintf("%shugepages/hugepages-%dkB/nr_hugepages", at, size), strconv.FormatInt(pages, 10)+"\n")
		}
		var row []string
		for _, id := range slices.Sorted(maps.Keys(node.Distances)) {
			row = append(row, strconv.Itoa(node.Distances[id]))
		}
		if len(row) > 0 {
			x.write(at+"distance", strings.Join(row, " ")+"\n")
		}
	}
}

// capacities returns cpu_capacity for each kind of core on Arm; the maximum is 1024.
func capacities() map[Kind]int {
	return map[Kind]int{KindPerformance: 1024, KindEfficiency: 414, KindLowPower: 120}
}

// devices writes the host's resource mappings, and the NUMA nodes of its devices.
func (x *hostFiles) devices(h *host) {
	var mappings strings.Builder
	for _, d := range h.devices {
		fmt.Fprintf(&mappings, "%s\n\tmap node=%s,path=%s,id=10de:2204\n\n", d.Mapping, h.name, d.Path)
		for address := range strings.SplitSeq(d.Path, ";") {
			if !strings.Contains(address, ".") {
				address += ".0"
			}
			x.write("sys/bus/pci/devices/"+address+"/numa_node", strconv.Itoa(d.NUMANode)+"\n")
		}
	}
	if mappings.Len() > 0 {
		x.write("etc/pve/mapping/pci.cfg", mappings.String())
	}
}
