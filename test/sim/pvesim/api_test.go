package pvesim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// holdsAll checks that a response has status 200 and that its body contains all texts.
func holdsAll(t *testing.T, got answer, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if got.status != 200 || !strings.Contains(got.body, text) {
			t.Errorf("%d %s lacks %s:\n%s", got.status, got.reason, text, got.body)
		}
	}
}

func TestFirewall(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	fw := vm100 + "/firewall"
	check(t, c, []step{
		{"options", "PUT", fw + "/options", []string{"enable", "1", "policy_in", "DROP"}, 200, "OK"},
		{"group", "POST", fw + "/rules", []string{"type", "group", "action", "k8s", "enable", "1"}, 200, "OK"},
		{"rule in front", "POST", fw + "/rules", []string{"type", "in", "action", "ACCEPT", "proto", "tcp", "dport", "22"}, 200, "OK"},
		{"changed", "PUT", fw + "/rules/0", []string{"dport", "2222"}, 200, "OK"},
		{"moved", "PUT", fw + "/rules/0", []string{"moveto", "1"}, 200, "OK"},
		{"missing rule", "GET", fw + "/rules/9", nil, 500, "no rule at position 9"},
		{"unknown policy", "PUT", fw + "/options", []string{"policy_in", "MAYBE"}, 400, "Parameter verification failed."},
	})
	holdsAll(t, c.call("GET", fw+"/options"), `"enable":1`, `"policy_in":"DROP"`)
	holdsAll(t, c.call("GET", fw+"/rules/1"), `"dport":"2222"`, `"pos":"1"`)
	check(t, c, []step{{"deleted", "DELETE", fw + "/rules/0", nil, 200, "OK"}})
	if rules := c.call("GET", fw+"/rules").data.([]any); len(rules) != 1 {
		t.Errorf("rules %v", rules)
	}
}

func TestCloneHasTheFirewallOfItsSource(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Firewall = true
	c := start(t, cfg)
	source, clone := "/nodes/pve-1/qemu/9000/firewall", "/nodes/pve-1/qemu/300/firewall"
	check(t, c, []step{
		{"options", "PUT", source + "/options", []string{"enable", "1", "policy_in", "DROP"}, 200, "OK"},
		{"rule", "POST", source + "/rules", []string{"type", "in", "action", "ACCEPT", "proto", "tcp", "dport", "22"}, 200, "OK"},
	})
	c.clone(300)
	holdsAll(t, c.call("GET", clone+"/options"), `"enable":1`, `"policy_in":"DROP"`)
	holdsAll(t, c.call("GET", clone+"/rules"), `"dport":"22"`)
	check(t, c, []step{
		{"its rule", "PUT", clone + "/rules/0", []string{"dport", "1"}, 200, "OK"},
		{"its options", "PUT", clone + "/options", []string{"delete", "enable"}, 200, "OK"},
	})
	holdsAll(t, c.call("GET", source+"/rules/0"), `"dport":"22"`)
	holdsAll(t, c.call("GET", source+"/options"), `"enable":1`)
	holdsAll(t, c.call("GET", "/cluster/firewall/options"), `"enable":1`)
}

