package operator

import (
	"os"
	"strconv"
	"strings"
)

const (
	// controllerMemory is the memory of the controller itself, and engineMemory that of an
	// engine with its provider while they create a few VMs, in bytes.
	controllerMemory = 256 << 20
	engineMemory     = 160 << 20
)

// memoryLimitFile is the memory limit of this process' container (cgroup v2).
const memoryLimitFile = "/sys/fs/cgroup/memory.max"

// engines returns how many engines may run at once; 0 means that only CPUs limit them.
func (e *Engine) engines() int {
	if e.Concurrency > 0 {
		return e.Concurrency
	}
	text, err := os.ReadFile(memoryLimitFile)
	if err != nil {
		return 0 // not in a container
	}
	return enginesIn(string(text))
}

// enginesIn returns how many engines have room in a container with that memory.max.
func enginesIn(limit string) int {
	bytes, err := strconv.ParseInt(strings.TrimSpace(limit), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return int(max(1, (bytes-controllerMemory)/engineMemory))
}
