package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// approverRole is the role that approve and reject require.
const approverRole = "the ClusterRole numaform-approver (get, list and patch of scaleplans.numaform.dev, and the verb approve)"

// newPlans returns the commands for ScalePlans: plans, approve and reject.
func newPlans(process Process) []*cobra.Command {
	var shown clusterOptions
	var watched watching
	var output string
	var verbose bool
	plans := &cobra.Command{
		Use:   "plans [NAME]",
		Short: "List the changes that require approval, or show the diff of one",
		Args:  arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 && watched.watch {
				return usageError{fmt.Errorf("--watch works only with the list of plans: remove it to show plan %s", args[0])}
			}
			c, _, err := shown.open()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return watched.run(command.Context(), process, func(ctx context.Context, process Process, terminal term.Terminal) error {
					return explained(printPlans(ctx, process, terminal, c, output), approverRole)
				})
			}
			plan, err := getPlan(command.Context(), c, args[0])
			switch {
			case err != nil:
				return explained(err, approverRole)
			case output == "json" || output == "yaml":
				return printData(process, output, plan)
			}
			w := newPrinter(process)
			w.scalePlan(plan, verbose)
			approved, _ := plan.Approval()
			if status.Phase(plan) == v1alpha1.ScalePlanPending && approved == "" {
				from := clusterFlags(shown.kubeconfig)
				w.printf("\nTo approve:  %s\nTo reject:   numaform reject %s%s --reason …\n",
					w.Command(fmt.Sprintf("numaform approve %s%s --hash %s", plan.Name, from, plan.Spec.PlanHash), len("To approve:  ")), plan.Name, from)
			}
			return w.err
		},
	}
	shown.register(plans.Flags())
	registerTable(plans.Flags(), &output)
	plans.Flags().BoolVarP(&verbose, "verbose", "v", false, "show all lines of the engine's plans")
	watched.register(plans.Flags())

	var approval decision
	approve := &cobra.Command{
		Use:   "approve NAME",
		Short: "Approve a pending change",
		Long: "Approve exactly the change of this plan. Its full hash identifies the change: pass it with --hash, or review the\n" +
			"diff in a terminal and confirm. To sign the approval with an SSH key, add --sign-with; or write the text with\n" +
			"--statement, sign it elsewhere, and add --signature. Another approver can add a signature to an approved plan.",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return explained(approval.decide(command.Context(), process, args[0], approval.approve), approverRole)
		},
	}
	approval.register(approve.Flags())
	approval.signing.register(approve.Flags())
	approve.Flags().BoolVarP(&approval.verbose, "verbose", "v", false, "show all lines of the engine's plans")
	approve.Flags().StringVar(&approval.hash, "hash", "", "full hash of the plan, as printed by numaform plans NAME")

	var rejection decision
	reject := &cobra.Command{
		Use:   "reject NAME",
		Short: "Reject a pending change",
		Args:  arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			if strings.TrimSpace(rejection.reason) == "" {
				return usageError{errors.New("--reason: must not be empty")}
			}
			return explained(rejection.decide(command.Context(), process, args[0], rejection.reject), approverRole)
		},
	}
	rejection.register(reject.Flags())
	reject.Flags().StringVar(&rejection.reason, "reason", "no reason given", "reason to record in the plan")
	return []*cobra.Command{plans, approve, reject}
}

// getPlan reads a ScalePlan.
func getPlan(ctx context.Context, c client.Client, name string) (*v1alpha1.ScalePlan, error) {
	plan := &v1alpha1.ScalePlan{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, plan)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading plan %s: %w: to list the plans, run numaform plans", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading plan %s: %w", name, err)
	}
	return plan, nil
}

