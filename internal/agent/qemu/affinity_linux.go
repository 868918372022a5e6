package qemu

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/topology"
)

// kernelCPUs is how many CPUs a unix.CPUSet has room for.
const kernelCPUs = 1024

// Affinity returns the CPUs that a thread may run on, its control group considered.
func Affinity(tid int) (topology.CPUSet, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		return topology.CPUSet{}, gone(err)
	}
	var ids []int
	for cpu := range kernelCPUs {
		if set.IsSet(cpu) {
			ids = append(ids, cpu)
		}
	}
	return topology.CPUs(ids...), nil
}

// setAffinity lets a thread run on a set of CPUs, or anywhere if it is empty.
func setAffinity(tid int, cpus topology.CPUSet) error {
	var set unix.CPUSet
	if cpus.IsEmpty() {
		set.Fill()
	}
	for _, cpu := range cpus.List() {
		if cpu >= kernelCPUs {
			return fmt.Errorf("CPU %d is above the largest that can be pinned, %d", cpu, kernelCPUs-1)
		}
		set.Set(cpu)
	}
	return gone(unix.SchedSetaffinity(tid, &set))
}

func gone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return errGone
	}
	return err
}
