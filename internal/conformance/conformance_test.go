package conformance_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/conformance"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

const pool = "conformance"

// simulate starts a simulated Proxmox of three hosts with a template, a pool and a token
// with the privileges that numaform requires.
func simulate(t *testing.T, version string, change ...func(*pvesim.Config)) *pvesim.Server {
	t.Helper()
	var hosts []topology.Host
	for i, name := range []topology.HostName{"pve-1", "pve-2", "pve-3"} {
		host := topology.Host{
			Region: "lab", Name: name, Online: true,
			Machine: topology.Machine{Model: "kit", MemoryMiB: 64 << 10, NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: 64 << 10}}},
		}
		for cpu := range 8 {
			host.CPUs = append(host.CPUs, topology.CPU{ID: cpu, Online: true, Core: cpu})
		}
		if i == 1 {
			host.Templates = []topology.Template{{VMID: 100, Name: "debian", Storage: "local-lvm", DiskGiB: 2, Options: map[string]string{"agent": "1"}}}
		}
		hosts = append(hosts, host)
	}
	cfg := pvesim.Config{Version: version, Hosts: hosts, Pools: []string{pool}, LockTimeout: 300 * time.Millisecond}
	for _, change := range change {
		change(&cfg)
	}
	server, err := pvesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

func client(t *testing.T, pem []byte) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func config(t *testing.T, server *pvesim.Server) conformance.Config {
	t.Helper()
	return conformance.Config{
		URL: server.URL() + "/api2/json", Client: client(t, server.CertPEM()),
		Login: conformance.Login{TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret},
		Root:  &conformance.Login{Username: "root@pam", Password: pvesim.DefaultRootPassword},
		Pool:  pool, Lower: 9000, Upper: 9019, Template: 100, Bridge: "vmbr0", Destructive: true, Slow: true,
	}
}

func cases(t *testing.T) []conformance.Case {
	t.Helper()
	all, err := conformance.Cases()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSimulator checks that every case is equal on the simulator, or does not apply to its
// version.
func TestSimulator(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"9.2", "8.4"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := simulate(t, version)
			cfg := config(t, server)
			if only := os.Getenv("CONFORMANCE_ONLY"); only != "" {
				cfg.Only = regexp.MustCompile(only)
			}
			all := cases(t)
			report, err := conformance.Run(t.Context(), cfg, all)
			if err != nil {
				t.Fatal(err)
			}
			ran := 0
			for _, result := range report.Results {
				switch result.Outcome {
				case conformance.Equal:
					ran++
				case conformance.Skipped:
					if !strings.HasPrefix(result.Detail[0], "applies to Proxmox VE") {
						t.Errorf("%s/%s skipped: %s", result.Family, result.Name, result.Detail)
					}
				default:
					t.Errorf("%s/%s %s (%s):\n\t%s", result.Family, result.Name, result.Outcome, result.Source, strings.Join(result.Detail, "\n\t"))
				}
			}
			t.Logf("%d cases, %d equal, in %d ms", len(report.Results), ran, sum(report.Results).Milliseconds())
			if cfg.Only == nil && version == "9.2" && ran < 300 {
				t.Errorf("%d cases are equal, want 300 or more", ran)
			}
			for vmid := cfg.Lower; vmid <= cfg.Upper; vmid++ {
				if _, left := server.Guest(vmid); left {
					t.Errorf("VM %d is left", vmid)
				}
			}
		})
	}
}

func sum(results []conformance.Result) time.Duration {
	total := time.Duration(0)
	for _, result := range results {
		total += result.Took
	}
	return total
}
