package pvesim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// step is a request and the expected response.
type step struct {
	name   string
	method string
	path   string
	params []string
	status int
	reason string
}

// check runs the steps in order.
func check(t *testing.T, c *client, steps []step) {
	t.Helper()
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			got := c.call(s.method, s.path, s.params...)
			if got.status != s.status || got.reason != s.reason {
				t.Errorf("%s %s %v:\n got %d %s\nwant %d %s\n%s", s.method, s.path, s.params, got.status, got.reason, s.status, s.reason, got.body)
			}
		})
	}
}

const (
	vm100   = "/nodes/pve-1/qemu/100"
	vm9000  = "/nodes/pve-1/qemu/9000"
	onlyRot = "only root can set '%s' config"
)

func TestRootOnlyOptions(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Tokens = []pvesim.Token{{ID: "root@pam!full", Secret: "s", FullPrivileges: true}}
	c := start(t, cfg).token("root@pam!full=s")
	c.snippet()
	for key, text := range map[string]string{
		"affinity": "0-3", "hugepages": "2", "keephugepages": "1", "args": "-foo", "hookscript": "local:snippets/x.sh", "arch": "x86_64", "lock": "backup",
	} {
		want := fmt.Sprintf(onlyRot, key)
		check(t, c, []step{
			{"set " + key, "PUT", vm100 + "/config", []string{key, text}, 500, want},
			{"delete " + key, "PUT", vm100 + "/config", []string{"delete", key}, 500, want},
			{"set async " + key, "POST", vm100 + "/config", []string{key, text}, 500, want},
		})
	}
	check(t, c.root(), []step{
		{"root by ticket sets affinity", "PUT", vm100 + "/config", []string{"affinity", "0-9999"}, 200, "OK"},
		{"root by ticket deletes affinity", "PUT", vm100 + "/config", []string{"delete", "affinity"}, 200, "OK"},
	})
}

