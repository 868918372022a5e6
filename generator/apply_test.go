package generator_test

import (
	stdcmp "cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestAppliesWithoutDrift checks, with the real engine and provider, that a plan is empty
// after an apply, that an import after the loss of the state changes nothing in Proxmox, and
// that the VM is deleted when its file is removed.
func TestAppliesWithoutDrift(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fleet.VM){
		"plain": func(*fleet.VM) {},
		"what only root may": func(vm *fleet.VM) {
			split(vm)
			pinned(vm)
			vm.HugePages = fleet.HugePages1Gi
			// As root, the provider may query the guest agent: see pvesim.LeastPrivilege.
			vm.Source.Options["agent"] = "0"
		},
		"host agent": func(vm *fleet.VM) {
			split(vm)
			pinned(vm)
			vm.PinWith, vm.Emulator = fleet.PinWithHostAgent, fleet.EmulatorShared
		},
		"devices": func(vm *fleet.VM) {
			vm.PCIDevices = []fleet.PCIDevice{{Mapping: "gpu", PCIe: true, XVGA: true}, {Mapping: "vgpu", MDev: "nvidia-63"}}
		},
		"hardware": func(vm *fleet.VM) {
			vm.Source.Options["serial1"] = "socket"
			vm.Hardware = &fleet.Hardware{
				Machine: "q35", Display: "virtio", DisplayMiB: 32, NoTablet: true, CPUFlags: []string{"+aes", "-pcid"},
				Watchdog: &fleet.Watchdog{Model: "ib700", Action: "poweroff"},
			}
			vm.Networks = []fleet.Network{
				{Bridge: "vmbr0", RateMBps: 12.5, Queues: 2, Trunks: []int{7, 12}}, {Bridge: "vmbr0", Model: "e1000", Disconnected: true},
			}
		},
		"data disks": func(vm *fleet.VM) {
			delete(vm.Source.Options, "boot")
			vm.Source.DiskInterface, vm.DiskGiB = "virtio0", 25
			vm.Source.Options["virtio0"] = "discard=on,iothread=1"
			vm.DataDisks = []fleet.DataDisk{{Interface: "scsi0", SizeGiB: 100, Storage: "local-lvm"}, {Interface: "scsi2", SizeGiB: 7, Storage: "local-lvm"}}
		},
		"template of another host": func(vm *fleet.VM) {
			vm.Source.Host, vm.Source.Storage, vm.DiskGiB = "pve-2", "nas", 25
		},
		"full clone of another host's template": func(vm *fleet.VM) {
			vm.Source.Host, vm.Source.Storage = "pve-2", "nas"
			vm.Clone, vm.Storage, vm.DiskGiB = fleet.CloneFull, "san", 25
		},
		"full": func(vm *fleet.VM) {
			vm.Clone, vm.Storage, vm.DiskGiB = fleet.CloneFull, "local-lvm", 30
			vm.Networks = []fleet.Network{{Bridge: "vmbr0", VLAN: 12, Firewall: true}, {Bridge: "vmbr0", Model: "e1000", MAC: "BC:24:11:0A:FF:01"}}
			vm.Tags, vm.ResourcePool = []string{"team-b", "team-a"}, "nodes"
			vm.Pool, vm.Name = "10g", fleet.NodeName("10g", vm.VMID)
			vm.SecurityGroups = []string{"web@net0", "ssh"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostRoot(t, change)
			s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
			s.applyAllowed(t, guard.Intent{Create: s.targets(t)})
			s.wantNoChanges(t)
			made := s.guest(t)
			if !made.Running || len(made.Pending) > 0 {
				t.Errorf("running %v, waiting for a restart: %v", made.Running, made.Pending)
			}
			s.wantMarker(t, made)
			s.wantCloneFrom(t, stdcmp.Or(s.vm.Source.Host, s.vm.Host.Host))
			s.wantDisks(t, made)
			if net1 := made.Config["net1"]; name == "full" && !strings.Contains(net1, "e1000=BC:24:11:0A:FF:01") {
				t.Errorf("net1 is %q", net1)
			}
			if name == "hardware" {
				wantHardware(t, made)
			}
			s.loseState(t)
			s.applyAllowed(t, guard.Intent{Import: s.targets(t)})
			if diff := cmp.Diff(made, s.guest(t)); diff != "" {
				t.Errorf("guest after import (-before +after):\n%s", diff)
			}
			s.wantNoChanges(t)
			s.removeVM(t)
		})
	}
}

