package operator

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// controllerMemory is the minimum memory of the controller itself, and engineMemory
	// the memory of an engine with its provider, in bytes.
	controllerMemory = 256 << 20
	engineMemory     = 200 << 20
	// tmpMemory is the size of the chart's /tmp, which counts as memory of the container.
	tmpMemory = 256 << 20
)

// memoryLimitFiles are the files of cgroup v2 and cgroup v1 with the memory limit of this
// process's container. In cgroup v1, a huge number means no limit.
var memoryLimitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// memoryLimit returns the memory limit of this process's container in bytes; 0 means
// none.
func memoryLimit() int64 {
	for _, path := range memoryLimitFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // not in a container, or the other version of cgroup
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0 // "max"
		}
		return limit
	}
	return 0
}

// residentMemory returns the resident memory of this process in bytes; 0 if it is
// unknown.
func residentMemory() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// engines returns how many engines may run at once now; 0 means that only CPUs limit them.
func (e *Engine) engines() int {
	if e.Concurrency > 0 {
		return e.Concurrency
	}
	return enginesIn(memoryLimit(), residentMemory())
}

// heapShare returns how much of a memory limit the controller may use before it collects
// garbage more often: half of the limit without /tmp.
func heapShare(limit int64) int64 { return max(controllerMemory, (limit-tmpMemory)/2) }

// enginesIn returns how many engines fit in a memory limit, in addition to /tmp and a
// controller that has the given resident memory and may grow to its share.
func enginesIn(limit, resident int64) int {
	if limit <= 0 {
		return 0
	}
	return int(max(1, (limit-tmpMemory-max(resident, heapShare(limit)))/engineMemory))
}

// limitHeap makes the garbage collector work harder before the controller uses memory
// reserved for engines. GOMEMLIMIT takes precedence.
func limitHeap() {
	if limit := memoryLimit(); limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(heapShare(limit))
	}
}
