package hostagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/numaform/numaform/topology"
)

// affinities implements sched_getaffinity and sched_setaffinity for an exported host. The
// real system calls would change threads of this machine.
type affinities struct{ root string }

const allowedKey = "Cpus_allowed_list:"

// Affinity returns the thread's CPU affinity, limited to the CPUs of its control group.
func (a affinities) Affinity(tid int) (topology.CPUSet, error) {
	group, err := a.group(tid)
	if err != nil {
		return topology.CPUSet{}, err
	}
	allowed, err := a.list(a.status(tid), allowedKey)
	if err != nil {
		return topology.CPUSet{}, err
	}
	if within := allowed.Intersection(group); !within.IsEmpty() {
		return within, nil
	}
	return group, nil
}

// SetAffinity sets the thread's CPU affinity; an empty set means all online CPUs. It
// returns EINVAL if none of the CPUs is in the thread's control group.
func (a affinities) SetAffinity(tid int, cpus topology.CPUSet) error {
	group, err := a.group(tid)
	if err != nil {
		return err
	}
	if cpus.IsEmpty() {
		if cpus, err = a.list("sys/devices/system/cpu/online", ""); err != nil {
			return err
		}
	}
	if cpus.Intersection(group).IsEmpty() {
		return syscall.EINVAL
	}
	// Write atomically: the simulator may be reading.
	next := filepath.Join(a.root, "tmp-status")
	if err := os.WriteFile(next, []byte(allowedKey+"\t"+cpus.String()+"\n"), 0o600); err != nil {
		return err
	}
	return gone(os.Rename(next, filepath.Join(a.root, a.status(tid))))
}

func (a affinities) status(tid int) string { return fmt.Sprintf("proc/%d/status", tid) }

// group returns the CPUs of the thread's control group.
func (a affinities) group(tid int) (topology.CPUSet, error) {
	text, err := os.ReadFile(filepath.Join(a.root, fmt.Sprintf("proc/%d/cgroup", tid)))
	if err != nil {
		return topology.CPUSet{}, gone(err)
	}
	name := strings.TrimPrefix(strings.TrimSpace(string(text)), "0::/")
	return a.list(filepath.Join("sys/fs/cgroup", name, "cpuset.cpus.effective"), "")
}

// list reads the CPUs from the line of a file that starts with key.
func (a affinities) list(name, key string) (topology.CPUSet, error) {
	data, err := os.ReadFile(filepath.Join(a.root, name))
	if err != nil {
		return topology.CPUSet{}, gone(err)
	}
	_, text, _ := strings.Cut(string(data), key)
	text, _, _ = strings.Cut(text, "\n")
	return topology.ParseCPUSet(strings.TrimSpace(text))
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return syscall.ESRCH
	}
	return err
}