// wantCloneFrom checks that the VM was cloned in one call to the host of the template, and was
// never migrated.
func (s *hostRoot) wantCloneFrom(t *testing.T, host topology.HostName) {
	t.Helper()
	target := ""
	if host != s.vm.Host.Host {
		target = string(s.vm.Host.Host)
	}
	clones := 0
	for _, call := range s.proxmox.Calls() {
		switch {
		case call.Method == "POST" && strings.HasSuffix(call.Path, "/clone"):
			clones++
			if call.Host != string(host) || call.Params["target"] != target {
				t.Errorf("cloned on %s with target %q, want %s and %q", call.Host, call.Params["target"], host, target)
			}
		case call.Method == "POST" && strings.HasSuffix(call.Path, "/migrate"):
			t.Errorf("the VM was migrated: %v", call.Params)
		}
	}
	if clones != 1 {
		t.Errorf("%d clones, want 1", clones)
	}
}

// TestProviderMigratesLocalClones checks why numaform never lets the provider clone a template
// of another host that is not on shared storage: the provider clones on that host and migrates
// the VM, for which numaform's token lacks the privilege, so that the clone stays there. It also
// checks that Proxmox refuses such a clone on a local storage of the VM's host.
func TestProviderMigratesLocalClones(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(vm *fleet.VM)
		failed string
	}{
		"local template": {change: func(vm *fleet.VM) { vm.Source.Host = "pve-2" }},
		"local target": {
			change: func(vm *fleet.VM) {
				vm.Source.Host, vm.Source.Storage, vm.Clone, vm.Storage = "pve-2", "nas", fleet.CloneFull, "local-lvm"
			},
			failed: "can't clone to non-shared storage 'local-lvm'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostRoot(t, tt.change)
			s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
			out, err := s.engine.Try(t, s.dir, "apply", "-no-color", "-auto-approve")
			if tt.failed != "" {
				if err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " "), tt.failed) {
					t.Errorf("got %v, want %q:\n%s", err, tt.failed, out)
				}
				return
			}
			var migrations []pvesim.Call
			for _, call := range s.proxmox.Calls() {
				if call.Method == "POST" && strings.HasSuffix(call.Path, "/migrate") {
					migrations = append(migrations, call)
				}
			}
			if len(migrations) != 1 || !strings.HasPrefix(migrations[0].Path, "/nodes/pve-2/") || migrations[0].Params["target"] != "pve-1" || migrations[0].Status != 403 {
				t.Errorf("migrations %+v, want one to pve-1, without the privilege: %v\n%s", migrations, err, out)
			}
			if got := s.guest(t).Host; got != "pve-2" {
				t.Errorf("the clone is on %s, want pve-2", got)
			}
		})
	}
}

// TestTemplateOptionsThatDrift checks why numaform does not use templates with cpulimit or
// vcpus: clones keep both, and the provider plans to remove them.
func TestTemplateOptionsThatDrift(t *testing.T) {
	t.Parallel()
	s := newHostRoot(t, func(vm *fleet.VM) { vm.Source.Options["cpulimit"], vm.Source.Options["vcpus"] = "2", "1" })
	s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
	s.applyAllowed(t, guard.Intent{Create: s.targets(t)})
	out := strings.Join(strings.Fields(s.engine.Run(t, s.dir, "plan", "-no-color")), " ")
	for _, change := range []string{"~ hotplugged = 1 -> 0", "~ limit = 2 -> 0"} {
		if !strings.Contains(out, change) {
			t.Errorf("the plan lacks %q:\n%s", change, out)
		}
	}
}

