// Package sysfs reads the exact topology of a machine from its /sys and /proc, or from copies
// of them, for `numaform topology collect` and the host agent. It reads nothing else and
// makes no decisions. Start at Collect.
package sysfs

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

//go:embed collect.sh
var script string

// Script returns a POSIX shell script with the same output as Collect, for hosts without
// numaform. Its optional argument is a root directory other than /.
func Script() string { return script }

// The directories of CPUs and NUMA nodes, relative to the root.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// collector reads facts and stores the first error, so that callers check for errors only
// once.
type collector struct {
	root fs.FS
	err  error
}

// Collect reads the machine whose root directory is root. Facts that Linux does not report,
// and invalid amounts of memory and distances, stay unknown. Other files with invalid
// content are errors.
func Collect(root fs.FS) (topology.CollectedFile, error) {
	c := &collector{root: root}
	online, present := c.list(cpuDir+"/online"), c.list(cpuDir+"/present")
	if c.err == nil && online.IsEmpty() {
		c.err = fmt.Errorf("%s/online is missing or empty: run this on a Linux host with /sys", cpuDir)
	}
	printable := func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}
	file := topology.CollectedFile{
		Format:    topology.CollectedFormat,
		Model:     strings.TrimSpace(strings.Map(printable, c.field("proc/cpuinfo", "model name"))), // may contain any bytes
		Arch:      cmp.Or(c.line("proc/sys/kernel/arch"), runtime.GOARCH),
		NUMANodes: c.numaNodes(),
		CPUs:      c.cpus(online, online.Union(present)),
	}
	switch file.Arch { // convert to the Kubernetes names; amd64 is the default
	case "x86_64", "amd64":
		file.Arch = ""
	case "aarch64":
		file.Arch = "arm64"
	}
	// The total must be at least the sum of the NUMA nodes.
	var sum int64
	for _, node := range file.NUMANodes {
		sum += max(node.MemoryMiB, 0)
	}
	file.MemoryMiB = max(mib(c.field("proc/meminfo", "MemTotal")), sum, 0)
	if c.err != nil {
		return topology.CollectedFile{}, fmt.Errorf("collecting the topology: %w", c.err)
	}
	// Check that readers can parse the output.
	text, err := file.Print()
	if err == nil {
		_, err = topology.ParseCollectedFile(text)
	}
	if err != nil {
		return topology.CollectedFile{}, fmt.Errorf("collecting the topology: the facts in /sys and /proc are inconsistent: %w", err)
	}
	return file, nil
}

// line returns the first line of a file, or "" if the file does not exist.
func (c *collector) line(name string) string {
	data, err := fs.ReadFile(c.root, name)
	if err != nil {
		if c.err == nil && !errors.Is(err, fs.ErrNotExist) {
			c.err = err
		}
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

// list reads a list of IDs such as 0-3,8. It is empty if the file does not exist.
func (c *collector) list(name string) topology.CPUSet {
	set, err := topology.ParseCPUSet(c.line(name))
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("reading %s: %w", name, err)
	}
	return set
}

// number reads a number, or returns topology.Unknown for a missing or empty file.
func (c *collector) number(name string) int {
	text := c.line(name)
	if text == "" {
		return topology.Unknown
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		if c.err == nil {
			c.err = fmt.Errorf("reading %s: %q: must be a number", name, text)
		}
		return topology.Unknown
	}
	return max(value, topology.Unknown)
}

// field returns the value of the first line "key: value" of a file, or "".
func (c *collector) field(name, key string) string {
	data, err := fs.ReadFile(c.root, name)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		before, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(before) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// mib parses "123 kB" and returns MiB, or topology.Unknown for any other text.
func mib(text string) int64 {
	number, _, _ := strings.Cut(text, " ")
	kib, err := strconv.ParseInt(number, 10, 64)
	if err != nil || kib < 0 {
		return topology.Unknown
	}
	return kib >> 10
}

// numaNodes reads the NUMA nodes. Without NUMA support in the kernel, all memory belongs to
// node 0.
func (c *collector) numaNodes() []topology.NUMANode {
	ids := c.subdirs(nodeDir, "node")
	if len(ids) == 0 {
		return []topology.NUMANode{{ID: 0, MemoryMiB: mib(c.field("proc/meminfo", "MemTotal"))}}
	}
	nodes := make([]topology.NUMANode, len(ids))
	for i, id := range ids {
		dir := join(nodeDir, "node", id)
		nodes[i] = topology.NUMANode{
			ID:        id,
			MemoryMiB: mib(c.field(dir+"/meminfo", fmt.Sprintf("Node %d MemTotal", id))),
			HugePages: c.hugePages(dir + "/hugepages"),
		}

		// Linux writes one column for each online NUMA node. Ignore a line with another number
		// of columns, and invalid values.
		columns := strings.Fields(c.line(dir + "/distance"))
		for at := 0; at < len(ids) && len(columns) == len(ids); at++ {
			distance, err := strconv.Atoi(columns[at])
			if err != nil || distance < 1 || distance > 255 {
				continue
			}
			if nodes[i].Distances == nil {
				nodes[i].Distances = map[int]int{}
			}
			nodes[i].Distances[ids[at]] = distance
		}
	}
	return nodes
}

// hugePages reads the number of reserved huge pages by size in KiB. It omits sizes without
// pages.
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

// subdirs returns the sorted numbers of directory entries such as node3.
func (c *collector) subdirs(dir, prefix string) []int {
	entries, err := fs.ReadDir(c.root, dir)
	if err != nil {
		if c.err == nil && !errors.Is(err, fs.ErrNotExist) {
			c.err = err
		}
		return nil
	}
	var ids []int
	for _, entry := range entries {
		text, ok := strings.CutPrefix(entry.Name(), prefix)
		if id, err := strconv.Atoi(text); ok && err == nil && id >= 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func join(dir, name string, id int) string { return path.Join(dir, name+strconv.Itoa(id)) }
