package scaler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
)

// A writer logs each plan, verdict, approval, change, apply and outcome in one line, with
// the ids by which the lines of one change are found: change, workspace, plan-sha256, host
// and vm. Messages are constant.

// planned returns the fields that identify a plan and its VMs.
func (p *RootPlan) planned() []any {
	dir := generator.RootDir(p.Host)
	var names []string
	if t := p.templates; t != nil {
		dir = generator.TemplateRootDir(p.Host)
		for _, one := range slices.Concat(t.intent.Create, t.intent.Unfinished, t.intent.Import, t.intent.Delete) {
			names = append(names, one.Name)
		}
	}
	fields := []any{logkey.Host, p.Host.String(), logkey.Workspace, dir}
	if p.Plan != nil {
		fields = append(fields, logkey.PlanSHA256, p.Plan.SHA256)
	}
	for _, target := range slices.Concat(p.Intent.Create, p.Intent.Wake, p.Intent.Import, p.Intent.Update, p.Intent.Delete) {
		names = append(names, target.Name())
	}
	return append(fields, logkey.VM, names)
}

// logPlan logs a plan, its verdict and its approval. refused is why it may not be applied.
// If the last plan of the host was the same, with the same result, logPlan logs it at
// debug level only. It does not log a successful plan without changes.
func (w *Writer) logPlan(ctx context.Context, plan *RootPlan, approval *audit.Approval, refused error) {
	if plan.Err == nil && !plan.Changes() {
		return
	}
	approver := ""
	if approval != nil {
		approver = approval.By
	}
	id := approver
	if plan.Plan != nil {
		id += " " + plan.Plan.Digest + " " + plan.Verdict.String()
	}
	if refused != nil {
		id += " " + refused.Error()
	}
	w.mu.Lock()
	known := w.logged[plan.Host] == id
	w.logged[plan.Host] = id
	w.mu.Unlock()
	logger := log.FromContext(ctx).WithValues(plan.planned()...)
	if known {
		logger = logger.V(1)
	}
	if plan.Err != nil {
		logger.Info("could not plan host", logkey.Reason, plan.Err.Error())
		return
	}
	logger.Info("planned host", "create", len(plan.Intent.Create), "wake", len(plan.Intent.Wake), "import", len(plan.Intent.Import),
		"update", len(plan.Intent.Update), "delete", len(plan.Intent.Delete))
	var findings []string
	for _, finding := range plan.Verdict.Findings {
		findings = append(findings, finding.String())
	}
	logger.Info("evaluated plan", logkey.Verdict, plan.Verdict.Decision.String(), logkey.Reason, findings)
	held := new(PendingApprovalError)
	switch {
	case approver != "":
		logger.Info("approved plan", logkey.Approver, approver)
	case errors.As(refused, &held):
		logger.Info("plan waits for approval")
	case refused != nil && plan.Verdict.Decision != guard.Deny:
		logger.Info("could not check the approval of a plan", logkey.Reason, refused.Error())
	}
}

// logBegun logs a change and the plans that are applied, and returns a context whose log
// lines have the change's id.
func logBegun(ctx context.Context, b *begun) context.Context {
	if b.id == "" {
		return ctx
	}
	logger := log.FromContext(ctx).WithValues(logkey.Change, b.id)
	logger.Info("began change", logkey.Kind, string(b.kind), logkey.Reason, b.why)
	for i := range b.plans {
		if plan := &b.plans[i]; plan.Err == nil && plan.Changes() {
			logger.Info("began apply", plan.planned()...)
		}
	}
	return log.IntoContext(ctx, logger)
}

// logApplied logs the end of the apply on a host, unless nothing was applied there.
func logApplied(ctx context.Context, result *Result) {
	if result.left && result.Err == nil {
		log.FromContext(ctx).Info("ended the work on a host that left its Proxmox cluster", logkey.Host, result.Host.String(), logkey.Reason, strings.Join(result.Outside, "; "))
	}
	if result.PlanSHA256 == "" {
		return
	}
	logger := log.FromContext(ctx).WithValues(logkey.Host, result.Host.String(), logkey.Workspace, generator.RootDir(result.Host),
		logkey.PlanSHA256, result.PlanSHA256, logkey.Duration, result.Duration.Round(time.Millisecond).String())
	if result.Err != nil {
		logger.Info("failed to apply plan", logkey.Reason, result.Err.Error())
		return
	}
	logger.Info("applied plan")
}

// logEnded logs the outcome of a change.
func logEnded(ctx context.Context, b *begun, took time.Duration, err error) {
	logger := log.FromContext(ctx).WithValues(logkey.Duration, took.Round(time.Millisecond).String())
	switch {
	case err != nil && ctx.Err() == nil:
		logger.Error(err, "change failed")
	case err != nil:
		logger.Info("interrupted change", logkey.Reason, err.Error())
	case b.id != "":
		logger.Info("completed change")
	}
}
