package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

func newPlan(process Process) *cobra.Command {
	var o options
	var detailed bool
	command := &cobra.Command{
		Use:   "plan",
		Short: "Show which VMs pending pods need, where, and what an apply would do",
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			p, err := propose(ctx, process, &o)
			if err != nil {
				return err
			}
			if err := p.checkJoins(ctx); err != nil && !errors.As(err, &p.unjoined) {
				return err
			}
			if o.out != "" {
				if err := writeOut(ctx, o.out, p.change.AfterFiles); err != nil {
					return err
				}
			}
			var plans []scaler.RootPlan
			if !o.noEngine {
				if plans, err = p.session.scaler.Plan(ctx, p.change); err != nil {
					return err
				}
			}
			if err := p.setPlans(ctx, plans); err != nil {
				return err
			}
			failure := p.failure(true)
			if err := p.print(process, &o, failure == nil && needsApproval(p.plans)); err != nil {
				return err
			}
			if failure != nil {
				return failure
			}
			if err := p.writeStatement(ctx, process, &o); err != nil {
				return err
			}
			if o.output == "text" {
				w := newPrinter(process)
				r := p.report()
				if w.next(&r, p.pending(), &o, "numaform apply"); w.err != nil {
					return w.err
				}
			}
			if detailed && p.pending() {
				return exitError{ExitChanges}
			}
			return nil
		},
	}
	flags := command.Flags()
	o.register(flags)
	o.registerReport(flags)
	o.signing.registerOut(flags)
	flags.StringVar(&o.out, "out", "", "directory to write the fleet's files to; empty writes nothing")
	flags.BoolVar(&o.noEngine, "no-engine", false, "render the fleet's files only, without running OpenTofu or Terraform")
	flags.BoolVar(&detailed, "detailed-exitcode", false, "exit with 0 if there are no changes, 1 on an error, 2 if there are changes")
	return command
}

// next prints the summary of a plan that requires approval, and the command that follows
// the plan. apply is the command that applies it, without the flags of o.
func (w *printer) next(r *report, changes bool, o *options, apply string) {
	if r.Digest != "" {
		w.summary(r.summary(r.Digest))
	}
	what, command := "To apply it", apply+o.source()
	switch {
	case !changes && r.Pods != nil && len(r.Pods.Refusals) > 0:
		what, command = "To compare a pod with each host", "numaform explain pod "+r.Pods.Refusals[0].Pod+o.source()
		if o.snapshot != "" {
			command += " --snapshot " + shell.Quote(o.snapshot)
		}
	case !changes:
		what, command = "To show the fleet", "numaform status"+o.fleetSource()
	case o.snapshot != "" || o.noEngine:
		what, command = "To plan it on the live hosts", "numaform plan"+o.source()
	case r.unjoined:
		return // an apply refuses the change, and the warning explains how to fix it
	case r.Digest != "" && w.Wrap && w.Width < len(r.Digest)+len("    --approve "):
		what += " in a terminal"
	case r.Digest != "":
		what += " in a terminal, or without one"
		command += " --approve " + r.Digest
	}
	w.raw("\n")
	w.suggest(what, command)
}

// suggest prints a command and what it does.
func (w *printer) suggest(what, command string) {
	if line := what + ": " + command; !w.Wrap || len(line) <= w.Width {
		w.raw(line + "\n")
		return
	}
	w.raw(what + ":\n  " + w.Command(command, 4) + "\n")
}

// fleetSource returns the flags of a command line that reads the same fleet, without
// manifests.
func (o *options) fleetSource() string {
	fleet := *o
	fleet.files = nil
	return fleet.source()
}

// source returns the flags of a command line that reads the same fleet and cluster.
func (o *options) source() string {
	var flags string
	if o.config != "numaform.yaml" {
		flags += " --config " + shell.Quote(o.config)
	}
	for _, file := range o.files {
		flags += " -f " + shell.Quote(file)
	}
	return flags + clusterFlags(o.kubeconfig)
}

// clusterFlags returns the flags of a command line that reads the same cluster.
func clusterFlags(selected operator.Kubeconfig) string {
	var flags string
	if selected.Path != "" {
		flags += " --kubeconfig " + shell.Quote(selected.Path)
	}
	if selected.Context != "" {
		flags += " --context " + shell.Quote(selected.Context)
	}
	return flags
}

