package upgrade_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// fixture is a simulated Proxmox with a fleet and its scaler.
type fixture struct {
	sim     *pvesim.Server
	client  *proxmox.Client
	store   *store.Directory
	config  scaler.Config
	scaler  *scaler.Scaler
	plugins string
	hosts   []topology.HostID
}

// start starts a simulated Proxmox, whose hosts have 80 CPUs in four NUMA nodes.
func start(t *testing.T, hosts int) *fixture {
	t.Helper()
	f := &fixture{plugins: testenv.PluginDir(t), store: store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))}
	machine, err := machines.Load("xeon-6230-2s-snc2")
	if err != nil {
		t.Fatal(err)
	}
	collected := map[topology.HostName]topology.Machine{}
	f.sim = testenv.Proxmox(t, func(c *pvesim.Config) {
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
		t.Fatal(err)
	}
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	f.config = scaler.Config{
		ClusterID: "upgrade", Store: store.NewSealed(f.store, store.FileVault(filepath.Join(t.TempDir(), "key")), "upgrade"), Dir: f.store.Path(), StateDir: f.store.Path() + "-state", Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{
			Name: testenv.Region, Endpoint: f.sim.URL(), CAFile: testenv.CertFile(t, f.sim),
			VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 8999}, Live: f.client,
		}},
		Engine: engine, Rules: guard.DefaultRules(),
	}
	// All 100 VMs are created within one window of the limits.
	f.config.Rules.Limits.PerPool.Creates = 200
	return f
}

// as configures the scaler for a release, with a provider mirror.
func (f *fixture) as(release generator.Release, plugins string) {
	config := f.config
	config.Release, config.PluginDir = release, plugins
	f.scaler = scaler.New(config)
}

// mirrorOf returns a mirror that contains the provider program only under the given version.
func mirrorOf(t *testing.T, plugins, version string) string {
	t.Helper()
	provider := filepath.FromSlash(generator.ProviderSource)
	packages, err := filepath.Abs(filepath.Join(plugins, provider, generator.ProviderVersion))
	if err != nil {
		t.Fatal(err)
	}
	mirror := t.TempDir()
	if err := os.CopyFS(filepath.Join(mirror, provider, version), os.DirFS(packages)); err != nil {
		t.Fatal(err)
	}
	return mirror
}

// propose places a small pinned VM on each of the hosts, and returns the change.
func (f *fixture) propose(t *testing.T, hosts ...topology.HostID) *scaler.Change {
	t.Helper()
	snapshot, err := f.client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	current, _, err := f.scaler.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := planner.New(snapshot, current.VMs)
	var requests []scaler.Request
	for _, host := range hosts {
		spec := fleet.Spec{
			Pool: "workers", NodeClass: "default", InstanceType: "n2x4", CapacityType: "on-demand",
			VCPUs: 2, MemoryMiB: 4096, Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent,
			Hosts: []topology.HostID{host}, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
		}
		placed, unplaced := p.Place([]fleet.Spec{spec})
		if len(unplaced) > 0 {
			t.Fatalf("placing: %v", unplaced)
		}
		requests = append(requests, scaler.Request{Spec: spec, Placement: placed[0].Placement})
	}
	change, err := f.scaler.Propose(t.Context(), snapshot, requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// grow creates a VM on each of the hosts.
func (f *fixture) grow(t *testing.T, hosts ...topology.HostID) *scaler.Change {
	t.Helper()
	change := f.propose(t, hosts...)
	if _, err := f.scaler.Apply(t.Context(), change, func([]scaler.RootPlan) (string, error) { return "", nil }); err != nil {
		t.Fatal(err)
	}
	return change
}

// growth is the effect of one additional VM on the fleet's files.
type growth struct {
	vm            fleet.VM
	before, after generator.Files
}

// growByOne creates one more VM. It checks that the plans contain only its creation, and
// that all plans are empty afterwards.
func (f *fixture) growByOne(t *testing.T) growth {
	t.Helper()
	before, err := f.store.Files()
	if err != nil {
		t.Fatal(err)
	}
	host := f.hosts[len(f.hosts)-1]
	proposed := f.propose(t, host)
	f.wantActions(t, proposed, generator.Address(&proposed.Added[0]))
	change := f.grow(t, host)
	after, err := f.store.Files()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := generator.Parse(after)
	if err != nil {
		t.Fatal(err)
	}
	f.wantActions(t, f.propose(t), "")
	for _, vm := range parsed.VMs {
		if vm.Key == change.Added[0].Key {
			return growth{vm: vm, before: before, after: after}
		}
	}
	t.Fatalf("VM %s is not in the files", change.Added[0].Name)
	return growth{}
}

// wantActions checks that the plans of all hosts contain every VM and change none of them. If
// created is not empty, the plans must create the VM with that address.
func (f *fixture) wantActions(t *testing.T, change *scaler.Change, created string) {
	t.Helper()
	plans, err := f.scaler.Plan(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for i := range change.After.VMs {
		for _, address := range generator.Addresses(&change.After.VMs[i]) {
			want[address] = "[no-op]"
		}
	}
	if created != "" {
		want[created] = "[create]"
	}
	for i := range plans {
		plan := &plans[i]
		if plan.Err != nil || plan.Verdict.Decision != guard.Allow {
			t.Fatalf("planning %s: %v\n%s", plan.Host, plan.Err, plan.Verdict)
		}
		for _, rc := range plan.Plan.JSON.ResourceChanges {
			if _, twice := got[rc.Address]; twice {
				t.Errorf("several plans contain %s", rc.Address)
			}
			got[rc.Address] = fmt.Sprint(rc.Change.Actions)
		}
		for _, drift := range plan.Plan.JSON.ResourceDrift {
			t.Errorf("%s differs from the state: %v", drift.Address, drift.Change.Actions)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if len(plans) != len(f.hosts) {
		t.Errorf("%d hosts are planned, want %d", len(plans), len(f.hosts))
	}
}
