package bench_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/fleetsim"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// fixture is a simulated Proxmox with an applied fleet.
type fixture struct {
	sim     *pvesim.Server
	client  *proxmox.Client
	engine  *state.Engine
	plugins string
	store   *store.Directory
	scaler  *scaler.Scaler
	hosts   []topology.HostID
	// state is the state of the last host, and names are the names of all VMs, before one
	// is added.
	state []byte
	names []string
}

// build creates hosts with the given total number of VMs. The engine applies one VM; the
// files, states and guests of the others are derived from it.
func build(b *testing.B, vms, hosts int) *fixture {
	b.Helper()
	f := start(b, hosts)
	ctx := context.Background()
	first := f.propose(b, f.read(b), 1, f.hosts[0])
	if _, err := f.scaler.Apply(ctx, first, func([]scaler.RootPlan) (string, error) { return "", nil }); err != nil {
		b.Fatal(err)
	}
	model := f.learn(b, &first.Added[0])
	var rest []topology.HostID
	for range vms/hosts - 1 {
		rest = append(rest, f.hosts...)
	}
	rest = append(rest, f.hosts[1:]...)
	change := f.propose(b, f.read(b), 1, rest...)
	if len(change.After.VMs) != vms {
		b.Fatalf("the fleet has %d VMs, want %d", len(change.After.VMs), vms)
	}
	f.write(b, model, change)
	for _, vm := range change.After.VMs {
		f.names = append(f.names, vm.Name)
	}
	var err error
	if f.state, err = os.ReadFile(f.statePath(f.last())); err != nil {
		b.Fatal(err)
	}
	return f
}

// start opens a simulated Proxmox with hosts of 128 CPUs in two NUMA nodes.
func start(b *testing.B, hosts int) *fixture {
	b.Helper()
	f := &fixture{plugins: testenv.PluginDir(b), store: store.NewDirectory(filepath.Join(b.TempDir(), "fleet"))}
	machine, err := machines.Load("epyc-7763-2s-nps1-assumed")
	if err != nil {
		b.Fatal(err)
	}
	machine.MemoryMiB = 512 << 10
	for n := range machine.NUMANodes {
		machine.NUMANodes[n].MemoryMiB = machine.MemoryMiB / int64(len(machine.NUMANodes))
	}
	collected := map[topology.HostName]topology.Machine{}
	f.sim = testenv.Proxmox(b, func(c *pvesim.Config) {
		template := c.Hosts[0].Templates[0]
		c.Hosts = nil
		for i := range hosts {
			host := topology.Host{Region: testenv.Region, Name: topology.HostName(fmt.Sprintf("pve-%d", i+1)), Online: true, Machine: machine}
			template.VMID = 9000 + i
			host.Templates = []topology.Template{template}
			c.Hosts = append(c.Hosts, host)
			f.hosts = append(f.hosts, host.ID())
			collected[host.Name] = machine
		}
	})
	f.client, err = proxmox.New(proxmox.Config{
		Region: testenv.Region, URL: f.sim.URL(), CA: f.sim.CertPEM(), Machines: collected,
		TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
	})
	if err != nil {
		b.Fatal(err)
	}
	f.engine, err = state.FindEngine(context.Background(), state.EngineConfig{Binary: testenv.Engine(b)})
	if err != nil {
		b.Fatal(err)
	}
	f.scaler = scaler.New(scaler.Config{
		ClusterID: "bench", Store: store.NewSealed(f.store, store.FileVault(filepath.Join(b.TempDir(), "key")), "bench"), Dir: f.store.Path(), StateDir: f.stateDir(), Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{
			Name: testenv.Region, Endpoint: f.sim.URL(), CAFile: testenv.CertFile(b, f.sim),
			VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 8999}, Live: f.client,
		}},
		Engine: f.engine, PluginDir: f.plugins, Rules: guard.DefaultRules(),
	})
	return f
}

// specs returns specs of small pinned VMs for a host.
func specs(vms int, host topology.HostID) []fleet.Spec {
	return slices.Repeat([]fleet.Spec{{
		Pool: "workers", NodeClass: "default", InstanceType: "n2x4", CapacityType: "on-demand",
		VCPUs: 2, MemoryMiB: 4096, Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent,
		Hosts: []topology.HostID{host}, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
		Demand: fleet.Demand{Pods: 3, CPUMilli: 1500, MemoryMiB: 3000},
	}}, vms)
}

func (f *fixture) last() topology.HostID { return f.hosts[len(f.hosts)-1] }