// podSource is where the next command reads pods.
type podSource struct {
	// flags are the flags that select the source in the next command.
	flags string
	// known is false if there is neither a cluster nor manifests: a command that needs pods
	// would fail.
	known bool
}

// podSource returns where the next command reads pods: the manifests or the cluster of this
// command, the cluster of the default kubeconfig, or the manifests that init wrote.
func (o *options) podSource(environ []string) podSource {
	selected := len(o.files) > 0 || o.kubeconfig.Path != "" || o.kubeconfig.Context != "" ||
		slices.ContainsFunc(environ, func(entry string) bool {
			value, isFilename := strings.CutPrefix(entry, "NUMAFORM_FILENAME=")
			return isFilename && value != ""
		})
	if !selected {
		_, err := scheduling.ClientConfig("", "")
		selected = err == nil
	}
	if selected {
		return podSource{flags: o.source(), known: true}
	}
	written := *o
	written.files = []string{filepath.Join(filepath.Dir(o.config), manifestsDir)}
	if _, err := os.Stat(written.files[0]); err != nil {
		return podSource{flags: o.source()}
	}
	return podSource{flags: written.source(), known: true}
}

// writeOut writes the planned files to the fleet's own directory, or to one that contains
// nothing else.
func writeOut(ctx context.Context, dir string, files generator.Files) (err error) {
	out := store.NewDirectory(dir)
	if err := out.Accepts(files); err != nil {
		return err
	}
	unlock, err := out.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return out.Write(files)
}

// proposal is a change and the decision that led to it.
type proposal struct {
	session  *session
	decision *scheduling.Decision // nil unless propose made the change
	change   *scaler.Change
	plans    []scaler.RootPlan // nil before planning and without an engine
	cost     scheduling.Cost
	// unjoined explains why an apply would refuse the change, or is nil.
	unjoined *UnjoinedError
}

