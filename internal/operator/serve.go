package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// maxHeader is the maximum size of a request's header, which may contain a token.
const maxHeader = 64 << 10

// serve serves probes, metrics, profiles and the web page until ctx ends, even while numaform
// is paused or not the leader. shown is nil if the page is disabled.
func serve(ctx context.Context, settings *ControllerSettings, registry prometheus.Gatherer, ready func(context.Context) error, shown http.Handler) error {
	probes := http.NewServeMux()
	probes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	probes.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	profiles := http.NewServeMux()
	profiles.HandleFunc("GET /debug/pprof/", pprof.Index)
	profiles.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("GET /debug/pprof/trace", pprof.Trace)

	group, ctx := errgroup.WithContext(ctx)
	for _, server := range []struct {
		flag, address string
		handler       http.Handler
		// dir contains the certificate; empty means no TLS.
		dir string
	}{
		{flag: "--health-probe-bind-address", address: settings.ProbeAddress, handler: probes},
		{flag: "--metrics-bind-address", address: settings.MetricsAddress, handler: metrics},
		{flag: "--pprof-bind-address", address: settings.ProfileAddress, handler: profiles},
		{flag: "--page-bind-address", address: settings.PageAddress, handler: shown, dir: settings.PageTLSDir},
	} {
		if server.address == "0" || server.address == "" {
			continue
		}
		var secured *tls.Config
		if server.dir != "" {
			watcher, err := certwatcher.New(filepath.Join(server.dir, "tls.crt"), filepath.Join(server.dir, "tls.key"))
			if err != nil {
				return fmt.Errorf("--page-tls-dir %s: %w: it must contain tls.crt and tls.key", server.dir, err)
			}
			secured = &tls.Config{GetCertificate: watcher.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
			group.Go(func() error {
				if err := watcher.Start(ctx); err != nil && ctx.Err() == nil {
					return fmt.Errorf("--page-tls-dir %s: %w", server.dir, err)
				}
				return nil
			})
		}
		group.Go(func() error {
			listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", server.address)
			if err != nil {
				return fmt.Errorf("%s: %w: choose another address, or 0 to disable the endpoint", server.flag, err)
			}
			if secured != nil {
				listener = tls.NewListener(listener, secured)
			}
			serving := &http.Server{
				Handler: server.handler, TLSConfig: secured, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
				BaseContext: func(net.Listener) context.Context { return ctx },
			}
			stop := context.AfterFunc(ctx, func() {
				_ = serving.Close() // later requests get no response
			})
			defer stop()
			if err := serving.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serving %s: %w", server.address, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// replacing is a registry in which a collector replaces an older one of the same metrics.
// Some of Karpenter's controllers register metrics when they are created, and they are
// created again after each pause.
type replacing struct{ crmetrics.RegistererGatherer }

// Register adds a collector, replacing one of the same metrics if there is one.
func (r replacing) Register(c prometheus.Collector) error {
	err := r.RegistererGatherer.Register(c)
	var already prometheus.AlreadyRegisteredError
	if !errors.As(err, &already) {
		return err
	}
	r.Unregister(already.ExistingCollector)
	return r.RegistererGatherer.Register(c)
}

// MustRegister is like Register but panics on an error.
func (r replacing) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}