func TestPools(t *testing.T) {
	t.Parallel()
	c := start(t, cluster()).root()
	check(t, c, []step{
		{"create", "POST", "/pools", []string{"poolid", "new", "comment", "x"}, 200, "OK"},
		{"again", "POST", "/pools", []string{"poolid", "new"}, 500, "create pool failed: pool 'new' already exists"},
		{"add", "PUT", "/pools", []string{"poolid", "new", "vms", "100,200", "storage", "local"}, 200, "OK"},
		{"add again", "PUT", "/pools/new", []string{"vms", "100"}, 500, "update pools failed: VM 100 is already a pool member"},
		{"steal", "PUT", "/pools/nodes", []string{"vms", "100"}, 500, "update pools failed: VM 100 belongs already to pool 'new' and 'allow-move' is not set"},
		{"move", "PUT", "/pools/nodes", []string{"vms", "100", "allow-move", "1"}, 200, "OK"},
		{"not empty", "DELETE", "/pools/new", nil, 500, "delete pool failed: pool 'new' is not empty (contains VM 200)"},
		{"take out", "PUT", "/pools", []string{"poolid", "new", "vms", "200", "storage", "local", "delete", "1"}, 200, "OK"},
		{"delete", "DELETE", "/pools", []string{"poolid", "new"}, 200, "OK"},
		{"missing", "GET", "/pools", []string{"poolid", "new"}, 500, "pool 'new' does not exist"},
	})
	holdsAll(t, c.call("GET", "/pools", "poolid", "nodes"), `"poolid":"nodes"`, `"vmid":100`)
	holdsAll(t, c.call("GET", "/pools/nodes"), `"qemu/100"`)
	holdsAll(t, c.call("GET", "/cluster/resources"), `"pool":"nodes"`, `"type":"pool"`, `"node/pve-2"`, `"storage/pve-1/local"`, `"network/pve-1/zone/localnetwork"`)
}

func TestAccessEndpoints(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	root := c.root()
	holdsAll(t, root.call("GET", "/access/acl"), `"ugid":"numaform@pve"`, `"path":"/vms"`, `"roleid":"NumaformVM"`)
	holdsAll(t, root.call("GET", "/access/roles"), `"roleid":"PVEAdmin"`, `VM.GuestAgent.Audit`)
	holdsAll(t, root.call("GET", "/access/users"), `"userid":"root@pam"`, `"userid":"numaform@pve"`)
	holdsAll(t, root.call("GET", "/access/permissions", "userid", pvesim.DefaultToken), `"VM.Clone":1`)
	if list := c.call("GET", "/access/acl").data.([]any); len(list) > 0 {
		t.Errorf("a token without Sys.Audit on /access sees the acl: %v", list)
	}
	if list := c.call("GET", "/access/users").data.([]any); len(list) != 1 {
		t.Errorf("a token sees others: %v", list)
	}
	check(t, c, []step{
		{"another's permissions", "GET", "/access/permissions", []string{"userid", "root@pam"}, 403, "Permission check failed (/access, Sys.Audit)"},
		{"tickets are not for tokens", "GET", "/access/ticket", nil, 200, "OK"},
	})
}

func TestHostEndpoints(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[0].Storages = []pvesim.Storage{
		{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "images"}, TotalMiB: 1 << 20, FreeMiB: 1 << 19},
		{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}},
		{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: []string{"images"}},
	}
	c := start(t, cfg)
	root := c.root()
	check(t, root, []step{
		{"notes", "PUT", "/nodes/pve-1/config", []string{"description", "topology"}, 200, "OK"},
		{"stale notes", "PUT", "/nodes/pve-1/config", []string{"description", "x", "digest", "00"}, 500, "detected modified configuration - file changed by other user? Try again."},
	})
	holdsAll(t, c.call("GET", "/nodes/pve-1/config"), `"description":"topology"`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/status"), `"cores":8`, `"cpus":16`, `"sockets":2`, fmt.Sprintf(`"total":%d`, 64<<30))
	holdsAll(t, root.call("GET", "/nodes/pve-1/journal"), "SRAT: Node 1", "Early memory node ranges")
	holdsAll(t, c.call("GET", "/version"), `"release":"9.2"`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/network", "type", "bridge"), `"vmbr0"`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/storage", "content", "images"), `"nas"`, `"local-lvm"`)
	holdsAll(t, c.call("GET", "/storage"), `"nas"`, `"nodes":"pve-1"`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/storage/local/status"), `"type":"dir"`, `"shared":0`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/storage/local-lvm/content", "vmid", "9000"), "base-9000-disk-0", `"vmid":9000`, `"ctime":"`)
	holdsAll(t, c.call("GET", vm9000+"/feature", "feature", "clone"), `"hasFeature":1`)
	holdsAll(t, c.call("GET", vm100+"/snapshot"), "You are here!")
	holdsAll(t, c.call("GET", "/nodes/pve-1/lxc/200/config"), `"hostname":"dns"`, `"memory":512`)
	holdsAll(t, c.call("GET", "/nodes/pve-1/qemu", "full", "1"), `"qmpstatus":"running"`)
	check(t, c, []step{
		{"shared storage elsewhere", "GET", "/nodes/pve-2/storage/nas/status", nil, 400, "Parameter verification failed."},
		{"ha of a vm", "GET", "/cluster/ha/resources/vm:100", nil, 500, "no such resource 'vm:100'"},
	})
}

