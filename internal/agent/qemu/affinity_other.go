//go:build !linux

package qemu

import (
	"errors"

	"github.com/numaform/numaform/topology"
)

// Affinity is only supported on Linux.
func (Kernel) Affinity(int) (topology.CPUSet, error) { return topology.CPUSet{}, errors.ErrUnsupported }

// SetAffinity is only supported on Linux.
func (Kernel) SetAffinity(int, topology.CPUSet) error { return errors.ErrUnsupported }
