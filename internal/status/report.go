package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/topology"
)

// New returns the status of a fleet, from its files, its history and a snapshot of Proxmox.
func New(clusterID string, current *fleet.Fleet, snapshot *topology.Snapshot, entries []audit.Entry) *Report {
	r := &Report{ClusterID: clusterID, Pools: []Pool{}, Hosts: []Host{}, VMs: []VM{}}
	pools := map[string]*Pool{}
	byHost := map[topology.HostID][]fleet.VM{}
	existing := guestsOf(clusterID, snapshot)
	for i := range current.VMs {
		vm := &current.VMs[i]
		byHost[vm.Host] = append(byHost[vm.Host], *vm)
		var guest *foundGuest
		for _, found := range existing[vm.Key] {
			if vm.IsGuest(clusterID, found.host.Region, found.Guest) {
				guest = &found
				break
			}
		}
		state, drift := compare(vm, guest, snapshot)
		one := VM{
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
			one.NUMANodes = one.NUMANodes.Union(cell.HostNodes)
		}
		r.VMs = append(r.VMs, one)
		for _, what := range drift {
			r.Drift = append(r.Drift, Drift{VM: vm.Name, Host: vm.Host, What: what})
		}
		pool := pools[vm.Pool]
		if pool == nil {
			pool = &Pool{Name: vm.Pool}
			pools[vm.Pool] = pool
		}
		pool.VMs++
		pool.VCPUs += vm.VCPUs
		pool.MemoryMiB += vm.MemoryMiB
		if state == VMRunning {
			pool.Running++
		}
	}
	slices.SortFunc(r.VMs, func(a, b VM) int { return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VMID, b.VMID)) })
	slices.SortStableFunc(r.Drift, func(a, b Drift) int { return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VM, b.VM)) })
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		r.Pools = append(r.Pools, *pools[name])
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		r.Hosts = append(r.Hosts, NewHost(host, byHost[host.ID()], clusterID))
	}
	if len(entries) > 0 {
		r.addLast(&entries[len(entries)-1])
	}
	r.addProblems(snapshot)
	return r
}

// AddPending adds the changes that are pending approval, by name.
func (r *Report) AddPending(plans []v1alpha1.ScalePlan) {
	for i := range plans {
		if plan := &plans[i]; Phase(plan) == v1alpha1.ScalePlanPending {
			r.Pending = append(r.Pending, Pending{Name: plan.Name, Summary: plan.Spec.Summary, Expires: plan.Spec.ExpiresAt.UTC()})
		}
	}
	slices.SortFunc(r.Pending, func(a, b Pending) int { return cmp.Compare(a.Name, b.Name) })
}

// addLast adds the last change.
func (r *Report) addLast(last *audit.Entry) {
	r.LastChange = &Change{ID: last.Change.ID, Kind: string(last.Change.Kind), Why: last.Change.Why, Result: Result(last)}
	for _, open := range last.Unfinished() {
		r.Unfinished = append(r.Unfinished, open.Host)
	}
	for _, host := range last.Change.Hosts {
		if host.Error != "" {
			r.Failed = append(r.Failed, Failed{Host: host.Host, Error: host.Error})
		}
	}
	if last.Outcome == nil {
		return
	}
	for _, host := range last.Outcome.Hosts {
		if host.Error != "" {
			r.Failed = append(r.Failed, Failed{Host: host.Host, Error: host.Error})
		}
	}
}

// addProblems adds one problem for each kind of fault, with the hosts or VMs that have it.
func (r *Report) addProblems(snapshot *topology.Snapshot) {
	var problems doctor.Report
	for i := range r.Hosts {
		what := "offline: start it"
		switch {
		case r.Hosts[i].State == HostOnline:
			continue
		case r.Hosts[i].State == HostMaintenance:
			what = "in maintenance mode, so no new nodes are created there"
		case snapshot.Hosts[i].Problem != "":
			what = snapshot.Hosts[i].Problem
		}
		problems = append(problems, doctor.Finding{Where: r.Hosts[i].Host.String(), What: what})
	}
	for _, state := range []struct{ state, fix string }{
		{VMMissing, "missing from Proxmox: to re-create %[1]s, run numaform apply; to remove %[1]s from the fleet, run numaform remove"},
		{VMStopped, "stopped: start %[1]s in Proxmox; to remove %[1]s from the fleet, run numaform remove"},
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
	for i := range r.VMs {
		if vm := &r.VMs[i]; vm.State == VMUnknown && snapshot.Left(vm.Host) {
			problems = append(problems, doctor.Finding{
				Where: vm.Name,
				What:  "its host left the Proxmox cluster: if the host is lost for good, delete the NodeClaim, or run numaform remove",
			})
		}
	}
	r.Problems = append(r.Problems, problems.Lines()...)
	if len(r.Unfinished) > 0 {
		var hosts []string
		for _, host := range r.Unfinished {
			hosts = append(hosts, host.String())
		}
		r.Problems = append(r.Problems, fmt.Sprintf("change %s is incomplete on %s: if no numaform process is running, run numaform apply to finish it",
			r.LastChange.ID, topology.Named(hosts)))
	}
}

// foundGuest is a guest with its host.
type foundGuest struct {
	*topology.Guest
	host topology.HostID
}

// guestsOf returns the guests with the fleet's marker, by their key.
func guestsOf(clusterID string, snapshot *topology.Snapshot) map[fleet.Key][]foundGuest {
	found := map[fleet.Key][]foundGuest{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for j := range host.Guests {
			guest := &host.Guests[j]
			key := fleet.Key(guest.Key)
			if guest.ClusterID == clusterID {
				found[key] = append(found[key], foundGuest{Guest: guest, host: host.ID()})
			}
		}
	}
	return found
}

// compare returns the state of a VM in Proxmox, and how it differs there from its file.
// guest is the VM on any host of its region, or nil if there is none.
func compare(vm *fleet.VM, guest *foundGuest, snapshot *topology.Snapshot) (state string, drift []string) {
	if guest == nil {
		if host := snapshot.Host(vm.Host); host == nil || !host.Online || host.Problem != "" {
			return VMUnknown, nil
		}
		return VMMissing, nil
	}
	if guest.host != vm.Host {
		drift = append(drift, fmt.Sprintf("on %s instead of %s", guest.host, vm.Host))
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
		return VMLocked, nil // Proxmox is still changing the VM
	case guest.Running:
		return VMRunning, drift
	case vm.Standby:
		return VMStandby, drift
	default:
		return VMStopped, drift
	}
}