// printPlans prints the plans, oldest first.
func printPlans(ctx context.Context, process Process, terminal term.Terminal, c client.Client, output string) error {
	var list v1alpha1.ScalePlanList
	if err := c.List(ctx, &list); err != nil {
		return fmt.Errorf("reading plans: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ScalePlan) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if output == "json" || output == "yaml" {
		return printData(process, output, append([]v1alpha1.ScalePlan{}, list.Items...)) // an empty list, not null
	}
	w := &printer{Terminal: terminal, w: process.Stdout}
	pending := func(plan v1alpha1.ScalePlan) bool { return status.Phase(&plan) == v1alpha1.ScalePlanPending }
	if !slices.ContainsFunc(list.Items, pending) {
		w.printf("No changes are pending approval.\n")
	}
	if len(list.Items) > 0 {
		w.planTable(list.Items, output == outputWide)
	}
	return w.err
}

// planTable prints a row for each plan.
func (w *printer) planTable(plans []v1alpha1.ScalePlan, wide bool) {
	columns := []column{
		{title: "NAME"},
		{title: "PHASE"},
		{title: "DIRECTION", drop: 1},
		{title: "GUARD", drop: 2},
		{title: "CHANGE", text: true},
		{title: "EXPIRES", drop: 3},
	}
	if wide {
		columns = append(columns, column{title: "NODEPOOLS"}, column{title: "REQUESTED BY"}, column{title: "APPROVED BY"}, column{title: "HASH"})
	}
	var rows [][]string
	for i := range plans {
		plan := &plans[i]
		row := []string{
			plan.Name, string(status.Phase(plan)), string(plan.Spec.Direction), string(plan.Spec.Verdict.Decision), plan.Spec.Summary,
			plan.Spec.ExpiresAt.UTC().Format(time.RFC3339),
		}
		if wide {
			_, approver := plan.Approval()
			row = append(row, strings.Join(plan.Spec.NodePools, ","), plan.Spec.RequestedBy, cmp.Or(plan.Status.Approver, approver), plan.Spec.PlanHash)
		}
		rows = append(rows, row)
	}
	w.columns(columns, rows, wide)
}

// diff prints the plans of a ScalePlan: the whole text of the engine, or only the lines about
// hosts, verdicts and resources.
func (w *printer) diff(text string, verbose bool) {
	if verbose {
		w.raw(w.colored(text + "\n"))
		return
	}
	hidden, engine := 0, false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		content := strings.TrimSpace(line)
		if strings.HasPrefix(line, "# Host ") {
			engine = false
		}
		switch {
		case !engine && content != "", strings.HasPrefix(content, "# module."), strings.HasPrefix(content, "Plan: "), strings.HasPrefix(content, "No changes."):
			w.printf("%s\n", line)
		case !engine:
			engine = true // the verdict ends with an empty line
			w.raw("\n")
		case content != "":
			hidden++
		}
	}
	if hidden > 0 {
		w.printf("Not shown without --verbose: %s of the engine's plans\n", topology.Count(hidden, "line"))
	}
}

