package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// newStatusReport returns the status of a fleet, from its files, its history and a snapshot
// of Proxmox.
func newStatusReport(clusterID string, current *fleet.Fleet, snapshot *topology.Snapshot, entries []audit.Entry) *statusReport {
	r := &statusReport{ClusterID: clusterID, Pools: []poolStatus{}, Hosts: []hostStatus{}, VMs: []vmStatus{}}
	pools := map[string]*poolStatus{}
	for i := range current.VMs {
		vm := &current.VMs[i]
		state, drift := compare(vm, clusterID, snapshot)
		status := vmStatus{
			Name:         vm.Name,
			VMID:         vm.VMID,
			Host:         vm.Host,
			Pool:         vm.Pool,
			NodeClass:    vm.NodeClass,
			InstanceType: vm.InstanceType,
			Policy:       vm.Policy,
			VCPUs:        vm.VCPUs,
			MemoryMiB:    vm.MemoryMiB,
			CPUs:         vm.CPUs,
			State:        state,
		}
		for _, cell := range vm.Cells {
			status.NUMANodes = status.NUMANodes.Union(cell.HostNodes)
		}
		r.VMs = append(r.VMs, status)
		for _, what := range drift {
			r.Drift = append(r.Drift, driftStatus{VM: vm.Name, Host: vm.Host, What: what})
		}
		pool := pools[vm.Pool]
		if pool == nil {
			pool = &poolStatus{Name: vm.Pool}
			pools[vm.Pool] = pool
		}
		pool.VMs++
		pool.VCPUs += vm.VCPUs
		pool.MemoryMiB += vm.MemoryMiB
		if state == vmRunning {
			pool.Running++
		}
	}
	slices.SortFunc(r.VMs, func(a, b vmStatus) int { return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VMID, b.VMID)) })
	slices.SortStableFunc(r.Drift, func(a, b driftStatus) int { return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VM, b.VM)) })
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		r.Pools = append(r.Pools, *pools[name])
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		r.Hosts = append(r.Hosts, newHostStatus(host, vmsOn(current, host.ID()), clusterID))
	}
	if len(entries) > 0 {
		r.addLast(&entries[len(entries)-1])
	}
	r.addProblems(snapshot)
	return r
}

// addLast adds the last change.
func (r *statusReport) addLast(last *audit.Entry) {
	r.LastChange = &changeStatus{ID: last.Change.ID, Kind: string(last.Change.Kind), Why: last.Change.Why, Result: resultOf(last)}
	for _, open := range last.Unfinished() {
		r.Unfinished = append(r.Unfinished, open.Host)
	}
	for _, host := range last.Change.Hosts {
		if host.Error != "" {
			r.Failed = append(r.Failed, failedStatus{Host: host.Host, Error: host.Error})
		}
	}
	if last.Outcome == nil {
		return
	}
	for _, host := range last.Outcome.Hosts {
		if host.Error != "" {
			r.Failed = append(r.Failed, failedStatus{Host: host.Host, Error: host.Error})
		}
	}
}

// addProblems adds one problem for each kind of fault, with the hosts or VMs that have it.
func (r *statusReport) addProblems(snapshot *topology.Snapshot) {
	var problems doctor.Report
	for i := range r.Hosts {
		what := "offline: start it"
		switch {
		case r.Hosts[i].State == hostOnline:
			continue
		case r.Hosts[i].State == hostMaintenance:
			what = "in maintenance mode, so no new nodes are created there"
		case snapshot.Hosts[i].Problem != "":
			what = snapshot.Hosts[i].Problem
		}
		problems = append(problems, doctor.Finding{Where: r.Hosts[i].Host.String(), What: what})
	}
	for _, state := range []struct{ state, fix string }{
		{vmMissing, "missing from Proxmox: to re-create %[1]s, run numaform apply; to remove %[1]s from the fleet, run numaform remove"},
		{vmStopped, "stopped: start %[1]s in Proxmox; to remove %[1]s from the fleet, run numaform remove"},
	} {
		var names []string
		for i := range r.VMs {
			if r.VMs[i].State == state.state {
				names = append(names, r.VMs[i].Name)
			}
		}
		objects := "them"
		if len(names) == 1 {
			objects = "it"
		}
		for _, name := range names {
			problems = append(problems, doctor.Finding{Where: name, What: fmt.Sprintf(state.fix, objects)})
		}
	}
	r.Problems = append(r.Problems, linesOf(problems)...)
	if len(r.Unfinished) > 0 {
		var hosts []string
		for _, host := range r.Unfinished {
			hosts = append(hosts, host.String())
		}
		r.Problems = append(r.Problems, fmt.Sprintf("change %s is incomplete on %s: if no numaform process is running, run numaform apply to finish it",
			r.LastChange.ID, topology.Named(hosts)))
	}
}

