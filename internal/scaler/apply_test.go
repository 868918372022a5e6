package scaler_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// noEngine configures an engine that does not exist, for tests that run none.
func noEngine(config *scaler.Config) { config.Engine = &state.Engine{Path: "/nowhere/tofu"} }

func approveAll([]scaler.RootPlan) (string, error) { return "", nil }

// untouched checks that the fleet's files are the same as before the change, and that the
// history is empty.
func untouched(t *testing.T, s *scaler.Scaler, change *scaler.Change) {
	t.Helper()
	files, err := s.Store().Files()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(change.BeforeFiles, files); diff != "" {
		t.Errorf("the files were changed:\n%s", diff)
	}
	if history, err := s.History(t.Context(), time.Time{}); err != nil || len(history) != 0 {
		t.Errorf("history was written: %v, %v", history, err)
	}
}

func TestApplyWithoutAnEngine(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil)
	change := propose(t, s, snapshot(), request(pve1))
	if _, err := s.Apply(t.Context(), change, approveAll); !errors.Is(err, scaler.ErrNoEngine) {
		t.Errorf("Apply: %v", err)
	}
	if _, err := s.Plan(t.Context(), change); !errors.Is(err, scaler.ErrNoEngine) {
		t.Errorf("Plan: %v", err)
	}
	untouched(t, s, change)
}

func TestApplyRefusesChangedFiles(t *testing.T) {
	t.Parallel()
	s := newScaler(t, noEngine, vm(pve1, 2000))
	change := propose(t, s, snapshot(), request(pve1))
	next := propose(t, s, snapshot(), request(pve2))
	if err := s.Store().Write(next.AfterFiles); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), change, approveAll); !errors.Is(err, scaler.ErrFleetChanged) {
		t.Errorf("got %v", err)
	}
	files, err := s.Store().Files()
	if diff := cmp.Diff(next.AfterFiles, files); err != nil || diff != "" {
		t.Errorf("the other's files were changed (%v):\n%s", err, diff)
	}
}

func TestApplyWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := newScaler(t, noEngine)
	change := propose(t, s, snapshot(), request(pve1))
	unlock, err := store.NewDirectory(s.Store().Path()).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), change, approveAll); !errors.Is(err, store.ErrLocked) {
		t.Errorf("got %v", err)
	}
	untouched(t, s, change)
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestApplyRefusesWhatATokenMayNotWrite(t *testing.T) {
	t.Parallel()
	cells := []topology.NUMACell{{
		GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(0), MemoryMiB: 4096, Policy: topology.NUMABind,
	}}
	for says, ask := range map[string]func(*scaler.Request){
		"sets pinWith: Affinity, but": func(r *scaler.Request) {
			r.Spec.Policy, r.Spec.PinWith = fleet.PolicyDedicated, fleet.PinWithAffinity
			r.Placement.CPUs, r.Placement.VCPUPins = topology.CPUs(2, 3), []int{2, 3}
		},
		"sets hugePages: 2Mi, but": func(r *scaler.Request) {
			r.Spec.Policy, r.Spec.HugePages = fleet.PolicyNUMA, fleet.HugePages2Mi
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			s := newScaler(t, func(config *scaler.Config) {
				noEngine(config)
				config.Regions[0].Live = live{}
			})
			wanted := request(pve1)
			wanted.Spec.Overcommit, wanted.Placement.Cells = 0, cells
			ask(&wanted)
			change := propose(t, s, snapshot(), wanted)
			approve := func([]scaler.RootPlan) (string, error) {
				t.Error("it asks for approval")
				return "", nil
			}
			_, err := s.Apply(t.Context(), change, approve)
			var refused *scaler.RootOnlyError
			if !errors.As(err, &refused) || refused.VM != "workers-2000" || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v", err)
			}
			untouched(t, s, change)
		})
	}
}

// world is a scaler of a simulated Proxmox, with the real engine.
type world struct {
	*scaler.Scaler
	sim    *pvesim.Server
	client *proxmox.Client
	store  store.Store
	// stateDir is the state directory.
	stateDir string
	config   scaler.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(*scaler.Config) {})
}

func newWorldWith(t *testing.T, change func(*scaler.Config)) *world {
	t.Helper()
	return newWorldOn(t, testenv.Proxmox(t), change)
}

// newWorldOf returns a world with a changed configuration of Proxmox.
func newWorldOf(t *testing.T, change func(*pvesim.Config)) *world {
	t.Helper()
	return newWorldOn(t, testenv.Proxmox(t, change), func(*scaler.Config) {})
}

