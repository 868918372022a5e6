package scaler

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/state/guard"
)

// startChange begins the span of a change. The change continues the trace of the decision that
// requested the first of its new and woken VMs, and links to the decisions of the others and,
// if it removes VMs, to the changes that created them.
func (w *Writer) startChange(ctx context.Context, b *batch) (context.Context, trace.Span) {
	var options []trace.SpanStartOption
	seen := map[trace.SpanID]bool{}
	w.mu.Lock()
	requested := slices.Concat(b.creates, b.wakes)
	for i, key := range slices.Concat(requested, b.removes) {
		m := w.members[key]
		if m == nil || !m.Trace.IsValid() || seen[m.Trace.SpanID()] {
			continue
		}
		seen[m.Trace.SpanID()] = true
		if i < len(requested) && !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithSpanContext(ctx, m.Trace)
		} else {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: m.Trace}))
		}
	}
	w.mu.Unlock()
	ctx, span := tracing.Start(ctx, tracing.SpanChange, options...)
	if span.IsRecording() {
		span.SetAttributes(
			tracing.KeyKind.String(string(b.change.Kind)), tracing.KeyCreate.Int(len(b.creates)), tracing.KeyWake.Int(len(b.wakes)),
			tracing.KeyUpdate.Int(len(b.updates)), tracing.KeyDelete.Int(len(b.removes)),
		)
	}
	return ctx, span
}

// setBegun adds to the span of a change what is known once it has begun.
func setBegun(span trace.Span, b *begun) {
	if span.IsRecording() && b.id != "" {
		span.SetAttributes(tracing.KeyChange.String(b.id), tracing.KeyKind.String(string(b.kind)))
		span.AddEvent("began")
	}
}

// endChange ends the span of a change. A change that continues without some of its hosts or
// VMs, or with a newer fleet, did not fail: it has another span.
func endChange(span trace.Span, err error) {
	outcome := "completed"
	switch {
	case errors.Is(err, errReduced), errors.Is(err, ErrFleetChanged):
		outcome = "rebuilt"
		span.AddEvent(err.Error())
	case err != nil:
		outcome = "failed"
		tracing.Fail(span, err)
	}
	span.SetAttributes(tracing.KeyOutcome.String(outcome))
	span.End()
}

// planAttributes returns the host of a plan, its operations, its verdict so far, and the names
// of its VMs, which are also the names of their NodeClaims and Nodes.
func planAttributes(plan *RootPlan) []attribute.KeyValue {
	dir := generator.RootDir(plan.Host)
	if plan.templates != nil {
		dir = generator.TemplateRootDir(plan.Host)
	}
	list := []attribute.KeyValue{tracing.KeyHost.String(plan.Host.String()), tracing.KeyWorkspace.String(dir)}
	if plan.Plan == nil || plan.Err != nil {
		return list
	}
	intent := &plan.Intent
	var names []string
	for _, target := range slices.Concat(intent.Create, intent.Wake, intent.Import, intent.Update, intent.Delete) {
		names = append(names, target.Name())
	}
	return append(
		list, tracing.KeyPlanSHA256.String(plan.Plan.SHA256), tracing.KeyVerdict.String(plan.Verdict.Decision.String()), tracing.List(tracing.KeyVMs, names),
		tracing.KeyCreate.Int(len(intent.Create)), tracing.KeyWake.Int(len(intent.Wake)), tracing.KeyImport.Int(len(intent.Import)),
		tracing.KeyUpdate.Int(len(intent.Update)), tracing.KeyDelete.Int(len(intent.Delete)),
	)
}

// verdictAttributes returns a verdict and the rules of its findings.
func verdictAttributes(verdict guard.Verdict) []attribute.KeyValue {
	var findings []string
	for _, finding := range verdict.Findings {
		findings = append(findings, finding.String())
	}
	return []attribute.KeyValue{tracing.KeyVerdict.String(verdict.Decision.String()), tracing.List(tracing.KeyFindings, findings)}
}
