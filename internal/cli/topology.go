package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/numaform/numaform/internal/sysfs"
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
			// A recorded snapshot is enough for a map, unless a configuration is named.
			optional := o.snapshot != "" && !command.Flags().Changed("config")
			return runTopology(command.Context(), process, &o, host, optional)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster, if the fleet is in its ConfigMaps")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVar(&o.snapshot, "snapshot", "", "recorded Proxmox instead of a live one")
	flags.StringVarP(&o.output, "output", "o", "text", "text, table, wide, json or svg; json is what --snapshot reads")
	flags.StringVar(&host, "host", "", "only this host, by name or as region/name")
	command.AddCommand(newCollect(process))
	return command
}

// runTopology prints the hosts, or only one. The configuration may be missing if it is
// optional.
func runTopology(ctx context.Context, process Process, o *options, only string, optional bool) error {
	if !slices.Contains([]string{"text", "table", "wide", "json", "svg"}, o.output) {
		return usageError{fmt.Errorf("--output %q: want text, table, wide, json or svg", o.output)}
	}
	config, err := loadConfig(process, o.config)
	if optional && errors.Is(err, fs.ErrNotExist) {
		config, err = nil, nil
	}
	if err != nil {
		return err
	}
	var snapshot *topology.Snapshot
	if o.snapshot != "" {
		snapshot, err = operator.RecordedSnapshot(o.snapshot)
	} else {
		snapshot, _, err = live(ctx, process, config, config.Regions())
	}
	if err != nil {
		return err
	}
	if snapshot.Hosts, err = choose(snapshot.Hosts, only); err != nil {
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

	desired := &fleet.Fleet{}
	if config != nil {
		desired = readFleet(ctx, process, config, o)
	}
	owners := map[topology.HostID]cpumap.Ownership{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		owners[host.ID()] = cpumap.Owners(host, vmsOn(desired, host.ID()))
	}
	if o.output == "svg" {
		return write(process, cpumap.SVG(snapshot.Hosts, owners), nil)
	}
	return write(process, draw(process, snapshot.Hosts, owners, clusterID), nil)
}

// choose returns the host with a name, or all hosts without one.
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

// readFleet returns the fleet, for VMs that do not run yet and for the names of the others.
// The map is correct without it, so a fleet that cannot be read is reported and is not a
// failure.
func readFleet(ctx context.Context, process Process, config *operator.Config, o *options) *fleet.Fleet {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	opened, err := config.OpenStore(process.Environ, operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext})
	if err == nil {
		var current fleet.Fleet
		current, _, err = scaler.New(scaler.Config{ClusterID: config.ClusterID, Store: opened, Dir: config.FleetDir(), Regions: config.Regions()}).Fleet(ctx)
		if err == nil {
			return &current
		}
	}
	fmt.Fprintf(process.Stderr, "numaform: the fleet cannot be read, so VMs that do not run yet are not drawn: %v\n", err)
	return &fleet.Fleet{}
}

