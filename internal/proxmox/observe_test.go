package proxmox_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// TestObserve checks that every request is reported with a path without names and numbers,
// so that the number of paths does not depend on the number of hosts and guests.
func TestObserve(t *testing.T) {
	t.Parallel()
	server := testenv.Proxmox(t)
	var mu sync.Mutex
	var told []string
	client, err := proxmox.New(proxmox.Config{
		Region: testenv.Region, URL: server.URL(), CA: server.CertPEM(),
		TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
		Observe: func(method, path string, code int, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if took <= 0 {
				t.Errorf("%s %s took %v", method, path, took)
			}
			told = append(told, fmt.Sprintf("%s %s %d", method, path, code))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(told)
	for _, want := range []string{
		"GET /cluster/resources 200", "GET /nodes/{node}/report 200", "GET /nodes/{node}/qemu/{vmid}/config 200",
	} {
		if !slices.Contains(told, want) {
			t.Errorf("%s was not observed: %q", want, slices.Compact(slices.Clone(told)))
		}
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	told = nil
	if _, err := client.Snapshot(t.Context()); err == nil {
		t.Fatal("a stopped server responded")
	}
	if !slices.Contains(told, "GET /cluster/resources 0") {
		t.Errorf("the missing response was not observed: %q", told)
	}
}

func TestPathTemplate(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api2/json/cluster/resources":                                "/cluster/resources",
		"/api2/json/nodes/pve-1/qemu/2001/config":                     "/nodes/{node}/qemu/{vmid}/config",
		"/api2/json/nodes/qemu/lxc/7/status/current":                  "/nodes/{node}/lxc/{vmid}/status/current",
		"/proxy/api2/json/nodes/pve-1/tasks/UPID:x/status":            "/nodes/{node}/tasks/{upid}/status",
		"/api2/json/nodes/pve-1/storage/nodes/upload":                 "/nodes/{node}/storage/{storage}/upload",
		"/api2/json/nodes/pve-1/storage/local/content/local:iso/a.io": "/nodes/{node}/storage/{storage}/content/{volume}",
		"/api2/json/nodes/pve-1/qemu/2001/agent/exec":                 "/nodes/{node}/qemu/{vmid}/agent/exec",
	} {
		if got := proxmox.PathTemplate(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}
