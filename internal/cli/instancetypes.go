package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/scheduling"
)

func newInstanceTypes(process Process) *cobra.Command {
	group := &cobra.Command{
		Use:     "instance-types",
		Aliases: []string{"instancetypes"},
		Short:   "Generate a file with instance types",
	}
	var o scheduling.TypeOptions
	generate := &cobra.Command{
		Use:     "generate",
		Aliases: []string{"g"},
		Short:   "Print a file of instance types for instance_types_file of numaform.yaml",
		Long: "Print a JSON list with an instance type for each number of vCPUs and each number of GiB of memory per vCPU. " +
			"Without --kubelet, --system and --eviction, the types have no overhead of their own, so numaform reserves as much as for a default type of this size. " +
			"With one of them, numaform reserves only what is selected.",
		RunE: func(*cobra.Command, []string) error {
			types, err := scheduling.GenerateTypes(o)
			if err != nil {
				return usageError{err}
			}
			text, err := scheduling.FormatInstanceTypes(types)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(process.Stdout, string(text))
			return err
		},
	}
	flags := generate.Flags()
	flags.IntSliceVarP(&o.VCPUs, "cpus", "c", []int{1, 2, 4}, "numbers of vCPUs")
	flags.IntSliceVarP(&o.Factors, "memfactor", "m", []int{2, 3, 4}, "GiB of memory for each vCPU")
	flags.IntVarP(&o.DiskGiB, "storage", "s", 30, "size of the boot disk in GiB; 0 means the size in the ProxmoxNodeClass")
	flags.BoolVar(&o.Kubelet, "kubelet", false, "reserve resources for the kubelet and the container runtime")
	flags.BoolVar(&o.System, "system", false, "reserve resources for the guest's system daemons")
	flags.BoolVar(&o.Eviction, "eviction", false, "set the memory below which the kubelet evicts pods")
	group.AddCommand(generate)
	return group
}
