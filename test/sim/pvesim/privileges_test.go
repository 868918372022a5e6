package pvesim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// limited returns a client whose token has exactly these privileges on the paths, given as
// path, "Privilege Privilege", ….
func limited(t *testing.T, cfg pvesim.Config, grants ...string) *client {
	t.Helper()
	cfg.Tokens = []pvesim.Token{{ID: "few@pve!t", Secret: "s", FullPrivileges: true}}
	for i := 0; i+1 < len(grants); i += 2 {
		name := "R" + strings.ReplaceAll(grants[i], "/", "_")
		cfg.Roles = append(cfg.Roles, pvesim.Role{Name: name, Privileges: strings.Fields(grants[i+1])})
		cfg.ACL = append(cfg.ACL, pvesim.ACL{Path: grants[i], Subject: "few@pve", Role: name})
	}
	return start(t, cfg).token("few@pve!t=s")
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	clone := []string{"newid", "101"}
	for _, tt := range []struct {
		name   string
		grants []string
		method string
		path   string
		params []string
		want   string // reason; empty means 200
	}{
		{"status of a host", nil, "GET", "/nodes/pve-1/status", nil, "(/nodes/pve-1, Sys.Audit)"},
		{"status by the path above", []string{"/nodes", "Sys.Audit"}, "GET", "/nodes/pve-1/status", nil, ""},
		{"report", nil, "GET", "/nodes/pve-1/report", nil, "(/nodes/pve-1, Sys.Audit)"},
		{"notes", []string{"/nodes", "Sys.Audit"}, "GET", "/nodes/pve-1/config", nil, "(/, Sys.Audit)"},
		{"config of a vm", nil, "GET", vm100 + "/config", nil, "(/vms/100, VM.Audit)"},
		{"clone", nil, "POST", vm9000 + "/clone", clone, "(/vms/9000, VM.Clone)"},
		{"clone allocates", []string{"/vms/9000", "VM.Clone"}, "POST", vm9000 + "/clone", clone, ""},
		{"clone takes space", []string{"/vms", "VM.Clone VM.Allocate", "/sdn/zones", "SDN.Use"}, "POST", vm9000 + "/clone", clone, "(/storage/local-lvm, Datastore.AllocateSpace)"},
		{"clone takes the bridge", []string{"/vms", "VM.Clone VM.Allocate", "/storage", "Datastore.AllocateSpace"}, "POST", vm9000 + "/clone", clone, "(/sdn/zones/localnetwork/vmbr0, SDN.Use)"},
		{"clone into a pool", []string{"/vms/9000", "VM.Clone", "/pool/nodes", "VM.Allocate", "/storage", "Datastore.AllocateSpace", "/sdn", "SDN.Use"}, "POST", vm9000 + "/clone", append([]string{"pool", "nodes"}, clone...), ""},
		{"cores", []string{"/vms", "VM.Config.Memory"}, "PUT", vm100 + "/config", []string{"cores", "2"}, "(/vms/100, VM.Config.CPU)"},
		{"numa0", []string{"/vms", "VM.Config.Memory"}, "PUT", vm100 + "/config", []string{"numa0", "cpus=0"}, "(/vms/100, VM.Config.CPU)"},
		{"memory", []string{"/vms", "VM.Config.CPU"}, "PUT", vm100 + "/config", []string{"memory", "2048"}, "(/vms/100, VM.Config.Memory)"},
		{"no config privilege", nil, "PUT", vm100 + "/config", []string{"cores", "2"}, "(/vms/100, VM.Config.Disk|VM.Config.CDROM|VM.Config.CPU|VM.Config.Memory|VM.Config.Network|VM.Config.HWType|VM.Config.Options|VM.Config.Cloudinit)"},
		{"cdrom", []string{"/vms", "VM.Config.CPU"}, "PUT", vm100 + "/config", []string{"ide2", "none,media=cdrom"}, "(/vms/100, VM.Config.CDROM)"},
		{"an ISO for a cloud-init drive", []string{"/vms", "VM.Config.CDROM"}, "PUT", "/nodes/pve-2/qemu/9001/config", []string{"ide2", "none,media=cdrom"}, "(/vms/9001, VM.Config.Cloudinit)"},
		{"removing a cloud-init drive", []string{"/vms", "VM.Config.CDROM"}, "PUT", "/nodes/pve-2/qemu/9001/config", []string{"delete", "ide2"}, "(/vms/9001, VM.Config.Cloudinit)"},
		{"tags", []string{"/vms", "VM.Config.CPU"}, "PUT", vm100 + "/config", []string{"tags", "a"}, "(/vms/100, VM.Config.Options)"},
		{"start", nil, "POST", vm100 + "/status/start", nil, "(/vms/100, VM.PowerMgmt)"},
		{"delete", nil, "DELETE", vm100, nil, "(/vms/100, VM.Allocate)"},
		{"upload", nil, "POST", "/nodes/pve-1/storage/local/upload", nil, "(/storage/local, Datastore.AllocateTemplate)"},
		{"delete an iso", []string{"/storage", "Datastore.AllocateTemplate Datastore.AllocateSpace"}, "DELETE", "/nodes/pve-1/storage/local/content/local:iso/x.iso", nil, "(/storage/local, Datastore.Allocate)"},
		{"agent", nil, "GET", vm100 + "/agent/network-get-interfaces", nil, "(/vms/100, VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted)"},
		{"deeper entries replace", []string{"/vms", "VM.Audit", "/vms/100", "VM.Clone"}, "GET", vm100 + "/config", nil, "(/vms/100, VM.Audit)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := cluster()
			cfg.Hosts[1].Templates[0].Drives, cfg.Hosts[1].Templates[0].CloudInit = []string{"ide2"}, true
			got := limited(t, cfg, tt.grants...).call(tt.method, tt.path, tt.params...)
			status, reason := 403, "Permission check failed "+tt.want
			switch {
			case tt.name == "clone allocates":
				reason = "Permission check failed"
			case tt.want == "":
				status, reason = 200, "OK"
			}
			if got.status != status || got.reason != reason {
				t.Errorf("got %d %s, want %d %s", got.status, got.reason, status, reason)
			}
		})
	}
}

