package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
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
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want text or json", output)}
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return explained(printPlan(command.Context(), process, c, args[0], output), approverRole)
			}
			return explained(printPlans(command.Context(), process, c, output), approverRole)
		},
	}
	o.register(command)
	command.Flags().StringVarP(&output, "output", "o", "text", "text or json")
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

func printJSON(process Process, value any) error {
	encoder := json.NewEncoder(process.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

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
	table := tabwriter.NewWriter(process.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPHASE\tDIRECTION\tGUARD\tCHANGE\tEXPIRES")
	for i := range list.Items {
		plan := &list.Items[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", plan.Name, phaseOf(plan), plan.Spec.Direction,
			plan.Spec.Verdict.Decision, plan.Spec.Summary, plan.Spec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return table.Flush()
}

// phaseOf returns a plan's phase; a new plan without one is pending.
func phaseOf(plan *v1alpha1.ScalePlan) v1alpha1.ScalePlanPhase {
	return cmp.Or(plan.Status.Phase, v1alpha1.ScalePlanPending)
}

func printPlan(ctx context.Context, process Process, c client.Client, name, output string) error {
	plan, err := getPlan(ctx, c, name)
	if err != nil {
		return err
	}
	if output == "json" {
		return printJSON(process, plan)
	}
	w := &printer{w: process.Stdout}
	w.scalePlan(plan)
	if phaseOf(plan) == v1alpha1.ScalePlanPending && plan.Spec.Approve == "" {
		w.printf("\nTo approve:  numaform approve %s --hash %s\nTo reject:   numaform reject %s --reason …\n", name, plan.Spec.PlanHash, name)
	}
	return w.err
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
		w.printf("  %-8s %s\n", vm.Action, strings.Join(slices.DeleteFunc([]string{
			vm.Name, vm.InstanceType, on(vm.Host), "for NodePool " + vm.NodePool,
		}, func(part string) bool { return part == "" }), " "))
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

func on(host string) string {
	if host == "" {
		return ""
	}
	return "on " + host
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
		Short: "Let a change pass that waits for a person",
		Long: "Approves exactly the change of this plan. Its whole hash says which: give it with --hash, or look at the diff\n" +
			"and answer at a terminal.",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return explained(d.approve(command.Context(), process, args[0]), approverRole)
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
			return explained(d.reject(command.Context(), process, args[0]), approverRole)
		},
	}
	d.register(command)
	command.Flags().StringVar(&d.reason, "reason", "not wanted", "why, for whoever asked")
	return command
}

// open reads a plan that can still be decided on, and returns who decides.
func (d *decision) open(ctx context.Context, name string) (client.Client, *v1alpha1.ScalePlan, string, error) {
	c, err := d.client()
	if err != nil {
		return nil, nil, "", err
	}
	plan, err := getPlan(ctx, c, name)
	if err != nil {
		return nil, nil, "", err
	}
	if err := undecided(plan); err != nil {
		return nil, nil, "", err
	}
	k, err := d.kubernetes()
	if err != nil {
		return nil, nil, "", err
	}
	who, err := whoami(ctx, k)
	return c, plan, who, err
}

// undecided returns why a plan can no longer be decided on, or nil.
func undecided(plan *v1alpha1.ScalePlan) error {
	switch {
	case phaseOf(plan) != v1alpha1.ScalePlanPending:
		return fmt.Errorf("plan %s is %s: %s: numaform plans lists what waits", plan.Name, phaseOf(plan), cmp.Or(plan.Status.Result, "it is being carried out"))
	case plan.Spec.Approve != "":
		return fmt.Errorf("plan %s is approved by %s already", plan.Name, plan.Spec.ApprovedBy)
	case plan.Spec.Reject != "":
		return fmt.Errorf("plan %s is rejected by %s already", plan.Name, plan.Spec.RejectedBy)
	case plan.Spec.Verdict.Decision == v1alpha1.VerdictDeny:
		return fmt.Errorf("plan %s is denied by the guard, and nobody can approve that: numaform plans %s says why", plan.Name, plan.Name)
	}
	return nil
}

func (d *decision) approve(ctx context.Context, process Process, name string) error {
	c, plan, who, err := d.open(ctx, name)
	if err != nil {
		return err
	}
	if !time.Now().Before(plan.Spec.ExpiresAt.Time) {
		return fmt.Errorf("plan %s expired at %s: if the change is still needed, it is proposed anew", name, plan.Spec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	hash := d.hash
	if hash == "" {
		if hash, err = askApproval(ctx, process, plan); err != nil {
			return err
		}
	}
	if hash != plan.Spec.PlanHash {
		return fmt.Errorf("--hash %s is not the whole hash of plan %s, which is %s: look at its diff (numaform plans %s), then give all 64 characters; nothing was approved",
			hash, name, plan.Spec.PlanHash, name)
	}
	before := plan.DeepCopy()
	plan.Spec.Approve, plan.Spec.ApprovedBy = hash, who
	if err := c.Patch(ctx, plan, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("approving plan %s: %w", name, err)
	}
	_, err = fmt.Fprintf(process.Stdout, "%s is approved by %s: it is carried out if it would still be the same change.\n", name, who)
	return err
}

// askApproval shows the plan at a terminal and asks. It returns the hash of the shown
// plan.
func askApproval(ctx context.Context, process Process, plan *v1alpha1.ScalePlan) (string, error) {
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	if !ok || !isatty.IsTerminal(file.Fd()) {
		return "", usageError{errors.New("approve: there is no terminal to ask at: name the change by --hash, which numaform plans NAME prints")}
	}
	w := &printer{w: process.Stdout}
	if w.scalePlan(plan); w.err != nil {
		return "", w.err
	}
	fmt.Fprint(process.Stderr, "\nApprove exactly this? Only yes is taken for yes: ")
	answer, err := readLine(ctx, process.Stdin)
	if err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return "", errors.New("not approved: the plan waits on")
	}
	return plan.Spec.PlanHash, nil
}

func (d *decision) reject(ctx context.Context, process Process, name string) error {
	if strings.TrimSpace(d.reason) == "" {
		return usageError{errors.New("--reason is empty: say why")}
	}
	c, plan, who, err := d.open(ctx, name)
	if err != nil {
		return err
	}
	before := plan.DeepCopy()
	plan.Spec.Reject, plan.Spec.RejectedBy = d.reason, who
	if err := c.Patch(ctx, plan, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("rejecting plan %s: %w", name, err)
	}
	_, err = fmt.Fprintf(process.Stdout, "%s is rejected by %s: the same change is not proposed again for a day.\n", name, who)
	return err
}
