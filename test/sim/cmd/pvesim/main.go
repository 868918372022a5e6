// Command pvesim serves a simulated Proxmox VE cluster until it is interrupted.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/test/sim/control"
	"github.com/numaform/numaform/test/sim/pvesim"
	"github.com/numaform/numaform/test/sim/qemu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	listen, hosts, name, template, password, certOut, version string
	tokens                                                    []string
	cloneDelay, startDelay                                    time.Duration
	guestAgents, stdin                                        bool
	control                                                   string
	guests, guestImage, guestDir                              string
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:          "pvesim --hosts DIR",
		Short:        "Serve a simulated Proxmox VE cluster",
		Long:         "Serve the API of a simulated Proxmox VE cluster over TLS. DIR contains one JSON file per host.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.stdin {
				return pvesim.Run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return o.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8006", "address to serve on; port 0 selects a free port")
	flags.StringVar(&o.hosts, "hosts", "", "directory with one JSON file per host")
	flags.StringVar(&o.name, "name", "lab", "name of the Proxmox cluster")
	flags.StringVar(&o.template, "template", "debian-13-k8s", "name of the template on hosts that are read from machines")
	flags.StringArrayVar(&o.tokens, "token", nil, "API token as user@realm!id=secret, with the privileges that numaform needs (repeatable)")
	flags.StringVar(&o.password, "root-password", pvesim.DefaultRootPassword, "password of root@pam")
	flags.StringVar(&o.certOut, "cert-out", "", "file to write the server's certificate to")
	flags.StringVar(&o.version, "version", "9.2", "Proxmox VE version, 8.x or 9.x")
	flags.DurationVar(&o.cloneDelay, "clone-delay", 0, "duration of a clone")
	flags.DurationVar(&o.startDelay, "start-delay", 0, "duration of a start")
	flags.StringVar(&o.control, "control", "", "address to serve control requests on, such as for faults, delays and unmanaged guests")
	flags.StringVar(&o.guests, "guests", "none", "how to run started VMs: none only simulates them, qemu starts each with QEMU")
	flags.StringVar(&o.guestImage, "guest-image", ".tools/guest/image.qcow2", "disk of the templates with --guests qemu")
	flags.StringVar(&o.guestDir, "guest-dir", "", "directory for disks and serial logs with --guests qemu; empty means a temporary directory")
	flags.BoolVar(&o.stdin, "stdin", false, "read the cluster from standard input, print the address of the control port, and exit when the input is closed")
	flags.BoolVar(&o.guestAgents, "guest-agents", false, "make the guest agents of running VMs respond")
	cmd.MarkFlagsOneRequired("hosts", "stdin")
	cmd.MarkFlagsMutuallyExclusive("hosts", "stdin")
	return cmd
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context, talk io.Writer) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	switch o.guests {
	case "none":
	case "qemu":
		hypervisor, dir, err := o.hypervisor(ctx)
		if err != nil {
			return err
		}
		defer hypervisor.Close()
		cfg.Hypervisor = hypervisor
		if o.guestDir == "" {
			defer func() { _ = os.RemoveAll(dir) }()
		}
		_, _ = fmt.Fprintf(talk, "guests:      QEMU with %s, in %s\n", hypervisor.Accelerator(), dir)
	default:
		return fmt.Errorf("--guests %q: must be none or qemu", o.guests)
	}
	server, err := pvesim.New(cfg)
	if err != nil {
		return err
	}
	if err := server.Start(o.listen); err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	if o.certOut != "" {
		if err := os.WriteFile(o.certOut, server.CertPEM(), 0o644); err != nil {
			return fmt.Errorf("writing certificate: %w", err)
		}
	}
	_, _ = fmt.Fprintf(talk, "url:         %s/\n", server.URL())
	for _, t := range o.shownTokens() {
		_, _ = fmt.Fprintf(talk, "token:       %s\n", t)
	}
	if o.certOut != "" {
		_, _ = fmt.Fprintf(talk, "certificate: %s\n", o.certOut)
	}
	if o.control == "" {
		<-ctx.Done()
		return nil
	}
	return control.Serve(ctx, o.control, server.Control(), func(url string) {
		_, _ = fmt.Fprintf(talk, "control:     %s/\n", url)
	})
}

// hypervisor returns QEMU, and the directory that it uses.
func (o *options) hypervisor(ctx context.Context) (*qemu.Hypervisor, string, error) {
	image, err := filepath.Abs(o.guestImage) // linked clones refer to the image by its path
	if err != nil {
		return nil, "", err
	}
	dir := o.guestDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "pvesim-"); err != nil {
			return nil, "", err
		}
	}
	hypervisor, err := qemu.New(ctx, qemu.Config{Image: image, Dir: dir})
	return hypervisor, dir, err
}

func (o *options) config() (pvesim.Config, error) {
	hosts, err := pvesim.LoadHosts(o.hosts, o.name, o.template)
	if err != nil {
		return pvesim.Config{}, err
	}
	cfg := pvesim.Config{
		Name: o.name, Version: o.version, Hosts: hosts, RootPassword: o.password, GuestAgents: o.guestAgents,
		Delays: pvesim.Delays{Clone: o.cloneDelay, Start: o.startDelay},
	}
	for _, text := range o.tokens {
		id, secret, ok := strings.Cut(text, "=")
		if !ok || secret == "" {
			return pvesim.Config{}, fmt.Errorf("--token %q: must be user@realm!id=secret", id)
		}
		cfg = cfg.WithToken(id, secret)
	}
	return cfg, nil
}

// shownTokens returns the tokens to print. They are not secret: the cluster is only
// simulated.
func (o *options) shownTokens() []string {
	if len(o.tokens) > 0 {
		return o.tokens
	}
	return []string{pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret}
}
