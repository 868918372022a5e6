package scaler_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// stateWith returns a state of format 4 with the VMs.
func stateWith(t *testing.T, serial int, vms ...fleet.VM) []byte {
	t.Helper()
	resources := []any{}
	for i := range vms {
		address := generator.Addresses(&vms[i])[0]
		module, _, _ := strings.Cut(address, ".proxmox_virtual_environment_vm.")
		resources = append(resources, map[string]any{
			"module": module, "mode": "managed", "type": "proxmox_virtual_environment_vm", "name": "node",
			"provider": `provider["registry.opentofu.org/bpg/proxmox"]`,
			"instances": []any{map[string]any{"schema_version": 0, "attributes": map[string]any{
				"vm_id": vms[i].VMID, "node_name": vms[i].Host.Host, "description": fleet.Marker{ClusterID: clusterID, Key: vms[i].Key}.String() + "\n",
			}}},
		})
	}
	content, err := json.Marshal(map[string]any{
		"version": 4, "terraform_version": "1.8.0", "serial": serial, "lineage": "3f1c", "outputs": map[string]any{}, "resources": resources,
	})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// addressesIn returns the resources of each state on a server.
func addressesIn(t *testing.T, states map[string][]byte) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for path, content := range states {
		var s struct {
			Resources []struct{ Module, Type, Name string }
		}
		if err := json.Unmarshal(content, &s); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Resources {
			found[filepath.Base(path)] = append(found[filepath.Base(path)], r.Module+"."+r.Type+"."+r.Name)
		}
	}
	return found
}