func TestAnswersOfFacts(t *testing.T) {
	t.Parallel()
	c := start(t, withAgents(cluster()))
	check(t, c, []step{
		{"numa memory by token", "PUT", vm100 + "/config", []string{"numa", "1", "numa0", "cpus=0-3,hostnodes=0,memory=4096,policy=bind"}, 200, "OK"},
		{"startup needs Sys.Modify on /", "PUT", vm100 + "/config", []string{"startup", "order=1"}, 403, "Permission check failed (/, Sys.Modify)"},
		{"raw pci device", "PUT", vm100 + "/config", []string{"hostpci0", "0000:01:00.0"}, 500, "only root can set 'hostpci0' config for non-mapped devices"},
		{"missing vm", "GET", "/nodes/pve-1/qemu/4711/config", nil, 500, "Configuration file 'nodes/pve-1/qemu-server/4711.conf' does not exist"},
		{"missing vm status", "GET", "/nodes/pve-1/qemu/4711/status/current", nil, 500, "Configuration file 'nodes/pve-1/qemu-server/4711.conf' does not exist"},
		{"vm of another host", "GET", "/nodes/pve-2/qemu/100/config", nil, 500, "Configuration file 'nodes/pve-2/qemu-server/100.conf' does not exist"},
		{"unknown path", "GET", "/nodes/pve-1/nothing", nil, 501, "Method 'GET /nodes/pve-1/nothing' not implemented"},
		{"unknown method", "PUT", "/version", nil, 501, "Method 'PUT /version' not implemented"},
		{"known to Proxmox only", "POST", vm100 + "/monitor", []string{"command", "info"}, 501, "Method 'POST /nodes/pve-1/qemu/100/monitor' not implemented by pvesim, though Proxmox VE has it"},
		{"storage of a linked clone", "POST", vm9000 + "/clone", []string{"newid", "101", "storage", "local-lvm"}, 500, "parameter 'storage' not allowed for linked clones"},
		{"format of a linked clone", "POST", vm9000 + "/clone", []string{"newid", "101", "format", "raw"}, 500, "parameter 'format' not allowed for linked clones"},
		{"vmid taken", "POST", vm9000 + "/clone", []string{"newid", "100"}, 500, "unable to create VM 100: config file already exists"},
		{"linked clone of no template", "POST", vm100 + "/clone", []string{"newid", "101", "full", "0"}, 200, "OK"},
		{"clone to another host", "POST", vm9000 + "/clone", []string{"newid", "102", "target", "pve-2"}, 500, "can't clone VM to node 'pve-2' (VM uses local storage)"},
		{"clone into no pool", "POST", vm9000 + "/clone", []string{"newid", "102", "pool", "none"}, 403, "Permission check failed (pool 'none' does not exist)"},
		{"delete a running vm", "DELETE", vm100, nil, 500, "VM 100 is running - destroy failed"},
		{"nextid of a taken vmid", "GET", "/cluster/nextid", []string{"vmid", "100"}, 400, "Parameter verification failed."},
		{"no agent configured", "GET", vm100 + "/agent/network-get-interfaces", nil, 500, "No QEMU guest agent configured"},
		{"balloon above memory", "PUT", vm100 + "/config", []string{"balloon", "9999"}, 500, "balloon value too large (must be smaller than assigned memory)"},
		{"nothing to do", "PUT", vm100 + "/config", nil, 500, "no options specified"},
		{"digest of another version", "PUT", vm100 + "/config", []string{"name", "x", "digest", "00"}, 500, "checksum mismatch (file change by other user?)"},
		{"skiplock by token", "PUT", vm100 + "/config", []string{"name", "x", "skiplock", "1"}, 400, "Parameter verification failed."},
		{"unknown option to delete", "PUT", vm100 + "/config", []string{"delete", "nonsense"}, 400, "Parameter verification failed."},
		{"clone of a missing vm", "POST", "/nodes/pve-1/qemu/4711/clone", []string{"newid", "101"}, 500, "unable to find configuration file for VM 4711 on node 'pve-1'"},
		{"clone of another host's vm", "POST", "/nodes/pve-2/qemu/9000/clone", []string{"newid", "101"}, 500, "unable to find configuration file for VM 9000 on node 'pve-2'"},
		{"an iso that does not exist", "PUT", vm100 + "/config", []string{"ide2", "local:iso/x.iso,media=cdrom"}, 500, "volume 'local:iso/x.iso' does not exist"},
		{"a disk that does not exist", "PUT", vm100 + "/config", []string{"scsi3", "local-lvm:vm-100-disk-7"}, 500, "no such logical volume pve/vm-100-disk-7"},
		{"a bad node name", "GET", "/nodes/a_b/status", nil, 500, "hostname lookup 'a_b' failed - failed to get address info for: a_b: Name or service not known"},
		{"delete of what is no volume", "DELETE", "/nodes/pve-1/storage/local/content/iso/x.txt", nil, 500, "unable to parse directory volume name 'iso/x.txt'"},
		{"delete of what is no logical volume", "DELETE", "/nodes/pve-1/storage/local-lvm/content/iso/x.iso", nil, 500, "unable to parse lvm volume name 'iso/x.iso'"},
		{"delete of an image that does not exist", "DELETE", "/nodes/pve-1/storage/local/content/100/vm-100-disk-0.raw", []string{"delay", "5"}, 500, "no such volume 'local:100/vm-100-disk-0.raw'"},
		{"download without a privilege", "POST", "/nodes/pve-1/storage/local-lvm/download-url", nil, 403, "Permission check failed (/storage/local-lvm, Datastore.AllocateTemplate)"},
		{"unknown node", "GET", "/nodes/pve-9/status", nil, 500, "hostname lookup 'pve-9' failed - failed to get address info for: pve-9: Name or service not known"},
		{"snippets cannot be uploaded", "POST", "/nodes/pve-1/storage/local/upload", []string{"content", "snippets", "filename", "x"}, 400, "Parameter verification failed."},
		{"migrate running without online", "POST", vm100 + "/migrate", []string{"target", "pve-2"}, 403, "Permission check failed (/vms/100, VM.Migrate)"},
		{"trailing and double slashes", "GET", "//nodes/pve-1//status/", nil, 200, "OK"},
	})
}