// wantHardware checks that a guest has the hardware that its VM overrides.
func wantHardware(t *testing.T, guest pvesim.GuestState) {
	t.Helper()
	for option, want := range map[string]string{
		"machine": "q35", "tablet": "0", "watchdog": "model=ib700,action=poweroff", "vga": "type=virtio,memory=32", "cpu": "flags=+aes;-pcid",
	} {
		for field := range strings.SplitSeq(want, ",") {
			_, value, _ := strings.Cut(field, "=")
			if !strings.Contains(guest.Config[option], value) && !strings.Contains(guest.Config[option], field) {
				t.Errorf("%s is %q, want %q", option, guest.Config[option], want)
			}
		}
	}
	for option, fields := range map[string][]string{"net0": {"rate=12.5", "queues=2", "trunks=7;12"}, "net1": {"e1000=", "link_down=1"}, "serial1": {"socket"}} {
		for _, field := range fields {
			if !strings.Contains(guest.Config[option], field) {
				t.Errorf("%s is %q, want %s", option, guest.Config[option], field)
			}
		}
	}
}

// TestIncompleteSecurityGroups checks that, after the creation of the first or second of two
// security groups failed, the next apply imports the existing group, if any, and creates the
// missing ones.
func TestIncompleteSecurityGroups(t *testing.T) {
	t.Parallel()
	for name, skip := range map[string]int{"none is set": 0, "one is set": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostRoot(t, func(vm *fleet.VM) { vm.SecurityGroups = []string{"web", "ssh"} })
			restore := s.proxmox.AddFault(pvesim.Fault{Method: "POST", Path: "/firewall/rules$", Skip: skip, Status: 500})
			s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
			if out, err := s.engine.Try(t, s.dir, "apply", "-no-color", "-auto-approve"); err == nil {
				t.Fatalf("the apply succeeded:\n%s", out)
			}
			restore()
			s.writeImports(t)
			s.applyAllowed(t, guard.Intent{Update: s.targets(t)})
			s.wantNoChanges(t)
			s.removeVM(t)
		})
	}
}

// TestRemovesHAResource checks that a VM that became an HA resource is stopped by HA, deleted,
// and removed from the HA resources.
func TestRemovesHAResource(t *testing.T) {
	t.Parallel()
	s := newHostRoot(t, func(*fleet.VM) {})
	s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
	s.applyAllowed(t, guard.Intent{Create: s.targets(t)})
	made := s.guest(t)
	err := s.proxmox.PutGuest(pvesim.Guest{VMID: made.VMID, Host: made.Host, Config: made.Config, Running: true, HA: true, Pool: made.Pool})
	if err != nil {
		t.Fatal(err)
	}
	s.wantNoChanges(t)
	s.writeImports(t)
	s.removeVM(t)
}

// targets returns the root's VM as the only target of an intent.
func (s *hostRoot) targets(t *testing.T) []guard.Target {
	t.Helper()
	inputs, err := generator.Inputs("prod", &s.vm)
	if err != nil {
		t.Fatal(err)
	}
	return []guard.Target{{
		Module: modules.Hash(), Inputs: inputs,
		Address: generator.Address(&s.vm), VMID: s.vm.VMID, Key: s.vm.Key, Host: s.vm.Host.Host,
	}}
}

// applyAllowed plans, checks that the guard allows the plan, and applies it.
func (s *hostRoot) applyAllowed(t *testing.T, intent guard.Intent) {
	t.Helper()
	intent.ClusterID = "prod"
	s.engine.Run(t, s.dir, "plan", "-no-color", "-out=a.tfplan")
	plan, err := guard.Decode([]byte(s.engine.Run(t, s.dir, "show", "-json", "a.tfplan")))
	if err != nil {
		t.Fatal(err)
	}
	want := guard.Allow
	if s.vm.Source.Options["agent"] == "0" && len(intent.Import) > 0 {
		want = guard.NeedsApproval // the provider reads nothing back from a disabled agent
	}
	if verdict := guard.Check(plan, intent, guard.DefaultRules()); verdict.Decision != want {
		t.Errorf("got\n%s", verdict)
	}
	s.engine.Run(t, s.dir, "apply", "-no-color", "a.tfplan")
}

