package pvesim_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// providerHCL is a VM in the form that numaform generates. configure replaces the words in
// capitals.
const providerHCL = `
terraform {
  required_providers {
    proxmox = {
      source  = "registry.opentofu.org/bpg/proxmox"
      version = "0.111.1"
    }
  }
}

provider "proxmox" {
  endpoint = "ENDPOINT"
  insecure = true
}

resource "proxmox_virtual_environment_vm" "node" {
  name        = "workers-2001"
  description = "a node of numaform"
  node_name   = "pve-1"
  vm_id       = 2001
  tags        = [TAGS]
  migrate     = true

  reboot_after_update = false
  stop_on_destroy     = true

  clone {
    vm_id   = 9000
    full    = false
    retries = 1
  }
  agent {
    enabled = true
    wait_for_ip {
      disabled = true
    }
  }
  cpu {
    cores   = 2
    sockets = 2
    numa    = true
    type    = "host"
    AFFINITY
  }
  memory {
    dedicated = 4096
  }
  numa {
    device    = "numa0"
    cpus      = "0-1"
    hostnodes = "0"
    memory    = 2048
    policy    = "bind"
  }
  numa {
    device    = "numa1"
    cpus      = "2-3"
    hostnodes = "1"
    memory    = 2048
    policy    = "bind"
  }
  disk {
    interface    = "scsi0"
    datastore_id = "local-lvm"
    size         = 20
  }
  network_device {
    bridge = "vmbr0"
  }
  cdrom {
    file_id   = "local:iso/seed.iso"
    interface = "ide2"
  }
  scsi_hardware = "virtio-scsi-pci"
  operating_system {
    type = "l26"
  }
  serial_device {}

  lifecycle {
    ignore_changes = [clone, node_name, cdrom, cpu[0].affinity]
  }
}
`

// engine is Terraform or OpenTofu in a directory with the real provider.
type engine struct {
	t      *testing.T
	dir    string
	binary string
	env    []string
}

func newEngine(t *testing.T, c *client, replace ...string) *engine {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	plugins := filepath.Join(root, ".tools", "plugins")
	if _, err := os.Stat(filepath.Join(plugins, "registry.opentofu.org", "bpg", "proxmox", "0.111.1")); err != nil {
		t.Fatalf("no provider: %v: run make", err)
	}
	binary := filepath.Join(root, ".tools", "bin", "tofu")
	if _, err := os.Stat(binary); err != nil {
		if binary, err = exec.LookPath("terraform"); err != nil {
			t.Fatalf("no engine: %v: run make", err)
		}
	}
	e := &engine{t: t, dir: t.TempDir(), binary: binary}
	rc := filepath.Join(e.dir, "cli.tfrc")
	e.write("cli.tfrc", "provider_installation {\n  filesystem_mirror {\n    path = \""+plugins+"\"\n  }\n}\n")
	e.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "TF_CLI_CONFIG_FILE=" + rc, "TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1",
		"PROXMOX_VE_API_TOKEN=" + pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret,
	}
	e.configure(c, replace...)
	e.ok("init", "-input=false", "-no-color")
	return e
}