// TestAuthentication checks the responses to each kind of credential. It uses a Proxmox VE
// before 9.1.5, whose responses contain the reason why a credential is refused.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	config := cluster()
	config.Version = "9.0"
	c := start(t, config)
	bare := *c
	bare.header = http.Header{}
	root := c.root()
	noCSRF := *root
	noCSRF.header = http.Header{"Cookie": root.header["Cookie"]}
	for _, tt := range []struct {
		name   string
		as     *client
		method string
		path   string
		status int
		reason string
	}{
		{"nothing", &bare, "GET", "/version", 401, "No ticket"},
		{"wrong secret", c.token(pvesim.DefaultToken + "=nope"), "GET", "/version", 401, "invalid token value!"},
		{"unknown token", c.token("numaform@pve!other=x"), "GET", "/version", 401, "no such token 'other' for user 'numaform@pve'"},
		{"unknown user", c.token("who@pve!x=y"), "GET", "/version", 401, "no such user ('who@pve')"},
		{"no secret", c.token("who@pve!x"), "GET", "/version", 401, "no tokenid specified"},
		{"ticket reads without csrf", &noCSRF, "GET", "/version", 200, "OK"},
		{"ticket writes need csrf", &noCSRF, "POST", vm100 + "/status/stop", 401, "Permission denied - invalid csrf token"},
		{"ticket", root, "GET", "/version", 200, "OK"},
		{"token has no tickets", c, "GET", "/version", 200, "OK"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.as.call(tt.method, tt.path)
			if got.status != tt.status || got.reason != tt.reason {
				t.Errorf("got %d %s, want %d %s", got.status, got.reason, tt.status, tt.reason)
			}
		})
	}
	if got := bare.call("POST", "/access/ticket", "username", "root@pam", "password", "nope"); got.status != 401 || got.reason != "authentication failure" {
		t.Errorf("wrong password: %d %s", got.status, got.reason)
	}
	forged := *root
	forged.header = http.Header{"Cookie": {strings.Replace(root.header.Get("Cookie"), "root@pam", "root@pve", 1)}}
	if got := forged.call("GET", "/version"); got.status != 401 {
		t.Errorf("forged ticket: %d", got.status)
	}
}

