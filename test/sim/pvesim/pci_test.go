package pvesim_test

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// withDevices adds three cards to pve-1: two in the mapping "gpu", the first of which is
// also in the mapping "one", and a card with two functions in the mapping "both". The
// default token gets these privileges in addition to the roles of LeastPrivilege.
func withDevices(cfg pvesim.Config, privileges ...string) pvesim.Config {
	cfg.Hosts[0].PCIDevices = []pvesim.PCIDevice{
		{Mapping: "gpu", Path: "0000:01:00.0"},
		{Mapping: "gpu", Path: "0000:41:00.0"},
		{Mapping: "one", Path: "0000:01:00.0"},
		{Mapping: "both", Path: "0000:81:00.0;0000:81:00.1"},
	}
	role := pvesim.Role{Name: "Devices", Privileges: privileges}
	for _, part := range pvesim.LeastPrivilege() {
		role.Privileges = append(role.Privileges, part.Privileges...)
	}
	cfg.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
	cfg.Roles, cfg.ACL = []pvesim.Role{role}, []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "Devices"}}
	return cfg
}

func TestListPCIMappings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		privileges []string
		params     []string
		want       map[string]any // checks by ID
	}{
		{"without a privilege none is shown", nil, nil, map[string]any{}},
		{"audit", []string{"Mapping.Audit"}, nil, map[string]any{"gpu": nil, "one": nil, "both": nil}},
		{"use", []string{"Mapping.Use"}, []string{"check-node", "pve-1"}, map[string]any{"gpu": []any{}, "one": []any{}, "both": []any{}}},
		{"of a host without", []string{"Mapping.Audit"}, []string{"check-node", "pve-2"}, map[string]any{
			"gpu":  []any{map[string]any{"severity": "warning", "message": "No mapping for node pve-2."}},
			"one":  []any{map[string]any{"severity": "warning", "message": "No mapping for node pve-2."}},
			"both": []any{map[string]any{"severity": "warning", "message": "No mapping for node pve-2."}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer := start(t, withDevices(cluster(), tt.privileges...)).call("GET", "/cluster/mapping/pci", tt.params...)
			got := map[string]any{}
			list, _ := answer.data.([]any)
			for _, entry := range list {
				mapping := entry.(map[string]any)
				got[mapping["id"].(string)] = mapping["checks"]
				if mapping["id"] == "gpu" {
					want := []any{"id=10de:2204,iommugroup=10,node=pve-1,path=0000:01:00.0", "id=10de:2204,iommugroup=11,node=pve-1,path=0000:41:00.0"}
					if diff := cmp.Diff(want, mapping["map"]); diff != "" {
						t.Errorf("map (-want +got):\n%s", diff)
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || answer.status != 200 {
				t.Errorf("%d %s (-want +got):\n%s", answer.status, answer.reason, diff)
			}
		})
	}
	check(t, start(t, cluster()), []step{
		{"unknown parameter", "GET", "/cluster/mapping/pci", []string{"node", "pve-1"}, 400, "Parameter verification failed."},
		{"unknown host", "GET", "/cluster/mapping/pci", []string{"check-node", "pve-9"}, 500, "hostname lookup 'pve-9' failed - failed to get address info for: pve-9: Name or service not known"},
	})
}

func TestSetHostPCI(t *testing.T) {
	t.Parallel()
	set := func(text string) []string { return []string{"hostpci0", text} }
	check(t, start(t, withDevices(cluster())), []step{
		{"without Mapping.Use", "PUT", vm100 + "/config", set("mapping=gpu"), 403, "Permission check failed (/mapping/pci/gpu, Mapping.Use)"},
	})
	check(t, start(t, withDevices(cluster(), "Mapping.Use")), []step{
		{"by mapping", "PUT", vm100 + "/config", set("mapping=gpu,pcie=1,x-vga=1"), 200, "OK"},
		{"mapping behind", "PUT", vm100 + "/config", []string{"hostpci1", "pcie=0,mapping=gpu,mdev=nvidia-63"}, 200, "OK"},
		{"by address", "PUT", vm100 + "/config", set("host=01:00.0"), 500, "only root can set 'hostpci0' config for non-mapped devices"},
		{"by neither", "PUT", vm100 + "/config", set("pcie=1"), 500, "either 'host' or 'mapping' must be set."},
		{"unknown key", "PUT", vm100 + "/config", set("mapping=gpu,slot=1"), 400, "Parameter verification failed."},
		{"no name of a mapping", "PUT", vm100 + "/config", set("mapping=1:2"), 400, "Parameter verification failed."},
		{"hostpci16", "PUT", vm100 + "/config", []string{"hostpci16", "mapping=gpu"}, 400, "Parameter verification failed."},
	})
}

// TestStartWithDevices checks the exit status of each start, if guests with PCI devices
// start one after another and keep running.
func TestStartWithDevices(t *testing.T) {
	t.Parallel()
	type guest struct {
		vmid int
		host string
		conf map[string]string
		exit string
	}
	conf := func(pairs ...string) map[string]string {
		all := map[string]string{"machine": "q35"}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		guests []guest
	}{
		{"until none is free", []guest{
			{500, "pve-1", conf("hostpci0", "mapping=gpu,pcie=1"), "OK"},
			{501, "pve-1", conf("hostpci0", "mapping=gpu"), "OK"},
			{502, "pve-1", conf("hostpci0", "mapping=gpu"), "could not find a free device for 'hostpci0'"},
		}},
		{"the first one is in use", []guest{
			{500, "pve-1", conf("hostpci0", "mapping=gpu"), "OK"},
			{501, "pve-1", conf("hostpci0", "mapping=one"), "PCI device '0000:01:00.0' already in use by VMID '500'"},
			{502, "pve-1", conf("hostpci0", "mapping=gpu"), "OK"},
		}},
		{"by address", []guest{
			{500, "pve-1", conf("hostpci0", "81:00"), "OK"},
			{501, "pve-1", conf("hostpci0", "mapping=both"), "PCI device '0000:81:00.0' already in use by VMID '500'"},
		}},
		{"mediated devices", []guest{
			{500, "pve-1", conf("hostpci0", "mapping=one,mdev=nvidia-63"), "OK"},
			{501, "pve-1", conf("hostpci0", "mapping=one,mdev=nvidia-63"), "OK"},
		}},
		{"twice in one", []guest{
			{500, "pve-1", conf("hostpci0", "mapping=one", "hostpci1", "mapping=one"), "device '0000:01:00.0' assigned more than once"},
			{501, "pve-1", conf("hostpci0", "mapping=one", "hostpci1", "mapping=gpu"), "OK"},
		}},
		{"another host", []guest{{500, "pve-2", conf("hostpci0", "mapping=gpu"), "PCI device mapping not found for 'gpu'"}}},
		{"no mapping", []guest{{500, "pve-1", conf("hostpci0", "mapping=none"), "PCI device mapping not found for 'none'"}}},
		{"no q35", []guest{{500, "pve-1", map[string]string{"hostpci0": "mapping=gpu,pcie=1"}, "q35 machine model is not enabled"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, withDevices(cluster()))
			for _, g := range tt.guests {
				if err := c.server.PutGuest(pvesim.Foreign{VMID: g.vmid, Host: g.host, Config: g.conf}); err != nil {
					t.Fatal(err)
				}
				c.starts(g.vmid, g.host, g.exit)
			}
		})
	}
}

// starts starts a guest and checks the exit status.
func (c *client) starts(vmid int, host, exit string) {
	c.t.Helper()
	path := "/nodes/" + host + "/qemu/" + strconv.Itoa(vmid) + "/status/start"
	if got := c.await(c.call("POST", path).data.(string)); got != exit {
		c.t.Errorf("VM %d: exit status %q, want %q", vmid, got, exit)
	}
}

// TestStopFreesDevices checks that a card can be assigned to another guest once the guest
// that uses it is stopped.
func TestStopFreesDevices(t *testing.T) {
	t.Parallel()
	c := start(t, withDevices(cluster()))
	for _, vmid := range []int{500, 501} {
		if err := c.server.PutGuest(pvesim.Foreign{VMID: vmid, Host: "pve-1", Config: map[string]string{"hostpci0": "mapping=one"}}); err != nil {
			t.Fatal(err)
		}
	}
	c.starts(500, "pve-1", "OK")
	c.starts(501, "pve-1", "PCI device '0000:01:00.0' already in use by VMID '500'")
	c.await(c.call("POST", "/nodes/pve-1/qemu/500/status/stop").data.(string))
	c.starts(501, "pve-1", "OK")
}