// configure writes providerHCL with the pairs replaced.
func (e *engine) configure(c *client, replace ...string) {
	pairs := append(append([]string{}, replace...), "ENDPOINT", c.server.URL(), "TAGS", `"b", "a"`, "AFFINITY", "")
	text := providerHCL
	for i := 0; i+1 < len(pairs); i += 2 {
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	e.write("main.tf", text)
}

func (e *engine) write(name, text string) {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) run(args ...string) (int, string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.binary, args...)
	cmd.Dir, cmd.Env = e.dir, e.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		e.t.Fatalf("running %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (e *engine) ok(args ...string) string {
	e.t.Helper()
	code, out := e.run(args...)
	if code != 0 {
		e.t.Fatalf("%v ended with %d:\n%s", args, code, out)
	}
	return out
}

// noDrift checks that a plan with refresh has no changes.
func (e *engine) noDrift() {
	e.t.Helper()
	if code, out := e.run("plan", "-detailed-exitcode", "-input=false", "-no-color"); code != 0 {
		e.t.Fatalf("plan ended with %d, want 0 (no changes):\n%s", code, out)
	}
}

func apply() []string { return []string{"apply", "-auto-approve", "-input=false", "-no-color"} }

func TestProviderLife(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	if err := c.server.PutISO("pve-1", "local", "seed.iso", make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, c)
	e.ok(apply()...)
	g := c.guest(2001)
	want := map[string]string{
		"agent": "enabled=1,fstrim_cloned_disks=0,type=virtio", "cores": "2", "sockets": "2", "cpu": "host", "memory": "4096", "numa": "1",
		"numa0": "cpus=0-1,hostnodes=0,memory=2048,policy=bind", "numa1": "cpus=2-3,hostnodes=1,memory=2048,policy=bind",
		"tags": "a;b", "description": "a node of numaform", "name": "workers-2001", "ide2": "local:iso/seed.iso,media=cdrom,size=4K",
	}
	got := map[string]string{}
	for key := range want {
		got[key] = g.Config[key]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if !g.Running || !strings.Contains(g.Config["scsi0"], "size=20G") {
		t.Errorf("running %v, scsi0 %q: want running with 20G", g.Running, g.Config["scsi0"])
	}
	e.noDrift()

	c.server.ResetCalls()
	e.configure(c, "TAGS", `"c", "a"`)
	e.ok(apply()...)
	if tags := c.guest(2001).Config["tags"]; tags != "a;c" {
		t.Errorf("tags %q after update, want a;c", tags)
	}
	for _, call := range c.server.Calls() {
		if call.Method == "POST" {
			t.Errorf("update of tags sent %s %s", call.Method, call.Path)
		}
	}
	e.noDrift()

	before := c.guest(2001).Raw
	e.ok("state", "rm", "proxmox_virtual_environment_vm.node")
	e.write("import.tf", "import {\n  to = proxmox_virtual_environment_vm.node\n  id = \"pve-1/2001\"\n}\n")
	// The provider reads an imported VM without the HCL: it waits 15 minutes for an enabled
	// agent that does not respond, regardless of wait_for_ip.
	c.server.SetGuestAgents(true)
	e.ok(append(apply(), "-refresh=false")...)
	c.server.SetGuestAgents(false)
	e.noDrift()
	if diff := cmp.Diff(before, c.guest(2001).Raw); diff != "" {
		t.Errorf("import changed the VM (-before +after):\n%s", diff)
	}

	e.ok("destroy", "-auto-approve", "-input=false", "-no-color")
	if _, still := c.server.Guest(2001); still {
		t.Error("the destroyed VM still exists")
	}
	for _, call := range c.server.Calls() {
		if call.Status == 501 {
			t.Errorf("not implemented: %s %s", call.Method, call.Path)
		}
	}
}

// providerFact checks that applying the configuration fails with this text.
func providerFact(t *testing.T, c *client, text string, replace ...string) {
	t.Helper()
	e := newEngine(t, c, replace...)
	code, out := e.run(apply()...)
	plain := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " ")
	if code == 0 || !strings.Contains(plain, text) {
		t.Errorf("apply ended with %d, want an error with %q:\n%s", code, text, out)
	}
}

func TestProviderLeavesForeignVM(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	foreign := pvesim.Foreign{VMID: 2001, Host: "pve-1", Running: true, Config: map[string]string{"name": "theirs", "cores": "1", "memory": "1024", "tags": "x"}}
	if err := c.server.PutGuest(foreign); err != nil {
		t.Fatal(err)
	}
	before := c.guest(2001)
	providerFact(t, c, "unable to create VM 2001: config file already exists")
	if diff := cmp.Diff(before, c.guest(2001)); diff != "" {
		t.Errorf("the foreign VM changed (-before +after):\n%s", diff)
	}
}

func TestProviderAffinityByToken(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	providerFact(t, c, "only root can set 'affinity' config", "AFFINITY", `affinity = "4-7"`)
	if _, made := c.server.Guest(2001); !made {
		t.Error("the VM does not exist, although its clone succeeded")
	}
}

func TestProviderAffinityByTicket(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	if err := c.server.PutISO("pve-1", "local", "seed.iso", make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, c, "AFFINITY", `affinity = "4-7"`, "cpu[0].affinity", "migrate")
	for i, text := range e.env {
		if strings.HasPrefix(text, "PROXMOX_VE_API_TOKEN=") {
			e.env[i] = "PROXMOX_VE_USERNAME=root@pam"
		}
	}
	e.env = append(e.env, "PROXMOX_VE_PASSWORD="+pvesim.DefaultRootPassword)
	e.ok(apply()...)
	if g := c.guest(2001); g.Runtime["affinity"] != "4-7" {
		t.Errorf("running with affinity %q", g.Runtime["affinity"])
	}
	e.noDrift()
}
