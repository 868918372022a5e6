package status_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/topology"
)

// TestStates checks that a VM is found by its key on each host of its region, and nowhere else,
// and that a clone of it, which has the same key, is not reported as the VM.
func TestStates(t *testing.T) {
	t.Parallel()
	vms := []struct {
		key  string
		host topology.HostName
	}{
		{"here", "pve1"},
		{"moved", "pve1"},
		{"moved-2", "pve2"},
		{"foreign", "pve1"},
		{"elsewhere", "pve1"},
		{"lost", "pve3"},
		{"gone", "pve9"},
		{"cloned", "pve2"},
		{"only a clone", "pve2"},
	}
	guest := func(cluster, key string) topology.Guest {
		found := topology.Guest{ClusterID: cluster, Key: key, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8192}
		for i := range vms {
			if vms[i].key == key {
				found.VMID = 2000 + i
			}
		}
		return found
	}
	clone, only := guest("prod", "cloned"), guest("prod", "only a clone")
	clone.VMID, clone.Running, clone.VCPUs = 150, false, 1
	only.VMID = 151
	snapshot := &topology.Snapshot{Hosts: []topology.Host{
		{Region: "a", Name: "pve1", Online: true, Guests: []topology.Guest{guest("prod", "here"), guest("prod", "moved-2"), guest("other", "foreign"), clone}},
		{Region: "a", Name: "pve2", Online: true, Guests: []topology.Guest{guest("prod", "moved"), guest("prod", "moved-2"), guest("prod", "cloned"), only}},
		{Region: "a", Name: "pve3"},
		{Region: "b", Name: "pve1", Online: true, Guests: []topology.Guest{guest("prod", "elsewhere")}},
	}}
	current := &fleet.Fleet{}
	for _, vm := range vms {
		one := fleet.VM{Key: fleet.Key(vm.key), VMID: fleet.VMID(2000 + len(current.VMs)), Name: vm.key}
		one.Host = topology.HostID{Region: "a", Host: vm.host}
		one.VCPUs, one.MemoryMiB = 4, 8192
		current.VMs = append(current.VMs, one)
	}
	r := status.New("prod", current, snapshot, nil)
	got := map[string]string{}
	for i := range r.VMs {
		got[r.VMs[i].Name] = r.VMs[i].State
	}
	for _, d := range r.Drift {
		got[d.VM] += ", " + d.What
	}
	want := map[string]string{
		"here": "running", "moved": "running, on a/pve2 instead of a/pve1", "moved-2": "running, on a/pve1 instead of a/pve2",
		"foreign": "missing", "elsewhere": "missing", "lost": "unknown", "gone": "unknown", "cloned": "running",
		"only a clone": "missing",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if len(r.Hosts) != 4 || r.Hosts[2].State != status.HostOffline {
		t.Errorf("hosts: %+v", r.Hosts)
	}
}

// TestHostLeft checks that VMs of a host that left the Proxmox cluster are reported, with the
// way to remove them, but not if the cluster has no quorum.
func TestHostLeft(t *testing.T) {
	t.Parallel()
	current := &fleet.Fleet{VMs: []fleet.VM{{Name: "workers-2000", VMID: 2000, Placement: fleet.Placement{Host: topology.HostID{Region: "a", Host: "pve1"}}}}}
	for _, quorate := range []bool{true, false} {
		snapshot := &topology.Snapshot{
			Regions: []topology.Region{{Name: "a", Quorate: quorate, Clustered: true}},
			Hosts:   []topology.Host{{Region: "a", Name: "pve2", Online: true}},
		}
		r := status.New("prod", current, snapshot, nil)
		reported := strings.Contains(strings.Join(r.Problems, "\n"), "workers-2000: its host left the Proxmox cluster")
		if reported != quorate || r.VMs[0].State != status.VMUnknown {
			t.Errorf("quorum %t: problems %q, state %s", quorate, r.Problems, r.VMs[0].State)
		}
	}
}