func newWorldOn(t *testing.T, sim *pvesim.Server, change func(*scaler.Config)) *world {
	t.Helper()
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{sim: sim}
	w.client = testenv.Client(t, w.sim)
	dir := filepath.Join(t.TempDir(), "fleet")
	config := scaler.Config{
		ClusterID: clusterID, Store: sealed(t, dir), Dir: dir, StateDir: dir + "-state", Drained: allDrained, Actor: "test", Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{
			Name: testenv.Region, Endpoint: w.sim.URL(), CAFile: testenv.CertFile(t, w.sim),
			VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2009}, Live: w.client,
		}},
		Engine: engine, PluginDir: testenv.PluginDir(t), Rules: guard.DefaultRules(),
		Progress: func(host topology.HostID, message string) { t.Logf("%s: %s", host, message) },
	}
	change(&config)
	w.Scaler, w.store, w.stateDir, w.config = scaler.New(config), config.Store, config.StateDir, config
	return w
}

func (w *world) snapshot(t *testing.T) *topology.Snapshot {
	t.Helper()
	snapshot, err := w.client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// exist checks that exactly these VMIDs of the fleet exist.
func (w *world) exist(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	for _, guest := range w.sim.Guests() {
		if guest.VMID >= 2000 && guest.VMID < 3000 {
			got = append(got, guest.VMID)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("VMs (-want +got):\n%s", diff)
	}
}

// allDrained is a cluster whose Nodes are all drained.
func allDrained(context.Context, string) error { return nil }

// underWay waits until exactly these hosts have unfinished work.
func (w *world) underWay(t *testing.T, want ...topology.HostID) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		got := slices.SortedFunc(maps.Keys(w.Open(t)), topology.HostID.Compare)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-ticker.C: // an outcome is written after its VMs are reported as made
		case <-deadline.C:
			t.Fatalf("under way: %v, want %v", got, want)
		}
	}
}

// TestHostGoesDown takes pve-1 down between the decision and the apply: pve-2 continues,
// and the changes of pve-1 are applied once it is back, including a removal.
func TestHostGoesDown(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	wanted := []scaler.Request{request(topology.HostID{Region: testenv.Region, Host: "pve-1"}), request(topology.HostID{Region: testenv.Region, Host: "pve-2"})}
	for i := range wanted {
		wanted[i].Spec.Template = testenv.Template
	}
	first, second := wanted[0].Placement.Host, wanted[1].Placement.Host

	change := propose(t, w.Scaler, w.snapshot(t), wanted...)
	w.sim.SetHostOnline("pve-1", false)
	change.Snapshot = w.snapshot(t)
	results, err := w.Apply(ctx, change, approveAll)
	var down *scaler.HostDownError
	if !errors.As(err, &down) || down.Host != first || len(results) != 2 || results[0].Err == nil || results[1].Err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t, 2001)
	w.underWay(t, first)

	// While pve-1 is down, its VMs are not lost and do not block other changes.
	change = propose(t, w.Scaler, w.snapshot(t))
	if !change.Empty() || len(change.Renumbered) != 0 {
		t.Fatalf("it proposes %v", change.Differences())
	}
	w.sim.SetHostOnline("pve-1", true)
	if results, err = w.Apply(ctx, propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t, 2000, 2001)
	w.underWay(t)

	w.sim.SetHostOnline("pve-1", false)
	if change = propose(t, w.Scaler, w.snapshot(t)); len(change.Renumbered) != 0 || !change.Empty() {
		t.Fatalf("it renumbers %v", ids(change.Renumbered))
	}
	change, err = w.ProposeRemoval(ctx, w.snapshot(t), []string{"workers-2000", "workers-2001"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(ctx, change, approveAll); !as[*scaler.HostDownError](err) {
		t.Fatalf("got %v", err)
	}
	w.exist(t, 2000)
	w.underWay(t, first)
	w.sim.SetHostOnline("pve-1", true)
	if _, err := w.Apply(ctx, propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatal(err)
	}
	w.exist(t)
	w.underWay(t)
	after, err := generator.Parse(change.AfterFiles)
	if diff := cmp.Diff([]topology.HostID{first, second}, after.Hosts); err != nil || diff != "" {
		t.Errorf("hosts (-want +got): %v\n%s", err, diff)
	}
}

// TestMovedVMIsRemovedAfterAFailure moves a VM off a host, which then goes down. The first
// removal of the VM fails after its file was deleted: the retry removes the VM without the host.
func TestMovedVMIsRemovedAfterAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), on(first)), approveAll); err != nil {
		t.Fatal(err)
	}
	guest, _ := w.sim.Guest(2000)
	maps.DeleteFunc(guest.Config, func(_, value string) bool { return strings.Contains(value, "local-lvm:") }) // its disks did not move
	w.sim.RemoveGuest(2000)
	if err := w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: "pve-2", Config: guest.Config}); err != nil {
		t.Fatal(err)
	}
	w.sim.SetHostOnline(string(first.Host), false)

	change, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	heal := w.sim.AddFault(pvesim.Fault{Method: http.MethodDelete, Path: "/qemu/2000/?$", Status: http.StatusInternalServerError, Reason: "no"})
	if _, err := w.Apply(t.Context(), change, approveAll); err == nil || as[*scaler.HostDownError](err) {
		t.Fatalf("the first removal: %v, want an error of the deletion", err)
	}
	w.underWay(t, first)
	heal()
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("the retry: %v", err)
	}
	w.exist(t)
	w.underWay(t)
}
