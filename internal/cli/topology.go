package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// fleetPatience is how long a map waits for the fleet, which is optional.
const fleetPatience = 20 * time.Second

func newTopology(process Process) *cobra.Command {
	var o options
	var host string
	command := &cobra.Command{
		Use:   "topology",
		Short: "Show hosts, NUMA nodes, caches, cores, and who owns which CPU",
		Long: "Show each host with its NUMA nodes, caches and cores, who owns which CPU, where each fact about the\n" +
			"host was read, and what is missing or in doubt. The map needs no color and is drawn as wide as the\n" +
			"terminal, or as COLUMNS says in a pipe.",
		Example: `  numaform topology                                  # hosts, NUMA nodes, caches, who owns which CPU
  numaform topology -o table                         # one line for each host, with its numaform-agent
  numaform topology --host pve-2 -o svg >pve-2.svg
  numaform topology -o json >lab.json                # what --snapshot reads, also where there is no numaform.yaml
  numaform topology --snapshot lab.json`,
		RunE: func(command *cobra.Command, _ []string) error {
			given := command.Flags().Changed("config")
			return runTopology(command.Context(), process, &o, mapOptions{host: host, configGiven: given})
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster, if the fleet is kept there")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVar(&o.snapshot, "snapshot", "", "recorded Proxmox instead of a live one")
	flags.StringVarP(&o.output, "output", "o", "text", "text, table, wide, json or svg; json is what --snapshot reads")
	flags.StringVar(&host, "host", "", "only this host, by name or as region/name")
	collect := newCollect(process)
	asUsage(collect)
	command.AddCommand(collect)
	return command
}

// mapOptions are the flags of topology alone.
type mapOptions struct {
	host string
	// configGiven is set if a configuration was named, and so must exist.
	configGiven bool
}

func runTopology(ctx context.Context, process Process, o *options, more mapOptions) error {
	if !slices.Contains([]string{"text", "table", "wide", "json", "svg"}, o.output) {
		return usageError{fmt.Errorf("--output %q: want text, table, wide, json or svg", o.output)}
	}
	config, err := mapConfig(process, o, more)
	if err != nil {
		return err
	}
	snapshot, err := readSnapshot(ctx, process, config, o)
	if err != nil {
		return err
	}
	if snapshot.Hosts, err = choose(snapshot.Hosts, more.host); err != nil {
		return err
	}
	clusterID := ""
	if config != nil {
		clusterID = config.ClusterID
	}
	switch o.output {
	case "json":
		text, err := snapshot.Print()
		return write(process, text, err)
	case "table", "wide":
		return write(process, hostTable(snapshot.Hosts, clusterID, o.output == "wide"), nil)
	}
	wanted := planned(ctx, process, config, o)
	owners := map[topology.HostID]cpumap.Ownership{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		owners[host.ID()] = cpumap.Owners(host, vmsOn(wanted, host.ID()))
	}
	if o.output == "svg" {
		return write(process, cpumap.SVG(snapshot.Hosts, owners), nil)
	}
	return write(process, draw(process, snapshot.Hosts, owners, clusterID), nil)
}

// mapConfig reads the configuration. A recorded snapshot is enough for a map: without a
// named configuration, it then returns nil.
func mapConfig(process Process, o *options, more mapOptions) (*operator.Config, error) {
	config, err := loadConfig(process, o.config)
	if o.snapshot != "" && !more.configGiven && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nil means that there is none, for readSnapshot and planned
	}
	return config, err
}

func readSnapshot(ctx context.Context, process Process, config *operator.Config, o *options) (*topology.Snapshot, error) {
	if o.snapshot != "" {
		return operator.RecordedSnapshot(o.snapshot)
	}
	snapshot, _, err := live(ctx, process, config, config.Regions())
	return snapshot, err
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

// planned returns the fleet, for VMs that do not run yet and for the names of the others.
// The map is correct without it, so a fleet that cannot be read is reported and is not a
// failure.
func planned(ctx context.Context, process Process, config *operator.Config, o *options) *fleet.Fleet {
	if config == nil {
		return &fleet.Fleet{}
	}
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	kept, err := config.OpenStore(process.Environ, operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext})
	if err == nil {
		var current fleet.Fleet
		current, _, err = scaler.New(scaler.Config{ClusterID: config.ClusterID, Store: kept, Dir: config.FleetDir(), Regions: config.Regions()}).Fleet(ctx)
		if err == nil {
			return &current
		}
	}
	fmt.Fprintf(process.Stderr, "numaform: the fleet cannot be read, so VMs that do not run yet are not drawn: %v\n", err)
	return &fleet.Fleet{}
}

// draw returns the map of the hosts, with information about the agent below each.
func draw(process Process, hosts []topology.Host, owners map[topology.HostID]cpumap.Ownership, clusterID string) []byte {
	var text []byte
	for i := range hosts {
		text = append(text, cpumap.Text(&hosts[i], owners[hosts[i].ID()], cpumap.Options{Width: mapWidth(process)})...)
		text = append(text, agentLines(&hosts[i], clusterID, mapWidth(process))...)
		text = append(text, '\n')
	}
	return text
}

// mapWidth returns the terminal's width, or the value of COLUMNS without a terminal.
func mapWidth(process Process) int {
	columns := width(process)
	if columns != pipeWidth {
		return columns
	}
	for _, entry := range process.Environ {
		text, ok := strings.CutPrefix(entry, "COLUMNS=")
		if value, err := strconv.Atoi(text); ok && err == nil && value > 0 {
			return value
		}
	}
	return columns
}

func write(process Process, text []byte, err error) error {
	if err != nil {
		return err
	}
	if _, err := process.Stdout.Write(text); err != nil {
		return fmt.Errorf("writing the topology: %w", err)
	}
	return nil
}

// hostName returns this machine's name without its domain.
func hostName() topology.HostName {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "this-host"
	}
	short, _, _ := strings.Cut(name, ".")
	return topology.HostName(short)
}
