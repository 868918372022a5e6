package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/adopt"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/topology"
)

// adoption is one run of adopt.
type adoption struct {
	options

	pool    string
	replace bool
	names   []string
	client  client.Client
	// nodes are the Nodes to adopt, and vms their VMs.
	nodes []adopt.Candidate
	vms   []fleet.VM
	// identities are the VMs as they were when the change was reviewed, by key.
	identities map[fleet.Key]*proxmox.Identity
	proxmox    map[topology.RegionName]*proxmox.Client
}

func newAdopt(process Process) *cobra.Command {
	a := &adoption{}
	command := &cobra.Command{
		Use:   "adopt [NODE…]",
		Short: "Take over running nodes that another autoscaler created, or that a restore left out",
		Long: "Import the VMs of Nodes that another autoscaler created into the fleet, and move the Nodes to NodeClaims of numaform. No VM is restarted\n" +
			"or replaced, and no pod is moved. Without names, adopt all Nodes of karpenter-provider-proxmox. The import always requires an approval.\n" +
			"Nodes of numaform whose VMs are newer than a restored backup return to the fleet in the same way, if you name them.\n" +
			"The other autoscaler must be stopped. If the command is interrupted, run it again: it continues.",
		Args: arguments(0, anyNumber),
		RunE: func(command *cobra.Command, args []string) error {
			a.names = args
			return explained(a.run(command.Context(), process), "a ClusterRole that can create, patch and delete NodeClaims, patch Nodes, and list Leases and Deployments")
		},
	}
	a.registerChange(command.Flags())
	a.registerReport(command.Flags())
	command.Flags().StringVar(&a.pool, "nodepool", "", "NodePool that the Nodes move to; by default, the NodePool of their label karpenter.sh/nodepool")
	command.Flags().BoolVar(&a.replace, "replace", false, "after the adoption, replace the nodes within the disruption budgets of their NodePools")
	return command
}

func (a *adoption) run(ctx context.Context, process Process) error {
	if len(a.files) > 0 {
		return usageError{errors.New("adopt reads and writes a cluster: replace -f by --kubeconfig")}
	}
	settings, err := loadConfig(process, a.config)
	if err != nil {
		return err
	}
	if settings.Fleet.Git.Review {
		return errors.New("adopt imports VMs right after their review on the command line, but fleet.git.review is set: unset it until the VMs are adopted")
	}
	config, err := scheduling.ClientConfig(a.kubeconfig.Path, a.kubeconfig.Context)
	if err != nil {
		return err
	}
	if a.client, err = scheduling.NewClient(config); err != nil {
		return err
	}
	p, err := change(ctx, process, &a.options, a.decide)
	if err != nil || p == nil || a.dryRun {
		return err
	}
	for i := range a.nodes {
		node := &a.nodes[i]
		vm := &a.vms[i]
		for j := range p.change.After.VMs {
			if p.change.After.VMs[j].Key == vm.Key {
				vm = &p.change.After.VMs[j] // its file can be older than this run
			}
		}
		if vm.Pool != node.Pool.Name {
			return fmt.Errorf("adopting %s: the fleet has the VM already, in NodePool %s: run the command again with --nodepool %s", vm.Name, vm.Pool, vm.Pool)
		}
		if err := adopt.Handover(ctx, a.client, node, vm, a.replace, a.stopped); err != nil {
			return err
		}
		fmt.Fprintf(process.Stderr, "%s: adopted\n", node.Node.Name)
	}
	if a.output != "text" {
		return nil
	}
	return p.printNext(process, &a.options, shell.Line(append([]string{"numaform", "adopt"}, a.names...)...))
}

// decide returns the change that imports the VMs of the Nodes.
func (a *adoption) decide(ctx context.Context, process Process, o *options) (*proposal, error) {
	if err := a.stopped(ctx); err != nil {
		return nil, err
	}
	var err error
	if a.nodes, err = adopt.Find(ctx, a.client, a.names, a.pool); err != nil {
		return nil, err
	}
	s, err := open(ctx, process, o)
	if err != nil {
		return nil, err
	}
	a.proxmox = map[topology.RegionName]*proxmox.Client{}
	for _, region := range s.regions {
		if live, ok := region.Live.(*proxmox.Client); ok {
			a.proxmox[region.Name] = live
		}
	}

	a.vms, a.identities = nil, map[fleet.Key]*proxmox.Identity{}
	var refused []error
	for i := range a.nodes {
		vm, id, err := a.describe(ctx, s, &a.nodes[i])
		if err != nil {
			refused = append(refused, err)
			continue
		}
		a.vms = append(a.vms, vm)
		a.identities[vm.Key] = id
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	change, err := s.scaler.ProposeAdoption(ctx, s.snapshot, a.vms, a.permit)
	if err != nil {
		return nil, err
	}
	return &proposal{session: s, change: change}, nil
}

func (a *adoption) describe(ctx context.Context, s *session, node *adopt.Candidate) (fleet.VM, *proxmox.Identity, error) {
	host, guest, err := node.Guest(s.snapshot)
	if err != nil {
		return fleet.VM{}, nil, err
	}
	id, err := a.proxmox[host.Region].Identify(ctx, host.Host, fleet.VMID(guest.VMID))
	if err != nil {
		return fleet.VM{}, nil, err
	}
	vm, err := node.VM(s.config.ClusterID, host, &guest, id)
	return vm, id, err
}

// stopped checks that no other autoscaler has started.
func (a *adoption) stopped(ctx context.Context) error {
	return adopt.CheckStopped(ctx, a.client, time.Now())
}

// permit checks that no other autoscaler has started, and that the VMs are the ones that
// were reviewed.
func (a *adoption) permit(ctx context.Context) error {
	if err := a.stopped(ctx); err != nil {
		return err
	}
	for i := range a.vms {
		vm := &a.vms[i]
		now, err := a.proxmox[vm.Host.Region].Identify(ctx, vm.Host.Host, vm.VMID)
		if err != nil {
			return err
		}
		if reviewed := a.identities[vm.Key]; !now.Equal(reviewed) {
			return fmt.Errorf("adopting %s: VM %d is no longer the VM that was reviewed: its name, SMBIOS UUID or MAC addresses were %q %s %v, and are %q %s %v: run the command again",
				vm.Name, vm.VMID, reviewed.Name, reviewed.UUID, reviewed.MACs, now.Name, now.UUID, now.MACs)
		}
	}
	return nil
}
