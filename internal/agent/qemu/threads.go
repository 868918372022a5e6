package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/numaform/numaform/topology"
)

// Other is the VCPU value of a thread that runs no vCPU.
const Other = -1

// Thread is a thread of QEMU.
type Thread struct {
	TID int
	// VCPU is the index of the vCPU that the thread runs, or Other.
	VCPU int
}

// vcpuName matches QEMU's name for the thread of a vCPU with debug-threads=on, which
// Proxmox always sets. A guest cannot change it, and QEMU could only lie about its own
// threads. QMP is not an alternative: the agent would still have to check its responses
// against /proc, and a query would block Proxmox, because the socket serves one client at a
// time.
var vcpuName = regexp.MustCompile(`^CPU (0|[1-9][0-9]{0,4})/[A-Z]+$`)

// workerPrefix starts the names of io_uring's workers. The kernel binds them, and they can
// only be moved by their control group.
const workerPrefix = "iou-"

// Threads returns the movable threads of a VM, vCPUs first by index. Two threads with the
// same index are an error.
func (r Reader) Threads(run Run) ([]Thread, error) {
	tasks := fmt.Sprintf("proc/%d/task", run.PID)
	entries, err := os.ReadDir(r.path(tasks))
	if err != nil {
		return nil, fmt.Errorf("listing threads: %w", err)
	}
	var threads []Thread
	seen := map[int]bool{}
	for _, entry := range entries {
		tid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		comm, err := r.read(tasks + "/" + entry.Name() + "/comm")
		if err != nil || strings.HasPrefix(string(comm), workerPrefix) {
			continue // it ended or belongs to the kernel
		}
		thread := Thread{TID: tid, VCPU: Other}
		if name := vcpuName.FindStringSubmatch(strings.TrimRight(string(comm), "\n")); name != nil {
			if thread.VCPU, err = strconv.Atoi(name[1]); err != nil || seen[thread.VCPU] {
				return nil, fmt.Errorf("listing threads: vCPU %s has two threads", name[1])
			}
			seen[thread.VCPU] = true
		}
		threads = append(threads, thread)
	}
	// As an unsigned number, Other is greater than every vCPU.
	slices.SortFunc(threads, func(a, b Thread) int {
		return cmp.Or(cmp.Compare(uint(a.VCPU), uint(b.VCPU)), cmp.Compare(a.TID, b.TID))
	})
	return threads, nil
}

// VCPUs returns the number of vCPUs, or 0 if the indexes are not 0, 1, 2, …: then some are
// missing, as they are while QEMU starts.
func VCPUs(threads []Thread) int {
	count := 0
	for _, thread := range threads {
		if thread.VCPU == Other {
			break
		}
		if thread.VCPU != count {
			return 0
		}
		count++
	}
	return count
}

// Target is the desired place of a VM's threads. The zero value means anywhere.
type Target struct {
	// VCPUs is the host CPU of vCPU 0, 1, 2, …
	VCPUs []int
	// Others applies to all other threads; empty means anywhere.
	Others topology.CPUSet
}

// Affinities reads and sets the CPUs that threads may run on. The error for a thread that
// ended is syscall.ESRCH.
type Affinities interface {
	// Affinity returns the CPUs within the limits of the thread's control group.
	Affinity(tid int) (topology.CPUSet, error)
	// SetAffinity allows a set of CPUs, or all if it is empty.
	SetAffinity(tid int, cpus topology.CPUSet) error
}

// Kernel implements Affinities with the system calls of this machine.
type Kernel struct{}

// Place moves each thread of a VM to its desired CPUs, and returns how many vCPUs it
// moved. It ignores threads that have ended. It continues after any other error, and
// returns the first one.
func Place(affinities Affinities, threads []Thread, target Target) (int, error) {
	moved := 0
	var first error
	for _, thread := range threads {
		cpus := target.Others
		if thread.VCPU >= 0 && thread.VCPU < len(target.VCPUs) {
			cpus = topology.CPUs(target.VCPUs[thread.VCPU])
		}
		did, err := place(affinities, thread.TID, cpus)
		if did && thread.VCPU != Other {
			moved++
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) && first == nil {
			where := "any CPU"
			if !cpus.IsEmpty() {
				where = "CPUs " + cpus.String()
			}
			first = fmt.Errorf("moving thread %d to %s: %w", thread.TID, where, err)
		}
	}
	return moved, first
}

func place(affinities Affinities, tid int, set topology.CPUSet) (bool, error) {
	if set.IsEmpty() {
		return true, affinities.SetAffinity(tid, set)
	}
	now, err := affinities.Affinity(tid)
	if err != nil || now.Equal(set) {
		return false, err
	}
	if err := affinities.SetAffinity(tid, set); err != nil {
		return false, err
	}
	if now, err = affinities.Affinity(tid); err == nil && !now.Equal(set) {
		err = fmt.Errorf("its control group allows only CPUs %s", now)
	}
	return err == nil, err
}