func TestLinkedCloneOnFiles(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[0].Storages = []pvesim.Storage{{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: []string{"images", "iso"}}}
	cfg.Hosts[1].Storages = append([]pvesim.Storage{{Name: "local-lvm", Type: "lvm", Active: true, Content: []string{"images"}}}, cfg.Hosts[0].Storages...)
	cfg.Hosts[0].Templates[0].Storage = "nas"
	c := start(t, cfg)
	if exit := c.run("POST", vm9000+"/clone", "newid", "101", "target", "pve-2", "pool", "nodes"); exit != "OK" {
		t.Fatal(exit)
	}
	g := c.guest(101)
	if g.Host != "pve-2" || g.Pool != "nodes" || g.Config["scsi0"] != "nas:9000/base-9000-disk-0.raw/101/vm-101-disk-0.qcow2,size=8G" {
		t.Errorf("clone on %s in %q with %q", g.Host, g.Pool, g.Config["scsi0"])
	}
	check(t, c, []step{
		{"thick lvm links nothing", "POST", "/nodes/pve-2/qemu/9001/clone", []string{"newid", "102"}, 500, "Linked clone feature is not supported for 'local-lvm:base-9001-disk-0' (scsi0)"},
	})
}

// TestCloneOnAnotherHost checks which clones Proxmox creates on another host than the
// template's, and the reasons for which it refuses the others.
func TestCloneOnAnotherHost(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	disks := []string{"images", "iso"}
	nas := pvesim.Storage{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: disks}
	san := pvesim.Storage{Name: "san", Type: "rbd", Shared: true, Active: true, Content: disks}
	local := pvesim.Storage{Name: "local-lvm", Type: "lvmthin", Active: true, Content: disks}
	cfg.Hosts[0].Storages = []pvesim.Storage{nas, san, local}
	cfg.Hosts[1].Storages = []pvesim.Storage{nas, local}
	cfg.Hosts[0].Templates[0].Storage = "nas"
	onSAN := cfg.Hosts[0].Templates[0]
	onSAN.VMID, onSAN.Storage = 9010, "san"
	cfg.Hosts[0].Templates = append(cfg.Hosts[0].Templates, onSAN)
	c := start(t, cfg)
	check(t, c, []step{
		{"on a local storage", "POST", vm9000 + "/clone", []string{"newid", "102", "full", "1", "storage", "local-lvm", "target", "pve-2"}, 500, "can't clone to non-shared storage 'local-lvm'"},
		{"on a storage that the host lacks", "POST", vm9000 + "/clone", []string{"newid", "102", "full", "1", "storage", "san", "target", "pve-2"}, 500, "storage 'san' is not available on node 'pve-2'"},
		{"on no host", "POST", vm9000 + "/clone", []string{"newid", "102", "target", "pve-7"}, 500, "no such cluster node 'pve-7'"},
		{"linked, with a storage", "POST", vm9000 + "/clone", []string{"newid", "102", "storage", "nas", "target", "pve-2"}, 500, "parameter 'storage' not allowed for linked clones"},
		{"of a local template", "POST", "/nodes/pve-2/qemu/9001/clone", []string{"newid", "102", "full", "1", "storage", "nas", "target", "pve-1"}, 500, "can't clone VM to node 'pve-1' (VM uses local storage)"},
	})

	tpm := c.root().call("PUT", vm9000+"/config", "tpmstate0", "nas:1,version=v2.0")
	if tpm.status != 200 {
		t.Fatalf("adding a TPM: %d %s", tpm.status, tpm.reason)
	}
	for _, tt := range []struct {
		vmid, template int
		host, disk     string
		params         []string
	}{
		{vmid: 101, template: 9000, host: "pve-2", disk: "nas:9000/base-9000-disk-0.raw/101/vm-101-disk-0.qcow2", params: []string{"target", "pve-2"}},
		{vmid: 102, template: 9000, host: "pve-2", disk: "nas:102/vm-102-disk-0.raw", params: []string{"target", "pve-2", "full", "1"}},
		{vmid: 103, template: 9000, host: "pve-1", disk: "local-lvm:vm-103-disk-0", params: []string{"target", "pve-1", "full", "1", "storage", "local-lvm"}},
		{vmid: 104, template: 9000, host: "pve-1", disk: "nas:9000/base-9000-disk-0.raw/104/vm-104-disk-0.qcow2", params: []string{"target", "localhost"}},
		// Proxmox does not check that the host has the template's storage.
		{vmid: 105, template: 9010, host: "pve-2", disk: "san:base-9010-disk-0/vm-105-disk-0", params: []string{"target", "pve-2"}},
	} {
		exit := c.run("POST", fmt.Sprintf("/nodes/pve-1/qemu/%d/clone", tt.template), append(tt.params, "newid", fmt.Sprint(tt.vmid))...)
		if exit != "OK" {
			t.Errorf("clone %d: %s", tt.vmid, exit)
			continue
		}
		got := c.guest(tt.vmid)
		disk, _, _ := strings.Cut(got.Config["scsi0"], ",")
		if got.Host != tt.host || disk != tt.disk {
			t.Errorf("clone %d is on %s with %q, want %s with %q", tt.vmid, got.Host, disk, tt.host, tt.disk)
		}
		if state := got.Config["tpmstate0"]; tt.template == 9000 && strings.Contains(state, "base") {
			t.Errorf("clone %d has a linked TPM state: %q", tt.vmid, state)
		}
	}

	// A CD image on a local storage also prevents the clone.
	if answer := c.root().call("PUT", vm9000+"/config", "ide2", "local-lvm:cloudinit"); answer.status != 200 {
		t.Fatalf("adding a drive: %d %s", answer.status, answer.reason)
	}
	check(t, c, []step{
		{"with a local drive", "POST", vm9000 + "/clone", []string{"newid", "106", "target", "pve-2"}, 500, "can't clone VM to node 'pve-2' (VM uses local storage)"},
	})
}

func TestConfigRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*pvesim.Config)
		want   string
	}{
		{"no hosts", func(c *pvesim.Config) { c.Hosts = nil }, "no hosts"},
		{"two of a name", func(c *pvesim.Config) { c.Hosts[1].Name = "pve-1" }, "must be unique"},
		{"a name that is none", func(c *pvesim.Config) { c.Hosts[0].Name = "pve_1" }, "must be unique"},
		{"vmid twice", func(c *pvesim.Config) { c.Hosts[1].Templates[0].VMID = 9000 }, "its vmid is used on pve-1"},
		{"template on no storage", func(c *pvesim.Config) { c.Hosts[0].Templates[0].Storage = "tank" }, `no storage "tank"`},
		{"version", func(c *pvesim.Config) { c.Version = "7.4" }, "must be 8.x or 9.x"},
		{"token", func(c *pvesim.Config) { c.Tokens = []pvesim.Token{{ID: "x"}} }, "must be user@realm!name"},
		{"role", func(c *pvesim.Config) { c.ACL = []pvesim.ACL{{Path: "/", Subject: "root@pam", Role: "none"}} }, `no role "none"`},
		{"subject", func(c *pvesim.Config) { c.ACL = []pvesim.ACL{{Path: "/", Subject: "who@pam", Role: "PVEAdmin"}} }, `no user or token "who@pam"`},
	} {
		cfg := cluster()
		tt.change(&cfg)
		if _, err := pvesim.New(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
