package tracing_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector receives spans by OTLP over HTTP.
type collector struct {
	*httptest.Server
	// mu guards the fields below.
	mu       sync.Mutex
	requests []*http.Request
	received []*tracepb.ResourceSpans
	// answers are the status codes of the next responses; afterwards all succeed.
	answers []int
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	if len(c.answers) > 0 {
		w.WriteHeader(c.answers[0])
		c.answers = c.answers[1:]
		return
	}
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	text, err := io.ReadAll(body)
	request := &tracepb.TracesData{}
	if err = errors.Join(err, proto.Unmarshal(text, request)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.received = append(c.received, request.ResourceSpans...)
}

// spans returns the received spans by name.
func (c *collector) spans() map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]*tracepb.Span{}
	for _, resource := range c.received {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				found[span.Name] = span
			}
		}
	}
	return found
}

// open returns the exporter that variables configure, and the lines of its log.
func open(t *testing.T, clock *clocktesting.FakeClock, environ ...string) (exporter *tracing.Exporter, lines func() []string, err error) {
	t.Helper()
	var mu sync.Mutex
	var said []string
	config := tracing.Config{
		Environ: environ, ClusterID: "prod", Version: "v1.2.3",
		Logger: funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, args)
		}, funcr.Options{}),
	}
	if clock != nil {
		config.Clock = clock
	}
	exporter, err = tracing.Open(config)
	return exporter, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(said)
	}, err
}

// TestExport sends a trace to a collector over HTTP: the spans are a tree, describe this
// numaform, and contain no secret.
func TestExport(t *testing.T) {
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			c := newCollector(t)
			exporter, lines, err := open(
				t, nil,
				"OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL+"/", "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20s3cr3t-of-the-collector, x-tenant=a",
				"OTEL_EXPORTER_OTLP_COMPRESSION="+compression, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
			)
			if err != nil {
				t.Fatal(err)
			}
			ctx, change := tracing.Start(tracing.Into(t.Context(), exporter.Tracer()), tracing.SpanChange)
			_, plan := tracing.Start(ctx, tracing.SpanPlan)
			plan.SetAttributes(tracing.List(tracing.KeyVMs, slices.Repeat([]string{"vm"}, 500)))
			tracing.End(plan, errors.New("login failed: password=hunter22 is wrong"))
			tracing.End(change, nil)
			if err := exporter.Close(t.Context()); err != nil {
				t.Fatal(err)
			}

			spans := c.spans()
			parent, child := spans[tracing.SpanChange], spans[tracing.SpanPlan]
			if parent == nil || child == nil || string(child.ParentSpanId) != string(parent.SpanId) || len(parent.ParentSpanId) > 0 {
				t.Fatalf("spans %v", spans)
			}
			text := fmt.Sprint(child)
			if strings.Contains(text, "hunter22") || !strings.Contains(text, "login failed") || child.Status.Code != tracepb.Status_STATUS_CODE_ERROR {
				t.Errorf("the failed span is %s", text)
			}
			if vms := child.Attributes[0].Value.GetArrayValue().GetValues(); len(vms) != 64 {
				t.Errorf("%d elements in an attribute", len(vms))
			}
			resource := fmt.Sprint(c.received[0].Resource)
			for _, want := range []string{"service.name", "numaform", "v1.2.3", "prod"} {
				if !strings.Contains(resource, want) {
					t.Errorf("the resource lacks %s: %s", want, resource)
				}
			}
			request := c.requests[0]
			if request.URL.Path != "/v1/traces" || request.Header.Get("Authorization") != "Bearer s3cr3t-of-the-collector" || request.Header.Get("X-Tenant") != "a" {
				t.Errorf("request to %s with the headers %v", request.URL.Path, request.Header)
			}
			if len(lines()) > 0 {
				t.Errorf("log: %v", lines())
			}
		})
	}
}

