package proxmox_test

import (
	"testing"

	"github.com/numaform/numaform/internal/pvesim"
)

// A host whose guests HA moves away says so; its guests are seen as before.
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
