//go:build !linux

package qemu

import (
	"errors"

	"github.com/numaform/numaform/topology"
)

// Affinity has an answer on Linux alone.
func (Kernel) Affinity(int) (topology.CPUSet, error) { return topology.CPUSet{}, errors.ErrUnsupported }

// SetAffinity works on Linux alone.
func (Kernel) SetAffinity(int, topology.CPUSet) error { return errors.ErrUnsupported }
