// Package irq finds the interrupts of PCI devices that are passed through to a VM, and
// moves them between CPUs. It finds only interrupts that two sources of the kernel attribute
// to such a device. It makes no decisions and keeps no state: start at Tree.Of.
package irq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Tree is the file system of a host.
type Tree struct {
	// Root is its root directory, "/" except in tests.
	Root string
}

var (
	address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	// action matches the name that the kernel's vfio-pci gives to an interrupt's handler.
	action = regexp.MustCompile(`^vfio-msix?\[\d{1,4}\]\(([0-9a-f:.]+)\)$`)
)

// KnownDevice reports whether a text is the address of a PCI device, including its domain.
func KnownDevice(device string) bool { return address.MatchString(device) }

// Of returns the interrupts of a passed-through device, sorted. A device has interrupts while
// its driver in the guest uses them. Of returns only message-signaled interrupts (MSI, MSI-X),
// because a device may share an interrupt line with the host's devices.
func (t Tree) Of(device string) ([]int, error) {
	entries, err := os.ReadDir(t.messages(device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the interrupts of device %s: %w", device, err)
	}
	var irqs []int
	for _, entry := range entries {
		irq, err := strconv.Atoi(entry.Name())
		if err == nil && t.Owns(device, irq) {
			irqs = append(irqs, irq)
		}
	}
	slices.Sort(irqs)
	return irqs, nil
}

// Owns reports whether an interrupt still belongs to a passed-through device: the kernel
// reuses the numbers of freed interrupts.
func (t Tree) Owns(device string, irq int) bool {
	if !KnownDevice(device) || irq < 0 {
		return false
	}
	number := strconv.Itoa(irq)
	if _, err := os.Stat(filepath.Join(t.messages(device), number)); err != nil {
		return false
	}
	data, err := os.ReadFile(filepath.Join(t.Root, "sys/kernel/irq", number, "actions"))
	if err != nil {
		return false
	}
	found := action.FindStringSubmatch(strings.TrimSpace(string(data)))
	return found != nil && found[1] == device
}

// CPUs returns the CPUs that may handle an interrupt.
func (t Tree) CPUs(irq int) (topology.CPUSet, error) {
	data, err := os.ReadFile(t.affinity(irq))
	if err != nil {
		return topology.CPUSet{}, fmt.Errorf("reading the CPUs of interrupt %d: %w", irq, err)
	}
	set, err := topology.ParseCPUSet(strings.TrimSpace(string(data)))
	if err != nil {
		return topology.CPUSet{}, fmt.Errorf("reading the CPUs of interrupt %d: %w", irq, err)
	}
	return set, nil
}

// Move assigns an interrupt to these CPUs. The kernel rejects this for interrupts that it
// manages itself.
func (t Tree) Move(irq int, cpus topology.CPUSet) error {
	out, err := os.OpenFile(t.affinity(irq), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = out.WriteString(cpus.String() + "\n")
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return fmt.Errorf("moving interrupt %d to CPUs %s: %w", irq, cpus, err)
	}
	return nil
}

func (t Tree) messages(device string) string {
	return filepath.Join(t.Root, "sys/bus/pci/devices", device, "msi_irqs")
}

func (t Tree) affinity(irq int) string {
	return filepath.Join(t.Root, "proc/irq", strconv.Itoa(irq), "smp_affinity_list")
}
