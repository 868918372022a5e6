package pvesim_test

import (
	"bytes"
	"fmt"
	"maps"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

const vm101 = "/nodes/pve-1/qemu/101"

// set changes a VM's configuration, and fails the test on errors.
func (c *client) set(path string, params ...string) {
	c.t.Helper()
	if got := c.call("PUT", path+"/config", params...); got.status != 200 {
		c.t.Fatalf("setting %v: %d %s %s", params, got.status, got.reason, got.body)
	}
}

// picked returns some of a guest's options, if set.
func (c *client) picked(vmid int, keys ...string) map[string]string {
	c.t.Helper()
	conf, result := c.guest(vmid).Config, map[string]string{}
	for _, key := range keys {
		if text, ok := conf[key]; ok {
			result[key] = text
		}
	}
	return result
}

func TestDrives(t *testing.T) {
	t.Parallel()
	// The cloud-init drive requires a privilege that the default token lacks.
	cfg := cluster()
	cfg = cfg.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
	cfg.ACL = append(cfg.ACL, pvesim.ACL{Path: "/vms", Subject: "numaform@pve", Role: "PVEVMUser"})
	c := start(t, cfg)
	c.clone(101)
	if err := c.server.PutISO("pve-1", "local", "x.iso", make([]byte, 2048)); err != nil {
		t.Fatal(err)
	}
	keys := []string{"scsi0", "scsi1", "ide2", "unused0", "boot"}
	const disk0, disk1 = "local-lvm:vm-101-disk-0", "local-lvm:vm-101-disk-1"
	for _, tt := range []struct {
		name   string
		params []string
		want   map[string]string
	}{
		{"a new disk", []string{"scsi1", "local-lvm:2,ssd=on,discard=on"}, map[string]string{"scsi0": disk0 + ",size=8G", "scsi1": disk1 + ",discard=on,size=2G,ssd=1", "boot": "order=scsi0"}},
		{"a disk again, with the provider's size", []string{"scsi0", "file=" + disk0 + ",size=8589934592,iothread=0"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "scsi1": disk1 + ",discard=on,size=2G,ssd=1", "boot": "order=scsi0"}},
		{"a removed disk is kept", []string{"delete", "scsi1"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "unused0": disk1, "boot": "order=scsi0"}},
		{"an unused disk goes", []string{"delete", "unused0"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "boot": "order=scsi0"}},
		{"cloud-init joins the boot order", []string{"ide2", "local-lvm:cloudinit"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "ide2": "local-lvm:vm-101-cloudinit,media=cdrom,size=4M", "boot": "order=scsi0;ide2"}},
		{"cloud-init is freed", []string{"delete", "cdrom"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "boot": "order=scsi0"}},
		{"an iso", []string{"cdrom", "local:iso/x.iso"}, map[string]string{"scsi0": disk0 + ",iothread=0,size=8G", "ide2": "local:iso/x.iso,media=cdrom,size=2K", "boot": "order=scsi0;ide2"}},
	} {
		c.set(vm101, tt.params...)
		if diff := cmp.Diff(tt.want, c.picked(101, keys...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	volumes := strings.Join(c.server.Volumes("pve-1"), " ")
	if volumes != "local-lvm:base-9000-disk-0 local-lvm:vm-101-disk-0 local:iso/x.iso" {
		t.Errorf("volumes %s", volumes)
	}
	check(t, c, []step{
		{"boot from nothing", "PUT", vm101 + "/config", []string{"boot", "order=scsi5"}, 500, "invalid bootorder: device 'scsi5' does not exist'"},
		{"no such storage", "PUT", vm101 + "/config", []string{"scsi1", "tank:1"}, 500, "storage 'tank' does not exist"},
		{"a storage without images", "PUT", vm101 + "/config", []string{"scsi1", "local:1"}, 400, "Parameter verification failed."},
		{"the disk of another", "PUT", vm101 + "/config", []string{"scsi1", "local-lvm:base-9000-disk-0"}, 200, "OK"},
		{"a path", "PUT", vm101 + "/config", []string{"scsi1", "/dev/sda"}, 500, "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651."},
	})
}

func TestRunningGuest(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.clone(101)
	for _, name := range []string{"seed.iso", "other.iso"} {
		if err := c.server.PutISO("pve-1", "local", name, make([]byte, 2048)); err != nil {
			t.Fatal(err)
		}
	}
	c.set(vm101, "ide2", "local:iso/seed.iso,media=cdrom")
	if exit := c.run("POST", vm101+"/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	c.set(vm101, "ide2", "none,media=cdrom", "description", "new", "cpulimit", "2", "net1", "virtio,bridge=vmbr0", "cores", "2", "memory", "4096")
	g := c.guest(101)
	if g.Runtime["ide2"] != "none,media=cdrom" || g.Runtime["description"] != "new" || g.Runtime["cpulimit"] != "2" || g.Runtime["net1"] == "" {
		t.Errorf("not plugged in: %v", g.Runtime)
	}
	pending := map[string]string{"cores": "2", "memory": "4096"}
	if diff := cmp.Diff(pending, g.Pending); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	c.set(vm101, "revert", "cores,memory")
	c.set(vm101, "delete", "ide2,scsihw")
	g = c.guest(101)
	if len(g.Pending) > 1 || strings.Join(g.Delete, " ") != "ide2 scsihw" || g.Config["ide2"] == "" {
		t.Errorf("pending %v, delete %v", g.Pending, g.Delete)
	}
	got := c.call("POST", vm101+"/config", "hotplug", "0", "onboot", "1")
	if exit := c.await(got.data.(string)); exit != "OK" {
		t.Errorf("async config: %s", exit)
	}
	if exit := c.run("POST", vm101+"/status/start"); exit != "VM 101 already running" {
		t.Errorf("starting what runs: %s", exit)
	}
	for _, path := range []string{"reset", "shutdown", "stop"} {
		if exit := c.run("POST", vm101+"/status/"+path); exit != "OK" {
			t.Errorf("%s: %s", path, exit)
		}
	}
	check(t, c, []step{
		{"reset what is stopped", "POST", vm101 + "/status/reset", nil, 500, "VM 101 not running"},
		{"reboot what is stopped", "POST", vm101 + "/status/reboot", nil, 500, "VM 101 not running"},
	})
}

func TestCreateAndTemplate(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	exit := c.run("POST", "/nodes/pve-1/qemu", "vmid", "101", "name", "made", "cores", "2", "memory", "1024", "scsi0", "local-lvm:4",
		"net0", "virtio,bridge=vmbr0", "tags", "b;a", "ide2", "none,media=cdrom")
	if exit != "OK" {
		t.Fatal(exit)
	}
	want := map[string]string{"boot": "order=ide2;scsi0;net0", "scsi0": "local-lvm:vm-101-disk-0,size=4G", "tags": "a;b", "ide2": "none,media=cdrom"}
	if diff := cmp.Diff(want, c.picked(101, "boot", "scsi0", "tags", "ide2", "lock")); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu", "vmid", "102", "scsi0", "local-lvm:4,format=qcow2"); !strings.HasPrefix(exit, "unable to create VM 102 - ") {
		t.Errorf("a disk of another format: %s", exit)
	}
	if _, left := c.server.Guest(102); left {
		t.Error("a failed VM still exists")
	}
	check(t, c, []step{
		{"taken", "POST", "/nodes/pve-2/qemu", []string{"vmid", "101"}, 500, "unable to create VM 101 - VM 101 already exists on node 'pve-1'"},
		{"taken by a container", "POST", "/nodes/pve-2/qemu", []string{"vmid", "200"}, 500, "unable to create VM 200 - CT 200 already exists on node 'pve-1'"},
		{"linked clone of a vm", "POST", vm101 + "/clone", []string{"newid", "102", "full", "0"}, 500, "Linked clone feature is not supported for 'local-lvm:vm-101-disk-0' (scsi0)"},
		{"root's option", "POST", "/nodes/pve-1/qemu", []string{"vmid", "103", "args", "-x"}, 500, "only root can set 'args' config"},
	})
	if exit := c.run("POST", vm101+"/template"); exit != "OK" {
		t.Fatal(exit)
	}
	if got := c.guest(101).Config["scsi0"]; got != "local-lvm:base-101-disk-0,size=4G" {
		t.Errorf("template has %q", got)
	}
	if exit := c.run("POST", vm101+"/clone", "newid", "102"); exit != "OK" || c.guest(102).Config["name"] != "Copy-of-VM-made" {
		t.Errorf("clone: %s %v", exit, c.guest(102).Config["name"])
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[1].Storages = append(cfg.Hosts[1].Storages, pvesim.Storage{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}})
	c := start(t, cfg).root()
	if exit := c.run("POST", vm9000+"/clone", "newid", "101", "full", "1"); exit != "OK" {
		t.Fatal(exit)
	}
	check(t, c, []step{
		{"to itself", "POST", vm101 + "/migrate", []string{"target", "pve-1"}, 400, "Parameter verification failed."},
		{"to nowhere", "POST", vm101 + "/migrate", []string{"target", "pve-9"}, 500, "no such cluster node 'pve-9'"},
		{"running without online", "POST", vm100 + "/migrate", []string{"target", "pve-2"}, 500, "can't migrate running VM without --online"},
	})
	if exit := c.run("POST", vm101+"/migrate", "target", "pve-2"); exit != "OK" {
		t.Fatal(exit)
	}
	if exit := c.run("POST", vm100+"/migrate", "target", "pve-2", "online", "1"); exit != "OK" {
		t.Fatal(exit)
	}
	if a, b := c.guest(101), c.guest(100); a.Host != "pve-2" || b.Host != "pve-2" || !b.Running {
		t.Errorf("on %s and %s", a.Host, b.Host)
	}
	if volumes := c.server.Volumes("pve-2"); !strings.Contains(fmt.Sprint(volumes), "vm-101-disk-0") {
		t.Errorf("the disk stayed: %v", volumes)
	}
}

func TestForeignGuestsFacts(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[0].Guests = append(cfg.Hosts[0].Guests, pvesim.Guest{
		VMID: 400, Name: "ours", Kind: pvesim.GuestVM, VCPUs: 4, MemoryMiB: 4096, Lock: "migrate",
		Description: "a note",
		NUMA: []pvesim.NUMACell{
			{GuestCPUs: pvesim.CPUs(0, 1), HostNodes: pvesim.CPUs(0), MemoryMiB: 2048, Policy: "bind"},
			{GuestCPUs: pvesim.CPUs(2, 3), HostNodes: pvesim.CPUs(1), MemoryMiB: 2048, Policy: "bind"},
		},
	})
	c := start(t, cfg)
	want := map[string]string{
		"numa0": "cpus=0-1,hostnodes=0,memory=2048,policy=bind", "numa1": "cpus=2-3,hostnodes=1,memory=2048,policy=bind", "numa": "1",
		"sockets": "2", "cores": "2", "lock": "migrate", "description": "a note",
	}
	if diff := cmp.Diff(want, c.picked(400, "numa", "numa0", "numa1", "sockets", "cores", "lock", "description")); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	check(t, c, []step{{"locked", "PUT", "/nodes/pve-1/qemu/400/config", []string{"name", "x"}, 500, "VM is locked (migrate)"}})
}

func TestAgent(t *testing.T) {
	t.Parallel()
	c := start(t, withAgents(cluster()))
	c.clone(101)
	agent := vm101 + "/agent/network-get-interfaces"
	c.set(vm101, "agent", "1")
	steps := []step{{"stopped", "GET", agent, nil, 500, "VM 101 is not running"}}
	check(t, c, steps)
	if exit := c.run("POST", vm101+"/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	check(t, c, []step{{"silent", "GET", agent, nil, 500, "QEMU guest agent is not running"}})
	c.server.SetGuestAgents(true)
	if got := c.call("GET", agent); got.status != 200 || !strings.Contains(got.body, `"ip-address":"10.0.0.101"`) {
		t.Errorf("agent: %d %s", got.status, got.body)
	}
	check(t, c, []step{
		{"ping", "POST", vm101 + "/agent/ping", nil, 200, "OK"},
		{"exec needs more", "POST", vm101 + "/agent/exec", []string{"command", "true"}, 403, "Permission check failed (/vms/101, VM.GuestAgent.Unrestricted)"},
		{"what is not simulated", "GET", vm101 + "/agent/get-users", nil, 501, "guest agent command 'get-users' is not implemented by pvesim, though Proxmox VE has it"},
	})
}

func TestUpload(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	sendTo := func(host, storage, content, name string, extra ...string) answer {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		_ = form.WriteField("content", content)
		for i := 0; i+1 < len(extra); i += 2 {
			_ = form.WriteField(extra[i], extra[i+1])
		}
		part, err := form.CreateFormFile("filename", name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write([]byte("seed"))
		_ = form.Close()
		return c.send("POST", c.server.URL()+"/api2/json/nodes/"+host+"/storage/"+storage+"/upload", form.FormDataContentType(), &body)
	}
	send := func(storage, content, name string, extra ...string) answer {
		return sendTo("pve-1", storage, content, name, extra...)
	}
	for _, tt := range []struct {
		name string
		got  answer
		want string
	}{
		{"wrong extension", send("local", "iso", "seed.txt"), "400 Parameter verification failed."},
		{"no file storage", send("local-lvm", "iso", "seed.iso"), "403 Permission check failed (/storage/local-lvm, Datastore.AllocateTemplate)"},
		{"snippets", send("local", "snippets", "x.yaml"), "400 Parameter verification failed."},
		{"fine", send("local", "iso", "a seed.iso"), "200 OK"},
	} {
		if got := fmt.Sprintf("%d %s", tt.got.status, tt.got.reason); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	until(t, func() bool { _, ok := c.server.VolumeData("pve-1", "local:iso/a_seed.iso"); return ok })
	sum := "19b25856e1c150ca834cffc8b59b23adbd0ec0389e58eb22b3b64768098d002b"
	if exit := c.await(send("local", "iso", "b.iso", "checksum", sum, "checksum-algorithm", "sha256").data.(string)); exit != "OK" {
		t.Errorf("right checksum: %s", exit)
	}
	if exit := c.await(send("local", "iso", "c.iso", "checksum", "00", "checksum-algorithm", "md5").data.(string)); !strings.HasPrefix(exit, "checksum mismatch: ") {
		t.Errorf("wrong checksum: %s", exit)
	}
	if got := c.call("GET", "/nodes/pve-1/storage/local/content/local:iso/b.iso"); got.status != 200 || !strings.Contains(got.body, `"size":4`) {
		t.Errorf("volume: %d %s", got.status, got.body)
	}
	if got := c.call("DELETE", "/nodes/pve-1/storage/local/content/iso/b.iso", "delay", "5"); got.status != 200 || got.data != nil {
		t.Errorf("delete that waits: %d %v", got.status, got.data)
	}
	// The host that receives the request copies the file to another host, and runs the
	// task.
	upid := sendTo("pve-2", "local", "iso", "far.iso").data.(string)
	if exit := c.await(upid); exit != "OK" || !strings.HasPrefix(upid, "UPID:pve-1:") {
		t.Errorf("to another host: task %s ended with %s", upid, exit)
	}
	if _, ok := c.server.VolumeData("pve-2", "local:iso/far.iso"); !ok {
		t.Errorf("pve-1 has %v, pve-2 %v", c.server.Volumes("pve-1"), c.server.Volumes("pve-2"))
	}
	got := c.call("GET", "/nodes/pve-2/tasks/"+url.PathEscape(upid)+"/status")
	if diff := cmp.Diff(map[string]string{"upid": "no such task"}, got.errors); got.status != 400 || diff != "" {
		t.Errorf("the task at the host that got the file: %d (-want +got):\n%s", got.status, diff)
	}
	c.server.SetHostOnline("pve-1", false)
	if upid := sendTo("pve-2", "local", "iso", "near.iso").data.(string); !strings.HasPrefix(upid, "UPID:pve-2:") {
		t.Errorf("by the next host: task %s", upid)
	}
	if got := sendTo("pve-1", "local", "iso", "far.iso"); got.status != 500 || !strings.HasPrefix(got.reason, "can't activate storage 'local' on node 'pve-1'") {
		t.Errorf("to a host that is down: %d %s", got.status, got.reason)
	}
	c.server.SetHostOnline("pve-1", true)
	check(t, c, []step{
		{"no file", "POST", "/nodes/pve-1/storage/local/upload", []string{"content", "iso", "filename", "x.iso"}, 500, "missing temporary file name"},
		{"gone", "GET", "/nodes/pve-1/storage/local/content/local:iso/b.iso", nil, 500, "volume_size_info on 'local:iso/b.iso' failed - no format"},
		{"of another storage", "GET", "/nodes/pve-1/storage/local/content/other:iso/b.iso", nil, 400, "Parameter verification failed."},
	})
}

func TestPutGuestAndRemove(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	conf := map[string]string{"name": "a", "cores": "1"}
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 700, Host: "pve-2", Config: conf, Pool: "theirs", Running: true}); err != nil {
		t.Fatal(err)
	}
	conf["name"] = "changed by the caller"
	g := c.guest(700)
	if g.Config["name"] != "a" || g.Pool != "theirs" || !maps.Equal(g.Runtime, g.Config) {
		t.Errorf("guest %+v", g)
	}
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 700, Host: "nowhere"}); err == nil {
		t.Error("a guest was created on a host that does not exist")
	}
	c.server.RemoveGuest(700)
	if _, left := c.server.Guest(700); left {
		t.Error("the guest still exists")
	}
}

// TestRemoveGuestFreesDisks checks that RemoveGuest removes the guest's disks.
func TestRemoveGuestFreesDisks(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.clone(101)
	before := fmt.Sprint(c.call("GET", "/nodes/pve-1/storage/local-lvm/content").data)
	if !strings.Contains(before, "vm-101-disk-0") {
		t.Fatalf("no disk of VM 101: %s", before)
	}
	c.server.RemoveGuest(101)
	if after := fmt.Sprint(c.call("GET", "/nodes/pve-1/storage/local-lvm/content").data); strings.Contains(after, "101") {
		t.Errorf("disks of a removed guest: %s", after)
	}
}

// TestDescriptionInTheFile checks that the configuration file contains the description as
// Proxmox encodes it.
func TestDescriptionInTheFile(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 500, Host: "pve-1", Config: map[string]string{"cores": "2", "description": "100 %: é\tx\nsecond~"}}); err != nil {
		t.Fatal(err)
	}
	guest, _ := c.server.Guest(500)
	if want := "#100 %25%3A %C3%A9%09x\n#second~\ncores: 2\n"; guest.Raw != want {
		t.Errorf("configuration %q, want %q", guest.Raw, want)
	}
}
