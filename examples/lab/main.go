// Command lab runs a simulated Proxmox VE cluster, with numaform-agent on its hosts if
// --agents is set, for trying numaform. It must be started within a checkout and runs until
// it is interrupted.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// options are the values of the flags.
type options struct {
	listen, hosts, name, template, certOut string
	agents                                 []string
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:          "lab --hosts DIR",
		Short:        "Serve a simulated Proxmox VE cluster with numaform-agent on its hosts",
		Long:         "Serve a simulated Proxmox VE cluster with numaform-agent on its hosts. DIR contains one JSON file per host: a\nhost of a topology snapshot, or a machine in the format of examples/quickstart/hosts.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8006", "address to serve on; port 0 selects a free port")
	flags.StringVar(&o.hosts, "hosts", "", "directory with one JSON file per host")
	flags.StringVar(&o.name, "name", "lab", "name of the Proxmox cluster")
	flags.StringVar(&o.template, "template", "debian-13-k8s", "name of the template on hosts given as machines")
	flags.StringVar(&o.certOut, "cert-out", "", "file to write the server's certificate to")
	flags.StringSliceVar(&o.agents, "agents", nil, "clusterIDs whose VMs the agents may pin (comma-separated); none runs no agents")
	if err := cmd.MarkFlagRequired("hosts"); err != nil {
		panic(err)
	}
	return cmd
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context, talk io.Writer) (err error) {
	hosts, err := pvesim.LoadHosts(o.hosts, topology.RegionName(o.name), o.template)
	if err != nil {
		return err
	}
	cfg := pvesim.Config{Name: o.name, Hosts: hosts}
	if len(o.agents) > 0 {
		cfg = hostagent.On(cfg, hostagent.Agent{Rules: claim.Rules{Clusters: o.agents}, Isolation: "enforce"})
	}
	server, err := pvesim.New(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	if err := server.Start(o.listen); err != nil {
		return err
	}
	fmt.Fprintf(talk, "url:         %s/\ntoken:       %s=%s\n", server.URL(), pvesim.DefaultToken, pvesim.DefaultTokenSecret)
	if o.certOut != "" {
		if err := os.WriteFile(o.certOut, server.CertPEM(), 0o644); err != nil {
			return fmt.Errorf("writing certificate: %w", err)
		}
		fmt.Fprintf(talk, "certificate: %s\n", o.certOut)
	}
	<-ctx.Done()
	return nil
}