// TestRestoreInterrupted ends a restore before each of its steps, and repeats it. The backup has
// VMs 2000, 2001 and 2002. VM 2001 no longer exists, and VM 2003 was created after the backup:
// its state exists, and would delete it.
func TestRestoreInterrupted(t *testing.T) {
	t.Parallel()
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	old := []fleet.VM{vm(pve1, 2000), vm(pve1, 2001), vm(pve2, 2002)}
	newer := vm(pve1, 2003)
	remote := func(address string) func(c *scaler.Config) {
		return func(c *scaler.Config) {
			c.Engine, c.PluginDir = engine, testenv.PluginDir(t)
			c.Backend = fleet.Backend{Type: "http", Config: map[string]string{"address": address}}
		}
	}
	before := testenv.HTTPState(t)
	from := newScaler(t, remote(before.URL), old...)
	from.Made(t, old[0])
	before.Restore(map[string][]byte{
		"/" + generator.StateName(clusterID, pve1): stateWith(t, 3, old[0], old[1]),
		"/" + generator.StateName(clusterID, pve2): stateWith(t, 4, old[2]),
	})
	content, err := from.Store().Directory.Content(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states, unread, err := from.States(t.Context())
	if err != nil || len(unread) > 0 || !slices.Equal(slices.Sorted(maps.Keys(states)), []string{"lab/pve-1", "lab/pve-2"}) {
		t.Fatalf("states %v, %v, %v", slices.Sorted(maps.Keys(states)), unread, err)
	}

	seen := snapshot(guestOf(old[0]), guestOf(newer))
	seen.Hosts[1].Guests = []topology.Guest{guestOf(old[2])}
	wantState := map[string][]string{
		generator.StateName(clusterID, pve1): {generator.Addresses(&old[0])[0]},
		generator.StateName(clusterID, pve2): {generator.Addresses(&old[2])[0]},
	}
	wantSteps := []string{"forget lab/pve-1", "forget lab/pve-2", "fleet", "state lab/pve-1", "state lab/pve-2"}
	for stop := range len(wantSteps) + 1 {
		server := testenv.HTTPState(t)
		s := newScaler(t, remote(server.URL))
		// The backend has a newer state of pve-1, and none of pve-2.
		server.Restore(map[string][]byte{"/" + generator.StateName(clusterID, pve1): stateWith(t, 9, old[0], newer)})
		var steps []string
		s.Restoring(func(step string) error {
			if len(steps) == stop {
				return errors.New("interrupted")
			}
			steps = append(steps, step)
			return nil
		})
		for attempt := range 2 {
			r, err := s.ProposeRestore(t.Context(), seen, content, states)
			if err != nil {
				t.Fatal(err)
			}
			fates := map[string]scaler.Fate{}
			for _, one := range r.VMs {
				fates[one.Name] = one.Fate
			}
			want := map[string]scaler.Fate{
				old[0].Name: scaler.FateExists, old[1].Name: scaler.FateGone, old[2].Name: scaler.FateExists, newer.Name: scaler.FateNewer,
			}
			if diff := cmp.Diff(want, fates); diff != "" {
				t.Fatalf("fates (-want +got):\n%s", diff)
			}
			_, err = s.Restore(t.Context(), r)
			if interrupted := attempt == 0 && stop < len(wantSteps); interrupted != (err != nil) {
				t.Fatalf("stopped after %v: %v", steps, err)
			}
			if slices.Contains(steps, "fleet") && slices.Contains(addressesIn(t, server.States())[generator.StateName(clusterID, pve1)], generator.Addresses(&newer)[0]) {
				t.Fatalf("stopped after %v: the fleet is restored, and the state has a VM without a file", steps)
			}
			s.Restoring(nil)
		}
		if stop == len(wantSteps) && !slices.Equal(steps, wantSteps) {
			t.Errorf("steps %v, want %v", steps, wantSteps)
		}
		current, _, err := s.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(current.VMs); !slices.Equal(got, []fleet.VMID{2000, 2002}) {
			t.Errorf("stopped after %v: the fleet has VMs %v", steps, got)
		}
		if diff := cmp.Diff(wantState, addressesIn(t, server.States())); diff != "" {
			t.Errorf("stopped after %v: states (-want +got):\n%s", steps, diff)
		}
		history, err := s.Store().Directory.History(t.Context(), time.Time{})
		if err != nil || len(history) != 1 || history[0].Outcome == nil {
			t.Errorf("stopped after %v: history %v, %v", steps, history, err)
		}
		if locks := server.Locks(); len(locks) > 0 {
			t.Errorf("stopped after %v: locks %v", steps, locks)
		}
	}
}

// TestRestoreTemplates backs up the states of templates, loses fleet and states, and restores
// them: the templates are ready, and are neither downloaded, imported nor created again.
func TestRestoreTemplates(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	writer, stop := w.runUntil(t, nil)
	writer.SetTemplates("debian", templates(t, oldImage, first))
	templatesUntil(t, writer, "created", allReady(1))
	w.underWay(t)
	stop()
	content, err := w.Store().Directory.Content(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states, unread, err := w.States(t.Context())
	root := generator.TemplateRootDir(first)
	if err != nil || len(unread) > 0 || len(states[root]) == 0 {
		t.Fatalf("states of %v, unread %v, %v", slices.Collect(maps.Keys(states)), unread, err)
	}
	for _, dir := range []string{w.Store().Path(), w.stateDir} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.ProposeRestore(t.Context(), w.snapshot(t), content, states)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := w.Restore(t.Context(), r)
	if err != nil || !slices.Contains(lines, "templates of "+first.String()+": wrote its state") {
		t.Fatalf("restored %q, %v", lines, err)
	}
	again, _, err := w.States(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var was, is struct {
		Lineage   string
		Resources any
	}
	if err := errors.Join(json.Unmarshal(states[root], &was), json.Unmarshal(again[root], &is)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, is); diff != "" || was.Lineage == "" {
		t.Errorf("the state (-want +got):\n%s", diff)
	}

	w.sim.ResetCalls()
	writer = w.run(t, nil)
	writer.SetTemplates("debian", templates(t, oldImage, first))
	templatesUntil(t, writer, "ready after the restore", allReady(1))
	for _, call := range w.sim.Calls() {
		if call.Method != "GET" {
			t.Errorf("after the restore: %s %s", call.Method, call.Path)
		}
	}
}

// TestRestoreFates compares a backup's VM with what Proxmox shows of it.
func TestRestoreFates(t *testing.T) {
	t.Parallel()
	one := vm(pve1, 2000)
	from := newScaler(t, nil, one)
	content, err := from.Store().Directory.Content(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hidden := snapshot()
	hidden.Regions[0].HidesGuests = true
	noQuorum := snapshot()
	noQuorum.Regions[0].Quorate = false
	moved := snapshot()
	moved.Hosts[1].Guests = []topology.Guest{guestOf(one)}
	unmarked := guestOf(one)
	unmarked.ClusterID, unmarked.Key = "", ""
	for name, tt := range map[string]struct {
		seen *topology.Snapshot
		want scaler.Fate
	}{
		"exists":             {snapshot(guestOf(one)), scaler.FateExists},
		"moved":              {moved, scaler.FateExists},
		"absent":             {snapshot(), scaler.FateGone},
		"VMID of another VM": {snapshot(stranger(2000)), scaler.FateGone},
		"without marker":     {snapshot(unmarked), scaler.FateUnknown},
		"host down":          {down(snapshot(guestOf(one))), scaler.FateUnknown},
		"guests hidden":      {hidden, scaler.FateUnknown},
		"no quorum":          {noQuorum, scaler.FateUnknown},
		"region not read":    {&topology.Snapshot{}, scaler.FateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := newScaler(t, nil).ProposeRestore(t.Context(), tt.seen, content, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.VMs) != 1 || r.VMs[0].Fate != tt.want {
				t.Errorf("got %+v, want fate %s", r.VMs, tt.want)
			}
			written := slices.ContainsFunc(r.Differences, func(d store.Difference) bool { return d.Path == generator.NodeFile(&one) })
			if written != (tt.want != scaler.FateGone) {
				t.Errorf("its file is to be written: %v", written)
			}
		})
	}
}
