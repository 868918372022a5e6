// Package tracing records OpenTelemetry traces of changes and sends them by OTLP. The tracer
// is in the context: without one, nothing is recorded. It decides nothing. Start at Open, Into
// and Start; docs/traces.md lists every span.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/numaform/numaform/internal/redact"
)

// The names of spans.
const (
	SpanDecide      = "decide"
	SpanChange      = "change"
	SpanPlan        = "plan"
	SpanEnginePlan  = "engine plan"
	SpanGuard       = "guard"
	SpanApply       = "apply"
	SpanEngineApply = "engine apply"
	SpanJoin        = "join"
)

// The keys of attributes. A list has at most longestList elements; the number of all is in
// another attribute.
const (
	KeyChange     = attribute.Key("numaform.change")
	KeyKind       = attribute.Key("numaform.kind")
	KeyOutcome    = attribute.Key("numaform.outcome")
	KeyHost       = attribute.Key("numaform.host")
	KeyWorkspace  = attribute.Key("numaform.workspace")
	KeyPlanSHA256 = attribute.Key("numaform.plan.sha256")
	KeyVerdict    = attribute.Key("numaform.verdict")
	KeyFindings   = attribute.Key("numaform.findings")
	KeyCreate     = attribute.Key("numaform.vms.create")
	KeyWake       = attribute.Key("numaform.vms.wake")
	KeyImport     = attribute.Key("numaform.vms.import")
	KeyUpdate     = attribute.Key("numaform.vms.update")
	KeyDelete     = attribute.Key("numaform.vms.delete")
	KeyVMs        = attribute.Key("numaform.vms")
	KeyPods       = attribute.Key("numaform.pods")
	KeyPodCount   = attribute.Key("numaform.pods.count")
	KeyRefused    = attribute.Key("numaform.pods.refused")
	KeyNodeClaims = attribute.Key("numaform.nodeclaims")
	KeyNodePool   = attribute.Key("numaform.nodepool")
	KeyNode       = attribute.Key("k8s.node.name")
)

// longestList is the maximum number of elements of an attribute that is a list, so that a
// burst of thousands of pods does not make a span too large for a collector.
const longestList = 64

// List returns an attribute with the first elements of a list.
func List(key attribute.Key, elements []string) attribute.KeyValue {
	return key.StringSlice(elements[:min(len(elements), longestList)])
}

// tracerKey is the key of a context's tracer.
type tracerKey struct{}

// Into returns a context whose spans a tracer records.
func Into(ctx context.Context, tracer trace.Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, tracer)
}

// Start begins a span, as a child of the span in ctx, if any. If ctx has no tracer, the span
// records nothing. To compute attributes only if they are recorded, set them afterwards if
// span.IsRecording().
func Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	tracer, _ := ctx.Value(tracerKey{}).(trace.Tracer)
	if tracer == nil {
		return ctx, noop.Span{}
	}
	return tracer.Start(ctx, name, options...)
}

// Fail marks a span as failed because of an error, without secrets; nil changes nothing.
func Fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	text := redact.New(nil).Text(err.Error())
	span.AddEvent("exception", trace.WithAttributes(attribute.String("exception.message", text)))
	span.SetStatus(codes.Error, text)
}

// End ends a span, and marks it as failed unless err is nil.
func End(span trace.Span, err error) {
	Fail(span, err)
	span.End()
}
