package agent

import (
	"errors"
	"io/fs"
	"maps"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// startup is how many seconds a VM may lack threads before that is reported.
const startup = 5

// round is what the agent read and decided in one round.
type round struct {
	vms, containers []qemu.Guest
	// threads are the threads of VMs that have pins or may declare them, by VMID.
	threads map[int][]qemu.Thread
	pins    map[int]*claim.Pins
	// unpinned are VMs that had pins and lose them.
	unpinned []qemu.Guest
	// restore are control groups to reset to their earlier CPUs.
	restore []Confinement
	// failed are the groups that could not be confined.
	failed map[string]error
	// moved is set once a control group was written, because that may move threads.
	moved bool
}

// look reads the host.
func (a *Agent) look() (*round, error) {
	r := &round{threads: map[int][]qemu.Thread{}, pins: map[int]*claim.Pins{}, failed: map[string]error{}}
	var err error
	if r.vms, err = a.reader.Running(); err != nil {
		return nil, err
	}
	if r.containers, err = a.reader.Containers(a.groups.Dir); err != nil {
		return nil, err
	}
	for _, vm := range r.vms {
		if a.state.guest(vm.Run) == nil && !strings.Contains(vm.Config.Description, " pins=") {
			continue
		}
		// A VM that is stopping has no threads, and gets no pins.
		if r.threads[vm.VMID], err = a.reader.Threads(vm.Run); err != nil {
			a.Log.Debug("threads not read", logkey.VMID, vm.VMID, logkey.Message, err.Error())
		}
	}
	return r, nil
}

// plan evaluates the declarations and writes the plan into the state.
func (a *Agent) plan(r *round) {
	verdicts := claim.Judge(a.host, a.Settings.rules(), a.cases(r))
	byVMID := map[int]claim.Verdict{}
	var pinned []int
	for _, verdict := range verdicts {
		byVMID[verdict.VMID] = verdict
		pinned = append(pinned, verdict.Pins.Set().List()...)
	}
	next := State{
		Format: stateFormat, Version: a.Version, Agent: a.self, Isolation: a.Settings.Isolation,
		Online: a.host.Online(), Pinned: topology.CPUs(pinned...), Shared: a.host.Shared(verdicts),
		Guests: []Guest{}, Intruders: a.state.Intruders, Problem: a.state.Problem, Looked: a.state.Looked,
		Clusters: a.Settings.Clusters, MaxPinnedPercent: a.Settings.MaxPinnedPercent, Reserved: a.Settings.ReservedCPUs,
		GovernorNote: a.governorNote(),
	}
	for _, vm := range r.vms {
		verdict, last := byVMID[vm.VMID], a.state.guest(vm.Run)
		guest := Guest{Run: vm.Run, Pins: verdict.Pins, Refused: verdict.Refused}
		if last != nil {
			guest.PutBack = last.PutBack
			if last.Pins != nil && guest.Pins == nil {
				r.unpinned = append(r.unpinned, vm)
			}
		}
		if a.starting(vm, verdict) {
			guest.Starting, guest.Refused = true, nil
		}
		r.pins[vm.VMID] = guest.Pins
		if guest.Pins != nil || guest.Refused != nil || guest.Starting {
			next.Guests = append(next.Guests, guest)
		}
	}
	next.Confined = a.confinements(r, &next)
	next.Governors = a.governors(&next)
	next.Interrupts = a.interrupts(&next)
	a.state = next
}

// cases converts the guests for package claim.
func (a *Agent) cases(r *round) []claim.Guest {
	var cases []claim.Guest
	for _, vm := range r.vms {
		guest := claim.Guest{
			VMID: vm.VMID, Description: vm.Config.Description, Affinity: vm.Config.Affinity,
			VCPUs: qemu.VCPUs(r.threads[vm.VMID]), Unread: unread(vm.Err),
		}
		if last := a.state.guest(vm.Run); last != nil {
			guest.Held = last.Pins
		}
		cases = append(cases, guest)
	}
	for _, container := range r.containers {
		cases = append(cases, claim.Guest{VMID: container.VMID, Affinity: container.Config.Affinity})
	}
	return cases
}

func unread(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "its configuration is not on this host: it is on its way here, or /etc/pve is not mounted (systemctl status pve-cluster)"
	default:
		return err.Error()
	}
}

// starting reports whether the reason for a refusal will pass once a new VM has started.
func (a *Agent) starting(vm qemu.Guest, verdict claim.Verdict) bool {
	if verdict.Refused == nil || verdict.Pins != nil {
		return false
	}
	reason := verdict.Refused.Reason
	return (reason == claim.ReasonVCPUs || reason == claim.ReasonUnread) && a.reader.Age(vm.Run) < startup
}

// place moves the threads of VMs with pins, and releases the threads of VMs that lost
// theirs.
func (a *Agent) place(r *round) {
	for _, vm := range r.unpinned {
		threads, err := a.reader.Threads(vm.Run)
		if err == nil {
			_, err = qemu.Place(a.Affinities, threads, qemu.Wanted{Others: vm.Config.Affinity})
		}
		if err != nil && a.reader.Alive(vm.Run) {
			a.Log.Error("threads not released", logkey.VMID, vm.VMID, logkey.Message, err.Error())
		}
	}
	for i := range a.state.Guests {
		if guest := &a.state.Guests[i]; guest.Pins != nil {
			a.pin(r, guest)
		}
	}
	a.forget()
}

// pin moves the threads of a VM to their CPUs. If a vCPU is elsewhere although it was
// placed before, something else moved it.
func (a *Agent) pin(r *round, guest *Guest) {
	wanted := qemu.Wanted{VCPUs: guest.Pins.CPUs, Others: guest.Pins.Set()}
	if guest.Pins.Emulator == fleet.EmulatorShared {
		wanted.Others = a.state.Shared
	}
	moved, err := qemu.Place(a.Affinities, r.threads[guest.VMID], wanted)
	if err != nil {
		delete(a.placed, guest.Run)
		if a.reader.Alive(guest.Run) {
			guest.Refused = &claim.Refusal{Reason: claim.ReasonFailed, Text: err.Error()}
		}
		return
	}
	if moved > 0 && !r.moved && a.placed[guest.Run].Equal(guest.Pins) {
		guest.PutBack++
		a.Log.Warn("vCPUs had been moved, put back", logkey.VMID, guest.VMID, "vcpus", moved, "cpus", cpuList(guest.Pins))
	}
	a.placed[guest.Run] = guest.Pins
}

// forget drops the memory of VMs that ended or have no pins.
func (a *Agent) forget() {
	maps.DeleteFunc(a.placed, func(run qemu.Run, _ *claim.Pins) bool {
		guest := a.state.guest(run)
		return guest == nil || guest.Pins == nil
	})
}
