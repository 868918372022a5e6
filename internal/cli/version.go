package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

func newVersion(process Process) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of numaform, its fleet format, module and provider",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(process.Stdout, "numaform %s %s/%s\nfleet format %d\nmodule proxmox-node %s\nprovider %s %s\n",
				process.Version, runtime.GOOS, runtime.GOARCH, generator.FormatVersion, modules.Hash(),
				guard.Provider, generator.ProviderVersion)
			return err
		},
	}
}
