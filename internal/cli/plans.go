package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
)

// approverRole is the role needed to decide on ScalePlans.
const approverRole = "the ClusterRole numaform-approver (get, list and patch of scaleplans.numaform.dev, and the verb approve)"

func newPlans(process Process) *cobra.Command {
	var o clusterOptions
	var output string
	command := &cobra.Command{
		Use:   "plans [NAME]",
		Short: "Show the changes that wait for a person, or one of them with its whole diff",
		Args:  arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			c, _, err := o.open()
			if err != nil {
				return err
			}
			ctx := command.Context()
			if len(args) == 0 {
				return explained(printPlans(ctx, process, c, output), approverRole)
			}
			plan, err := getPlan(ctx, c, args[0])
			switch {
			case err != nil:
				return explained(err, approverRole)
			case output == "json":
				return printJSON(process, plan)
			}
			w := &printer{w: process.Stdout}
			w.scalePlan(plan)
			if phaseOf(plan) == v1alpha1.ScalePlanPending && plan.Spec.Approve == "" {
				w.printf("\nTo approve:  numaform approve %s --hash %s\nTo reject:   numaform reject %s --reason …\n", plan.Name, plan.Spec.PlanHash, plan.Name)
			}
			return w.err
		},
	}
	o.register(command)
	registerOutput(command, &output)
	return command
}

// getPlan reads a ScalePlan.
func getPlan(ctx context.Context, c client.Client, name string) (*v1alpha1.ScalePlan, error) {
	plan := &v1alpha1.ScalePlan{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, plan); err != nil {
		return nil, fmt.Errorf("reading plan %s: %w: numaform plans lists them", name, err)
	}
	return plan, nil
}

// printPlans prints a line for each plan, the oldest first.
func printPlans(ctx context.Context, process Process, c client.Client, output string) error {
	var list v1alpha1.ScalePlanList
	if err := c.List(ctx, &list); err != nil {
		return fmt.Errorf("reading plans: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ScalePlan) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if output == "json" {
		return printJSON(process, list.Items)
	}
	if len(list.Items) == 0 {
		_, err := fmt.Fprintln(process.Stdout, "Nothing waits for a person.")
		return err
	}
	w := &printer{w: process.Stdout}
	w.table(func(table io.Writer) {
		fmt.Fprintln(table, "NAME\tPHASE\tDIRECTION\tGUARD\tCHANGE\tEXPIRES")
		for i := range list.Items {
			plan := &list.Items[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", plan.Name, phaseOf(plan), plan.Spec.Direction,
				plan.Spec.Verdict.Decision, plan.Spec.Summary, plan.Spec.ExpiresAt.UTC().Format(time.RFC3339))
		}
	})
	return w.err
}

// phaseOf returns a plan's phase; a new plan without one is pending.
func phaseOf(plan *v1alpha1.ScalePlan) v1alpha1.ScalePlanPhase {
	return cmp.Or(plan.Status.Phase, v1alpha1.ScalePlanPending)
}

// scalePlan prints everything that a person needs for a decision.
func (w *printer) scalePlan(plan *v1alpha1.ScalePlan) {
	spec := &plan.Spec
	w.printf("%s: %s\n", plan.Name, spec.Summary)
	for _, line := range [][2]string{
		{"Phase", strings.TrimSuffix(fmt.Sprintf("%s: %s", phaseOf(plan), plan.Status.Result), ": ")},
		{"NodePools", strings.Join(spec.NodePools, ", ")},
		{"Asked by", strings.TrimSuffix(fmt.Sprintf("%s: %s", spec.RequestedBy, spec.Why), ": ")},
		{"Expires", spec.ExpiresAt.UTC().Format(time.RFC3339)},
		{"Approved by", cmp.Or(plan.Status.Approver, spec.ApprovedBy)},
		{"Hash", spec.PlanHash},
	} {
		if line[1] != "" {
			w.printf("  %-12s %s\n", line[0], line[1])
		}
	}
	if len(spec.Reasons) > 0 {
		w.heading("Why a person has to look")
		for _, reason := range spec.Reasons {
			w.printf("  %s\n", strings.ReplaceAll(reason, "\n", "\n      "))
		}
	}
	w.heading("VMs")
	for i := range spec.VMs {
		vm := &spec.VMs[i]
		parts := []string{vm.Name, vm.InstanceType}
		if vm.Host != "" {
			parts = append(parts, "on "+vm.Host)
		}
		parts = append(parts, "for NodePool "+vm.NodePool)
		parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
		w.printf("  %-8s %s\n", vm.Action, strings.Join(parts, " "))
		if vm.Reason != "" {
			w.printf("           %s\n", vm.Reason)
		}
		if len(vm.Pods) > 0 {
			w.printf("           pods: %s\n", strings.Join(vm.Pods, ", "))
		}
	}
	w.heading("Diff")
	w.printf("%s\n", strings.TrimRight(spec.Diff, "\n"))
}

// decision holds the options of approve and reject.
type decision struct {
	clusterOptions

	hash, reason string
}

func newApprove(process Process) *cobra.Command {
	var d decision
	command := &cobra.Command{
		Use:   "approve NAME",
		Short: "Approve a change that waits for a person",
		Long: "Approves exactly the change of this plan. Its whole hash says which: give it with --hash, or look at the diff\n" +
			"and answer at a terminal.",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return explained(d.decide(command.Context(), process, args[0], d.approve), approverRole)
		},
	}
	d.register(command)
	command.Flags().StringVar(&d.hash, "hash", "", "the plan's whole hash, which numaform plans NAME prints")
	return command
}

