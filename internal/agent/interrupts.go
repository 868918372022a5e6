package agent

import (
	"fmt"
	"slices"

	"github.com/numaform/numaform/internal/agent/irq"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// Interrupts says where the interrupts of passed-through PCI devices are handled.
type Interrupts string

// The places.
const (
	// InterruptsOff leaves them where they are.
	InterruptsOff Interrupts = "off"
	// InterruptsGuest moves those of pinned VMs to the CPUs of the VM.
	InterruptsGuest Interrupts = "guest"
)

func (i Interrupts) check() error {
	if i != InterruptsOff && i != InterruptsGuest {
		return fmt.Errorf("irqs: %q is not known: write off or guest", string(i))
	}
	return nil
}

// Interrupt is one of a passed-through device, and was moved by the agent.
type Interrupt struct {
	IRQ    int             `json:"irq"`
	Device string          `json:"device"`
	VMID   int             `json:"vmid"`
	Was    topology.CPUSet `json:"was"`
	Now    topology.CPUSet `json:"now"`
	// Free is true once the VM has no pins.
	Free bool `json:"free,omitempty"`
	// PutBack counts how often it was elsewhere: somebody had moved it, or the guest's
	// driver had asked for it anew.
	PutBack int `json:"put_back,omitempty"`
	// Refused says why it is not on the CPUs Now: that is not tried again.
	Refused string `json:"refused,omitempty"`
}

func (i *Interrupt) is(other Interrupt) bool { return i.IRQ == other.IRQ && i.Device == other.Device }

// interrupts returns those that the agent holds, is to hold, or is to give back. Those
// that the guest's driver gave up, or whose VM ended, are the kernel's again.
func (a *Agent) interrupts(next *State) []Interrupt {
	held := a.wantedInterrupts(next)
	for _, last := range a.state.Interrupts {
		if find(held, last.is) == nil && a.irqs.Owns(last.Device, last.IRQ) {
			last.moveTo(last.Was)
			last.Free = true
			held = append(held, last)
		}
	}
	slices.SortFunc(held, func(x, y Interrupt) int { return x.IRQ - y.IRQ })
	return held
}

// moveTo changes where it is to be; then what refused is asked once more.
func (i *Interrupt) moveTo(cpus topology.CPUSet) {
	if !i.Now.Equal(cpus) {
		i.Now, i.Refused = cpus, ""
	}
}

func (a *Agent) wantedInterrupts(next *State) []Interrupt {
	wanted := []Interrupt{}
	for device, guest := range a.devices(next) {
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
				continue // it was given up since
			}
			i.VMID, i.Free = guest.VMID, false
			i.moveTo(guest.Pins.Set())
			wanted = append(wanted, i)
		}
	}
	return wanted
}

// devices returns the devices whose interrupts are to be moved, with their VMs. One that
// two VMs seem to have is left out.
func (a *Agent) devices(next *State) map[string]*Guest {
	owners := map[string]*Guest{}
	if a.Settings.IRQs != InterruptsGuest {
		return owners
	}
	twice := map[string]bool{}
	for i := range next.Guests {
		guest := &next.Guests[i]
		if guest.Pins == nil {
			continue
		}
		devices, err := a.reader.Devices(guest.Run)
		if err != nil {
			continue // it is ending
		}
		for _, device := range devices {
			twice[device] = owners[device] != nil
			owners[device] = guest
		}
	}
	for device, is := range twice {
		if is {
			delete(owners, device)
		}
	}
	return owners
}

// steer moves interrupts, and forgets those that are back where they were.
func (a *Agent) steer() {
	var moved []Interrupt
	for n := range a.state.Interrupts {
		i := &a.state.Interrupts[n]
		if i.Refused != "" {
			continue
		}
		wrote, err := a.move(i)
		if err != nil && a.irqs.Owns(i.Device, i.IRQ) {
			i.Refused = err.Error()
			a.Log.Warn("interrupt not moved", logkey.VMID, i.VMID, "irq", i.IRQ, "device", i.Device, logkey.Message, i.Refused)
		}
		if wrote && err == nil {
			moved = append(moved, *i)
		}
	}
	for _, s := range together(moved) {
		a.Log.Info("moved interrupts", logkey.VMID, s.VMID, "device", s.Device, "irqs", s.count, "cpus", s.Now.String())
	}
	a.state.Interrupts = slices.DeleteFunc(a.state.Interrupts, func(i Interrupt) bool { return i.Free && i.Refused == "" })
	for number := range a.steered {
		if find(a.state.Interrupts, func(i Interrupt) bool { return i.IRQ == number }) == nil {
			delete(a.steered, number)
		}
	}
}

// move reports whether there was need to, but for what somebody else had moved.
func (a *Agent) move(i *Interrupt) (bool, error) {
	now, err := a.irqs.CPUs(i.IRQ)
	if err != nil {
		return false, err
	}
	last := a.steered[i.IRQ]
	putBack := last != nil && last.is(*i) && last.Now.Equal(i.Now)
	done := *i
	a.steered[i.IRQ] = &done
	if now.Equal(i.Now) {
		return false, nil
	}
	if putBack {
		i.PutBack++
	}
	if putBack && i.PutBack == 1 {
		a.Log.Warn("interrupt had been moved, put back; further times are counted only", logkey.VMID, i.VMID, "irq", i.IRQ,
			"device", i.Device, "had", now.String(), "cpus", i.Now.String())
	}
	return !putBack, a.irqs.Move(i.IRQ, i.Now)
}

// several are interrupts of one device that are in one place for one reason.
type several struct {
	Interrupt
	count int
}

// together sums up interrupts of which the same is to be said.
func together(interrupts []Interrupt) []*several {
	var list []*several
	for _, i := range interrupts {
		same := find(list, func(s *several) bool {
			return s.Device == i.Device && s.VMID == i.VMID && s.Now.Equal(i.Now) && (s.Refused == "") == (i.Refused == "")
		})
		if same == nil {
			list = append(list, &several{i, 1})
			continue
		}
		(*same).count++
		(*same).PutBack += i.PutBack
	}
	return list
}

// checkInterrupt checks what the state file says of one: it is written to.
func checkInterrupt(i Interrupt) error {
	if i.IRQ < 0 || !irq.KnownDevice(i.Device) {
		return fmt.Errorf("interrupt %d of %q is none of a device", i.IRQ, i.Device)
	}
	return nil
}
