package proxmox_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// TestBusy checks that only the host that clones a guest is busy, and that a host that is
// down is an error.
func TestBusy(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:2], Delays: pvesim.Delays{Clone: time.Hour}})
	c := newClient(t, cfg)
	want := func(host string, want bool) {
		t.Helper()
		if busy, err := c.Busy(t.Context(), topology.HostName(host)); err != nil || busy != want {
			t.Errorf("%s is busy: %t, %v, want %t", host, busy, err, want)
		}
	}
	want("pve-00", false)
	form := strings.NewReader(url.Values{"newid": {"900"}, "full": {"1"}}.Encode())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+"/api2/json/nodes/pve-00/qemu/100/clone", form)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "PVEAPIToken="+cfg.TokenID+"="+cfg.TokenSecret)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CertPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("clone: %s, %v", answer.Status, err)
	}
	want("pve-00", true)
	want("pve-01", false)
	server.SetHostOnline("pve-00", false)
	if _, err := c.Busy(t.Context(), "pve-00"); err == nil {
		t.Error("a host that is down clones nothing: want an error")
	}
}
