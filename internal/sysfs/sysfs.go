// Package sysfs reads the exact topology of the machine it runs on, or of a copy of
// its /sys and /proc: what `numaform topology collect` prints. Script does the same
// on hosts without the program. It reads nothing else and decides nothing: start at
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

// Script returns a POSIX shell script that prints what Collect does. Its argument is
// the directory of another root than /.
func Script() string { return script }

// Where Linux says what is asked for, below the root.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// collector keeps the first error, so that a fact is read in one line.
type collector struct {
	root fs.FS
	err  error
}

// Collect reads the machine whose file system root is. Facts that Linux does not tell
// stay unknown; a file that is there and says nonsense is an error.
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
	// Reading it again is what everybody does who is given the file.
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

// field returns the value of a line "key: value" of a file, the first if there are
// several, or "".
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

// model is what the processor says of itself, which may be any bytes.
func (c *collector) model() string {
	printable := func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}
	return strings.TrimSpace(strings.Map(printable, c.field("proc/cpuinfo", "model name")))
}

// arch is Kubernetes' name, empty for amd64.
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

// mib reads "123 kB".
func mib(text string) int64 {
	number, _, _ := strings.Cut(text, " ")
	kib, err := strconv.ParseInt(number, 10, 64)
	if err != nil || kib < 0 {
		return topology.Unknown
	}
	return kib >> 10
}

// memory is that of the machine, and never less than its NUMA nodes have, which are
// rounded down each for itself.
func (c *collector) memory(nodes []topology.NUMANode) int64 {
	var sum int64
	for _, node := range nodes {
		sum += max(node.MemoryMiB, 0)
	}
	return max(mib(c.field("proc/meminfo", "MemTotal")), sum, 0)
}

// subdirs returns the ids of a directory's entries such as node3, ascending.
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
