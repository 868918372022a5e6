package qemu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/topology"
)

// kernelCPUs is the number of CPUs that a unix.CPUSet holds.
const kernelCPUs = 1024

// Affinity calls sched_getaffinity(2).
func (Kernel) Affinity(tid int) (topology.CPUSet, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		return topology.CPUSet{}, err
	}
	var ids []int
	for cpu := range kernelCPUs {
		if set.IsSet(cpu) {
			ids = append(ids, cpu)
		}
	}
	return topology.CPUs(ids...), nil
}

// SetAffinity calls sched_setaffinity(2).
func (Kernel) SetAffinity(tid int, cpus topology.CPUSet) error {
	var set unix.CPUSet
	if cpus.IsEmpty() {
		set.Fill()
	}
	for _, cpu := range cpus.List() {
		if cpu >= kernelCPUs {
			return fmt.Errorf("CPU %d is not supported: declare CPUs from 0 to %d", cpu, kernelCPUs-1)
		}
		set.Set(cpu)
	}
	return unix.SchedSetaffinity(tid, &set)
}
