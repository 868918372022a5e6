//go:build !linux

package qemu

import (
	"errors"

	"github.com/numaform/numaform/topology"
)

// Affinity returns the CPUs that a thread may run on, its control group considered.
func Affinity(int) (topology.CPUSet, error) { return topology.CPUSet{}, errors.ErrUnsupported }

func setAffinity(int, topology.CPUSet) error { return errors.ErrUnsupported }
