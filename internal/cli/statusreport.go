package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// nextAfter returns the command to run next: the one that resolves the most urgent matter. If
// neither a cluster nor manifests are known, it is one that works without. unread is the
// number of regions that do not respond.
func nextAfter(r *status.Report, unread int, o *options, pods podSource) string {
	from := o.source()
	states := map[string]int{}
	for i := range r.VMs {
		states[r.VMs[i].State]++
	}
	hosts := map[string]int{}
	for i := range r.Hosts {
		hosts[r.Hosts[i].State]++
	}
	switch {
	case len(r.Locks) > 0 && r.Locks[0].Where != status.FleetLock:
		return "numaform doctor" + from // it reports how to release a lock whose holder is dead
	case len(r.Locks) > 0:
		return "numaform status" + from + " --watch"
	case len(r.Pending) > 0:
		return "numaform plans " + r.Pending[0].Name + clusterFlags(o.kubeconfig)
	case len(r.Unfinished) > 0 && pods.known:
		return "numaform apply" + pods.flags
	case len(r.Unfinished) > 0, len(r.Failed) > 0:
		return "numaform history" + from + " " + r.LastChange.ID
	case states[status.VMMissing] > 0 && pods.known:
		return "numaform plan" + pods.flags
	case len(r.Drift) > 0 || states[status.VMStopped]+states[status.VMMissing] > 0:
		return "numaform drift" + from
	case unread > 0 || hosts[status.HostOffline] > 0 || hosts[status.HostUnreadable] > 0, len(r.VMs) == 0 && !pods.known:
		return "numaform doctor" + from
	case len(r.VMs) == 0:
		return "numaform plan" + pods.flags
	}
	return "numaform get vms" + from
}

// mostHosts is the number of hosts up to which status lists each.
const mostHosts = 8

// status prints the report: the totals first, the next command last.
func (w *printer) status(r *status.Report, wide bool) {
	w.printf("%s\n", w.statusTotals(r))
	if len(r.Pools) > 0 {
		var rows [][]string
		for _, pool := range r.Pools {
			rows = append(rows, []string{pool.Name, fmt.Sprint(pool.VMs), fmt.Sprint(pool.Running), fmt.Sprint(pool.VCPUs), wholeGiB(pool.MemoryMiB)})
		}
		w.raw("\n")
		w.columns([]column{{title: "NODEPOOL"}, {title: "VMS"}, {title: "RUNNING"}, {title: "VCPUS"}, {title: "GIB"}}, rows, false)
	}
	if len(r.Hosts) > 0 {
		w.raw("\n")
		if len(r.Hosts) > mostHosts && !wide {
			w.regionTable(r.Hosts)
		} else {
			w.hostTable(r.Hosts, wide)
		}
	}

	if r.Paused {
		w.list(w.Paint(term.Yellow, "Paused"), []string{
			fmt.Sprintf("by %s: the controller starts no changes; to continue, run numaform resume", cmp.Or(r.PausedBy, "an unknown user")),
		})
	}
	var evacuated []string
	for _, host := range r.Evacuated {
		evacuated = append(evacuated, fmt.Sprintf("%s: it gets no new nodes; to end the evacuation, run numaform evacuate %s --end", host, host))
	}
	w.list("Being evacuated", evacuated)
	var lines []string
	for _, plan := range r.Pending {
		lines = append(lines, fmt.Sprintf("%s: %s, until %s", plan.Name, plan.Summary, plan.Expires.Format(time.RFC3339)))
	}
	w.list("Pending approval", lines)
	var failed doctor.Report
	for _, f := range r.Failed {
		text, _, _ := strings.Cut(f.Error, "\n")
		failed = append(failed, doctor.Finding{Where: f.Host.String(), What: strings.TrimPrefix(text, "host "+f.Host.String()+": ")})
	}
	w.list(w.Paint(term.Red, "Failed"), failed.Lines())
	var drift doctor.Report
	for _, d := range r.Drift {
		drift = append(drift, doctor.Finding{Where: d.VM, What: d.What})
	}
	w.list(w.Paint(term.Yellow, "Drift"), drift.Lines())
	w.list("Locks", lockLines(r))
	w.list(w.Paint(term.Red, "Problems"), r.Problems)
	if c := r.LastChange; c != nil {
		w.list("Last change", []string{fmt.Sprintf("%s: %s, %s: %s", c.ID, c.Kind, c.Result, c.Why)})
	}
	if r.Checkpoints != "" {
		w.list("History", []string{r.Checkpoints})
	}
	w.raw("\n")
	w.nextCommand(r.Next)
}

// lockLines returns a line for each holder of locks.
func lockLines(r *status.Report) []string {
	type holder struct{ who, operation string }
	var holders []holder
	held := map[holder][]status.Lock{}
	for _, lock := range r.Locks {
		by := holder{who: lock.Holder, operation: lock.Operation}
		if held[by] == nil {
			holders = append(holders, by)
		}
		held[by] = append(held[by], lock)
	}
	var lines []string
	for _, by := range holders {
		var places []string
		since, most := held[by][0].Since, held[by][0].Since
		for _, lock := range held[by] {
			places = append(places, lock.Where)
			if lock.Since.Before(since) {
				since = lock.Since
			}
			if lock.Since.After(most) {
				most = lock.Since
			}
		}
		line := topology.Named(places) + ": held by " + by.who
		if !since.IsZero() {
			line += " since " + since.UTC().Format(time.RFC3339)
		}
		if most.After(since) {
			line += " or later"
		}
		if by.operation != "" {
			line += " for " + by.operation
		}
		lines = append(lines, line)
	}
	if slices.ContainsFunc(r.Locks, func(lock status.Lock) bool { return lock.Where != status.FleetLock }) {
		lines = append(lines, "if the holder of a state is dead: numaform unlock HOST")
	}
	if r.UnknownLocks != "" {
		lines = append(lines, "states: unknown: "+r.UnknownLocks+": to check them, run numaform doctor")
	}
	return lines
}

