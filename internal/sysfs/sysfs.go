// Package sysfs reads the exact topology of this machine, or of a copy of a machine's /sys
// and /proc. `numaform topology collect` prints the result. Script does the same on hosts
// without the program. The package reads nothing else and makes no decisions: start at
// Collect.
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

// Script returns a POSIX shell script with the same output as Collect. Its optional
// argument is a root directory other than /.
func Script() string { return script }

// The files of Linux to read, relative to the root.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// collector keeps the first error, so that reading a fact takes one line.
type collector struct {
	root fs.FS
	err  error
}

// Collect reads the machine with the file system root. Facts that Linux does not report
// stay unknown; an existing file with invalid content is an error.
func Collect(root fs.FS) (topology.CollectedFile, error) {
	c := &collector{root: root}
	online, present := c.list(cpuDir+"/online"), c.list(cpuDir+"/present")
	if c.err == nil && online.IsEmpty() {
		c.err = fmt.Errorf("%s/online is missing or empty: run this on a Linux host with /sys", cpuDir)
	}
	file := topology.CollectedFile{
		Format: topology.CollectedFormat, Model: c.model(), Arch: c.arch(), NUMANodes: c.numaNodes(),
	}
	file.MemoryMiB = c.memory(file.NUMANodes)
	file.CPUs = c.cpus(online, online.Union(present))
	if c.err != nil {
		return topology.CollectedFile{}, fmt.Errorf("collecting the topology: %w", c.err)
	}
	// Verify that the output can be parsed, as every reader of the file will do.
	text, err := file.Print()
	if err == nil {
		_, err = topology.ParseCollectedFile(text)
	}
	if err != nil {
		return topology.CollectedFile{}, fmt.Errorf("collecting the topology: what Linux tells contradicts itself: %w", err)
	}
	return file, nil
}

// line returns the first line of a file, or "" if there is no such file.
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

// list reads a list of ids.
func (c *collector) list(name string) topology.CPUSet {
	set, err := topology.ParseCPUSet(c.line(name))
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("reading %s: %w", name, err)
	}
	return set
}

// number reads a number, or returns topology.Unknown if there is none.
func (c *collector) number(name string) int {
	text := c.line(name)
	if text == "" {
		return topology.Unknown
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		if c.err == nil {
			c.err = fmt.Errorf("reading %s: %q: want a number", name, text)
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

// model returns the processor's model name, which may contain any bytes.
func (c *collector) model() string {
	printable := func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}
	return strings.TrimSpace(strings.Map(printable, c.field("proc/cpuinfo", "model name")))
}

// arch returns Kubernetes' name of the architecture, or empty for amd64.
func (c *collector) arch() string {
	switch name := cmp.Or(c.line("proc/sys/kernel/arch"), runtime.GOARCH); name {
	case "x86_64", "amd64":
		return ""
	case "aarch64":
		return "arm64"
	default:
		return name
	}
}

// mib parses "123 kB" and returns MiB.
func mib(text string) int64 {
	number, _, _ := strings.Cut(text, " ")
	kib, err := strconv.ParseInt(number, 10, 64)
	if err != nil || kib < 0 {
		return topology.Unknown
	}
	return kib >> 10
}

// memory returns the machine's memory in MiB, but at least the sum of its NUMA nodes, which
// are rounded down individually.
func (c *collector) memory(nodes []topology.NUMANode) int64 {
	var sum int64
	for _, node := range nodes {
		sum += max(node.MemoryMiB, 0)
	}
	return max(mib(c.field("proc/meminfo", "MemTotal")), sum, 0)
}

// subdirs returns the numbers of directory entries such as node3, ascending.
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