// compare returns the state of a VM in Proxmox, and how it differs there from its file. It
// finds the VM by its key on each host of the region.
func compare(vm *fleet.VM, clusterID string, snapshot *topology.Snapshot) (state string, drift []string) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for j := range host.Guests {
			guest := &host.Guests[j]
			if host.Region != vm.Host.Region || guest.ClusterID != clusterID || fleet.Key(guest.Key) != vm.Key {
				continue
			}
			if host.ID() != vm.Host {
				drift = append(drift, fmt.Sprintf("on %s instead of %s", host.ID(), vm.Host))
			}
			if guest.VCPUs != vm.VCPUs {
				drift = append(drift, fmt.Sprintf("%d vCPUs instead of %d", guest.VCPUs, vm.VCPUs))
			}
			if guest.MemoryMiB != vm.MemoryMiB {
				drift = append(drift, fmt.Sprintf("%d MiB of memory instead of %d MiB", guest.MemoryMiB, vm.MemoryMiB))
			}
			if guest.Running && !guest.Pins.IsEmpty() && !guest.Pins.Equal(vm.CPUs) {
				drift = append(drift, fmt.Sprintf("pinned to CPUs %s instead of %s", guest.Pins, cmp.Or(vm.CPUs.String(), "none")))
			}
			switch {
			case guest.Lock != "":
				return vmLocked, nil // Proxmox is still changing the VM
			case guest.Running:
				return vmRunning, drift
			case vm.Standby:
				return vmStandby, drift
			default:
				return vmStopped, drift
			}
		}
	}
	if host := snapshot.Host(vm.Host); host == nil || !host.Online || host.Problem != "" {
		return vmUnknown, nil
	}
	return vmMissing, nil
}

// next returns the command to run next: the one that resolves the most urgent matter. If
// neither a cluster nor manifests are known, it is one that works without.
func (r *statusReport) next(o *options, pods podSource) string {
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
	case len(r.Locks) > 0 && r.Locks[0].Where != lockOfFleet:
		return "numaform doctor" + from // it reports how to release a lock whose holder is dead
	case len(r.Locks) > 0:
		return "numaform status" + from + " --watch"
	case len(r.Pending) > 0:
		return "numaform plans " + r.Pending[0].Name + clusterFlags(o.kubeconfig)
	case len(r.Unfinished) > 0 && pods.known:
		return "numaform apply" + pods.flags
	case len(r.Unfinished) > 0, len(r.Failed) > 0:
		return "numaform history" + from + " " + r.LastChange.ID
	case states[vmMissing] > 0 && pods.known:
		return "numaform plan" + pods.flags
	case len(r.Drift) > 0 || states[vmStopped]+states[vmMissing] > 0:
		return "numaform drift" + from
	case r.unread > 0 || hosts[hostOffline] > 0 || hosts[hostUnreadable] > 0, len(r.VMs) == 0 && !pods.known:
		return "numaform doctor" + from
	case len(r.VMs) == 0:
		return "numaform plan" + pods.flags
	}
	return "numaform get vms" + from
}

// mostHosts is the number of hosts up to which status lists each.
const mostHosts = 8

// status prints the report: the totals first, the next command last.
func (w *printer) status(r *statusReport, wide bool) {
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
	w.list(w.Paint(term.Red, "Failed"), linesOf(failed))
	var drift doctor.Report
	for _, d := range r.Drift {
		drift = append(drift, doctor.Finding{Where: d.VM, What: d.What})
	}
	w.list(w.Paint(term.Yellow, "Drift"), linesOf(drift))
	w.list("Locks", r.lockLines())
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
func (r *statusReport) lockLines() []string {
	type holder struct{ who, operation string }
	var holders []holder
	held := map[holder][]lockStatus{}
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
	if r.UnknownLocks != "" {
		lines = append(lines, "states: unknown: "+r.UnknownLocks+": to check them, run numaform doctor")
	}
	return lines
}

// statusTotals returns the first line of status.
func (w *printer) statusTotals(r *statusReport) string {
	states := map[string]int{}
	for i := range r.VMs {
		states[r.VMs[i].State]++
	}
	line := fmt.Sprintf("%s: %s", w.Bold(r.ClusterID), topology.Count(len(r.VMs), "VM"))
	for _, state := range []string{vmRunning, vmStandby, vmStopped, vmLocked, vmMissing, vmUnknown} {
		if n := states[state]; n > 0 {
			line += fmt.Sprintf(", %d %s", n, w.vmState(state))
		}
	}
	usable := 0
	for i := range r.Hosts {
		if r.Hosts[i].State == hostOnline {
			usable++
		}
	}
	line += fmt.Sprintf("; %d of %s online", usable, topology.Count(len(r.Hosts), "host"))
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
	case vmRunning:
		return w.Paint(term.Green, state)
	case vmMissing:
		return w.Paint(term.Red, state)
	case vmStandby:
		return state
	}
	return w.Paint(term.Yellow, state)
}

// linesOf returns each sentence once, with its places.
func linesOf(report doctor.Report) []string {
	var lines []string
	for _, finding := range report.Grouped() {
		lines = append(lines, finding.Line())
	}
	return lines
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
func (w *printer) regionTable(hosts []hostStatus) {
	sums := map[topology.RegionName][]int64{}
	for i := range hosts {
		h := &hosts[i]
		sum := sums[h.Host.Region]
		if sum == nil {
			sum = make([]int64, 9)
			sums[h.Host.Region] = sum
		}
		online, freeCPUs, freeMiB := int64(0), int64(0), int64(0)
		if h.State == hostOnline { // a VM can be placed only there
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
func (w *printer) vmTable(vms []vmStatus, wide bool) {
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
