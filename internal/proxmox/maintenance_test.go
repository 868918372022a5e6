package proxmox_test

import (
	"testing"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// TestOnline checks that a host that the cluster does not reach is offline. An unknown host
// is an error, and so is a missing response.
func TestOnline(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:2]})
	c := newClient(t, cfg)
	want := func(host topology.HostName, want, fails bool) {
		t.Helper()
		if online, err := c.Online(t.Context(), host); online != want || (err != nil) != fails {
			t.Errorf("%s is online: %t, %v; want %t, an error: %t", host, online, err, want, fails)
		}
	}
	want("pve-01", true, false)
	server.SetHostOnline("pve-01", false)
	want("pve-01", false, false)
	want("pve-00", true, false)
	want("pve-99", false, true)
	server.AddFault(pvesim.Fault{Path: "^/cluster/status$", Status: 403, Reason: "Permission check failed"})
	want("pve-01", false, true)
}

// TestHostInMaintenance checks that a host whose guests HA moves away is in maintenance;
// its guests are seen as before.
func TestHostInMaintenance(t *testing.T) {
	t.Parallel()
	hosts := zoo(t, 2)[:2]
	hosts[1].Maintenance = true
	_, cfg := simulate(t, pvesim.Config{Hosts: hosts})
	for i, host := range snapshotOf(t, cfg).Hosts {
		if host.Maintenance != (i == 1) || !host.Online || host.Problem != "" || len(host.Guests) == 0 {
			t.Errorf("host %s: maintenance %v, online %v, problem %q, %d guests", host.Name, host.Maintenance, host.Online, host.Problem, len(host.Guests))
		}
	}
}
