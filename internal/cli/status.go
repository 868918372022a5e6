package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// statusReport is the output of status.
type statusReport struct {
	ClusterID string       `json:"cluster_id"`
	Pools     []poolStatus `json:"pools"`
	Hosts     []hostStatus `json:"hosts"`
	VMs       []vmStatus   `json:"vms"`
	// Pending lists the changes that are pending approval.
	Pending []pendingStatus `json:"pending,omitempty"`
	// Failed lists the hosts on which the last change failed.
	Failed []failedStatus `json:"failed,omitempty"`
	// Drift lists the differences of VMs in Proxmox from their files. numaform drift also
	// compares attributes that only the engine knows.
	Drift []driftStatus `json:"drift,omitempty"`
	// Locks contains the held locks of the fleet and of the states.
	Locks []lockStatus `json:"locks,omitempty"`
	// UnknownLocks is the reason why the locks of the states cannot be read.
	UnknownLocks string `json:"unknown_locks,omitempty"`
	// Unfinished lists the hosts on which the last change is incomplete.
	Unfinished []topology.HostID `json:"unfinished,omitempty"`
	LastChange *changeStatus     `json:"last_change,omitempty"`
	// Checkpoints says which places outside the fleet's store have checkpoints of the history.
	Checkpoints string `json:"checkpoints,omitempty"`
	// Problems lists regions that cannot be read, hosts that are not online, VMs that are
	// missing or stopped, and an incomplete change.
	Problems []string `json:"problems,omitempty"`
	// Next is the command to run next.
	Next string `json:"next"`

	// unread counts the regions that do not respond.
	unread int
}

type poolStatus struct {
	Name      string `json:"name"`
	VMs       int    `json:"vms"`
	Running   int    `json:"running"`
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int64  `json:"memory_mib"`
}

type vmStatus struct {
	Name         string          `json:"name"`
	VMID         fleet.VMID      `json:"vmid"`
	Host         topology.HostID `json:"host"`
	Pool         string          `json:"pool"`
	NodeClass    string          `json:"node_class"`
	InstanceType string          `json:"instance_type"`
	Policy       fleet.Policy    `json:"policy"`
	VCPUs        int             `json:"vcpus"`
	MemoryMiB    int64           `json:"memory_mib"`
	// CPUs are the host CPUs that the VM is pinned to; a VM without them shares the CPUs
	// that are not pinned.
	CPUs topology.CPUSet `json:"cpus,omitzero"`
	// NUMANodes are the NUMA nodes that back the VM's memory.
	NUMANodes topology.CPUSet `json:"numa_nodes,omitzero"`
	// State is running, standby, stopped, locked while Proxmox works on the VM, missing, or
	// unknown if the host cannot be read.
	State string `json:"state"`
}

type pendingStatus struct {
	Name    string    `json:"name"`
	Summary string    `json:"summary"`
	Expires time.Time `json:"expires"`
}

type failedStatus struct {
	Host  topology.HostID `json:"host"`
	Error string          `json:"error"`
}

type driftStatus struct {
	VM   string          `json:"vm"`
	Host topology.HostID `json:"host"`
	What string          `json:"what"`
}

type lockStatus struct {
	Where  string `json:"where"`
	Holder string `json:"holder"`
	// Since and Operation are known only for the lock of a state.
	Since     time.Time `json:"since,omitzero"`
	Operation string    `json:"operation,omitempty"`
}

// lockOfFleet is the value of Where for the fleet's lock, which a process holds from its
// plan to the end of its apply.
const lockOfFleet = "fleet"

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
	vmLocked  = "locked"
	vmMissing = "missing"
	vmUnknown = "unknown"
)

// viewOptions are the flags of the commands that show the fleet.
type viewOptions struct {
	options
	watching
}

func (o *viewOptions) register(flags *pflag.FlagSet) {
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster, to list changes pending approval, or if the fleet is stored in its ConfigMaps")
	registerTable(flags, &o.output)
	o.watching.register(flags)
}

func newStatus(process Process) *cobra.Command {
	var o viewOptions
	command := &cobra.Command{
		Use:   "status",
		Short: "Show VMs, hosts, pending changes, failures, drift and locks on one screen",
		Long: "Show the VMs by NodePool and host, changes that are pending approval or incomplete, failures, drift, held locks, and\n" +
			"problems with the next step for each. The command reads the fleet, its history, Proxmox and, with --kubeconfig, the\n" +
			"cluster. It changes nothing. More than 8 hosts are summarized by region, except with -o wide.",
		RunE: func(command *cobra.Command, _ []string) error {
			return o.show(command.Context(), process, func(w *printer, r *statusReport) { w.status(r, o.output == outputWide) },
				func(r *statusReport) any { return r })
		},
	}
	o.register(command.Flags())
	return command
}