func TestErrorBody(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	got := c.call("PUT", vm100+"/config", "cores", "many")
	var body map[string]any
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"data": nil, "message": "Parameter verification failed.\n",
		"errors": map[string]any{"cores": "type check ('integer') failed - got 'many'"},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestConfigTypesAndTags(t *testing.T) {
	t.Parallel()
	c := start(t, cluster()).root()
	c.clone(101)
	got := c.call("PUT", "/nodes/pve-1/qemu/101/config",
		"numa", "1", "onboot", "1", "acpi", "1", "cores", "2", "sockets", "2", "cpuunits", "200", "cpulimit", "1.5", "memory", "2048", "balloon", "1024",
		"agent", "enabled=1", "tags", "Zeta;alpha,alpha beta", "ide2", "local-lvm:cloudinit", "net1", "virtio,bridge=vmbr0,tag=7,firewall=1")
	if got.status != 200 {
		t.Fatalf("%d %s %s", got.status, got.reason, got.body)
	}
	conf := c.config(101)
	want := map[string]any{
		"numa": json.Number("1"), "onboot": json.Number("1"), "acpi": json.Number("1"), "cores": json.Number("2"), "sockets": json.Number("2"),
		"cpuunits": json.Number("200"), "cpulimit": "1.5", "memory": "2048", "balloon": json.Number("1024"), "agent": "enabled=1",
		"tags": "alpha;beta;zeta", "ide2": "local-lvm:vm-101-cloudinit,media=cdrom,size=4M", "scsi0": "local-lvm:vm-101-disk-0,size=8G",
		"name": "n-101", "ostype": "l26", "scsihw": "virtio-scsi-pci", "serial0": "socket", "boot": "order=scsi0;ide2",
	}
	picked := map[string]any{}
	for key := range want {
		picked[key] = conf[key]
	}
	if diff := cmp.Diff(want, picked); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	template := c.config(9000)
	for _, key := range []string{"smbios1", "vmgenid", "net0"} {
		if conf[key] == template[key] || conf[key] == nil {
			t.Errorf("%s %v: want another than the template's", key, conf[key])
		}
	}
	for _, key := range []string{"template", "lock"} {
		if conf[key] != nil {
			t.Errorf("clone has %s %v", key, conf[key])
		}
	}
	if text, _ := conf["digest"].(string); len(text) != 40 {
		t.Errorf("digest %q", text)
	}
	if net := conf["net1"].(string); !strings.HasSuffix(net, ",bridge=vmbr0,firewall=1,tag=7") || !strings.HasPrefix(net, "virtio=BC:24:11:") {
		t.Errorf("net1 %q", net)
	}
}

func TestCloneKeepsRootOptions(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.snippet()
	root := c.root()
	for key, text := range map[string]string{"affinity": "4-7", "hookscript": "local:snippets/x.sh"} {
		if got := root.call("PUT", vm9000+"/config", key, text); got.status != 200 {
			t.Fatalf("setting %s: %d %s", key, got.status, got.reason)
		}
	}
	c.clone(101)
	if got := c.guest(101).Config; got["affinity"] != "4-7" || got["hookscript"] == "" {
		t.Errorf("clone by token lost root's options: %v", got)
	}
	check(t, c, []step{
		{"token cannot remove hookscript", "PUT", "/nodes/pve-1/qemu/101/config", []string{"delete", "hookscript"}, 500, "only root can set 'hookscript' config"},
	})
}

func TestPending(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	root := c.root()
	before := c.guest(100).Runtime
	for _, params := range [][]string{{"affinity", "2-3"}, {"numa", "1", "numa0", "cpus=0-3,hostnodes=1,memory=4096,policy=bind"}, {"name", "renamed"}} {
		if got := root.call("PUT", vm100+"/config", params...); got.status != 200 {
			t.Fatalf("%v: %d %s", params, got.status, got.reason)
		}
	}
	g := c.guest(100)
	if g.Pending["affinity"] != "2-3" || g.Config["affinity"] != "0-1" || g.Pending["numa0"] == "" {
		t.Errorf("affinity and numa0 must wait: %v", g.Pending)
	}
	if g.Config["name"] != "renamed" || g.Runtime["affinity"] != before["affinity"] {
		t.Errorf("name is changed at once, the process is not: %v", g.Config)
	}
	if conf := c.config(100); conf["affinity"] != "2-3" {
		t.Errorf("config without current has %v", conf["affinity"])
	}
	if conf := c.config(100, "current", "1"); conf["affinity"] != "0-1" {
		t.Errorf("config with current has %v", conf["affinity"])
	}
	entries := map[string]any{}
	for _, entry := range c.call("GET", vm100+"/pending").data.([]any) {
		e := entry.(map[string]any)
		entries[e["key"].(string)] = e
	}
	want := map[string]any{"key": "affinity", "value": "0-1", "pending": "2-3"}
	if diff := cmp.Diff(want, entries["affinity"]); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	if exit := c.run("POST", vm100+"/status/reboot"); exit != "OK" {
		t.Fatal(exit)
	}
	g = c.guest(100)
	if len(g.Pending) > 0 || g.Runtime["affinity"] != "2-3" || !maps.Equal(g.Runtime, g.Config) {
		t.Errorf("reboot did not take pending changes: %v, %v", g.Pending, g.Runtime)
	}
}

func TestDeleteRules(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.clone(101)
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 300, Host: "pve-1", Config: map[string]string{"protection": "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 301, Host: "pve-1", HA: true}); err != nil {
		t.Fatal(err)
	}
	check(t, c, []step{
		{"protected", "DELETE", "/nodes/pve-1/qemu/300", nil, 500, "can't remove VM 300 - protection mode enabled"},
		{"in ha", "DELETE", "/nodes/pve-1/qemu/301", nil, 500, "unable to remove VM 301 - used in HA resources and purge parameter not set."},
	})
	if exit := c.run("DELETE", "/nodes/pve-1/qemu/301", "purge", "1"); exit != "OK" {
		t.Errorf("purging: %s", exit)
	}
	if exit := c.run("DELETE", "/nodes/pve-1/qemu/101/", "purge", "1", "destroy-unreferenced-disks", "1"); exit != "OK" {
		t.Errorf("deleting: %s", exit)
	}
	for _, id := range c.server.Volumes("pve-1") {
		if strings.Contains(id, "-101-") {
			t.Errorf("volume %s still exists", id)
		}
	}
	if got := c.call("GET", "/nodes/pve-1/qemu/101/status/current"); got.status != 500 || !strings.Contains(got.reason, "does not exist") {
		t.Errorf("status after delete: %d %s", got.status, got.reason)
	}
}
