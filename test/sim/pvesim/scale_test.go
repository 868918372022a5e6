package pvesim_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// large returns a cluster of 50 hosts with 20 running VMs each.
func large() pvesim.Config {
	cfg := cluster()
	cfg.Hosts = nil
	for h := range 50 {
		host := pvesim.Host{Region: "lab", Name: fmt.Sprintf("pve-%d", h+1), Machine: machine()}
		for v := range 20 {
			id := 1000 + 20*h + v
			host.Guests = append(host.Guests, pvesim.Guest{
				VMID: id, Name: fmt.Sprintf("workers-%d", id), Kind: pvesim.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8192, Tags: []string{"a", "b"},
			})
		}
		cfg.Hosts = append(cfg.Hosts, host)
	}
	return cfg
}

// BenchmarkResources reads the resources of a cluster of 1,000 VMs and the configuration of
// one VM, as a refresh does for each VM.
func BenchmarkResources(b *testing.B) {
	server, err := pvesim.New(large())
	if err != nil {
		b.Fatal(err)
	}
	recorder := discard{http.Header{}}
	for b.Loop() {
		for _, path := range []string{"/api2/json/cluster/resources?type=vm", "/api2/json/nodes/pve-7/qemu/1125/config"} {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, path, http.NoBody)
			if err != nil {
				b.Fatal(err)
			}
			req.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
			server.ServeHTTP(recorder, req)
		}
	}
	for _, call := range server.Calls() {
		if call.Status != 200 {
			b.Fatalf("%s: %d", call.Path, call.Status)
		}
	}
}

// discard is a ResponseWriter that discards the response.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return io.Discard.Write(p) }
func (d discard) WriteHeader(int)             {}
