package operator_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// TestServePage checks that the page is served with the certificate of its directory, and not
// without TLS.
func TestServePage(t *testing.T) {
	t.Parallel()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	certificate := other.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := &operator.ControllerSettings{MetricsAddress: "0", ProbeAddress: "0", PageAddress: freeAddress(t), PageTLSDir: dir}
	serve(t, settings)
	if status := get(t, settings.PageAddress+"/"); status != http.StatusBadRequest {
		t.Errorf("without TLS: %d, want 400", status)
	}
	response, err := other.Client().Get("https://" + settings.PageAddress + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNotFound || response.TLS == nil || response.TLS.Version < tls.VersionTLS12 {
		t.Errorf("with TLS: %d, %+v", response.StatusCode, response.TLS)
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
