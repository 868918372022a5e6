package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func newTopology(process Process) *cobra.Command {
	var o options
	var host string
	command := &cobra.Command{
		Use:   "topology",
		Short: "Show hosts, NUMA nodes, caches, cores, and who owns which CPU",
		RunE: func(command *cobra.Command, _ []string) error {
			return runTopology(command.Context(), process, &o, host)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringVar(&o.snapshot, "snapshot", "", "recorded Proxmox instead of a live one")
	flags.StringVarP(&o.output, "output", "o", "text", "text, json or svg; json is what --snapshot reads")
	flags.StringVar(&host, "host", "", "only this host, by name or as region/name")
	return command
}

func runTopology(ctx context.Context, process Process, o *options, only string) error {
	if o.output != "text" && o.output != "json" && o.output != "svg" {
		return usageError{fmt.Errorf("--output %q: want text, json or svg", o.output)}
	}
	config, err := operator.Load(o.config, process.Environ)
	if err != nil {
		return err
	}
	snapshot, err := readSnapshot(ctx, config, o)
	if err != nil {
		return err
	}
	if snapshot.Hosts, err = choose(snapshot.Hosts, only); err != nil {
		return err
	}
	kept, err := config.OpenStore(process.Environ, operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext})
	if err != nil {
		return err
	}
	current, _, err := scaler.New(scaler.Config{ClusterID: config.ClusterID, Store: kept, Dir: config.FleetDir(), Regions: config.Regions()}).Fleet(ctx)
	if err != nil {
		return err
	}
	return printTopology(process, o.output, snapshot, &current)
}

func readSnapshot(ctx context.Context, config *operator.Config, o *options) (*topology.Snapshot, error) {
	if o.snapshot != "" {
		return config.RecordedSnapshot(o.snapshot)
	}
	return live(ctx, config, config.Regions())
}

func choose(hosts []topology.Host, only string) ([]topology.Host, error) {
	if only == "" {
		return hosts, nil
	}
	var chosen []topology.Host
	var known []string
	for i := range hosts {
		known = append(known, hosts[i].ID().String())
		if string(hosts[i].Name) == only || hosts[i].ID().String() == only {
			chosen = append(chosen, hosts[i])
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("host %q: Proxmox has no such host: want one of %s", only, strings.Join(known, ", "))
	}
	return chosen, nil
}

func printTopology(process Process, output string, snapshot *topology.Snapshot, current *fleet.Fleet) error {
	var text []byte
	var err error
	switch output {
	case "json":
		text, err = snapshot.Print()
	case "svg":
		owners := map[topology.HostID]cpumap.Ownership{}
		for i := range snapshot.Hosts {
			host := &snapshot.Hosts[i]
			owners[host.ID()] = cpumap.Owners(host, vmsOn(current, host.ID()))
		}
		text = cpumap.SVG(snapshot.Hosts, owners)
	default:
		for i := range snapshot.Hosts {
			host := &snapshot.Hosts[i]
			owners := cpumap.Owners(host, vmsOn(current, host.ID()))
			text = append(text, cpumap.Text(host, owners, cpumap.Options{Width: width(process)})...)
			text = append(text, '\n')
		}
	}
	if err != nil {
		return err
	}
	_, err = process.Stdout.Write(text)
	return err
}
