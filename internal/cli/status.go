package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// statusReport is the output of status. Everything is sorted.
type statusReport struct {
	ClusterID string          `json:"cluster_id"`
	Pools     []poolStatus    `json:"pools"`
	Hosts     []hostStatus    `json:"hosts"`
	VMs       []vmStatus      `json:"vms"`
	Pending   []pendingStatus `json:"pending,omitempty"`
	// Unfinished lists the hosts on which the last change is incomplete.
	Unfinished []topology.HostID `json:"unfinished,omitempty"`
	LastChange *changeStatus     `json:"last_change,omitempty"`
	// Problems need the operator's attention; each names the next step.
	Problems []string `json:"problems,omitempty"`
}

type poolStatus struct {
	Name      string `json:"name"`
	VMs       int    `json:"vms"`
	Running   int    `json:"running"`
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int64  `json:"memory_mib"`
}

type hostStatus struct {
	Host topology.HostID `json:"host"`
	// State is online, offline, maintenance or unreadable.
	State     string `json:"state"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memory_mib"`
	// Guests counts the running guests of any owner, and VMs the VMs of the fleet.
	Guests int `json:"guests"`
	VMs    int `json:"vms"`
	// FreeCPUs are online CPUs that are neither reserved nor pinned by a guest.
	FreeCPUs int `json:"free_cpus"`
	// FreeMemoryMiB is the memory that is neither reserved nor allocated to a running
	// guest.
	FreeMemoryMiB int64 `json:"free_memory_mib"`
}

type vmStatus struct {
	Name         string          `json:"name"`
	VMID         fleet.VMID      `json:"vmid"`
	Host         topology.HostID `json:"host"`
	Pool         string          `json:"pool"`
	InstanceType string          `json:"instance_type"`
	VCPUs        int             `json:"vcpus"`
	MemoryMiB    int64           `json:"memory_mib"`
	CPUs         topology.CPUSet `json:"cpus,omitzero"`
	// State is running, standby, stopped, missing, or unknown if the host cannot be read.
	State string `json:"state"`
}

type pendingStatus struct {
	Name    string    `json:"name"`
	Summary string    `json:"summary"`
	Expires time.Time `json:"expires"`
}

type changeStatus struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Why    string `json:"why"`
	Result string `json:"result"`
}

// States of VMs.
const (
	vmRunning = "running"
	vmStandby = "standby"
	vmStopped = "stopped"
	vmMissing = "missing"
	vmUnknown = "unknown"
)

func newStatus(process Process) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "status",
		Short: "Show VMs, hosts, pending changes and problems",
		Long: "Show the VMs by NodePool and host, changes that are pending approval or incomplete, and problems with the next\n" +
			"step for each. The command reads the fleet, its history, Proxmox and, with --kubeconfig, the cluster. It changes nothing.",
		RunE: func(command *cobra.Command, _ []string) error {
			r, err := readStatus(command.Context(), process, &o)
			if err != nil {
				return err
			}
			if o.output != "text" {
				return printData(process, o.output, r)
			}
			w := newPrinter(process)
			w.status(r)
			return w.err
		},
	}
	registerStatus(command, &o)
	return command
}

// newGet returns the commands that list one kind of object.
func newGet(process Process) *cobra.Command {
	get := &cobra.Command{Use: "get", Short: "List VMs, hosts or plans"}
	for _, kind := range []struct {
		name, short string
		print       func(w *printer, r *statusReport)
		data        func(r *statusReport) any
	}{
		{"vms", "List the VMs of the fleet and their states", func(w *printer, r *statusReport) { w.vmTable(r.VMs) }, func(r *statusReport) any { return r.VMs }},
		{"hosts", "List the hosts with their free CPUs and memory", func(w *printer, r *statusReport) { w.hostTable(r.Hosts) }, func(r *statusReport) any { return r.Hosts }},
	} {
		var o options
		command := &cobra.Command{Use: kind.name, Short: kind.short, RunE: func(command *cobra.Command, _ []string) error {
			r, err := readStatus(command.Context(), process, &o)
			if err != nil {
				return err
			}
			if o.output != "text" {
				return printData(process, o.output, kind.data(r))
			}
			w := newPrinter(process)
			kind.print(w, r)
			return w.err
		}}
		registerStatus(command, &o)
		get.AddCommand(command)
	}
	plans := newPlans(process)[0]
	get.AddCommand(plans)
	return get
}

func registerStatus(command *cobra.Command, o *options) {
	flags := command.Flags()
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster, to list changes pending approval, or if the fleet is stored in its ConfigMaps")
	registerOutput(flags, &o.output)
}

