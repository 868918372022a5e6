package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

func newPlan(process Process) *cobra.Command {
	var o options
	var detailed bool
	command := &cobra.Command{
		Use:   "plan",
		Short: "Show which VMs pending pods need, where, and what an apply would do",
		RunE: func(command *cobra.Command, _ []string) error {
			changes, err := runPlan(command.Context(), process, &o)
			if err == nil && changes && detailed {
				return exitError{ExitChanges}
			}
			return err
		},
	}
	o.register(command)
	o.registerReport(command)
	flags := command.Flags()
	flags.StringVar(&o.out, "out", "", "write the fleet's files into this directory; without it nothing is written")
	flags.BoolVar(&o.noEngine, "no-engine", false, "stop after the fleet's files: run neither OpenTofu nor Terraform")
	flags.BoolVar(&detailed, "detailed-exitcode", false, "exit 0: no change, 1: error, 2: changes")
	return command
}

func runPlan(ctx context.Context, process Process, o *options) (changes bool, err error) {
	p, err := propose(ctx, process, o)
	if err != nil {
		return false, err
	}
	if err := p.checkJoins(ctx); err != nil && !errors.As(err, &p.unjoined) {
		return false, err
	}
	if o.out != "" {
		if err := writeOut(ctx, o.out, p.change.AfterFiles); err != nil {
			return false, err
		}
	}
	if !o.noEngine {
		if p.plans, err = p.session.scaler.Plan(ctx, p.change); err != nil {
			return false, err
		}
	}
	if err := p.print(process, o); err != nil {
		return false, err
	}
	return p.changes(), p.failure(true)
}

// writeOut writes the planned files to a directory that contains nothing else, or to the
// fleet's own.
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

// proposal is a change and its causes, for print.
type proposal struct {
	session  *session
	decision *scheduling.Decision // nil for a removal
	change   *scaler.Change
	plans    []scaler.RootPlan // nil without an engine
	// unjoined is why an apply would refuse the change, or nil.
	unjoined *UnjoinedError
}

// propose decides which VMs are needed and where, and renders them.
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
	if err := s.scaler.AddVMs(change, requests, taken); err != nil {
		return nil, err
	}
	return &proposal{session: s, decision: decision, change: change}, nil
}

// changes reports whether an apply would do anything.
func (p *proposal) changes() bool {
	return !p.change.Empty() || len(p.change.Differences()) > 0 ||
		slices.ContainsFunc(p.plans, func(plan scaler.RootPlan) bool { return plan.Changes() })
}

// failure returns why hosts cannot be applied, or nil: the hosts of the change, or all of
// them. It ignores a host that is down if the change does not affect it, and a VM whose
// file was deleted by hand and that must stay for now, unless nothing else is to be done.
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

// UnjoinedError reports that a VM would never join, because its class relies on the
// controller for joining.
type UnjoinedError struct {
	VM, Class string
	Metadata  v1alpha1.MetadataType
}

func (e *UnjoinedError) Error() string { return e.reason() + "; nothing was changed" }

// reason returns the error without its effect on the change.
func (e *UnjoinedError) reason() string {
	needs := "such seeds are made"
	if e.Metadata == v1alpha1.MetadataAgent {
		needs = "such join commands are run"
	}
	return fmt.Sprintf("vm %s: ProxmoxNodeClass %s has metadata of type %s, and %s by numaform controller only: "+
		"use the controller for its nodes, or set metadata: {type: none} and a template with all that a node joins with",
		e.VM, e.Class, e.Metadata, needs)
}

// checkJoins refuses new VMs that would start and never join: VMs with a seed, and VMs
// whose class joins nodes by their guest agents.
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
