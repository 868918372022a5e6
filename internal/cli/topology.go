package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// fleetTimeout limits the time for reading the fleet, which a map does not require.
const fleetTimeout = 20 * time.Second

func newTopology(process Process) *cobra.Command {
	var o options
	var only string
	command := &cobra.Command{
		Use:   "topology",
		Short: "Show hosts, NUMA nodes, caches, cores, and the owner of each CPU",
		Long: "Show the NUMA nodes, caches and cores of each host, the owner of each CPU, the source of each fact,\n" +
			"and missing or doubtful facts. The map uses no color. It is as wide as the terminal or, in a pipe,\n" +
			"as the environment variable COLUMNS.",
		Example: `  numaform topology                                  # a map of each host, or a table of more than 8 hosts
  numaform topology -o table                         # free CPUs and memory, VMs and the agent of each host
  numaform topology -o wide                          # also of each NUMA node
  numaform topology --host pve-2 -o svg >pve-2.svg
  numaform topology -o json >lab.json                # a snapshot for --snapshot
  numaform topology --snapshot lab.json              # needs no numaform.yaml`,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			config, err := loadConfig(process, o.config)
			// A recorded snapshot needs no configuration, unless --config is set.
			if errors.Is(err, fs.ErrNotExist) && o.snapshot != "" && !command.Flags().Changed("config") {
				config = &operator.Config{}
				err = nil
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
			if only != "" {
				var known []string
				for i := range snapshot.Hosts {
					known = append(known, snapshot.Hosts[i].ID().String())
				}
				snapshot.Hosts = slices.DeleteFunc(snapshot.Hosts, func(h topology.Host) bool {
					return string(h.Name) != only && h.ID().String() != only
				})
				if len(snapshot.Hosts) == 0 {
					return fmt.Errorf("--host %q: unknown host: must be one of %s", only, strings.Join(known, ", "))
				}
			}

			switch o.output {
			case "json":
				text, err := snapshot.Print()
				return write(process, text, err)
			}
			desired := &fleet.Fleet{}
			if config.ClusterID != "" {
				desired = readFleet(ctx, process, config, &o)
			}
			if o.output == "table" || o.output == outputWide || o.output == "text" && len(snapshot.Hosts) > mostHosts {
				w := newPrinter(process)
				w.topology(snapshot, desired, config.ClusterID, o.output == outputWide)
				return w.err
			}
			owners := map[topology.HostID]cpumap.Ownership{}
			for i := range snapshot.Hosts {
				host := &snapshot.Hosts[i]
				owners[host.ID()] = cpumap.Owners(host, desired.On(host.ID()))
			}
			if o.output == "svg" {
				return write(process, cpumap.SVG(snapshot.Hosts, owners), nil)
			}
			return write(process, draw(process.terminal(process.Stdout), snapshot.Hosts, owners, config.ClusterID), nil)
		},
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster, if the fleet is stored in its ConfigMaps")
	flags.StringVar(&o.snapshot, "snapshot", "", "use a recorded Proxmox snapshot instead of the live API")
	flags.VarP(choose(&o.output, "text", "map", "table", outputWide, "json", "svg"), "output", "o",
		"output format: text (a map of up to 8 hosts, a table of more), map, table, wide, svg, or json for --snapshot")
	flags.StringVar(&only, "host", "", "show only this host, by name or as region/name")
	command.AddCommand(newCollect(process))
	return command
}

// readFleet returns the fleet, from which a map gets the names of VMs and the VMs that are
// not running yet. If the fleet cannot be read, readFleet prints the error and returns an
// empty fleet.
func readFleet(ctx context.Context, process Process, config *operator.Config, o *options) *fleet.Fleet {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	_, current, err := storedFleet(ctx, process, config, o.kubeconfig)
	if err == nil {
		return current
	}
	fmt.Fprintf(process.Stderr, "numaform: VMs that are not running yet are omitted, because the fleet cannot be read: %v\n", err)
	return &fleet.Fleet{}
}

// draw returns a map of each host and the state of its agent. For several hosts, the facts
// and the states of the agents follow the maps, each sentence once.
func draw(terminal term.Terminal, hosts []topology.Host, owners map[topology.HostID]cpumap.Ownership, clusterID string) []byte {
	wrapped := terminal
	wrapped.Wrap = true // a map has a fixed width even in a pipe
	var out bytes.Buffer
	var notes doctor.Report
	for i := range hosts {
		host := &hosts[i]
		several := len(hosts) > 1
		out.WriteString(cpumap.Text(host, owners[host.ID()], cpumap.Options{Width: terminal.Width, Brief: several}))
		found := agentReport(host, clusterID)
		if several {
			for _, fact := range cpumap.Facts(host) {
				notes = append(notes, doctor.Finding{Where: host.ID().String(), What: fact})
			}
			notes = append(notes, found...)
		} else {
			for i, finding := range found {
				finding.Where = ""
				line := finding.Line()
				if i > 0 {
					line = "agent problem: the host " + line
				}
				out.WriteString(wrapped.Fill(line, 2) + "\n")
			}
		}
		out.WriteByte('\n')
	}
	for _, note := range notes.Grouped() {
		out.WriteString(wrapped.Fill(note.Line(), 2) + "\n")
	}
	return []byte(term.Printable(out.String()))
}

// agentReport returns the agent's version and last report, and its faults.
func agentReport(host *topology.Host, clusterID string) doctor.Report {
	if host.Problem != "" || host.ReadAt.IsZero() {
		return nil
	}
	state := doctor.Finding{Where: host.ID().String(), What: "agent none"}
	if a := host.Agent; a != nil {
		state.What, state.Values = topology.Sentence("agent %s, isolation %s, last report %s ago", a.Version, a.Isolation, topology.Elapsed(status.ReportAge(host)))
	}
	return append(doctor.Report{state}, agentFaults(host, clusterID)...)
}

// write writes text to stdout. If err is not nil, it writes nothing and returns err.
func write(process Process, text []byte, err error) error {
	if err != nil {
		return err
	}
	if _, err := process.Stdout.Write(text); err != nil {
		return fmt.Errorf("writing the topology: %w", err)
	}
	return nil
}

// agentFaults returns the faults of a host's agent, each with its fix. A missing agent is
// not a fault here.
func agentFaults(host *topology.Host, clusterID string) doctor.Report {
	var report doctor.Report
	for _, fault := range host.AgentFaults(clusterID, host.ReadAt) {
		if fault.State != topology.AgentAbsent {
			report = append(report, doctor.Finding{Where: host.ID().String(), What: fault.What, Values: fault.Values, Fix: fault.Fix})
		}
	}
	return report
}

// topology prints a table of hosts, followed by the problems of hosts and agents.
func (w *printer) topology(snapshot *topology.Snapshot, desired *fleet.Fleet, clusterID string, wide bool) {
	hosts := make([]status.Host, len(snapshot.Hosts))
	for i := range hosts {
		host := &snapshot.Hosts[i]
		hosts[i] = status.NewHost(host, desired.On(host.ID()), clusterID)
	}
	w.hostTable(hosts, wide)
	if problems := hostProblems(snapshot.Hosts, clusterID); len(problems) > 0 {
		w.printf("\n%s\n", strings.Join(problems, "\n"))
	}
}

func newCollect(process Process) *cobra.Command {
	var output, root string
	var script bool
	command := &cobra.Command{
		Use:   "collect",
		Short: "Print the exact topology of this machine",
		Long: "Read /sys and /proc of this Linux host and print its exact topology: the threads of each core, the CPUs\n" +
			"that share a last-level cache, NUMA nodes with memory, distances and huge pages, offline CPUs, and kinds\n" +
			"of cores. The Proxmox API reports neither siblings nor caches. The command needs no privileges.",
		Example: `  numaform topology collect >pve-1.json              # on the host; then set machines: {pve-1: pve-1.json} in numaform.yaml
  numaform topology collect -o notes                 # for the notes of the host in Proxmox, instead of a file
  numaform topology collect -o text                  # a map of this machine
  numaform topology collect --script >collect.sh     # on a host without numaform, run sh collect.sh >pve-1.json`,
		RunE: func(*cobra.Command, []string) error {
			if script {
				return write(process, []byte(sysfs.Script()), nil)
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
			return write(process, draw(process.terminal(process.Stdout), hosts, nil, ""), nil)
		},
	}
	flags := command.Flags()
	flags.VarP(choose(&output, "json", "notes", "text", "svg"), "output", "o", "output format: json, notes, text or svg")
	flags.BoolVar(&script, "script", false, "print a POSIX shell script that prints the same JSON")
	flags.StringVar(&root, "root", "/", "directory that contains sys and proc, for example a copy from another host")
	return command
}