// hostRoot is the root of a fleet with one VM, and its Proxmox.
type hostRoot struct {
	engine  *enginetest.Engine
	proxmox *pvesim.Server
	dir     string
	vm      fleet.VM
}

func newHostRoot(t *testing.T, change func(*fleet.VM)) *hostRoot {
	t.Helper()
	vm := vmAt(somewhere, 2001)
	vm.Source = fleet.Source{
		VMID: 9000, DiskInterface: "scsi0", DiskGiB: 20, Storage: "local-lvm",
		Options: map[string]string{
			"agent": "enabled=1,fstrim_cloned_disks=1", "boot": "order=scsi0", "machine": "q35", "ostype": "l26",
			"scsihw": "virtio-scsi-single", "serial0": "socket", "vga": "serial0",
		},
	}
	change(&vm)
	var drives []string
	if len(vm.DataDisks) > 0 {
		drives = []string{"scsi1"}
	}
	server := startProxmox(t, &vm.Source, drives...)
	f := fleetOf(vm)
	f.Backend = fleet.Backend{}
	f.Regions[0].Endpoint, f.Regions[0].Insecure = server.URL(), true
	files, err := generator.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	enginetest.Write(t, root, files)
	credentials := []string{"PROXMOX_VE_API_TOKEN=" + pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret}
	if vm.PinWith == fleet.PinWithAffinity {
		credentials = []string{"PROXMOX_VE_USERNAME=root@pam", "PROXMOX_VE_PASSWORD=" + pvesim.DefaultRootPassword}
	}
	return &hostRoot{
		engine: enginetest.New(t).With(credentials...), proxmox: server,
		dir: filepath.Join(root, filepath.FromSlash(generator.RootDir(vm.Host))), vm: vm,
	}
}

