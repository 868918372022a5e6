package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
)

func newCollect(process Process) *cobra.Command {
	var output, root string
	var script bool
	command := &cobra.Command{
		Use:   "collect",
		Short: "Print the exact topology of the machine this runs on",
		Long: "Read /sys and /proc of the Linux host this runs on and print its exact topology: which CPUs are\n" +
			"threads of one core, which share a last-level cache, NUMA nodes with memory, distances and huge pages,\n" +
			"offline CPUs, and kinds of cores. Proxmox' API tells neither siblings nor caches. Needs no privileges.",
		Example: `  numaform topology collect >pve-1.json              # on the host; then machines: {pve-1: pve-1.json} in numaform.yaml
  numaform topology collect -o notes                 # the same for the host's notes in Proxmox, without a file
  numaform topology collect -o text                  # a map of this machine
  numaform topology collect --script >collect.sh     # for hosts without numaform: sh collect.sh >pve-1.json`,
		RunE: func(*cobra.Command, []string) error {
			if script {
				return write(process, []byte(sysfs.Script()), nil)
			}
			return runCollect(process, root, output)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&output, "output", "o", "json", "json, notes, text or svg")
	flags.BoolVar(&script, "script", false, "print a POSIX shell script that prints the same JSON")
	flags.StringVar(&root, "root", "/", "directory that holds sys and proc, for a copy of another host's")
	return command
}

func runCollect(process Process, root, output string) error {
	if output != "json" && output != "notes" && output != "text" && output != "svg" {
		return usageError{fmt.Errorf("--output %q: want json, notes, text or svg", output)}
	}
	file, err := sysfs.Collect(os.DirFS(root))
	if err != nil {
		return err
	}
	switch output {
	case "json":
		text, err := file.Print()
		return write(process, text, err)
	case "notes":
		text, err := file.Published()
		return write(process, text, err)
	}
	hosts := []topology.Host{{Region: "local", Name: hostName(), Online: true, Machine: file.Machine()}}
	if output == "svg" {
		return write(process, cpumap.SVG(hosts, nil), nil)
	}
	return write(process, draw(process, hosts, nil, ""), nil)
}
