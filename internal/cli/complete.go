package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/topology"
)

// completionTimeout limits the time for reading the values that a shell completes.
const completionTimeout = 3 * time.Second

// lookup reads the values that are possible for an argument or a flag of a command.
type lookup func(ctx context.Context, process Process, command *cobra.Command) ([]string, error)

// registerCompletions registers completions for the names of plans, VMs, changes and hosts.
// root contains all commands.
func registerCompletions(root *cobra.Command, process Process) {
	for _, argument := range []struct {
		path   string
		most   int
		values lookup
	}{
		{"plans", 1, allPlans},
		{"get plans", 1, allPlans},
		{"approve", 1, pendingPlans},
		{"reject", 1, pendingPlans},
		{"remove", anyNumber, vmNames},
		{"history", 1, changesAndVMs},
		{"undo", 1, changeIDs},
		{"evacuate", 1, nodeHosts},
		{"unlock", 1, fleetHosts},
	} {
		command, _, err := root.Find(strings.Fields(argument.path))
		if err != nil {
			continue // a test checks each path
		}
		command.ValidArgsFunction = completed(process, argument.most, argument.values)
	}
	if command, _, err := root.Find([]string{"topology"}); err == nil {
		_ = command.RegisterFlagCompletionFunc("host", completed(process, anyNumber, proxmoxHosts)) // fails only for an unknown flag
	}
}

// completed returns the completion of up to most arguments. A shell gets no values if they
// cannot be read.
func completed(process Process, most int, values lookup) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most != anyNumber && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		err := flagsFromEnvironment(command.Flags(), process.Environ)
		var names []string
		if err == nil {
			ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
			defer cancel()
			quiet := process
			quiet.Stderr = io.Discard
			names, err = values(ctx, quiet, command)
		}
		if err != nil {
			cobra.CompDebugln(fmt.Sprintf("completing %s: %v", command.Name(), err), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names = slices.DeleteFunc(names, func(described string) bool {
			name, _, _ := strings.Cut(described, "\t")
			return !strings.HasPrefix(name, prefix) || slices.Contains(args, name)
		})
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// flagValue returns the value of a flag, or "" if the command does not have it.
func flagValue(command *cobra.Command, name string) string {
	if flag := command.Flags().Lookup(name); flag != nil {
		return flag.Value.String()
	}
	return ""
}

func kubeconfigOf(command *cobra.Command) operator.Kubeconfig {
	return operator.Kubeconfig{Path: flagValue(command, "kubeconfig"), Context: flagValue(command, "context")}
}

func allPlans(ctx context.Context, _ Process, command *cobra.Command) ([]string, error) {
	return planNames(ctx, command, func(*v1alpha1.ScalePlan) bool { return true })
}

func pendingPlans(ctx context.Context, _ Process, command *cobra.Command) ([]string, error) {
	return planNames(ctx, command, func(plan *v1alpha1.ScalePlan) bool { return status.Phase(plan) == v1alpha1.ScalePlanPending })
}

// planNames returns the names of the matching ScalePlans, each with its summary.
func planNames(ctx context.Context, command *cobra.Command, matches func(plan *v1alpha1.ScalePlan) bool) ([]string, error) {
	cluster := clusterOptions{kubeconfig: kubeconfigOf(command)}
	c, _, err := cluster.open()
	if err != nil {
		return nil, err
	}
	var plans v1alpha1.ScalePlanList
	if err := c.List(ctx, &plans); err != nil {
		return nil, err
	}
	var names []string
	for i := range plans.Items {
		if plan := &plans.Items[i]; matches(plan) {
			names = append(names, cobra.CompletionWithDesc(plan.Name, plan.Spec.Summary))
		}
	}
	slices.Sort(names)
	return names, nil
}

// fleetOf returns the fleet in the store that a command's flags select.
func fleetOf(ctx context.Context, process Process, command *cobra.Command) (*fleet.Fleet, error) {
	config, err := loadConfig(process, flagValue(command, "config"))
	if err != nil {
		return nil, err
	}
	_, current, err := storedFleet(ctx, process, config, kubeconfigOf(command))
	return current, err
}

func vmNames(ctx context.Context, process Process, command *cobra.Command) ([]string, error) {
	current, err := fleetOf(ctx, process, command)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range current.VMs {
		names = append(names, cobra.CompletionWithDesc(current.VMs[i].Name, "on "+current.VMs[i].Host.String()))
	}
	slices.Sort(names)
	return names, nil
}

// fleetHosts returns the hosts with a Terraform state of nodes.
func fleetHosts(ctx context.Context, process Process, command *cobra.Command) ([]string, error) {
	current, err := fleetOf(ctx, process, command)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, host := range current.AllHosts() {
		hosts = append(hosts, host.String())
	}
	return hosts, nil
}

// changeIDs returns the IDs of all changes, newest first, each with its reason.
func changeIDs(ctx context.Context, process Process, command *cobra.Command) ([]string, error) {
	config, err := loadConfig(process, flagValue(command, "config"))
	if err != nil {
		return nil, err
	}
	opened, err := config.OpenStore(process.Environ, kubeconfigOf(command))
	if err != nil {
		return nil, err
	}
	entries, err := readHistory(ctx, process, opened, 0)
	if err != nil {
		return nil, err
	}
	var ids []string
	for i := range entries {
		ids = append(ids, cobra.CompletionWithDesc(entries[i].Change.ID, entries[i].Change.Why))
	}
	slices.Reverse(ids)
	return ids, nil
}

func changesAndVMs(ctx context.Context, process Process, command *cobra.Command) ([]string, error) {
	ids, err := changeIDs(ctx, process, command)
	if err != nil {
		return nil, err
	}
	names, err := vmNames(ctx, process, command)
	return slices.Concat(ids, names), err
}

// nodeHosts returns the hosts of the Nodes in a cluster.
func nodeHosts(ctx context.Context, _ Process, command *cobra.Command) ([]string, error) {
	cluster := clusterOptions{kubeconfig: kubeconfigOf(command)}
	c, _, err := cluster.open()
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.HasLabels{corev1.LabelTopologyRegion, corev1.LabelTopologyZone}); err != nil {
		return nil, err
	}
	var hosts []string
	for i := range nodes.Items {
		labels := nodes.Items[i].Labels
		hosts = append(hosts, labels[corev1.LabelTopologyRegion]+"/"+labels[corev1.LabelTopologyZone])
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// proxmoxHosts returns the hosts of Proxmox or of a recorded snapshot.
func proxmoxHosts(ctx context.Context, process Process, command *cobra.Command) ([]string, error) {
	snapshot, err := snapshotOf(ctx, process, command)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for i := range snapshot.Hosts {
		hosts = append(hosts, snapshot.Hosts[i].ID().String())
	}
	return hosts, nil
}

func snapshotOf(ctx context.Context, process Process, command *cobra.Command) (*topology.Snapshot, error) {
	if path := flagValue(command, "snapshot"); path != "" {
		return operator.RecordedSnapshot(path)
	}
	config, err := loadConfig(process, flagValue(command, "config"))
	if err != nil {
		return nil, err
	}
	snapshot, _, err := live(ctx, process, config, config.Regions())
	return snapshot, err
}