// TestCollectorFails checks that an overloaded collector gets the spans again, that a
// collector that fails is logged once until it works again, and that neither fails the caller.
func TestCollectorFails(t *testing.T) {
	c := newCollector(t)
	now := clocktesting.NewFakeClock(time.Now())
	exporter, lines, err := open(t, now, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.URL+"/own/path", "OTEL_EXPORTER_OTLP_HEADERS=authorization=s3cr3t")
	if err != nil {
		t.Fatal(err)
	}
	flush := func(answers ...int) {
		t.Helper()
		c.mu.Lock()
		c.answers, c.requests = answers, nil
		c.mu.Unlock()
		_, span := tracing.Start(tracing.Into(t.Context(), exporter.Tracer()), tracing.SpanChange)
		span.End()
		done := make(chan error, 1)
		go func() { done <- exporter.Flush(t.Context()) }()
		for {
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				return
			default:
				if now.HasWaiters() {
					now.Step(time.Minute)
				}
			}
		}
	}
	flush(http.StatusServiceUnavailable, http.StatusTooManyRequests)
	if len(c.requests) != 3 || len(c.spans()) != 1 || c.requests[0].URL.Path != "/own/path" {
		t.Errorf("%d requests, %d spans", len(c.requests), len(c.spans()))
	}
	if len(lines()) > 0 {
		t.Errorf("an attempt that succeeded later was logged: %v", lines())
	}
	flush(http.StatusForbidden)
	flush(http.StatusForbidden)
	if len(c.requests) != 1 {
		t.Errorf("%d requests after a final failure", len(c.requests))
	}
	if log := lines(); len(log) != 1 || !strings.Contains(log[0], "403") || strings.Contains(log[0], "s3cr3t") {
		t.Errorf("two failures were logged as %q", log)
	}
	flush()
	flush(http.StatusForbidden)
	if log := lines(); len(log) != 2 {
		t.Errorf("a failure after a success was logged as %q", log)
	}
	if err := exporter.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestConfiguration checks which variables enable the export, and that errors name the
// variable but no secret.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	for name, test := range map[string]struct {
		environ []string
		on      bool
		err     string
	}{
		"nothing":           {environ: []string{"PATH=/bin"}},
		"an endpoint":       {environ: []string{endpoint}, on: true},
		"an exporter":       {environ: []string{"OTEL_TRACES_EXPORTER=otlp"}, on: true},
		"disabled SDK":      {environ: []string{endpoint, "OTEL_SDK_DISABLED=TRUE"}},
		"no exporter":       {environ: []string{endpoint, "OTEL_TRACES_EXPORTER=none"}},
		"another exporter":  {environ: []string{endpoint, "OTEL_TRACES_EXPORTER=zipkin"}, err: "OTEL_TRACES_EXPORTER=zipkin"},
		"gRPC":              {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, err: "the HTTP port of the collector"},
		"gRPC for metrics":  {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, on: true},
		"no URL":            {environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=user:s3cr3t@collector:4317"}, err: "OTEL_EXPORTER_OTLP_ENDPOINT"},
		"a broken header":   {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_HEADERS=s3cr3t"}, err: "OTEL_EXPORTER_OTLP_HEADERS"},
		"a wrong timeout":   {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT=10s"}, err: "milliseconds"},
		"no such file":      {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE=/no/such/file"}, err: "OTEL_EXPORTER_OTLP_CERTIFICATE"},
		"a key alone":       {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_CLIENT_KEY=/no/such/file"}, err: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"},
		"other compression": {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION=zstd"}, err: "OTEL_EXPORTER_OTLP_COMPRESSION=zstd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exporter, _, err := open(t, nil, test.environ...)
			switch {
			case test.err == "" && err != nil, test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "s3cr3t")):
				t.Errorf("error %v, want %q", err, test.err)
			case (exporter != nil) != test.on:
				t.Errorf("exporter %v, want one: %v", exporter, test.on)
			}
			if exporter != nil {
				if err := exporter.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestOff checks that spans cost no memory without a tracer.
func TestOff(t *testing.T) {
	ctx := context.Background()
	failed := errors.New("failed")
	allocations := testing.AllocsPerRun(1000, func() {
		ctx, span := tracing.Start(ctx, tracing.SpanPlan)
		if span.IsRecording() || trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("a span is recorded")
		}
		tracing.End(span, failed)
	})
	if allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
}

// BenchmarkOff measures a span without a tracer, in a context as deep as a reconciler's.
func BenchmarkOff(b *testing.B) {
	type depth int
	ctx := context.Background()
	for i := range 10 {
		ctx = context.WithValue(ctx, depth(i), i)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, span := tracing.Start(ctx, tracing.SpanPlan)
		tracing.End(span, nil)
	}
}
