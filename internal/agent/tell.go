package agent

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/logkey"
)

// tell logs the differences to the state before: one line for each change, and none for a
// round without changes.
func (a *Agent) tell(before State) {
	for i := range a.state.Guests {
		a.tellGuest(before.guest(a.state.Guests[i].Run), &a.state.Guests[i])
	}
	for _, guest := range before.Guests {
		if guest.Pins != nil && a.state.guest(guest.Run) == nil {
			a.Log.Info("unpinned guest", logkey.VMID, guest.VMID, "runs", a.reader.Alive(guest.Run))
		}
	}
	a.tellIntruders(before.Intruders)
	a.tellGroups(before)
	if note := a.state.GovernorNote; note != "" && note != before.GovernorNote {
		a.Log.Warn("governors are not set", logkey.Message, note)
	}
}

func (a *Agent) tellGroups(before State) {
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
}

func (a *Agent) tellGuest(last, now *Guest) {
	if last == nil {
		last = &Guest{}
	}
	switch {
	case now.Pins != nil && !now.Pins.Equal(last.Pins):
		a.Log.Info("pinned guest", logkey.VMID, now.VMID, "cpus", cpuList(now.Pins), "emulator", string(now.Pins.Emulator),
			"cluster", now.Pins.ClusterID, logkey.Key, string(now.Pins.Key))
	case now.Pins == nil && last.Pins != nil:
		a.Log.Info("unpinned guest", logkey.VMID, now.VMID, "runs", true)
	}
	if refused := now.Refused; refused != nil && (last.Refused == nil || *last.Refused != *refused) {
		a.Log.Warn("pins refused", logkey.VMID, now.VMID, logkey.Reason, string(refused.Reason), logkey.Message, refused.Text,
			"keeps", cpuList(now.Pins))
	}
}

func (a *Agent) tellIntruders(before []Intruder) {
	same := func(x, y Intruder) bool { return x.VMID == y.VMID && x.CPUs.Equal(y.CPUs) && x.Text == y.Text }
	for _, intruder := range a.state.Intruders {
		if !slices.ContainsFunc(before, func(other Intruder) bool { return same(intruder, other) }) {
			why := cmp.Or(intruder.Text, "isolation is "+string(a.Settings.Isolation))
			a.Log.Warn("guest may run on pinned CPUs", logkey.VMID, intruder.VMID, "cpus", intruder.CPUs.String(), logkey.Message, why)
		}
	}
	for _, intruder := range before {
		if !slices.ContainsFunc(a.state.Intruders, func(other Intruder) bool { return other.VMID == intruder.VMID }) {
			a.Log.Info("guest keeps off pinned CPUs", logkey.VMID, intruder.VMID)
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
