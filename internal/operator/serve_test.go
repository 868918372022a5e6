package operator_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numaform/numaform/internal/operator"
)

// TestServe checks that each server responds, and that profiles are served only on their
// own address.
func TestServe(t *testing.T) {
	t.Parallel()
	settings := &operator.ControllerSettings{MetricsAddress: freeAddress(t), ProbeAddress: freeAddress(t), ProfileAddress: freeAddress(t)}
	serve(t, settings)
	for _, url := range []string{
		settings.MetricsAddress + "/metrics", settings.ProbeAddress + "/healthz", settings.ProfileAddress + "/debug/pprof/heap",
	} {
		if status := get(t, url); status != http.StatusOK {
			t.Errorf("%s: %d", url, status)
		}
	}
	for _, url := range []string{settings.MetricsAddress + "/debug/pprof/", settings.ProbeAddress + "/debug/pprof/"} {
		if status := get(t, url); status != http.StatusNotFound {
			t.Errorf("%s: %d, want 404: profiles are only served on their own address", url, status)
		}
	}
}

// TestServeReadiness checks the readiness probe of a controller that is not ready.
func TestServeReadiness(t *testing.T) {
	t.Parallel()
	settings := &operator.ControllerSettings{MetricsAddress: "0", ProbeAddress: freeAddress(t), ProfileAddress: "0"}
	serve(t, settings)
	if status := get(t, settings.ProbeAddress+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", status)
	}
}

func serve(t *testing.T, settings *operator.ControllerSettings) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- operator.Serve(ctx, settings, prometheus.NewRegistry(), func(context.Context) error { return errors.New("no Proxmox answers") })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// freeAddress returns a loopback address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // its address is free again
	return listener.Addr().String()
}

// get returns the HTTP status of an address as soon as a server listens there.
func get(t *testing.T, url string) int {
	t.Helper()
	for {
		response, err := http.Get("http://" + url)
		if errors.As(err, new(*net.OpError)) && t.Context().Err() == nil {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body) // only the status matters
		_ = response.Body.Close()
		return response.StatusCode
	}
}