// show reads the status and prints it as text or data.
func (o *viewOptions) show(ctx context.Context, process Process, text func(w *printer, r *statusReport), data func(r *statusReport) any) error {
	return o.run(ctx, process, func(ctx context.Context, process Process, terminal term.Terminal) error {
		r, err := readStatus(ctx, process, &o.options)
		if err != nil {
			return err
		}
		if o.output == "json" || o.output == "yaml" {
			return printData(process, o.output, data(r))
		}
		w := &printer{Terminal: terminal, w: process.Stdout}
		text(w, r)
		return w.err
	})
}

// newGet returns the command get, whose subcommands each list one kind of object.
func newGet(process Process) *cobra.Command {
	get := &cobra.Command{Use: "get", Short: "List VMs, hosts or plans"}
	var vms, hosts viewOptions
	listVMs := &cobra.Command{
		Use:   "vms",
		Short: "List the VMs of the fleet and their states",
		RunE: func(command *cobra.Command, _ []string) error {
			return vms.show(command.Context(), process, func(w *printer, r *statusReport) { w.vmTable(r.VMs, vms.output == outputWide) },
				func(r *statusReport) any { return r.VMs })
		},
	}
	vms.register(listVMs.Flags())
	listHosts := &cobra.Command{
		Use:   "hosts",
		Short: "List the hosts with their free CPUs and memory",
		RunE: func(command *cobra.Command, _ []string) error {
			return hosts.show(command.Context(), process, func(w *printer, r *statusReport) { w.hostTable(r.Hosts, hosts.output == outputWide) },
				func(r *statusReport) any { return r.Hosts })
		},
	}
	hosts.register(listHosts.Flags())
	get.AddCommand(listVMs, listHosts, newPlans(process)[0])
	return get
}

// readStatus reads the fleet, its history, Proxmox and, if the user selected a cluster, its
// ScalePlans.
func readStatus(ctx context.Context, process Process, o *options) (*statusReport, error) {
	config, err := loadConfig(process, o.config)
	if err != nil {
		return nil, err
	}
	opened, current, err := storedFleet(ctx, process, config, o.kubeconfig)
	if err != nil {
		return nil, err
	}
	entries, err := readHistory(ctx, process, opened, 0)
	if err != nil {
		return nil, err
	}
	snapshot, unread, err := live(ctx, process, config, config.Regions())
	if err != nil {
		return nil, err
	}
	r := newStatusReport(config.ClusterID, current, snapshot, entries)
	if r.Checkpoints, err = checkpointStatus(ctx, process, config, entries); err != nil {
		return nil, err
	}
	r.unread = len(unread)
	for _, region := range unread {
		r.Problems = append(r.Problems, fmt.Sprintf("region %s was not read, so its hosts are not listed: %v", region.Region, region.Err))
	}
	if locked, ok := opened.Unwrap().(lockHolder); ok {
		holder, err := locked.Holder(ctx)
		if err != nil {
			return nil, err
		}
		if holder != "" {
			r.Locks = append(r.Locks, lockStatus{Where: lockOfFleet, Holder: holder})
		}
	}
	held, unknown := config.StateLocks(ctx, process.Environ, o.kubeconfig, current)
	r.UnknownLocks = unknown
	for i := range held {
		r.Locks = append(r.Locks, lockStatus{
			Where:     "state of " + held[i].Host.String(),
			Holder:    cmp.Or(held[i].Who, "an unknown process"),
			Since:     held[i].Created,
			Operation: held[i].Operation,
		})
	}
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
	r.Next = r.next(o, o.podSource(process.Environ))
	return r, nil
}

// storedFleet opens the store of a fleet and reads the fleet, without an engine.
func storedFleet(ctx context.Context, process Process, config *operator.Config, cluster operator.Kubeconfig) (*store.Sealed, *fleet.Fleet, error) {
	opened, err := config.OpenStore(process.Environ, cluster)
	if err != nil {
		return nil, nil, err
	}
	s := scaler.New(scaler.Config{ClusterID: config.ClusterID, Store: opened, Dir: config.FleetDir(), Regions: config.Regions()})
	current, _, err := s.Fleet(ctx)
	return opened, &current, err
}

// lockHolder is a store that names the process that holds its lock.
type lockHolder interface {
	Holder(ctx context.Context) (string, error)
}