// draw returns the map of the hosts, with information about the agent below each.
func draw(process Process, hosts []topology.Host, owners map[topology.HostID]cpumap.Ownership, clusterID string) []byte {
	columns := width(process)
	for _, entry := range process.Environ {
		text, ok := strings.CutPrefix(entry, "COLUMNS=")
		if value, err := strconv.Atoi(text); ok && err == nil && value > 0 && columns == pipeWidth {
			columns = value // without a terminal
		}
	}
	var out bytes.Buffer
	for i := range hosts {
		host := &hosts[i]
		out.WriteString(cpumap.Text(host, owners[host.ID()], cpumap.Options{Width: columns}))
		if host.Problem == "" && !host.ReadAt.IsZero() {
			if a := host.Agent; a != nil {
				fold(&out, columns, fmt.Sprintf("agent %s, isolation %s, heard of %s before", a.Version, a.Isolation, heard(host)))
			} else {
				out.WriteString("agent none\n")
			}
			for _, fault := range agentFaults(host, clusterID) {
				fold(&out, columns, "agent problem: it "+fault)
			}
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// write writes a text to stdout, unless making it failed.
func write(process Process, text []byte, err error) error {
	if err != nil {
		return err
	}
	if _, err := process.Stdout.Write(text); err != nil {
		return fmt.Errorf("writing the topology: %w", err)
	}
	return nil
}

// fold wraps a sentence into lines of at most columns characters, if the words allow it.
func fold(out *bytes.Buffer, columns int, sentence string) {
	room := 0
	for i, word := range strings.Fields(sentence) {
		switch length := len([]rune(word)); {
		case i == 0:
			room = columns - length
		case length < room:
			out.WriteByte(' ')
			room -= length + 1
		default:
			out.WriteString("\n  ")
			room = columns - 2 - length
		}
		out.WriteString(word)
	}
	out.WriteByte('\n')
}

// agentFaults returns what is wrong with a host's agent, each with its fix. A missing
// agent is not in itself a fault.
func agentFaults(host *topology.Host, clusterID string) []string {
	var lines []string
	for _, fault := range host.AgentFaults(clusterID, host.ReadAt) {
		if fault.State != topology.AgentAbsent {
			lines = append(lines, fault.What+": "+fault.Fix)
		}
	}
	return lines
}

// heard returns the age of the agent's last publication when the host was read.
func heard(host *topology.Host) string { return topology.Age(max(host.ReadAt.Sub(host.Agent.At), 0)) }

// hostTable returns one line for each host, with the faults of their agents below.
func hostTable(hosts []topology.Host, clusterID string, wide bool) []byte {
	var out bytes.Buffer
	w := &printer{w: &out}
	var problems []string
	w.table(func(table io.Writer) {
		columns := 8
		if wide {
			columns = 12
		}
		row := func(cells ...string) {
			for i := range cells {
				cells[i] = cmp.Or(cells[i], "-")
			}
			fmt.Fprintln(table, strings.Join(cells[:columns], "\t"))
		}
		row("HOST", "CPUS", "NUMA NODES", "CONFIDENCE", "AGENT", "ISOLATION", "HEARD OF", "STATE", "CLUSTERS", "RESERVED CPUS", "PINNED", "REFUSED")
		for i := range hosts {
			host := &hosts[i]
			state := string(host.AgentState(clusterID, host.ReadAt))
			if host.ReadAt.IsZero() {
				state = string(topology.AgentUnread)
			}
			cells := make([]string, 12)
			copy(cells, []string{
				host.ID().String(), fmt.Sprint(host.OnlineCPUs().Size()), fmt.Sprint(len(host.NUMANodes)), string(host.Confidence()), "", "", "", state,
			})
			if a := host.Agent; a != nil {
				copy(cells[4:], []string{
					a.Version, a.Isolation, heard(host) + " ago", state,
					strings.Join(slices.Sorted(slices.Values(a.Clusters)), ","), a.ReservedCPUs.String(), fmt.Sprint(len(a.Pinned)), fmt.Sprint(len(a.Refused)),
				})
			}
			row(cells...)
			if host.Problem != "" {
				problems = append(problems, fmt.Sprintf("%s %s", host.ID(), host.Problem))
				continue
			}
			for _, fault := range agentFaults(host, clusterID) {
				problems = append(problems, fmt.Sprintf("%s %s", host.ID(), fault))
			}
		}
	})
	if len(problems) > 0 {
		w.printf("\n%s\n", strings.Join(problems, "\n"))
	}
	return out.Bytes()
}

func newCollect(process Process) *cobra.Command {
	var output, root string
	var script bool
	command := &cobra.Command{
		Use:   "collect",
		Short: "Print the exact topology of the machine this runs on",
		Long: "Read /sys and /proc of the Linux host this runs on and print its exact topology: which CPUs are\n" +
			"threads of one core, which share a last-level cache, NUMA nodes with memory, distances and huge pages,\n" +
			"offline CPUs, and kinds of cores. Proxmox' API reports neither siblings nor caches. Needs no privileges.",
		Example: `  numaform topology collect >pve-1.json              # on the host; then machines: {pve-1: pve-1.json} in numaform.yaml
  numaform topology collect -o notes                 # the same for the host's notes in Proxmox, without a file
  numaform topology collect -o text                  # a map of this machine
  numaform topology collect --script >collect.sh     # for hosts without numaform: sh collect.sh >pve-1.json`,
		RunE: func(*cobra.Command, []string) error {
			if script {
				return write(process, []byte(sysfs.Script()), nil)
			}
			if !slices.Contains([]string{"json", "notes", "text", "svg"}, output) {
				return usageError{fmt.Errorf("--output %q: want json, notes, text or svg", output)}
			}
			file, err := sysfs.Collect(os.DirFS(root))
			if err != nil {
				return err
			}
			name, err := os.Hostname()
			if err != nil {
				name = "this-host"
			}
			name, _, _ = strings.Cut(name, ".")
			hosts := []topology.Host{{Region: "local", Name: topology.HostName(name), Online: true, Machine: file.Machine()}}
			switch output {
			case "json":
				text, err := file.Print()
				return write(process, text, err)
			case "notes":
				text, err := file.Published()
				return write(process, text, err)
			case "svg":
				return write(process, cpumap.SVG(hosts, nil), nil)
			}
			return write(process, draw(process, hosts, nil, ""), nil)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&output, "output", "o", "json", "json, notes, text or svg")
	flags.BoolVar(&script, "script", false, "print a POSIX shell script that prints the same JSON")
	flags.StringVar(&root, "root", "/", "directory that holds sys and proc, for a copy of another host's")
	return command
}
