package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/pvesim"
)

// collector receives traces by OTLP over HTTP.
type collector struct {
	// mu guards the fields below.
	mu    sync.Mutex
	spans map[string]*tracepb.Span // by ID
	text  string
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	received := &tracepb.TracesData{}
	if err != nil || proto.Unmarshal(body, received) != nil || r.URL.Path != "/v1/traces" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text += received.String()
	for _, resource := range received.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans[string(span.SpanId)] = span
			}
		}
	}
}

// paths returns the path of each span from the root of its trace, such as decide/change/join,
// in order.
func (c *collector) paths() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var paths []string
	for _, span := range c.spans {
		path := span.Name
		for at := c.spans[string(span.ParentSpanId)]; at != nil; at = c.spans[string(at.ParentSpanId)] {
			path = at.Name + "/" + path
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// TestTraces checks that a collector receives the trace of a node, from the decision about
// its pod to its join, and the trace of its removal, without secrets.
func TestTraces(t *testing.T) {
	c := &collector{spans: map[string]*tracepb.Span{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	w := newWorld(t, worldConfig{})
	w.env = []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=secret-of-the-collector", "OTEL_BSP_SCHEDULE_DELAY=200",
	}
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "1", "1Gi")
	w.running("web", 1, 3*time.Minute)
	receives := func(want ...string) {
		t.Helper()
		w.eventually(time.Minute, func(context.Context) string {
			paths := c.paths()
			for _, path := range want {
				if !slices.Contains(paths, path) {
					return fmt.Sprintf("no span %s in %q", path, paths)
				}
			}
			return ""
		})
	}
	receives("decide", "decide/change", "decide/change/plan", "decide/change/plan/engine plan", "decide/change/plan/guard",
		"decide/change/apply", "decide/change/apply/engine apply", "decide/change/join")
	for name := range w.ours() {
		if strings.Count(c.text, name) < 4 {
			t.Errorf("the spans do not name the node %s", name)
		}
	}
	if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft(3 * time.Minute)
	receives("change", "change/plan", "change/apply/engine apply")

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range []string{"secret-of-the-collector", pvesim.DefaultTokenSecret} {
		if strings.Contains(c.text, secret) {
			t.Errorf("the traces contain %s", secret)
		}
	}
	if w.controller.log.contains("could not send traces") {
		t.Error("the log reports a failure of the export")
	}
}