// propose decides which VMs the pending pods need and where, and renders them.
func propose(ctx context.Context, process Process, o *options) (*proposal, error) {
	s, err := open(ctx, process, o)
	if err != nil {
		return nil, err
	}
	change, err := s.scaler.NewChange(ctx, s.snapshot)
	if err != nil {
		return nil, err
	}
	if err := s.checkNotLost(ctx, &change.Before); err != nil {
		return nil, err
	}
	request, err := s.request(&change.Before)
	if err != nil {
		return nil, err
	}
	decision, err := s.cluster.Decide(ctx, request)
	if err != nil {
		return nil, err
	}
	requests := make([]scaler.Request, len(decision.New))
	for i, placed := range decision.New {
		requests[i] = scaler.Request{Spec: placed.Spec, Placement: placed.Placement}
	}
	taken, err := s.cluster.VMIDs(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.scaler.AddVMs(ctx, change, requests, taken); err != nil {
		return nil, err
	}
	updates, err := s.inPlace(ctx, process, change)
	if err != nil {
		return nil, err
	}
	if err := s.scaler.UpdateVMs(change, updates); err != nil {
		return nil, err
	}
	return &proposal{session: s, decision: decision, change: change}, nil
}

// inPlace returns the VMs of the fleet with the tags, the pool, the security groups and the
// emulator of their classes, as the controller updates them. A VM stays in its pool, with a
// message, if numaform's user cannot move it.
func (s *session) inPlace(ctx context.Context, process Process, change *scaler.Change) ([]fleet.VM, error) {
	classes, err := s.cluster.NodeClasses(ctx)
	if err != nil {
		return nil, err
	}
	types, err := s.config.InstanceTypes()
	if err != nil {
		return nil, err
	}
	var updates []fleet.VM
	for i := range classes {
		nc := &classes[i]
		report := scheduling.EvaluateClass(nc, s.snapshot, s.config.ClusterID, types)
		if !nc.DeletionTimestamp.IsZero() || slices.ContainsFunc(report.Findings, func(f scheduling.Finding) bool {
			return f.Condition == v1alpha1.ConditionValid || f.Condition == v1alpha1.ConditionPlacementReady
		}) {
			continue
		}
		for _, vm := range change.Before.VMs {
			if vm.NodeClass != nc.Name || vm.Standby {
				continue
			}
			from := vm.ResourcePool
			scheduling.InPlace(nc, &vm.Spec, vm.Module)
			if err := s.mayMove(ctx, vm.Host.Region, from, vm.ResourcePool); err != nil {
				fmt.Fprintf(process.Stderr, "numaform: %s remains in resource pool %q: %v\n", vm.Name, from, err)
				vm.ResourcePool = from
			}
			updates = append(updates, vm)
		}
	}
	return updates, nil
}

// mayMove returns an error if a VM of a region cannot move between two pools. Without a
// live Proxmox, that is unknown, and the plan assumes that it can.
func (s *session) mayMove(ctx context.Context, region topology.RegionName, from, to string) error {
	i := slices.IndexFunc(s.regions, func(r scaler.Region) bool { return r.Name == region })
	if from == to || i < 0 {
		return nil
	}
	client, live := s.regions[i].Live.(*proxmox.Client)
	if !live {
		return nil
	}
	return operator.MayMove(ctx, client, s.snapshot, region, from, to)
}

// setPlans sets the plans, or nil without an engine, and the cost of the change.
func (p *proposal) setPlans(ctx context.Context, plans []scaler.RootPlan) error {
	p.plans = plans
	request, err := p.session.request(&p.change.Before)
	if err != nil {
		return err
	}
	before, after := p.sizes()
	p.cost, err = p.session.cluster.Cost(ctx, request, before, after)
	return err
}

// changes reports whether an apply would change anything.
func (p *proposal) changes() bool {
	return !p.change.Empty() || len(p.change.Differences()) > 0 ||
		slices.ContainsFunc(p.plans, func(plan scaler.RootPlan) bool { return plan.Changes() })
}

// pending is like changes, but also considers updates of earlier changes, which a dry run does
// not plan.
func (p *proposal) pending() bool { return p.changes() || len(p.change.UnfinishedUpdates()) > 0 }

// failure returns the errors of hosts that prevent an apply, or nil. It considers the hosts
// that the change touches and, if the change is empty, the hosts whose node files were
// deleted. With all, it also considers the other hosts, except the ones that are down.
func (p *proposal) failure(all bool) error {
	var failures []error
	for i := range p.plans {
		plan := &p.plans[i]
		var down *scaler.HostDownError
		about := plan.Touched || (p.change.Empty() && len(plan.TakenOut) > 0)
		switch {
		case !about && (!all || errors.As(plan.Err, &down)):
		case plan.Err != nil:
			failures = append(failures, fmt.Errorf("host %s: %w", plan.Host, plan.Err))
		case plan.Verdict.Decision == guard.Deny:
			failures = append(failures, &scaler.DeniedError{Host: plan.Host, Verdict: plan.Verdict})
		}
	}
	return errors.Join(failures...)
}

// UnjoinedError reports a VM that would never join, because its class depends on the
// controller.
type UnjoinedError struct {
	VM, Class string
	Metadata  v1alpha1.MetadataType
}

func (e *UnjoinedError) Error() string { return e.reason() + "; nothing was changed" }

// reason returns the error without its effect on the change.
func (e *UnjoinedError) reason() string {
	does := "creates seeds"
	if e.Metadata == v1alpha1.MetadataAgent {
		does = "runs join commands"
	}
	return fmt.Sprintf("vm %s: ProxmoxNodeClass %s has metadata of type %s, and only numaform controller %s: "+
		"use the controller for these nodes, or set metadata: {type: none} in the class and use a template that contains everything a node needs to join",
		e.VM, e.Class, e.Metadata, does)
}

// checkJoins refuses new VMs that would start but never join: VMs with a seed, and VMs that
// join through their guest agents.
func (p *proposal) checkJoins(ctx context.Context) error {
	for i := range p.change.Added {
		if vm := &p.change.Added[i]; vm.Seed != "" {
			return &UnjoinedError{VM: vm.Name, Class: vm.NodeClass, Metadata: v1alpha1.MetadataCDROM}
		}
	}
	classes, err := p.session.cluster.NodeClasses(ctx)
	if err != nil {
		return err
	}
	for i := range classes {
		class := &classes[i]
		at := slices.IndexFunc(p.change.Added, func(vm fleet.VM) bool { return vm.NodeClass == class.Name })
		if class.ByAgent() && at >= 0 {
			return &UnjoinedError{VM: p.change.Added[at].Name, Class: class.Name, Metadata: class.Spec.Metadata.Type}
		}
	}
	return nil
}
