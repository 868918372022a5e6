package tracing

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/redact"
)

// Config configures Open.
type Config struct {
	// Environ are the variables, as name=value, that configure the export:
	// OTEL_EXPORTER_OTLP_* and OTEL_TRACES_EXPORTER. The SDK reads its own variables, such as
	// OTEL_TRACES_SAMPLER, from the process.
	Environ []string
	// ClusterID and Version describe this numaform in each trace.
	ClusterID, Version string
	// Logger receives the first of consecutive failures of the export.
	Logger logr.Logger
	// Clock defaults to the real clock.
	Clock clock.Clock
}

// Exporter records spans, and sends them to a collector in the background.
type Exporter struct {
	provider *sdktrace.TracerProvider
}

// Open returns the exporter that the environment configures, or nil if it configures none.
// It makes no requests.
func Open(config Config) (*Exporter, error) {
	env := map[string]string{}
	for _, entry := range config.Environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	client, err := newClient(env, config)
	if err != nil {
		return nil, fmt.Errorf("configuring the export of traces: %w", err)
	}
	if client == nil {
		return nil, nil
	}
	ours := resource.NewSchemaless(
		attribute.String("service.name", "numaform"), attribute.String("service.version", config.Version),
		attribute.String("numaform.cluster", config.ClusterID),
	)
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
	all, err := resource.Merge(ours, resource.Environment())
	if err != nil {
		return nil, fmt.Errorf("configuring the export of traces: %w", err)
	}
	return &Exporter{provider: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(otlptrace.NewUnstarted(client)), sdktrace.WithResource(all),
	)}, nil
}

// Tracer returns the tracer for Into.
func (e *Exporter) Tracer() trace.Tracer {
	return e.provider.Tracer("github.com/numaform/numaform")
}

// Flush sends the spans that have ended but were not sent yet.
func (e *Exporter) Flush(ctx context.Context) error { return e.provider.ForceFlush(ctx) }

// Close sends the spans that were not sent yet, until ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	if err := e.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("sending the last traces: %w", err)
	}
	return nil
}

// client sends spans by OTLP over HTTP. The clients of go.opentelemetry.io/otel, even the one
// for HTTP, would link gRPC: see ADR 48.
type client struct {
	url     string
	headers http.Header
	gzip    bool
	http    *http.Client
	logger  logr.Logger
	clock   clock.Clock
	failed  atomic.Bool
}

var _ otlptrace.Client = (*client)(nil)

// newClient returns the client that variables configure, or nil if they configure none.
func newClient(env map[string]string, config Config) (*client, error) { //nolint:gocyclo // a branch for each variable
	// The variables for traces take precedence over the variables for all signals.
	variable := func(name string) string {
		return cmp.Or(env["OTEL_EXPORTER_OTLP_TRACES_"+name], env["OTEL_EXPORTER_OTLP_"+name])
	}
	endpoint := variable("ENDPOINT")
	switch exporter := env["OTEL_TRACES_EXPORTER"]; {
	case strings.EqualFold(env["OTEL_SDK_DISABLED"], "true") || exporter == "none" || exporter == "" && endpoint == "":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: numaform exports by OTLP only: set it to otlp or none", exporter)
	}
	if protocol := variable("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: numaform exports by http/protobuf only: "+
			"use the HTTP port of the collector (4318 by default), and set the protocol to http/protobuf", protocol)
	}
	if env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "" {
		endpoint = strings.TrimSuffix(cmp.Or(endpoint, "http://localhost:4318"), "/") + "/v1/traces"
	}
	address, err := url.Parse(endpoint)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		// The URL may contain a password.
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT is not a URL such as http://collector:4318")
	}
	c := &client{url: endpoint, headers: http.Header{}, logger: config.Logger, clock: config.Clock}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	for pair := range strings.SplitSeq(variable("HEADERS"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !found || name == "" || err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_HEADERS is not a list such as name=value,name=value with percent-encoded values")
		}
		c.headers.Add(name, value)
	}
	switch compression := variable("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		c.gzip = true
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION=%s: must be gzip or none", compression)
	}
	timeout := 10 * time.Second
	if text := variable("TIMEOUT"); text != "" {
		milliseconds, err := strconv.Atoi(text)
		if err != nil || milliseconds <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT=%s: must be a positive number of milliseconds", text)
		}
		timeout = time.Duration(milliseconds) * time.Millisecond
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if transport.TLSClientConfig, err = tlsConfig(variable); err != nil {
		return nil, err
	}
	c.http = &http.Client{Timeout: timeout, Transport: transport}
	return c, nil
}

// tlsConfig returns the TLS settings of the variables CERTIFICATE, CLIENT_CERTIFICATE and
// CLIENT_KEY, which contain paths.
func tlsConfig(variable func(name string) string) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if path := variable("CERTIFICATE"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s contains no PEM certificate", path)
		}
	}
	certificate, key := variable("CLIENT_CERTIFICATE"), variable("CLIENT_KEY")
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// Start does nothing: the client connects when it has spans.
func (c *client) Start(context.Context) error { return nil }

// Stop closes idle connections.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// attempts is how often spans are sent while the collector is overloaded, and firstPause the
// time between the first two attempts. Afterwards, the spans are lost.
const (
	attempts   = 4
	firstPause = time.Second
)

// UploadTraces sends spans. It logs the first of consecutive failures, and returns none,
// because the SDK would write them to stderr in a format of its own.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	err := c.upload(ctx, spans)
	if err == nil {
		c.failed.Store(false)
		return nil
	}
	logger := c.logger
	if c.failed.Swap(true) {
		logger = logger.V(1)
	}
	logger.Info("could not send traces", logkey.Reason, redact.New(nil).Text(err.Error()))
	return nil
}

func (c *client) upload(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// TracesData has the encoding of the collector's ExportTraceServiceRequest, whose package
	// would require gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	if c.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(body); err != nil {
			return fmt.Errorf("compressing spans: %w", err)
		}
		if err := w.Close(); err != nil {
			return fmt.Errorf("compressing spans: %w", err)
		}
		body = packed.Bytes()
	}
	pause := firstPause
	for attempt := 1; ; attempt++ {
		wait, err := c.post(ctx, body)
		if err == nil || wait < 0 || attempt == attempts {
			return err
		}
		timer := c.clock.NewTimer(max(pause, wait))
		pause *= 2
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// post sends one request. If it failed, wait is the minimum time until the next attempt;
// negative means that another attempt would fail, too.
func (c *client) post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return -1, err
	}
	request.Header = c.headers.Clone()
	request.Header.Set("Content-Type", "application/x-protobuf")
	if c.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	switch response.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		wait = time.Duration(max(seconds, 0)) * time.Second
	default:
		wait = -1
	}
	return wait, fmt.Errorf("the collector responded with %s: check the endpoint and the headers of OTEL_EXPORTER_OTLP_*", response.Status)
}
