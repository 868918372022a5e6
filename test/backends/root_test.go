package backends_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// here is the host of the VMs in most tests.
var here = topology.HostID{Region: testenv.Region, Host: "pve-1"}

// root is a fleet with the VMs of a host, and its Proxmox.
type root struct {
	*site
	engine *state.Engine
	sim    *pvesim.Server
	fleet  fleet.Fleet
	// dir contains the fleet's files, and home the local state.
	dir, home string
}

// newRoot writes a fleet with VMs. Each fleet has a unique cluster name, and so a separate
// state.
func newRoot(t testing.TB, s *site, engine *state.Engine, vms int, change ...func(*pvesim.Config)) *root {
	t.Helper()
	r := &root{site: s, engine: engine, dir: t.TempDir(), home: filepath.Join(t.TempDir(), "terraform.tfstate")}
	r.sim = testenv.Proxmox(t, change...)
	r.fleet = fleet.Fleet{
		ClusterID: "test-" + strings.ToLower(rand.Text()[:8]), Backend: s.Backend, Hosts: []topology.HostID{here},
		Regions: []fleet.Region{{Name: testenv.Region, Endpoint: r.sim.URL(), Insecure: true}},
	}
	for i := range vms {
		r.fleet.VMs = append(r.fleet.VMs, vmAt(here, fleet.VMID(2001+i)))
	}
	r.render(t)
	return r
}

// vmAt returns a small VM.
func vmAt(host topology.HostID, id fleet.VMID) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", int(id))), VMID: id, Name: fleet.NodeName("workers", id),
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "default", InstanceType: "n1x1", CapacityType: "on-demand",
			VCPUs: 1, MemoryMiB: 1024, Policy: fleet.PolicyShared, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
		},
		Placement: fleet.Placement{Host: host, Reason: "the only host"},
		Source: fleet.Source{VMID: 9001, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm", Options: map[string]string{
			"agent": "0", "boot": "order=scsi0", "ostype": "l26", "scsihw": "virtio-scsi-single", "serial0": "socket", "vga": "serial0",
		}},
	}
}

// beside returns another checkout of the same fleet, on the same machine.
func (r *root) beside(t testing.TB, engine *state.Engine) *root {
	t.Helper()
	other := *r
	other.engine, other.dir = engine, t.TempDir()
	other.render(t)
	return &other
}

func (r *root) render(t testing.TB) {
	t.Helper()
	files, err := generator.Render(r.fleet)
	must(t, err)
	enginetest.Write(t, r.dir, files)
}

func (r *root) root(host topology.HostID) string {
	return filepath.Join(r.dir, filepath.FromSlash(generator.RootDir(host)))
}

// config returns the configuration of a host's workspace.
func (r *root) config(t testing.TB, host topology.HostID) state.Config {
	t.Helper()
	config := state.Config{
		Dir: r.root(host), Engine: r.engine, PluginDir: testenv.PluginDir(t), LockTimeout: time.Second,
		Env: map[string]string{"PROXMOX_VE_API_TOKEN": pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret},
	}
	for name, value := range r.env {
		config.Env[name] = value
	}
	if r.Type == "local" {
		config.BackendConfig = map[string]string{"path": r.home}
	}
	return config
}

// open opens the workspace of a host. It is closed at the end of the test.
func (r *root) open(t testing.TB, host topology.HostID, change ...func(*state.Config)) *state.Workspace {
	t.Helper()
	config := r.config(t, host)
	config.Log = io.Discard
	for _, change := range change {
		change(&config)
	}
	w, err := state.New(config)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

func plan(t testing.TB, w *state.Workspace, options state.PlanOptions) *state.Plan {
	t.Helper()
	p, err := w.Plan(t.Context(), options)
	must(t, err)
	return p
}

func apply(t testing.TB, w *state.Workspace, p *state.Plan) *state.Result {
	t.Helper()
	result, err := w.Apply(t.Context(), p)
	must(t, err)
	return result
}

// settled checks that a plan has no changes.
func settled(t testing.TB, w *state.Workspace) {
	t.Helper()
	if p := plan(t, w, state.PlanOptions{}); p.Changes {
		t.Errorf("the plan has changes:\n%s", p.Text)
	}
}

func addresses(t testing.TB, w *state.Workspace) []string {
	t.Helper()
	resources, err := w.Resources(t.Context())
	must(t, err)
	var all []string
	for i := range resources {
		all = append(all, resources[i].Address)
	}
	return all
}

// rebuild removes the workspace's own files, so that they are re-created.
func rebuild(t testing.TB, w *state.Workspace) {
	t.Helper()
	must(t, w.Close())
	own := filepath.Join(w.Dir(), ".terraform")
	_, err := os.Stat(own)
	must(t, err)
	must(t, os.RemoveAll(own))
}

// each runs a test with every backend. make nightly uses every engine; make test alternates
// between the engines, by backend and by test.
func each(t *testing.T, test func(t *testing.T, kind string, engine *state.Engine)) {
	t.Helper()
	for i, kind := range kinds() {
		for _, engine := range due(t, len(t.Name())+i) {
			t.Run(kind+"/"+engine.Name(), func(t *testing.T) {
				t.Parallel()
				test(t, kind, engine)
			})
		}
	}
}

// due returns the engines for a test case: all in make nightly, one of them in turn in make
// test.
func due(t *testing.T, turn int) []*state.Engine {
	t.Helper()
	found := engines(t)
	if enginetest.EveryCase() {
		return found
	}
	turn %= len(found)
	return found[turn : turn+1]
}

// applyHeld starts an apply and returns when Proxmox receives its first clone request,
// which waits until release is called.
func (r *root) applyHeld(t testing.TB, w *state.Workspace) (done <-chan error, release func()) {
	t.Helper()
	p := plan(t, w, state.PlanOptions{})
	reached, release := r.holdClone(t)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Apply(t.Context(), p)
		ended <- err
	}()
	select {
	case <-reached:
	case err := <-ended:
		t.Fatalf("the apply ended before the clone: %v", err)
	}
	return ended, release
}

// holdClone makes the next clone wait until release is called.
func (r *root) holdClone(t testing.TB) (reached <-chan struct{}, release func()) {
	t.Helper()
	arrived, gate := make(chan struct{}), make(chan struct{})
	r.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		close(arrived)
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return arrived, release
}