// startProxmox starts a simulated Proxmox with one host, which has two NUMA nodes and the
// template with additional drives. If the template is on another host, that host exists, too,
// and both have the shared storages nas and san.
func startProxmox(t *testing.T, template *fleet.Source, drives ...string) *pvesim.Server {
	t.Helper()
	host := topology.Host{Region: somewhere.Region, Name: somewhere.Host, Machine: topology.Machine{MemoryMiB: 65536}}
	for node := range 2 {
		host.NUMANodes = append(host.NUMANodes, topology.NUMANode{ID: node, MemoryMiB: 32768})
	}
	for id := range 16 {
		host.CPUs = append(host.CPUs, topology.CPU{ID: id, Online: true, NUMANode: id / 8, Core: id, L3: id / 8})
	}
	host.PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0;0000:01:00.1"}, {Mapping: "vgpu", Path: "0000:02:00.0"}}
	host.Templates = []topology.Template{{
		VMID: int(template.VMID), Name: "debian", DiskInterface: template.DiskInterface, DiskGiB: template.DiskGiB,
		Storage: template.Storage, Options: template.Options, Drives: drives,
	}}
	hosts := []topology.Host{host}
	if template.Host != "" {
		images := []string{"images", "iso"}
		hosts[0].Storages = []topology.Storage{
			{Name: "local-lvm", Type: "lvmthin", Active: true, Content: images},
			{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: images},
			{Name: "san", Type: "rbd", Shared: true, Active: true, Content: images},
		}
		hosts = append(hosts, hosts[0])
		hosts[0].Templates, hosts[1].Name = nil, template.Host
	}
	server, err := pvesim.New(pvesim.Config{
		Pools: []string{"nodes"}, Hosts: hosts, RootPassword: pvesim.DefaultRootPassword,
		Tokens: []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}},
		Roles:  []pvesim.Role{allPrivileges()},
		ACL:    []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "Test"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// allPrivileges returns one role with all privileges that numaform requires.
func allPrivileges() pvesim.Role {
	role := pvesim.Role{Name: "Test", Privileges: []string{"Mapping.Use"}}
	for _, part := range pvesim.LeastPrivilege() {
		role.Privileges = append(role.Privileges, part.Privileges...)
	}
	return role
}

func (s *hostRoot) wantNoChanges(t *testing.T) {
	t.Helper()
	if out, err := s.engine.Try(t, s.dir, "plan", "-no-color", "-detailed-exitcode"); err != nil {
		t.Errorf("the plan is not empty: %v\n%s", err, out)
	}
}

// guest returns the VM's state in Proxmox.
func (s *hostRoot) guest(t *testing.T) pvesim.GuestState {
	t.Helper()
	for _, guest := range s.proxmox.Guests() {
		if guest.VMID == int(s.vm.VMID) {
			return guest
		}
	}
	t.Fatalf("no VM %d on Proxmox", s.vm.VMID)
	return pvesim.GuestState{}
}

// wantDisks checks that the data disks exist, with the boot disk's options, and that the
// VM boots from the boot disk.
func (s *hostRoot) wantDisks(t *testing.T, guest pvesim.GuestState) {
	t.Helper()
	for _, d := range s.vm.DataDisks {
		got := guest.Config[d.Interface]
		for _, part := range []string{d.Storage + ":vm-2001-disk-", fmt.Sprintf("size=%dG", d.SizeGiB), "discard=on", "iothread=1"} {
			if !strings.Contains(got, part) {
				t.Errorf("%s is %q, without %s", d.Interface, got, part)
			}
		}
	}
	if got := guest.Config["scsi1"]; len(s.vm.DataDisks) > 0 && !strings.HasSuffix(got, ",size=1G") {
		t.Errorf("the template's second disk is %q", got)
	}
	if got, want := guest.Config["boot"], "order="+s.vm.Source.DiskInterface; len(s.vm.DataDisks) > 0 && got != want {
		t.Errorf("the boot order is %q, want %q", got, want)
	}
}

func (s *hostRoot) wantMarker(t *testing.T, guest pvesim.GuestState) {
	t.Helper()
	marker, ok := fleet.ParseMarker(guest.Config["description"])
	if !ok || marker.Key != s.vm.Key {
		t.Errorf("marker %+v, %v in description %q", marker, ok, guest.Config["description"])
	}
}

// loseState deletes the state and writes imports for the VM.
func (s *hostRoot) loseState(t *testing.T) {
	t.Helper()
	for _, name := range []string{"terraform.tfstate", "terraform.tfstate.backup"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.writeImports(t)
}

// writeImports writes import blocks for the VM and its other resources.
func (s *hostRoot) writeImports(t *testing.T) {
	t.Helper()
	var blocks strings.Builder
	for _, i := range generator.Imports(&s.vm) {
		fmt.Fprintf(&blocks, "import {\n  to = %s\n  id = %q\n}\n", i.Address, i.ID)
	}
	enginetest.Write(t, s.dir, map[string][]byte{generator.ImportFile: []byte(blocks.String())})
}

func (s *hostRoot) removeVM(t *testing.T) {
	t.Helper()
	for _, name := range []string{generator.ImportFile, filepath.Base(generator.NodeFile(&s.vm))} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.engine.Run(t, s.dir, "apply", "-no-color", "-auto-approve")
	for _, guest := range s.proxmox.Guests() {
		if guest.VMID == int(s.vm.VMID) {
			t.Errorf("VM %d still exists", s.vm.VMID)
		}
	}
	for _, volume := range s.proxmox.Volumes(string(s.vm.Host.Host)) {
		if strings.Contains(volume, fmt.Sprintf("vm-%d-", s.vm.VMID)) {
			t.Errorf("its volume %s still exists", volume)
		}
	}
}
