package agent

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// startup is the number of seconds after a VM's start during which the agent does not report
// missing threads or an unreadable configuration.
const startup = 5

// round is the input and the decisions of one round.
type round struct {
	vms, containers []qemu.Guest
	// threads are the threads of VMs that have pins or may declare them, by VMID.
	threads map[int][]qemu.Thread
	pins    map[int]*claim.Pins
	// unpinned are VMs that lose their pins in this round.
	unpinned []qemu.Guest
	// restore are control groups to reset to their earlier CPUs.
	restore []Confinement
	// failed are the groups that could not be confined.
	failed map[string]error
	// moved is true once a control group was written, because that may move threads.
	moved bool
}

// readGuests reads the guests of the host.
func (a *Agent) readGuests() (*round, error) {
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
	var guests []claim.Guest
	for _, vm := range r.vms {
		guest := claim.Guest{
			VMID:        vm.VMID,
			Description: vm.Config.Description,
			Affinity:    vm.Config.Affinity,
			VCPUs:       qemu.VCPUs(r.threads[vm.VMID]),
		}
		switch {
		case errors.Is(vm.Err, fs.ErrNotExist):
			guest.Unread = "its configuration is not on this host: the guest is migrating, or /etc/pve is not mounted (systemctl status pve-cluster)"
		case vm.Err != nil:
			guest.Unread = vm.Err.Error()
		}
		if last := a.state.guest(vm.Run); last != nil {
			guest.Current = last.Pins
		}
		guests = append(guests, guest)
	}
	for _, container := range r.containers {
		guests = append(guests, claim.Guest{VMID: container.VMID, Affinity: container.Config.Affinity})
	}

	decisions := claim.Decide(a.host, claim.Rules{
		Clusters:   a.Settings.Clusters,
		MaxPercent: a.Settings.MaxPinnedPercent,
		Reserved:   a.Settings.ReservedCPUs,
		Emulator:   a.Settings.Emulator,
	}, guests)
	byVMID := map[int]claim.Decision{}
	pinned := topology.CPUSet{}
	for _, decision := range decisions {
		byVMID[decision.VMID] = decision
		pinned = pinned.Union(decision.Pins.Set())
	}
	next := State{
		Format:           stateFormat,
		Version:          a.Version,
		Agent:            a.self,
		Isolation:        a.Settings.Isolation,
		Online:           a.host.Online(),
		Pinned:           pinned,
		Shared:           a.host.Shared(pinned),
		Guests:           []Guest{},
		Intruders:        a.state.Intruders,
		GovernorNote:     a.governorNote(),
		Clusters:         a.Settings.Clusters,
		MaxPinnedPercent: a.Settings.MaxPinnedPercent,
		Reserved:         a.Settings.ReservedCPUs,
		Problem:          a.state.Problem,
		Looked:           a.state.Looked,
	}

	for _, vm := range r.vms {
		decision := byVMID[vm.VMID]
		guest := Guest{Run: vm.Run, Pins: decision.Pins, Refused: decision.Refused}
		if last := a.state.guest(vm.Run); last != nil {
			guest.PutBack = last.PutBack
			if last.Pins != nil && guest.Pins == nil {
				r.unpinned = append(r.unpinned, vm)
			}
		}
		// While a VM starts, it may still lack vCPU threads or a readable configuration.
		if guest.Pins == nil && guest.Refused != nil && a.reader.Age(vm.Run) < startup {
			if reason := guest.Refused.Reason; reason == claim.ReasonVCPUs || reason == claim.ReasonUnread {
				guest.Starting = true
				guest.Refused = nil
			}
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

// logChanges logs the differences from the state before: one line for each change, and
// none for a round without changes.
func (a *Agent) logChanges(before *State) {
	a.logPins(before)
	a.logIntruders(before)

	for _, c := range a.state.Confined {
		if last := before.confinement(c.Group); last == nil || !last.Now.Equal(c.Now) {
			a.Log.Info("confined control group", "group", c.Group, "cpus", c.Now.String())
		}
	}
	for _, c := range before.Confined {
		if a.state.confinement(c.Group) == nil {
			a.Log.Info("restored control group", "group", c.Group, "cpus", c.Was)
		}
	}
	if note := a.state.GovernorNote; note != "" && note != before.GovernorNote {
		a.Log.Warn("governors are not set", logkey.Message, note)
	}
}

// logPins logs guests whose pins changed or were refused.
func (a *Agent) logPins(before *State) {
	for i := range a.state.Guests {
		guest := &a.state.Guests[i]
		last := before.guest(guest.Run)
		if last == nil {
			last = &Guest{}
		}
		switch {
		case guest.Pins != nil && !guest.Pins.Equal(last.Pins):
			a.Log.Info("pinned guest", logkey.VMID, guest.VMID, "cpus", cpuList(guest.Pins), "emulator", string(guest.Pins.Emulator),
				"cluster", guest.Pins.ClusterID, logkey.Key, string(guest.Pins.Key))
		case guest.Pins == nil && last.Pins != nil:
			a.Log.Info("unpinned guest", logkey.VMID, guest.VMID, "runs", true)
		}
		if refused := guest.Refused; refused != nil && (last.Refused == nil || *last.Refused != *refused) {
			a.Log.Warn("pins refused", logkey.VMID, guest.VMID, logkey.Reason, string(refused.Reason), logkey.Message, refused.Text,
				"keeps", cpuList(guest.Pins))
		}
	}
	for _, guest := range before.Guests {
		if guest.Pins != nil && a.state.guest(guest.Run) == nil {
			a.Log.Info("unpinned guest", logkey.VMID, guest.VMID, "runs", a.reader.Alive(guest.Run))
		}
	}
}

// logIntruders logs guests that begin or cease to run on pinned CPUs.
func (a *Agent) logIntruders(before *State) {
	for _, intruder := range a.state.Intruders {
		same := func(other Intruder) bool {
			return intruder.VMID == other.VMID && intruder.CPUs.Equal(other.CPUs) && intruder.Text == other.Text
		}
		if !slices.ContainsFunc(before.Intruders, same) {
			why := cmp.Or(intruder.Text, "isolation is "+string(a.Settings.Isolation))
			a.Log.Warn("guest may run on pinned CPUs", logkey.VMID, intruder.VMID, "cpus", intruder.CPUs.String(), logkey.Message, why)
		}
	}
	for _, intruder := range before.Intruders {
		if find(a.state.Intruders, func(other Intruder) bool { return other.VMID == intruder.VMID }) == nil {
			a.Log.Info("guest can no longer run on pinned CPUs", logkey.VMID, intruder.VMID)
		}
	}
}

// cpuList formats the CPUs in vCPU order.
func cpuList(pins *claim.Pins) string {
	if pins == nil {
		return ""
	}
	texts := make([]string, len(pins.CPUs))
	for i, cpu := range pins.CPUs {
		texts[i] = strconv.Itoa(cpu)
	}
	return strings.Join(texts, ",")
}