// scalePlan prints a plan for an approver: its facts, reasons, VMs and diff.
func (w *printer) scalePlan(plan *v1alpha1.ScalePlan, verbose bool) {
	spec := &plan.Spec
	w.printf("%s: %s\n", plan.Name, spec.Summary)
	for _, line := range [][2]string{
		{"Phase", strings.TrimSuffix(fmt.Sprintf("%s: %s", status.Phase(plan), plan.Status.Result), ": ")},
		{"NodePools", strings.Join(spec.NodePools, ", ")},
		{"Requested by", strings.TrimSuffix(fmt.Sprintf("%s: %s", spec.RequestedBy, spec.Why), ": ")},
		{"Expires", spec.ExpiresAt.UTC().Format(time.RFC3339)},
		{"Approved by", cmp.Or(plan.Status.Approver, spec.ApprovedBy)},
		{"Waits for", status.WaitsFor(plan)},
		{"Break-glass", status.BreakGlass(spec)},
		{"Hash", spec.PlanHash},
	} {
		if line[1] != "" {
			w.printf("  %-13s %s\n", line[0], line[1])
		}
	}
	if len(spec.Signatures) > 0 {
		w.heading("Signatures")
	}
	for i := range spec.Signatures {
		w.printf("  %s, added by %s\n", signatureOf(plan, spec.Signatures[i].Signature), spec.Signatures[i].User)
	}
	if len(spec.Reasons) > 0 {
		w.heading("Why approval is required")
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
	w.diff(strings.TrimRight(spec.Diff, "\n"), verbose)
	if status.Phase(plan) == v1alpha1.ScalePlanPending {
		w.planSummary(spec)
	}
}

// signatureOf describes a signature of a plan's approval by the fingerprint of its key. Whether
// the key is allowed is the controller's decision.
func signatureOf(plan *v1alpha1.ScalePlan, armored string) string {
	statement := statementOf(plan)
	if glass := plan.Spec.BreakGlass; glass != nil {
		statement.BreakGlass, statement.Until = glass.Reason, glass.Until.Time
	}
	text, err := statement.Text()
	if err != nil {
		return "unreadable: " + err.Error()
	}
	key, err := signature.Verify(text, armored)
	if err != nil {
		return "invalid: " + err.Error()
	}
	return ssh.FingerprintSHA256(key)
}

// planSummary prints the facts for an approver below the diff.
func (w *printer) planSummary(spec *v1alpha1.ScalePlanSpec) {
	var actions []v1alpha1.ScalePlanAction
	counts := map[v1alpha1.ScalePlanAction]int{}
	var deleted []string
	creates := false
	for i := range spec.VMs {
		vm := &spec.VMs[i]
		if counts[vm.Action]++; counts[vm.Action] == 1 {
			actions = append(actions, vm.Action)
		}
		creates = creates || vm.Action == v1alpha1.ScalePlanCreate
		if vm.Action == v1alpha1.ScalePlanDelete || vm.Action == v1alpha1.ScalePlanReplace {
			deleted = append(deleted, vm.Name)
		}
	}
	var totals []string
	for _, action := range actions {
		totals = append(totals, fmt.Sprintf("%s %s", strings.ToLower(string(action)), topology.Count(counts[action], "VM")))
	}
	w.summary([][]string{
		{"Change", strings.Join(totals, ", ")},
		{"Cost", spec.Cost},
		{"Risk", risk(deleted, creates)},
		{"Guard", verdictWith(string(spec.Verdict.Decision), len(spec.Reasons))},
		{"Expires", spec.ExpiresAt.UTC().Format(time.RFC3339)},
		{"Hash", spec.PlanHash},
	})
}

// decision contains the options of approve and reject.
type decision struct {
	clusterOptions

	signing signing

	hash, reason string
	verbose      bool
}

// amends reports whether the flags add to an approval, so that the plan may be approved
// already.
func (d *decision) amends() bool {
	return d.signing.signs() || d.signing.breakGlass != "" || d.signing.out != ""
}

// decide applies a decision to a pending plan and prints the result.
func (d *decision) decide(ctx context.Context, process Process, name string, change func(ctx context.Context, process Process, plan *v1alpha1.ScalePlan, who string) (done string, err error)) error {
	if err := d.signing.check(); err != nil {
		return err
	}
	c, k, err := d.open()
	if err != nil {
		return err
	}
	plan, err := getPlan(ctx, c, name)
	if err != nil {
		return err
	}
	approved, approver := plan.Approval()
	rejected, rejecter := plan.Rejection()
	switch phase := status.Phase(plan); {
	case phase != v1alpha1.ScalePlanPending:
		return fmt.Errorf("plan %s is %s: %s; to list the plans, run numaform plans", name, phase, cmp.Or(plan.Status.Result, "its change is in progress"))
	case approved != "" && !d.amends():
		return fmt.Errorf("plan %s was already approved by %s: to add a signature, use --sign-with or --signature", name, approver)
	case rejected != "":
		return fmt.Errorf("plan %s was already rejected by %s", name, rejecter)
	case plan.Spec.Verdict.Decision == v1alpha1.VerdictDeny:
		return fmt.Errorf("the guard denies plan %s, so it can be neither approved nor rejected: for the reasons, run numaform plans %s", name, name)
	}
	if d.signing.out != "" {
		return d.signing.write(process, statementOf(plan))
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
		return fmt.Errorf("updating plan %s: %w", name, err)
	}
	_, err = fmt.Fprintf(process.Stdout, "%s is %s\n", name, done)
	return err
}

// approve approves a plan if --hash is its hash, or if the user confirms the printed plan.
func (d *decision) approve(ctx context.Context, process Process, plan *v1alpha1.ScalePlan, who string) (string, error) {
	if !time.Now().Before(plan.Spec.ExpiresAt.Time) {
		return "", fmt.Errorf("plan %s expired at %s: if the change is still needed, numaform proposes it again", plan.Name, plan.Spec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if d.hash == "" {
		if !atTerminal(process) {
			return "", usageError{fmt.Errorf("approve: stdin is not a terminal: add --hash with the hash that numaform plans %s prints", plan.Name)}
		}
		w := newPrinter(process)
		if w.scalePlan(plan, d.verbose); w.err != nil {
			return "", w.err
		}
		yes, err := confirmed(ctx, process, "\nApprove this change?")
		if err != nil {
			return "", fmt.Errorf("%w: the plan is still pending", err)
		}
		if !yes {
			return "", fmt.Errorf("plan %s was not approved and is still pending", plan.Name)
		}
	} else if d.hash != plan.Spec.PlanHash {
		return "", fmt.Errorf("--hash %s: the hash of plan %s is %s; nothing was approved: review the diff with numaform plans %s, then pass all 64 characters of its hash",
			d.hash, plan.Name, plan.Spec.PlanHash, plan.Name)
	}
	if err := d.sign(ctx, process, plan, who); err != nil {
		return "", fmt.Errorf("%w; nothing was approved", err)
	}
	if plan.Spec.Approve == "" {
		plan.Spec.Approve = plan.Spec.PlanHash
		plan.Spec.ApprovedBy = who
	}
	return fmt.Sprintf("approved by %s: numaform applies it if the change is still the same, and the required people have signed.", who), nil
}

// statementOf returns the statement that approves a plan.
func statementOf(plan *v1alpha1.ScalePlan) *signature.Statement {
	return &signature.Statement{
		ClusterID: plan.Spec.ClusterID, Hash: plan.Spec.PlanHash, Subject: signature.ForScalePlan(plan.Name, string(plan.UID)),
	}
}

// sign adds the signatures and the break-glass approval of the flags to a plan. Whether the
// signers are the required ones, only the controller knows.
func (d *decision) sign(ctx context.Context, process Process, plan *v1alpha1.ScalePlan, who string) error {
	if !d.amends() {
		return nil
	}
	statement := statementOf(plan)
	if glass := plan.Spec.BreakGlass; glass != nil && d.signing.breakGlass == "" {
		statement.BreakGlass, statement.Until = glass.Reason, glass.Until.Time
	}
	text, err := d.signing.complete(statement)
	if err != nil {
		return err
	}
	if d.signing.breakGlass != "" {
		plan.Spec.BreakGlass = &v1alpha1.ScalePlanBreakGlass{User: who, Reason: statement.BreakGlass, Until: metav1.NewTime(statement.Until)}
	}
	signatures, err := d.signing.collect(ctx, process, text)
	if err != nil {
		return err
	}
	for _, made := range signatures {
		plan.Spec.Signatures = append(plan.Spec.Signatures, v1alpha1.ScalePlanSignature{User: who, Signature: made})
	}
	return nil
}

func (d *decision) reject(_ context.Context, _ Process, plan *v1alpha1.ScalePlan, who string) (string, error) {
	plan.Spec.Reject = d.reason
	plan.Spec.RejectedBy = who
	return fmt.Sprintf("rejected by %s: numaform does not propose the same change again for a day.", who), nil
}
