package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/term"
)

// viewOptions are the flags of the commands that show the fleet.
type viewOptions struct {
	options
	watching
	// namespace is numaform's namespace; empty does not read what users requested there.
	namespace string
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
		Long: "Show the VMs by NodePool and host, a pause and evacuations, changes that are pending approval or incomplete,\n" +
			"failures, drift, held locks, and problems with the next step for each. The command reads the fleet, its history,\n" +
			"Proxmox and, with --kubeconfig, the cluster. It changes nothing. More than 8 hosts are summarized by region, except\n" +
			"with -o wide.",
		RunE: func(command *cobra.Command, _ []string) error {
			return o.show(command.Context(), process, func(w *printer, r *status.Report) { w.status(r, o.output == outputWide) },
				func(r *status.Report) any { return r })
		},
	}
	o.register(command.Flags())
	registerNamespace(command.Flags(), &o.namespace)
	return command
}

// show reads the status and prints it as text or data.
func (o *viewOptions) show(ctx context.Context, process Process, text func(w *printer, r *status.Report), data func(r *status.Report) any) error {
	return o.run(ctx, process, func(ctx context.Context, process Process, terminal term.Terminal) error {
		r, err := readStatus(ctx, process, o)
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
			return vms.show(command.Context(), process, func(w *printer, r *status.Report) { w.vmTable(r.VMs, vms.output == outputWide) },
				func(r *status.Report) any { return r.VMs })
		},
	}
	vms.register(listVMs.Flags())
	listHosts := &cobra.Command{
		Use:   "hosts",
		Short: "List the hosts with their free CPUs and memory",
		RunE: func(command *cobra.Command, _ []string) error {
			return hosts.show(command.Context(), process, func(w *printer, r *status.Report) { w.hostTable(r.Hosts, hosts.output == outputWide) },
				func(r *status.Report) any { return r.Hosts })
		},
	}
	hosts.register(listHosts.Flags())
	get.AddCommand(listVMs, listHosts, newPlans(process)[0])
	return get
}

// readStatus reads the fleet, its history, Proxmox and, if the user selected a cluster, its
// ScalePlans and what users requested.
func readStatus(ctx context.Context, process Process, o *viewOptions) (*status.Report, error) {
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
	r := status.New(config.ClusterID, current, snapshot, entries)
	if r.Checkpoints, err = checkpointStatus(ctx, process, config, entries); err != nil {
		return nil, err
	}
	for _, region := range unread {
		r.Problems = append(r.Problems, fmt.Sprintf("region %s was not read, so its hosts are not listed: %v", region.Region, region.Err))
	}
	if locked, ok := opened.Unwrap().(lockHolder); ok {
		holder, err := locked.Holder(ctx)
		if err != nil {
			return nil, err
		}
		if holder != "" {
			r.Locks = append(r.Locks, status.Lock{Where: status.FleetLock, Holder: holder})
		}
	}
	held, unknown := config.StateLocks(ctx, process.Environ, o.kubeconfig, current)
	r.UnknownLocks = unknown
	for i := range held {
		r.Locks = append(r.Locks, status.Lock{
			Where:     "state of " + held[i].Host.String(),
			Holder:    cmp.Or(held[i].Who, "an unknown process"),
			Since:     held[i].Created,
			Operation: held[i].Operation,
		})
	}
	if o.kubeconfig.Path != "" || o.kubeconfig.Context != "" {
		cluster := clusterOptions{kubeconfig: o.kubeconfig}
		c, k, err := cluster.open()
		if err != nil {
			return nil, err
		}
		var plans v1alpha1.ScalePlanList
		if err := c.List(ctx, &plans); err != nil {
			return nil, explained(fmt.Errorf("reading plans: %w", err), approverRole)
		}
		r.AddPending(plans.Items)
		if o.namespace != "" {
			addRequests(ctx, r, control.New(k, o.namespace))
		}
	}
	r.Next = nextAfter(r, len(unread), &o.options, o.podSource(process.Environ))
	return r, nil
}

// addRequests adds the pause and the evacuations that users requested. If they cannot be read,
// it adds a problem, because the rest of the report is useful without them.
func addRequests(ctx context.Context, r *status.Report, s *control.Switch) {
	state, err := s.Read(ctx)
	if malformed := new(control.MalformedError); err != nil && !errors.As(err, &malformed) {
		r.Problems = append(r.Problems, fmt.Sprintf("whether numaform is paused is unknown: %v", explained(err, controlRole)))
		return
	}
	if err != nil {
		r.Problems = append(r.Problems, strings.Split(err.Error(), "\n")...)
	}
	r.Paused, r.PausedBy, r.Evacuated = state.Paused, state.By, state.Evacuated
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