// readStatus reads the fleet, its history, Proxmox and, if the user selected a cluster, its
// ScalePlans.
func readStatus(ctx context.Context, process Process, o *options) (*statusReport, error) {
	config, err := loadConfig(process, o.config)
	if err != nil {
		return nil, err
	}
	opened, err := config.OpenStore(process.Environ, o.kubeconfig)
	if err != nil {
		return nil, err
	}
	current, _, err := scaler.New(scaler.Config{ClusterID: config.ClusterID, Store: opened, Dir: config.FleetDir(), Regions: config.Regions()}).Fleet(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := readHistory(ctx, process, opened, 0)
	if err != nil {
		return nil, err
	}
	snapshot, _, err := live(ctx, process, config, config.Regions())
	if err != nil {
		return nil, err
	}
	r := newStatusReport(config.ClusterID, &current, snapshot, entries)
	if o.kubeconfig.Path != "" || o.kubeconfig.Context != "" {
		cluster := clusterOptions{kubeconfig: o.kubeconfig}
		c, _, err := cluster.open()
		if err != nil {
			return nil, err
		}
		var plans v1alpha1.ScalePlanList
		if err := c.List(ctx, &plans); err != nil {
			return nil, explained(fmt.Errorf("reading plans: %w", err), approverRole)
		}
		for i := range plans.Items {
			if plan := &plans.Items[i]; phaseOf(plan) == v1alpha1.ScalePlanPending {
				r.Pending = append(r.Pending, pendingStatus{Name: plan.Name, Summary: plan.Spec.Summary, Expires: plan.Spec.ExpiresAt.UTC()})
			}
		}
		slices.SortFunc(r.Pending, func(a, b pendingStatus) int { return cmp.Compare(a.Name, b.Name) })
	}
	return r, nil
}

// newStatusReport compares a fleet with Proxmox.
func newStatusReport(clusterID string, current *fleet.Fleet, snapshot *topology.Snapshot, entries []audit.Entry) *statusReport {
	r := &statusReport{ClusterID: clusterID, Pools: []poolStatus{}, Hosts: []hostStatus{}, VMs: []vmStatus{}}
	pools := map[string]*poolStatus{}
	counts := map[string][]string{}
	for i := range current.VMs {
		vm := &current.VMs[i]
		state := stateOf(vm, clusterID, snapshot)
		r.VMs = append(r.VMs, vmStatus{
			Name: vm.Name, VMID: vm.VMID, Host: vm.Host, Pool: vm.Pool, InstanceType: vm.InstanceType,
			VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, CPUs: vm.CPUs, State: state,
		})
		counts[state] = append(counts[state], vm.Name)
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
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		r.Pools = append(r.Pools, *pools[name])
	}
	for i := range snapshot.Hosts {
		host := newHostStatus(&snapshot.Hosts[i])
		host.VMs = len(vmsOn(current, host.Host))
		r.Hosts = append(r.Hosts, host)
		if host.State != "online" {
			problem := cmp.Or(snapshot.Hosts[i].Problem, "is offline")
			if host.State == "maintenance" {
				problem = "is in maintenance mode: to end it, run ha-manager crm-command node-maintenance disable " + string(host.Host.Host)
			}
			r.Problems = append(r.Problems, fmt.Sprintf("host %s %s", host.Host, problem))
		}
	}
	if names := counts[vmMissing]; len(names) > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%s missing from Proxmox: %s: to re-create them, run numaform apply; to remove them from the fleet, run numaform remove",
			counted(len(names), "VM"), strings.Join(names, ", ")))
	}
	if names := counts[vmStopped]; len(names) > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%s stopped: %s: start them in Proxmox; to remove them from the fleet, run numaform remove",
			counted(len(names), "VM"), strings.Join(names, ", ")))
	}
	if len(entries) > 0 {
		last := &entries[len(entries)-1]
		r.LastChange = &changeStatus{ID: last.Change.ID, Kind: string(last.Change.Kind), Why: last.Change.Why, Result: resultOf(last)}
		for _, open := range last.Unfinished() {
			r.Unfinished = append(r.Unfinished, open.Host)
		}
	}
	if len(r.Unfinished) > 0 {
		var hosts []string
		for _, host := range r.Unfinished {
			hosts = append(hosts, host.String())
		}
		r.Problems = append(r.Problems, fmt.Sprintf("change %s is incomplete on %s: if no numaform process is running, run numaform apply to finish it",
			r.LastChange.ID, strings.Join(hosts, ", ")))
	}
	return r
}

