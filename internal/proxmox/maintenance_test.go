package proxmox_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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

// TestLoad checks that a snapshot contains the load of hosts in bands, that an update keeps
// a band until the load has clearly left it, and that the load is unknown without Sys.Audit
// on the host.
func TestLoad(t *testing.T) {
	t.Parallel()
	c := newCanned(t)
	measure := func(cpu, mem any) {
		node := nodeResource("pve-1")
		node["maxcpu"], node["maxmem"] = 8, 100<<20
		if cpu != nil {
			node["cpu"], node["mem"] = cpu, mem
		}
		c.say("/cluster/resources", []any{node})
	}
	c.resources()
	measure(0.961, 42<<20)
	client := newClient(t, c.config())
	snapshot, err := client.Snapshot(t.Context())
	for _, step := range []struct {
		cpu, mem any
		want     *topology.Load
	}{
		{0.961, 42 << 20, &topology.Load{CPUPercent: 95, MemoryPercent: 40}},
		{0.94, 46 << 20, &topology.Load{CPUPercent: 95, MemoryPercent: 40}},
		{"0.92", 48 << 20, &topology.Load{CPUPercent: 90, MemoryPercent: 45}},
		{nil, nil, nil},
		{0.96, 48 << 20, &topology.Load{CPUPercent: 90, MemoryPercent: 45}},
	} {
		measure(step.cpu, step.mem)
		if err == nil {
			snapshot, err = client.Update(t.Context(), snapshot)
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, snapshot.Hosts[0].Load); diff != "" {
			t.Errorf("load with %v, %v (-want +got):\n%s", step.cpu, step.mem, diff)
		}
	}
}