func TestVersionsDiffer(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Version = "8.4"
	c := limited(t, cfg, "/vms", "VM.Audit")
	if got := c.call("GET", vm100+"/agent/network-get-interfaces"); got.reason != "Permission check failed (/vms/100, VM.Monitor)" {
		t.Errorf("8.4: %d %s", got.status, got.reason)
	}
	cfg.Roles = []pvesim.Role{{Name: "X", Privileges: []string{"VM.GuestAgent.Audit"}}}
	if _, err := pvesim.New(cfg); err == nil || !strings.Contains(err.Error(), "invalid privilege 'VM.GuestAgent.Audit'") {
		t.Errorf("8.4 takes a privilege of 9: %v", err)
	}
	cfg.Version, cfg.Roles = "9.0", []pvesim.Role{{Name: "X", Privileges: []string{"VM.Monitor"}}}
	if _, err := pvesim.New(cfg); err == nil {
		t.Error("9.0 takes VM.Monitor")
	}
}

func TestSeparatedToken(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Tokens = []pvesim.Token{{ID: "u@pve!sep", Secret: "s"}}
	cfg.ACL = []pvesim.ACL{
		{Path: "/vms", Subject: "u@pve", Role: "PVEVMAdmin"},
		{Path: "/vms/100", Subject: "u@pve!sep", Role: "PVETemplateUser"},
		{Path: "/nodes", Subject: "u@pve!sep", Role: "PVEAuditor"},
	}
	c := start(t, cfg).token("u@pve!sep=s")
	check(t, c, []step{
		{"both have it", "GET", vm100 + "/config", nil, 200, "OK"},
		{"only the user has it", "POST", vm100 + "/status/stop", nil, 403, "Permission check failed (/vms/100, VM.PowerMgmt)"},
		{"only the token has it", "GET", "/nodes/pve-1/status", nil, 403, "Permission check failed (/nodes/pve-1, Sys.Audit)"},
	})
}

func TestPermissionsEndpoint(t *testing.T) {
	t.Parallel()
	c := limited(t, cluster(), "/vms", "VM.Audit VM.Clone", "/pool/nodes", "VM.PowerMgmt")
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 300, Host: "pve-1", Pool: "nodes"}); err != nil {
		t.Fatal(err)
	}
	perms := func(path string) map[string]any {
		return c.call("GET", "/access/permissions", "path", path).data.(map[string]any)[path].(map[string]any)
	}
	names := func(m map[string]any) string {
		var list []string
		for _, p := range []string{"VM.Audit", "VM.Clone", "VM.PowerMgmt"} {
			if _, ok := m[p]; ok {
				list = append(list, p)
			}
		}
		return strings.Join(list, " ")
	}
	want := map[string]string{"/vms/300": "VM.Audit VM.Clone VM.PowerMgmt", "/vms/100": "VM.Audit VM.Clone", "/nodes": ""}
	got := map[string]string{}
	for path := range want {
		got[path] = names(perms(path))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
}

func TestListsShowWhatMayBeSeen(t *testing.T) {
	t.Parallel()
	c := limited(t, cluster(), "/vms/100", "VM.Audit")
	for path, want := range map[string]int{"/nodes/pve-1/qemu": 1, "/cluster/resources?type=vm": 1, "/nodes/pve-1/lxc": 0, "/nodes/pve-1/storage": 0} {
		if got := len(c.call("GET", path).data.([]any)); got != want {
			t.Errorf("%s lists %d, want %d", path, got, want)
		}
	}
}

// TestHostsAmongResources checks that all users see the hosts, but only users with
// Sys.Audit on a host see its counts.
func TestHostsAmongResources(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		grants []string
		want   bool
	}{{nil, false}, {[]string{"/nodes", "Sys.Audit"}, true}} {
		list := limited(t, cluster(), test.grants...).call("GET", "/cluster/resources?type=node").data.([]any)
		if len(list) == 0 {
			t.Fatal("no host is listed")
		}
		for _, entry := range list {
			host := entry.(map[string]any)
			_, cpus := host["maxcpu"]
			_, memory := host["maxmem"]
			if cpus != test.want || memory != test.want || host["status"] != "online" {
				t.Errorf("with %v: %v", test.grants, host)
			}
		}
	}
}
