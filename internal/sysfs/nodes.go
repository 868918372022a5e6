package sysfs

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// numaNodes reads the NUMA nodes. A kernel without NUMA has one memory, node 0.
func (c *collector) numaNodes() []topology.NUMANode {
	ids := c.subdirs(nodeDir, "node")
	if len(ids) == 0 {
		return []topology.NUMANode{{ID: 0, MemoryMiB: mib(c.field("proc/meminfo", "MemTotal"))}}
	}
	nodes := make([]topology.NUMANode, len(ids))
	for i, id := range ids {
		dir := join(nodeDir, "node", id)
		nodes[i] = topology.NUMANode{
			ID: id, MemoryMiB: mib(c.field(dir+"/meminfo", fmt.Sprintf("Node %d MemTotal", id))),
			HugePages: c.hugePages(dir + "/hugepages"), Distances: distances(c.line(dir+"/distance"), ids),
		}
	}
	return nodes
}

// hugePages reads the number of reserved pages by size; sizes without any are left out.
func (c *collector) hugePages(dir string) map[int]int64 {
	entries, err := fs.ReadDir(c.root, dir)
	if err != nil {
		return nil
	}
	pages := map[int]int64{}
	for _, entry := range entries {
		text, ok := strings.CutPrefix(entry.Name(), "hugepages-")
		size, err := strconv.Atoi(strings.TrimSuffix(text, "kB"))
		if !ok || err != nil {
			continue
		}
		if n := c.number(dir + "/" + entry.Name() + "/nr_hugepages"); n > 0 {
			pages[size] = int64(n)
		}
	}
	if len(pages) == 0 {
		return nil
	}
	return pages
}

// distances reads a row of the table, and leaves out invalid values. Linux has a column for
// each online NUMA node; if the number differs, the columns cannot be assigned.
func distances(line string, ids []int) map[int]int {
	fields := strings.Fields(line)
	if len(fields) != len(ids) {
		return nil
	}
	row := map[int]int{}
	for i, field := range fields {
		if distance, err := strconv.Atoi(field); err == nil && distance >= 1 && distance <= 255 {
			row[ids[i]] = distance
		}
	}
	if len(row) == 0 {
		return nil
	}
	return row
}
