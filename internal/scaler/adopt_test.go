package scaler_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// TestTakesInWhatOnlyTheHistoryKnows deletes a VM's file and the state: the VM is
// restored to the fleet unchanged. If this happens during its removal, the removal is
// completed.
func TestTakesInWhatOnlyTheHistoryKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	wanted := request(host)
	wanted.Spec.Template = testenv.Template
	first := propose(t, w.Scaler, w.snapshot(t), wanted)
	if _, err := w.Apply(t.Context(), first, approveAll); err != nil {
		t.Fatal(err)
	}
	before, _ := w.sim.Guest(2000)
	lose(t, w, host)
	if results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	fleetNow, _, err := w.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.Added, fleetNow.VMs); diff != "" {
		t.Errorf("the VM came back another (-want +got):\n%s", diff)
	}
	if after, ok := w.sim.Guest(2000); !ok || after.Raw != before.Raw || !after.Running {
		t.Errorf("the VM was changed:\n%s\nbefore:\n%s", after.Raw, before.Raw)
	}
	w.underWay(t)

	lose(t, w, host)
	w.Begin(t, host, first.Added[0])
	if results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t)
	w.underWay(t)
}

// TestImportFails deletes the state and makes the provider fail to read the VM that is to
// be imported: nothing is changed, and the next apply imports it.
func TestImportFails(t *testing.T) {
	t.Parallel()
	var w *world
	repair := func() {}
	broken := false
	w = newWorldWith(t, func(config *scaler.Config) {
		config.Progress = func(_ topology.HostID, message string) {
			if strings.HasPrefix(message, "recovering 1 VM,") && !broken {
				broken = true
				repair = w.sim.AddFault(pvesim.Fault{Method: "GET", Path: "/qemu/2000/config$", Status: 500, Reason: "disk of the host is full"})
			}
		}
	})
	vms := []scaler.Request{on(first)}
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), vms...), approveAll); err != nil {
		t.Fatal(err)
	}
	before, _ := w.sim.Guest(2000)
	if err := os.Remove(filepath.Join(w.Store().Path()+"-state", "states", string(testenv.Region), "pve-1", "terraform.tfstate")); err != nil {
		t.Fatal(err)
	}
	results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll)
	if err == nil || !strings.Contains(err.Error(), "disk of the host is full") {
		t.Errorf("results %+v, %v, want what Proxmox said", results, err)
	}
	repair()
	if results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("results %+v, %v", results, err)
	}
	if after, ok := w.sim.Guest(2000); !ok || after.Raw != before.Raw || !after.Running {
		t.Errorf("the VM was changed:\n%s\nbefore:\n%s", after.Raw, before.Raw)
	}
	w.underWay(t)
}

// TestPlanFails checks that a host's plan has the error of an engine that cannot plan.
func TestPlanFails(t *testing.T) {
	t.Parallel()
	script := "#!/bin/sh\nif [ \"$1\" = plan ]; then echo 'Error: out of memory' >&2; exit 1; fi\nexec " + testenv.Engine(t) + " \"$@\"\n"
	binary := filepath.Join(t.TempDir(), "tofu")
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: binary})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, func(config *scaler.Config) { config.Engine = engine })
	plans, err := w.Plan(t.Context(), propose(t, w.Scaler, w.snapshot(t), on(first)))
	if err != nil || len(plans) != 1 || plans[0].Err == nil || !strings.Contains(plans[0].Err.Error(), "out of memory") {
		t.Errorf("plans %+v, %v", plans, err)
	}
}

// lose deletes the state of a host and the file of its VM.
func lose(t *testing.T, w *world, host topology.HostID) {
	t.Helper()
	files, err := w.Store().Files()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(string(host.Region), string(host.Host))
	node := filepath.ToSlash(filepath.Join(dir, "node-workers-2000.tf"))
	if _, there := files[node]; !there {
		t.Fatalf("there is no %s", node)
	}
	files = maps.Clone(files)
	delete(files, node)
	if err := w.Store().Write(files); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(w.Store().Path()+"-state", "states", dir, "terraform.tfstate")); err != nil {
		t.Fatal(err)
	}
}
