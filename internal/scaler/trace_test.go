package scaler_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/topology"
)

// spansOf returns the ended spans with a name below a parent, by their host; nil means any
// parent.
func spansOf(recorder *tracetest.SpanRecorder, name string, parent sdktrace.ReadOnlySpan) map[string]sdktrace.ReadOnlySpan {
	found := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		if span.Name() == name && (parent == nil || span.Parent().SpanID() == parent.SpanContext().SpanID()) {
			found[attributeOf(span, tracing.KeyHost).AsString()] = span
		}
	}
	return found
}

func attributeOf(span sdktrace.ReadOnlySpan, key attribute.Key) attribute.Value {
	for _, pair := range span.Attributes() {
		if pair.Key == key {
			return pair.Value
		}
	}
	return attribute.Value{}
}

// changes waits until n spans of changes have ended, without those that were rebuilt, and
// returns the last one.
func changes(t *testing.T, recorder *tracetest.SpanRecorder, n int) sdktrace.ReadOnlySpan {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		var ended []sdktrace.ReadOnlySpan
		for _, span := range recorder.Ended() {
			if span.Name() == tracing.SpanChange && attributeOf(span, tracing.KeyOutcome).AsString() != "rebuilt" {
				ended = append(ended, span)
			}
		}
		if len(ended) >= n {
			return ended[n-1]
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("%d changes have ended, want %d", len(ended), n)
		}
	}
}

// TestTrace checks the spans of changes on two hosts: a change continues the trace of its
// decision, and contains for each host the plan, the check by the guard and the apply. A
// removal links to the change that created its VM, and a failed apply has its error.
func TestTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	traced := tracing.Into(t.Context(), provider.Tracer("test"))
	writer := scaler.NewWriter(w.Scaler, scaler.WriterConfig{
		Snapshot: func(ctx context.Context) (*topology.Snapshot, error) { return w.client.Snapshot(ctx) }, Poll: time.Second,
	})
	ctx, cancel := context.WithCancel(traced)
	var running sync.WaitGroup
	running.Go(func() {
		if err := writer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()

	deciding, decide := tracing.Start(traced, tracing.SpanDecide)
	vms, err := writer.Ensure(deciding, []scaler.Request{on(first), on(second)})
	if err != nil {
		t.Fatal(err)
	}
	decide.End()
	states := phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	change := changes(t, recorder, 1)
	if change.Parent().SpanID() != decide.SpanContext().SpanID() || states[0].Trace.SpanID() != change.SpanContext().SpanID() {
		t.Errorf("the change is in the trace of %v, and its VM in that of %v", change.Parent(), states[0].Trace)
	}
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 || attributeOf(change, tracing.KeyChange).AsString() != history[0].Change.ID ||
		attributeOf(change, tracing.KeyOutcome).AsString() != "completed" || attributeOf(change, tracing.KeyCreate).AsInt64() != 2 {
		t.Errorf("history %+v (%v), attributes %v", history, err, change.Attributes())
	}
	plans, applies := spansOf(recorder, tracing.SpanPlan, change), spansOf(recorder, tracing.SpanApply, change)
	for i, host := range []topology.HostID{first, second} {
		plan, apply := plans[host.String()], applies[host.String()]
		if plan == nil || apply == nil {
			t.Fatalf("plans %v, applies %v", plans, applies)
		}
		for _, span := range []sdktrace.ReadOnlySpan{plan, apply} {
			names := attributeOf(span, tracing.KeyVMs).AsStringSlice()
			if !slices.Equal(names, []string{vms[i].Name}) || attributeOf(span, tracing.KeyCreate).AsInt64() != 1 ||
				attributeOf(span, tracing.KeyVerdict).AsString() != "allowed" || attributeOf(span, tracing.KeyPlanSHA256).AsString() == "" {
				t.Errorf("attributes of %s: %v", span.Name(), span.Attributes())
			}
		}
		if len(spansOf(recorder, tracing.SpanEnginePlan, plan)) != 1 || len(spansOf(recorder, tracing.SpanGuard, plan)) != 1 ||
			len(spansOf(recorder, tracing.SpanEngineApply, apply)) != 1 {
			t.Errorf("the plan or the apply of %s lacks a part", host)
		}
	}

	writer.Remove(vms[0].Key)
	phases(t, writer, scaler.PhaseMade)
	removal := changes(t, recorder, 2)
	if links := removal.Links(); removal.Parent().IsValid() || len(links) != 1 || links[0].SpanContext.SpanID() != change.SpanContext().SpanID() {
		t.Errorf("the removal has the parent %v and the links %v", removal.Parent(), links)
	}

	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Status: 500, Reason: "storage is full"})
	ensure(t, writer, on(first))
	failed := changes(t, recorder, 3)
	apply := spansOf(recorder, tracing.SpanApply, failed)[first.String()]
	if failed.Status().Code != codes.Error || apply == nil || apply.Status().Code != codes.Error || !strings.Contains(apply.Status().Description, "storage is full") {
		t.Errorf("the failed change has the status %v and the apply %v", failed.Status(), apply)
	}
}
