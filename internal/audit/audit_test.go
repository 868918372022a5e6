package audit_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

func TestUnfinished(t *testing.T) {
	t.Parallel()
	one, two := topology.HostID{Region: "lab", Host: "pve-1"}, topology.HostID{Region: "lab", Host: "pve-2"}
	open := []audit.Open{{Host: one, Removed: []fleet.VM{{Name: "workers-2000"}}}, {Host: two}}
	for _, tt := range []struct {
		name    string
		outcome *audit.Outcome
		want    []audit.Open
	}{
		{"it died", nil, open},
		{"done", &audit.Outcome{Hosts: []audit.Ended{{Host: one}, {Host: two}}}, nil},
		{"one failed", &audit.Outcome{Hosts: []audit.Ended{{Host: one, Error: "no room"}, {Host: two}}}, open[:1]},
		{"one was not reached", &audit.Outcome{Hosts: []audit.Ended{{Host: one}}}, open[1:]},
	} {
		entry := audit.Entry{Change: audit.Change{Open: open}, Outcome: tt.outcome, OutcomeVerified: true}
		if diff := cmp.Diff(tt.want, entry.Unfinished()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		entry.OutcomeVerified = false
		if diff := cmp.Diff(open, entry.Unfinished()); diff != "" {
			t.Errorf("%s, in a record of another installation (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	change := audit.Change{
		Added: []fleet.VM{{Name: "workers-2000"}}, Removed: []fleet.VM{{Name: "workers-2001"}}, Renumbered: []fleet.VM{{Name: "workers-2002"}},
		Hosts: []audit.HostPlan{{Update: []guard.Target{{Address: "module.workers-2003.proxmox_virtual_environment_vm.node"}, {Address: "module._1a-2004.proxmox_virtual_environment_vm.node"}}}},
	}
	for name, want := range map[string]bool{
		"workers-2000": true, "workers-2001": true, "workers-2002": true, "workers-2003": true, "1a-2004": true, "workers-200": false, "workers-2004": false,
	} {
		if got := change.Names(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
