package proxmox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// seededHost is a simulated Proxmox host, with a Terraform root for a VM with a seed.
type seededHost struct {
	t      *testing.T
	engine *enginetest.Engine
	server *pvesim.Server
	client *proxmox.Client
	dir    string
	vm     fleet.VM
}

func newSeededHost(t *testing.T) *seededHost {
	t.Helper()
	vm := fleet.VM{
		Key: seedKey, VMID: 2001, Name: "workers-2001", Seed: seedVolume,
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "default", InstanceType: "m4x8", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 8192,
			Policy: fleet.PolicyShared, Template: "debian", Clone: fleet.CloneLinked, CPUType: "host", SeedStorage: fleet.AnySeedStorage,
		},
		Placement: fleet.Placement{Host: topology.HostID{Region: "r1", Host: "pve-1"}},
		Source: fleet.Source{VMID: 9000, DiskInterface: "scsi0", DiskGiB: 20, Storage: "local-lvm", Options: map[string]string{
			"agent": "1", "boot": "order=scsi0", "ostype": "l26", "scsihw": "virtio-scsi-single",
		}},
	}
	host := topology.Host{
		Region: "r1", Name: "pve-1", Online: true,
		Templates: []topology.Template{{VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 20, Storage: "local-lvm", Options: vm.Source.Options}},
	}
	host.Machine = topology.Machine{MemoryMiB: 65536, NUMANodes: []topology.NUMANode{{MemoryMiB: 65536}}}
	for id := range 8 {
		host.CPUs = append(host.CPUs, topology.CPU{ID: id, Online: true, Core: id})
	}
	server, cfg := simulate(t, pvesim.Config{Hosts: []topology.Host{host}})
	files, err := generator.Render(fleet.Fleet{
		ClusterID: "prod", Regions: []fleet.Region{{Name: "r1", Endpoint: server.URL(), Insecure: true}}, VMs: []fleet.VM{vm},
	})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	enginetest.Write(t, root, files)
	engine := enginetest.New(t).With("PROXMOX_VE_API_TOKEN=" + pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret)
	dir := filepath.Join(root, filepath.FromSlash(generator.RootDir(vm.Host)))
	engine.Run(t, dir, "init", "-no-color", "-input=false")
	return &seededHost{t, engine, server, newClient(t, cfg), dir, vm}
}

// apply applies a plan that the guard allows.
func (s *seededHost) apply(intent guard.Intent) {
	s.t.Helper()
	intent.ClusterID = "prod"
	s.engine.Run(s.t, s.dir, "plan", "-no-color", "-out=a.tfplan")
	plan, err := guard.Decode([]byte(s.engine.Run(s.t, s.dir, "show", "-json", "a.tfplan")))
	if err != nil {
		s.t.Fatal(err)
	}
	if verdict := guard.Check(plan, intent, guard.DefaultRules()); verdict.Decision != guard.Allow {
		s.t.Errorf("got\n%s", verdict)
	}
	s.engine.Run(s.t, s.dir, "apply", "-no-color", "a.tfplan")
}

// quiet checks that a plan is empty and that no change waits for a restart.
func (s *seededHost) quiet(drive string) {
	s.t.Helper()
	guest, ok := s.server.Guest(int(s.vm.VMID))
	got, _, _ := strings.Cut(guest.Config["ide2"], ",")
	if !ok || !guest.Running || got != drive || len(guest.Pending) > 0 {
		s.t.Errorf("running %v, %q in ide2, want %q; waiting for a restart: %v", guest.Running, got, drive, guest.Pending)
	}
	if out, err := s.engine.Try(s.t, s.dir, "plan", "-no-color", "-detailed-exitcode"); err != nil {
		s.t.Errorf("the plan is not empty: %v\n%s", err, out)
	}
}

// TestSeedComesAndGoes checks, with the real engine and provider, that no plan shows that a
// seed was removed, as numaform does after the Node has joined, neither with the state nor
// after an import, and that the VM can be deleted without the seed.
func TestSeedComesAndGoes(t *testing.T) {
	t.Parallel()
	s := newSeededHost(t)
	inputs, err := generator.Inputs("prod", &s.vm)
	if err != nil {
		t.Fatal(err)
	}
	target := []guard.Target{{
		Address: generator.Address(&s.vm), VMID: s.vm.VMID, Key: s.vm.Key, Host: s.vm.Host.Host, Module: modules.Hash(), Inputs: inputs,
	}}
	if err := s.client.UploadSeed(t.Context(), "pve-1", s.vm.Seed, documents()); err != nil {
		t.Fatal(err)
	}
	s.apply(guard.Intent{Create: target})
	s.quiet(s.vm.Seed)
	if err := s.client.DetachSeed(t.Context(), proxmox.OwnedBy("prod", &s.vm), s.vm.Seed); err != nil {
		t.Fatal(err)
	}
	if err := s.client.DeleteSeed(t.Context(), "pve-1", s.vm.Seed); err != nil {
		t.Fatal(err)
	}
	s.quiet("none")
	s.loseState()
	s.apply(guard.Intent{Import: target})
	s.quiet("none")
	for _, name := range []string{generator.ImportFile, filepath.Base(generator.NodeFile(&s.vm))} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.engine.Run(t, s.dir, "apply", "-no-color", "-auto-approve")
	if guest, exists := s.server.Guest(int(s.vm.VMID)); exists {
		t.Errorf("VM still exists: %+v", guest)
	}
}

// TestSeedThatIsMissing checks that a missing seed makes the apply fail, which is why the
// seed is uploaded first.
func TestSeedThatIsMissing(t *testing.T) {
	t.Parallel()
	s := newSeededHost(t)
	out, err := s.engine.Try(t, s.dir, "apply", "-no-color", "-auto-approve")
	if err == nil || !strings.Contains(out, "numaform-prod-2001-01234567.iso") {
		t.Errorf("the apply succeeded, or its error does not mention the seed: %v\n%s", err, out)
	}
}

// loseState deletes the state and writes imports for the VM.
func (s *seededHost) loseState() {
	s.t.Helper()
	for _, name := range []string{"terraform.tfstate", "terraform.tfstate.backup"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			s.t.Fatal(err)
		}
	}
	var blocks strings.Builder
	for _, i := range generator.Imports(&s.vm) {
		blocks.WriteString("import {\n  to = " + i.Address + "\n  id = \"" + i.ID + "\"\n}\n")
	}
	enginetest.Write(s.t, s.dir, map[string][]byte{generator.ImportFile: []byte(blocks.String())})
}
