package proxmox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// TestReadsDevices checks that resource mappings and guests' devices are read with logins
// that may see all mappings, one and none, and that their NUMA nodes are those that the
// host's agent reports.
func TestReadsDevices(t *testing.T) {
	t.Parallel()
	machine, err := machines.Load("nuc-i7-1165g7-4c8t")
	if err != nil {
		t.Fatal(err)
	}
	located := func(mapping, path string, node int) topology.PCIDevice {
		return topology.PCIDevice{Mapping: mapping, Path: path, NUMANode: node}
	}
	given := topology.Host{
		Region: "r1", Name: "pve-1", Machine: machine,
		PCIDevices: []topology.PCIDevice{located("gpu", "0000:41:00.0", 0), located("gpu", "0000:01:00.0", topology.Unknown), located("nic", "0000:81:00.0", 0)},
		Guests: []topology.Guest{
			{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: 512, PCIDevices: []topology.PassedDevice{{Mapping: "gpu"}, {Address: "81:00.0"}}},
			{VMID: 101, Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: 512, PCIDevices: []topology.PassedDevice{{Mapping: "gpu", MDev: "half"}}},
		},
	}
	other := topology.Host{Region: "r1", Name: "pve-2", Machine: machine, PCIDevices: []topology.PCIDevice{located("nic", "0000:01:00.0", 0)}}
	for _, tt := range []struct {
		name  string
		path  string // of Mapping.Use
		want  []topology.PCIDevice
		calls int
	}{
		{"all", "/mapping", []topology.PCIDevice{located("gpu", "0000:41:00.0", 0), located("gpu", "0000:01:00.0", topology.Unknown), located("nic", "0000:81:00.0", 0)}, 1},
		{"one", "/mapping/pci/nic", []topology.PCIDevice{located("nic", "0000:81:00.0", 0)}, 1},
		{"none", "", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			role := pvesim.Role{Name: "Least"}
			for _, part := range pvesim.LeastPrivilege() {
				role.Privileges = append(role.Privileges, part.Privileges...)
			}
			sim := hostagent.Each(pvesim.Config{
				Hosts:  []topology.Host{given, other},
				Tokens: []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}},
				Roles:  []pvesim.Role{role, {Name: "Devices", Privileges: []string{"Mapping.Use"}}},
				ACL:    []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "Least"}},
			}, map[topology.HostName]hostagent.Agent{"pve-1": {Rules: claim.Rules{Clusters: []string{"prod"}}}})
			if tt.path != "" {
				sim.ACL = append(sim.ACL, pvesim.ACL{Path: tt.path, Subject: "numaform@pve", Role: "Devices"})
			}
			server, cfg := simulate(t, sim)
			if err := hostagent.Publish(server, "pve-1"); err != nil {
				t.Fatal(err)
			}
			server.ResetCalls()
			snapshot := snapshotOf(t, cfg)
			calls := 0
			for _, call := range server.Calls() {
				calls += count(call.Path == "/cluster/mapping/pci")
			}
			if calls != tt.calls || snapshot.Regions[0].MappingsProblem != "" {
				t.Errorf("%d calls for mappings, want %d; problem %q", calls, tt.calls, snapshot.Regions[0].MappingsProblem)
			}
			again, err := newClient(t, cfg).Refresh(context.Background(), snapshot, hostNames(snapshot))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []*topology.Snapshot{snapshot, again} {
				if diff := cmp.Diff(tt.want, s.Hosts[0].PCIDevices); diff != "" {
					t.Errorf("devices (-want +got):\n%s", diff)
				}
				for i, want := range given.Guests {
					if diff := cmp.Diff(want.PCIDevices, s.Hosts[0].Guests[i].PCIDevices); diff != "" {
						t.Errorf("guest %d (-want +got):\n%s", want.VMID, diff)
					}
				}
			}
		})
	}
}

// TestReadsInvalidMappings checks that the region names each resource mapping that numaform
// cannot read.
func TestReadsInvalidMappings(t *testing.T) {
	t.Parallel()
	machine, err := machines.Load("nuc-i7-1165g7-4c8t")
	if err != nil {
		t.Fatal(err)
	}
	_, cfg := simulate(t, pvesim.Config{
		Hosts: []topology.Host{{Region: "r1", Name: "pve-1", Machine: machine, PCIDevices: []topology.PCIDevice{
			{Mapping: "gpu", Path: "wrong"}, {Mapping: "nic", Path: "0000:81:00.0"}, {Mapping: "tpu", Path: "also wrong"},
		}}},
		Tokens: []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}},
		Roles:  []pvesim.Role{{Name: "All", Privileges: []string{"Mapping.Use", "Sys.Audit", "VM.Audit"}}},
		ACL:    []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "All"}},
	})
	snapshot := snapshotOf(t, cfg)
	for _, want := range []string{"resource mapping gpu is invalid", "resource mapping tpu is invalid"} {
		if problem := snapshot.Regions[0].MappingsProblem; !strings.Contains(problem, want) {
			t.Errorf("the problem is %q, want %q in it", problem, want)
		}
	}
	if devices := snapshot.Hosts[0].PCIDevices; len(devices) != 1 || devices[0].Mapping != "nic" {
		t.Errorf("devices are %+v", devices)
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