func newReject(process Process) *cobra.Command {
	var d decision
	command := &cobra.Command{
		Use:   "reject NAME",
		Short: "Refuse a change that waits for a person",
		Args:  arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			if strings.TrimSpace(d.reason) == "" {
				return usageError{errors.New("--reason is empty: say why")}
			}
			return explained(d.decide(command.Context(), process, args[0], d.reject), approverRole)
		},
	}
	d.register(command)
	command.Flags().StringVar(&d.reason, "reason", "not wanted", "why, for whoever asked")
	return command
}

// decide changes a plan that can still be decided on, and prints what was done.
func (d *decision) decide(ctx context.Context, process Process, name string, change func(ctx context.Context, process Process, plan *v1alpha1.ScalePlan, who string) (done string, err error)) error {
	c, k, err := d.open()
	if err != nil {
		return err
	}
	plan, err := getPlan(ctx, c, name)
	if err != nil {
		return err
	}
	switch phase := phaseOf(plan); {
	case phase != v1alpha1.ScalePlanPending:
		return fmt.Errorf("plan %s is %s: %s: numaform plans lists what waits", name, phase, cmp.Or(plan.Status.Result, "it is being carried out"))
	case plan.Spec.Approve != "":
		return fmt.Errorf("plan %s is approved by %s already", name, plan.Spec.ApprovedBy)
	case plan.Spec.Reject != "":
		return fmt.Errorf("plan %s is rejected by %s already", name, plan.Spec.RejectedBy)
	case plan.Spec.Verdict.Decision == v1alpha1.VerdictDeny:
		return fmt.Errorf("plan %s is denied by the guard, and no one can approve that: numaform plans %s says why", name, name)
	}
	who, err := whoami(ctx, k)
	if err != nil {
		return err
	}
	before := plan.DeepCopy()
	done, err := change(ctx, process, plan, who)
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, plan, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("deciding on plan %s: %w", name, err)
	}
	_, err = fmt.Fprintf(process.Stdout, "%s is %s\n", name, done)
	return err
}

// approve approves a plan by the hash that was given, or by a yes to the shown plan.
func (d *decision) approve(ctx context.Context, process Process, plan *v1alpha1.ScalePlan, who string) (string, error) {
	if !time.Now().Before(plan.Spec.ExpiresAt.Time) {
		return "", fmt.Errorf("plan %s expired at %s: if the change is still needed, it is proposed again", plan.Name, plan.Spec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if d.hash == "" {
		if !atTerminal(process) {
			return "", usageError{errors.New("approve: there is no terminal to ask at: name the change by --hash, which numaform plans NAME prints")}
		}
		w := &printer{w: process.Stdout}
		if w.scalePlan(plan); w.err != nil {
			return "", w.err
		}
		yes, err := confirmed(ctx, process, "\nApprove exactly this?")
		if err != nil {
			return "", err
		}
		if !yes {
			return "", errors.New("not approved: the plan is still pending")
		}
	} else if d.hash != plan.Spec.PlanHash {
		return "", fmt.Errorf("--hash %s is not the whole hash of plan %s, which is %s: look at its diff (numaform plans %s), then give all 64 characters; nothing was approved",
			d.hash, plan.Name, plan.Spec.PlanHash, plan.Name)
	}
	plan.Spec.Approve = plan.Spec.PlanHash
	plan.Spec.ApprovedBy = who
	return fmt.Sprintf("approved by %s: it is carried out if it would still be the same change.", who), nil
}

func (d *decision) reject(_ context.Context, _ Process, plan *v1alpha1.ScalePlan, who string) (string, error) {
	plan.Spec.Reject = d.reason
	plan.Spec.RejectedBy = who
	return fmt.Sprintf("rejected by %s: the same change is not proposed again for a day.", who), nil
}
