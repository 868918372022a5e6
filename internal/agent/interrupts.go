package agent

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// Interrupts configures where interrupts of passed-through PCI devices are handled.
type Interrupts string

// The values of Interrupts.
const (
	// InterruptsOff moves none, and restores the ones that the agent moved earlier.
	InterruptsOff Interrupts = "off"
	// InterruptsGuest moves the interrupts of a pinned VM's devices to the CPUs of the VM.
	InterruptsGuest Interrupts = "guest"
)

// Interrupt is an interrupt of a passed-through device that the agent moved.
type Interrupt struct {
	IRQ    int             `json:"irq"`
	Device string          `json:"device"`
	VMID   int             `json:"vmid"`
	Was    topology.CPUSet `json:"was"`
	Now    topology.CPUSet `json:"now"`
	// Free is true once Now is Was again: the VM no longer has pins or the device, or irqs is
	// off.
	Free bool `json:"free,omitempty"`
	// PutBack is the number of times that the agent found the interrupt on other CPUs:
	// another program moved it, or the guest's driver requested it again.
	PutBack int `json:"put_back,omitempty"`
	// Refused is the reason why the interrupt is not on the CPUs Now, or empty. The agent
	// does not retry it until Now changes.
	Refused string `json:"refused,omitempty"`
}

func (i *Interrupt) is(other Interrupt) bool { return i.IRQ == other.IRQ && i.Device == other.Device }

// interrupts returns the interrupts that the agent moved, must move, or must restore. An
// interrupt that the guest's driver released, or whose VM ended, is left to the kernel.
func (a *Agent) interrupts(next *State) []Interrupt {
	// The passed-through devices of pinned VMs. A device that two VMs seem to have is
	// skipped.
	owners := map[string]*Guest{}
	twice := map[string]bool{}
	for n := range next.Guests {
		guest := &next.Guests[n]
		if a.Settings.IRQs != InterruptsGuest || guest.Pins == nil {
			continue
		}
		devices, err := a.reader.Devices(guest.Run)
		if err != nil {
			continue // the VM is stopping
		}
		for _, device := range devices {
			twice[device] = owners[device] != nil
			owners[device] = guest
		}
	}

	managed := []Interrupt{}
	for device, guest := range owners {
		if twice[device] {
			continue
		}
		irqs, err := a.irqs.Of(device)
		if err != nil {
			a.Log.Debug("interrupts not read", logkey.VMID, guest.VMID, logkey.Message, err.Error())
			continue
		}
		for _, number := range irqs {
			i := Interrupt{IRQ: number, Device: device}
			if last := find(a.state.Interrupts, i.is); last != nil {
				i = *last
			} else if i.Was, err = a.irqs.CPUs(number); err != nil {
				continue // the guest's driver released it
			}
			i.VMID = guest.VMID
			i.Free = false
			i.moveTo(guest.Pins.Set())
			managed = append(managed, i)
		}
	}
	for _, last := range a.state.Interrupts {
		if find(managed, last.is) == nil && a.irqs.Owns(last.Device, last.IRQ) {
			last.moveTo(last.Was)
			last.Free = true
			managed = append(managed, last)
		}
	}
	slices.SortFunc(managed, func(x, y Interrupt) int { return x.IRQ - y.IRQ })
	return managed
}

// moveTo sets the target CPUs. If they change, a refused interrupt is tried again.
func (i *Interrupt) moveTo(cpus topology.CPUSet) {
	if !i.Now.Equal(cpus) {
		i.Now = cpus
		i.Refused = ""
	}
}

// steer moves interrupts to their CPUs, and drops the records of restored ones.
func (a *Agent) steer() {
	var moved []Interrupt
	for n := range a.state.Interrupts {
		i := &a.state.Interrupts[n]
		if i.Refused != "" {
			continue
		}
		now, err := a.irqs.CPUs(i.IRQ)
		if err == nil {
			last := a.steered[i.IRQ]
			known := last != nil && last.is(*i) && last.Now.Equal(i.Now)
			done := *i
			a.steered[i.IRQ] = &done
			if now.Equal(i.Now) {
				continue
			}
			if known {
				i.PutBack++
			}
			if known && i.PutBack == 1 {
				a.Log.Warn("restored interrupt that another program or the guest's driver moved; further moves are only counted", logkey.VMID, i.VMID, "irq", i.IRQ,
					"device", i.Device, "had", now.String(), "cpus", i.Now.String())
			}
			if err = a.irqs.Move(i.IRQ, i.Now); err == nil && !known {
				moved = append(moved, *i)
			}
		}
		if err != nil && a.irqs.Owns(i.Device, i.IRQ) {
			a.Log.Warn("interrupt not moved", logkey.VMID, i.VMID, "irq", i.IRQ, "device", i.Device, logkey.Message, err.Error())
			// Without the interrupt's number, interrupts with the same reason share a line of
			// the status.
			i.Refused = err.Error()
			if code, ok := errors.AsType[syscall.Errno](err); ok {
				i.Refused = code.Error()
			}
		}
	}
	for _, s := range together(moved) {
		a.Log.Info("moved interrupts", logkey.VMID, s.VMID, "device", s.Device, "irqs", s.count, "cpus", s.Now.String())
	}
	a.state.Interrupts = slices.DeleteFunc(a.state.Interrupts, func(i Interrupt) bool { return i.Free && i.Refused == "" })
	maps.DeleteFunc(a.steered, func(number int, _ *Interrupt) bool {
		return find(a.state.Interrupts, func(i Interrupt) bool { return i.IRQ == number }) == nil
	})
}

// several counts interrupts of one device with the same target and outcome.
type several struct {
	Interrupt
	count int
}

// together groups interrupts whose status is the same.
func together(interrupts []Interrupt) []*several {
	var list []*several
	for _, i := range interrupts {
		same := find(list, func(s *several) bool {
			return s.Device == i.Device && s.VMID == i.VMID && s.Now.Equal(i.Now) && s.Refused == i.Refused
		})
		if same == nil {
			list = append(list, &several{Interrupt: i, count: 1})
			continue
		}
		(*same).count++
		(*same).PutBack += i.PutBack
	}
	return list
}