// stateOf returns the state of a VM's guest in Proxmox. Its host may have changed.
func stateOf(vm *fleet.VM, clusterID string, snapshot *topology.Snapshot) string {
	for i := range snapshot.Hosts {
		for _, guest := range snapshot.Hosts[i].Guests {
			switch {
			case snapshot.Hosts[i].Region != vm.Host.Region || guest.ClusterID != clusterID || fleet.Key(guest.Key) != vm.Key:
			case guest.Running:
				return vmRunning
			case vm.Standby:
				return vmStandby
			default:
				return vmStopped
			}
		}
	}
	if host := snapshot.Host(vm.Host); host == nil || !host.Online || host.Problem != "" {
		return vmUnknown
	}
	return vmMissing
}

func newHostStatus(host *topology.Host) hostStatus {
	s := hostStatus{Host: host.ID(), State: "online", CPUs: host.OnlineCPUs().Size(), MemoryMiB: host.MemoryMiB}
	switch {
	case !host.Online:
		s.State = "offline"
	case host.Problem != "":
		s.State = "unreadable"
	case host.Maintenance:
		s.State = "maintenance"
	}
	used := host.ReservedCPUs
	s.FreeMemoryMiB = host.MemoryMiB - host.ReservedMemoryMiB
	for i := range host.Guests {
		guest := &host.Guests[i]
		used = used.Union(guest.Pins)
		if guest.Running {
			s.Guests++
			s.FreeMemoryMiB -= guest.MemoryMiB
		}
	}
	s.FreeMemoryMiB = max(s.FreeMemoryMiB, 0)
	s.FreeCPUs = host.OnlineCPUs().Difference(used).Size()
	return s
}

// status prints the report for a terminal of 80 columns.
func (w *printer) status(r *statusReport) {
	running := 0
	for _, pool := range r.Pools {
		running += pool.Running
	}
	w.printf("%s: %s, %d running, on %s\n", r.ClusterID, counted(len(r.VMs), "VM"), running, counted(len(r.Hosts), "host"))
	if len(r.Pools) > 0 {
		w.heading("NodePools")
		w.table(func(table io.Writer) {
			fmt.Fprintln(table, "  POOL\tVMS\tRUNNING\tVCPUS\tMEMORY")
			for _, pool := range r.Pools {
				fmt.Fprintf(table, "  %s\t%d\t%d\t%d\t%s\n", pool.Name, pool.VMs, pool.Running, pool.VCPUs, gib(pool.MemoryMiB))
			}
		})
	}
	w.heading("Hosts")
	w.hostTable(r.Hosts)
	if len(r.Pending) > 0 {
		w.heading("Pending approval")
		for _, plan := range r.Pending {
			w.printf("  %s: %s, until %s\n    numaform plans %s\n", plan.Name, plan.Summary, plan.Expires.Format(time.RFC3339), plan.Name)
		}
	}
	if c := r.LastChange; c != nil {
		w.heading("Last change")
		w.printf("  %s: %s, %s\n  %s\n", c.ID, c.Kind, c.Result, c.Why)
	}
	w.heading("Problems")
	if len(r.Problems) == 0 {
		w.printf("  none\n")
	}
	for _, problem := range r.Problems {
		w.printf("  %s\n", problem)
	}
}

func (w *printer) hostTable(hosts []hostStatus) {
	w.table(func(table io.Writer) {
		fmt.Fprintln(table, "  HOST\tSTATE\tVMS\tGUESTS\tCPUS\tUNPINNED\tMEMORY\tFREE")
		for _, host := range hosts {
			fmt.Fprintf(table, "  %s\t%s\t%d\t%d\t%d\t%d\t%d GiB\t%d GiB\n", host.Host, host.State, host.VMs, host.Guests,
				host.CPUs, host.FreeCPUs, host.MemoryMiB/1024, host.FreeMemoryMiB/1024)
		}
	})
}

func (w *printer) vmTable(vms []vmStatus) {
	w.table(func(table io.Writer) {
		fmt.Fprintln(table, "NAME\tVMID\tHOST\tPOOL\tTYPE\tVCPUS\tMEMORY\tSTATE\tCPUS")
		for i := range vms {
			vm := &vms[i]
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", vm.Name, vm.VMID, vm.Host, vm.Pool, vm.InstanceType,
				vm.VCPUs, gib(vm.MemoryMiB), vm.State, cmp.Or(vm.CPUs.String(), "shared"))
		}
	})
}
