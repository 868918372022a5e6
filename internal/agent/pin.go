package agent

import (
	"maps"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/logkey"
)

// place moves the threads of VMs with pins, and releases the threads of VMs that lost
// their pins.
func (a *Agent) place(r *round) {
	for _, vm := range r.unpinned {
		threads, err := a.reader.Threads(vm.Run)
		if err == nil {
			_, err = qemu.Place(a.Affinities, threads, qemu.Target{Others: vm.Config.Affinity})
		}
		if err != nil && a.reader.Alive(vm.Run) {
			a.Log.Error("threads not released", logkey.VMID, vm.VMID, logkey.Message, err.Error())
		}
	}

	for i := range a.state.Guests {
		guest := &a.state.Guests[i]
		if guest.Pins == nil {
			continue
		}
		target := qemu.Target{VCPUs: guest.Pins.CPUs, Others: guest.Pins.Set()}
		if guest.Pins.Emulator == fleet.EmulatorShared {
			target.Others = a.state.Shared
		}
		moved, err := qemu.Place(a.Affinities, r.threads[guest.VMID], target)
		if err != nil {
			delete(a.placed, guest.Run)
			if a.reader.Alive(guest.Run) {
				guest.Refused = &claim.Refusal{Reason: claim.ReasonFailed, Text: err.Error()}
			}
			continue
		}
		// If a vCPU is elsewhere although it was placed before, another program moved it.
		if moved > 0 && !r.moved && a.placed[guest.Run].Equal(guest.Pins) {
			guest.PutBack++
			a.Log.Warn("restored vCPUs that another program moved", logkey.VMID, guest.VMID, "vcpus", moved, "cpus", cpuList(guest.Pins))
		}
		a.placed[guest.Run] = guest.Pins
	}
	maps.DeleteFunc(a.placed, func(run qemu.Run, _ *claim.Pins) bool {
		guest := a.state.guest(run)
		return guest == nil || guest.Pins == nil
	})
}