func (f *fixture) statePath(host topology.HostID) string {
	return filepath.Join(f.stateDir(), "states", filepath.FromSlash(generator.RootDir(host)), "terraform.tfstate")
}

func (f *fixture) stateDir() string { return f.store.Path() + "-state" }

// work returns the engine's working directory for the last host.
func (f *fixture) work() string {
	return filepath.Join(f.stateDir(), "work", filepath.FromSlash(generator.RootDir(f.last())))
}

func (f *fixture) read(b *testing.B) *topology.Snapshot {
	b.Helper()
	snapshot, err := f.client.Snapshot(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	for i := range snapshot.Hosts {
		if problem := snapshot.Hosts[i].Problem; problem != "" {
			b.Fatalf("host %s: %s", snapshot.Hosts[i].Name, problem)
		}
	}
	return snapshot
}

// learn reads the result of applying a VM from the state and Proxmox.
func (f *fixture) learn(b *testing.B, vm *fleet.VM) *fleetsim.Model {
	b.Helper()
	content, err := os.ReadFile(f.statePath(vm.Host))
	if err != nil {
		b.Fatal(err)
	}
	guest, ok := f.sim.Guest(int(vm.VMID))
	if !ok {
		b.Fatalf("vm %s was not created", vm.Name)
	}
	model, err := fleetsim.Learn(vm, content, guest)
	if err != nil {
		b.Fatal(err)
	}
	return model
}

// write writes the files, states and guests of a change as if it had been applied.
func (f *fixture) write(b *testing.B, model *fleetsim.Model, change *scaler.Change) {
	b.Helper()
	if err := f.store.Write(change.AfterFiles); err != nil {
		b.Fatal(err)
	}
	for n, host := range f.hosts {
		var vms []fleet.VM
		for _, vm := range change.After.VMs {
			if vm.Host == host {
				vms = append(vms, vm)
			}
		}
		content, guests, err := model.Host(n, change.AfterFiles, vms)
		if err != nil {
			b.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(f.statePath(host)), 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(f.statePath(host), content, 0o600); err != nil {
			b.Fatal(err)
		}
		for _, guest := range guests {
			if guest.VMID == int(change.Before.VMs[0].VMID) {
				continue // created by the engine
			}
			if err := f.sim.PutGuest(guest); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// verify plans the last host without and with a refresh, to check that the written data
// matches the result of an apply.
func (f *fixture) verify(b *testing.B) {
	b.Helper()
	env := f.client.ProviderEnv()
	env["SSL_CERT_FILE"] = testenv.CertFile(b, f.sim)
	_, rendered, err := f.scaler.Fleet(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	root := b.TempDir()
	files := map[string][]byte{}
	for name, content := range rendered {
		if path.Dir(name) == generator.RootDir(f.last()) || strings.HasPrefix(name, "modules/") {
			files[name] = content
		}
	}
	w, err := state.New(state.Config{
		Dir: filepath.Join(root, filepath.FromSlash(generator.RootDir(f.last()))), Root: root, Files: files,
		Engine: f.engine, PluginDir: f.plugins, Env: env,
		BackendConfig: map[string]string{"path": f.statePath(f.last())},
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, refresh := range []bool{false, true} {
		plan, err := w.Plan(context.Background(), state.PlanOptions{Refresh: refresh})
		if err != nil {
			b.Fatal(err)
		}
		if plan.Changes {
			b.Fatalf("the fleet differs from an applied fleet (refresh %t):\n%s", refresh, plan.Text)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// undo removes the added VM from Proxmox, the files, the state and the workspace's records.
// The next VM gets another VMID, so that it is new to the engine.
func (f *fixture) undo(b *testing.B) {
	b.Helper()
	current, _, err := f.scaler.Fleet(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var added []string
	for i := range current.VMs {
		if vm := &current.VMs[i]; !slices.Contains(f.names, vm.Name) {
			added = append(added, vm.Name)
			f.sim.RemoveGuest(int(vm.VMID))
		}
	}
	change, err := f.scaler.ProposeRemoval(b.Context(), &topology.Snapshot{}, added)
	if err != nil {
		b.Fatal(err)
	}
	if err := f.store.Write(change.AfterFiles); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(f.statePath(f.last()), f.state, 0o600); err != nil {
		b.Fatal(err)
	}
	// The workspace must not treat the VM as lost from its state.
	known := filepath.Join(f.work(), ".terraform", "numaform", "known.json")
	if err := os.Remove(known); err != nil {
		b.Fatal(err)
	}
}