// statusTotals returns the first line of status.
func (w *printer) statusTotals(r *status.Report) string {
	states := map[string]int{}
	for i := range r.VMs {
		states[r.VMs[i].State]++
	}
	line := fmt.Sprintf("%s: %s", w.Bold(r.ClusterID), topology.Count(len(r.VMs), "VM"))
	for _, state := range []string{status.VMRunning, status.VMStandby, status.VMStopped, status.VMLocked, status.VMMissing, status.VMUnknown} {
		if n := states[state]; n > 0 {
			line += fmt.Sprintf(", %d %s", n, w.vmState(state))
		}
	}
	usable := 0
	for i := range r.Hosts {
		if r.Hosts[i].State == status.HostOnline {
			usable++
		}
	}
	line += fmt.Sprintf("; %d of %s online", usable, topology.Count(len(r.Hosts), "host"))
	if r.Paused {
		line += "; " + w.Paint(term.Yellow, "paused")
	}
	failed, drifted := map[topology.HostID]bool{}, map[string]bool{}
	for _, f := range r.Failed {
		failed[f.Host] = true
	}
	for _, d := range r.Drift {
		drifted[d.VM] = true
	}
	for _, matter := range []struct {
		n    int
		what string
	}{
		{len(r.Pending), "pending approval"}, {len(failed), "failed"}, {len(drifted), "drifted"}, {len(r.Locks), "locked"},
	} {
		if matter.n > 0 {
			line += fmt.Sprintf("; %d %s", matter.n, matter.what)
		}
	}
	return line
}

// vmState returns a VM's state in its color.
func (w *printer) vmState(state string) string {
	switch state {
	case status.VMRunning:
		return w.Paint(term.Green, state)
	case status.VMMissing:
		return w.Paint(term.Red, state)
	case status.VMStandby:
		return state
	}
	return w.Paint(term.Yellow, state)
}

// list prints lines below a title, or nothing.
func (w *printer) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	w.printf("\n%s\n", w.Bold(title))
	for _, line := range lines {
		w.printf("  %s\n", line)
	}
}

// nextCommand prints the command to run next.
func (w *printer) nextCommand(command string) {
	w.raw("Next: " + w.Command(command, len("Next: ")) + "\n")
}

// regionTable prints a row for each region with the sums of its hosts.
func (w *printer) regionTable(hosts []status.Host) {
	sums := map[topology.RegionName][]int64{}
	for i := range hosts {
		h := &hosts[i]
		sum := sums[h.Host.Region]
		if sum == nil {
			sum = make([]int64, 9)
			sums[h.Host.Region] = sum
		}
		online, freeCPUs, freeMiB := int64(0), int64(0), int64(0)
		if h.State == status.HostOnline { // a VM can be placed only there
			online, freeCPUs, freeMiB = 1, int64(h.FreeCPUs), h.FreeMemoryMiB
		}
		for j, n := range []int64{1, online, int64(h.CPUs), freeCPUs, h.MemoryMiB, freeMiB, int64(h.VMs), int64(h.Shared), int64(h.Others)} {
			sum[j] += n
		}
	}
	var rows [][]string
	for _, region := range slices.Sorted(maps.Keys(sums)) {
		row := []string{string(region)}
		for i, n := range sums[region] {
			if i == 4 || i == 5 {
				n /= 1024
			}
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, row)
	}
	w.columns([]column{
		{title: "REGION"},
		{title: "HOSTS"},
		{title: "ONLINE"},
		{title: "CPUS", drop: 3},
		{title: "FREE CPUS"},
		{title: "GIB", drop: 3},
		{title: "FREE GIB"},
		{title: "VMS"},
		{title: "SHARED", drop: 2},
		{title: "OTHERS", drop: 1},
	}, rows, false)
}

// vmTable prints a row for each VM.
func (w *printer) vmTable(vms []status.VM, wide bool) {
	if len(vms) == 0 {
		w.printf("The fleet has no VMs.\n")
		return
	}
	columns := []column{
		{title: "NAME"},
		{title: "STATE"},
		{title: "HOST"},
		{title: "POOL", drop: 4},
		{title: "VCPUS", drop: 3},
		{title: "MEMORY", drop: 3},
		{title: "CPUS", drop: 2, text: true},
	}
	if wide {
		columns = append(columns, column{title: "NUMA"}, column{title: "VMID"}, column{title: "TYPE"}, column{title: "CLASS"}, column{title: "POLICY"})
	}
	var rows [][]string
	for i := range vms {
		vm := &vms[i]
		row := []string{
			vm.Name, w.vmState(vm.State), vm.Host.String(), vm.Pool, fmt.Sprint(vm.VCPUs), gib(vm.MemoryMiB), cmp.Or(vm.CPUs.String(), "shared"),
		}
		if wide {
			row = append(row, vm.NUMANodes.String(), fmt.Sprint(vm.VMID), vm.InstanceType, vm.NodeClass, string(vm.Policy))
		}
		rows = append(rows, row)
	}
	w.columns(columns, rows, wide)
}
