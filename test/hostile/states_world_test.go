package hostile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
)

const (
	// stateVMs is the number of VMs in the attacked state.
	stateVMs = 20
	// The VMIDs of unmanaged guests: a VM outside vmid_range, a VM inside it, and a
	// container.
	strangerOutside, strangerInside, strangerContainer = 150, 2900, 151
)

// stateWorld is a host with VMs of numaform and unmanaged VMs. An attacker repeatedly edits
// its state.
type stateWorld struct {
	t      *testing.T
	sim    *pvesim.Server
	client *proxmox.Client
	scaler *scaler.Scaler
	// dir contains the fleet and the state directory. kept is a copy of dir from before any
	// attack.
	dir, kept string
	host      topology.HostID
	fleet     fleet.Fleet
	// guests are the guests before any attack, by VMID.
	guests map[int]pvesim.GuestState
	// drift is the drift after the tags of all VMs were changed by hand.
	drift []scaler.RootDrift
	// networks are the network devices of new VMs, pools the address pools of the regions,
	// nodes the addresses of the cluster's Nodes, and hostAddress an address of the host.
	networks    []fleet.Network
	pools       map[topology.RegionName][]topology.AddressPool
	nodes       map[string]string
	hostAddress string
}

// newStateWorld creates a fleet of stateVMs VMs.
func newStateWorld(t *testing.T) *stateWorld {
	t.Helper()
	return newSizedWorld(t, stateVMs)
}

// newSizedWorld creates the VMs with the real engine.
func newSizedWorld(t *testing.T, vms int) *stateWorld {
	t.Helper()
	w := &stateWorld{
		t: t, dir: filepath.Join(t.TempDir(), "numaform"), kept: t.TempDir(), guests: map[int]pvesim.GuestState{},
		networks: []fleet.Network{{Bridge: "vmbr0", Firewall: true}},
	}
	machine := testenv.Host(t, "pve-1", "xeon-6230-2s-snc2", 9001)
	w.host = machine.ID()
	w.sim = testenv.Proxmox(t, func(c *pvesim.Config) { c.Hosts = []topology.Host{machine} })
	for vmid, kind := range map[int]topology.GuestKind{strangerOutside: topology.GuestVM, strangerInside: topology.GuestVM, strangerContainer: topology.GuestContainer} {
		config := map[string]string{"name": "accounting", "cores": "1", "memory": "512", "description": "do not touch"}
		if kind == topology.GuestContainer {
			config = map[string]string{"hostname": "accounting", "cores": "1", "memory": "512", "description": "do not touch"}
		}
		if err := w.sim.PutGuest(pvesim.Guest{VMID: vmid, Host: "pve-1", Kind: kind, Running: true, Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.client, err = proxmox.New(proxmox.Config{
		Region: testenv.Region, URL: w.sim.URL(), CA: w.sim.CertPEM(), Machines: map[topology.HostName]topology.Machine{"pve-1": machine.Machine},
		TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
	})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(w.dir, "fleet")
	w.scaler = scaler.New(scaler.Config{
		ClusterID: "hostile", Store: store.NewSealed(store.NewDirectory(files), store.FileVault(filepath.Join(t.TempDir(), "key")), "hostile"),
		Dir: files, StateDir: filepath.Join(w.dir, "state"), Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{
			Name: testenv.Region, Endpoint: w.sim.URL(), CAFile: testenv.CertFile(t, w.sim),
			VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2999}, Live: w.client,
		}},
		Engine: engine, PluginDir: testenv.PluginDir(t), Rules: guard.DefaultRules(),
		Drained:       func(context.Context, string) error { return nil },
		NodeAddresses: func(context.Context) (map[string]string, error) { return w.nodes, nil },
	})
	w.grow(vms)
	w.keep()
	return w
}

// keep records the files and guests for restore.
func (w *stateWorld) keep() {
	w.t.Helper()
	if out, err := exec.Command("cp", "-a", w.dir+"/.", w.kept).CombinedOutput(); err != nil {
		w.t.Fatalf("copying the fleet: %v\n%s", err, out)
	}
	for _, guest := range w.sim.Guests() {
		w.guests[guest.VMID] = guest
	}
}

// grow creates all VMs at once, every other with security groups.
func (w *stateWorld) grow(vms int) {
	w.t.Helper()
	change, err := w.add(nil, vms)
	if err != nil {
		w.t.Fatal(err)
	}
	w.fleet = change.After
}

// add creates VMs in addition to others.
func (w *stateWorld) add(others []fleet.VM, count int) (*scaler.Change, error) {
	w.t.Helper()
	snapshot := w.snapshot()
	p := planner.New(snapshot, others)
	var requests []scaler.Request
	for i := range count {
		spec := fleet.Spec{
			Pool: "workers", NodeClass: "shared", InstanceType: "s1.1VCPU-1GB", CapacityType: "on-demand", VCPUs: 1, MemoryMiB: 1024,
			Policy: fleet.PolicyShared, Overcommit: 4, Hosts: []topology.HostID{w.host}, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
			Networks: w.networks,
		}
		if i%2 == 0 {
			spec.SecurityGroups = []string{"web", "ssh"}
		}
		placed, unplaced := p.Place([]fleet.Spec{spec})
		if len(unplaced) > 0 {
			w.t.Fatalf("placing: %v", unplaced)
		}
		requests = append(requests, scaler.Request{Spec: spec, Placement: placed[0].Placement})
	}
	change, err := w.scaler.Propose(w.t.Context(), snapshot, requests, nil)
	if err != nil {
		return nil, err
	}
	_, err = w.scaler.Apply(w.t.Context(), change, approveAll)
	return change, err
}

func approveAll([]scaler.RootPlan) (string, error) { return "a test", nil }

func (w *stateWorld) snapshot() *topology.Snapshot {
	w.t.Helper()
	snapshot, err := w.client.Snapshot(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range snapshot.Regions {
		snapshot.Regions[i].AddressPools = w.pools[snapshot.Regions[i].Name]
	}
	for i := range snapshot.Hosts {
		if w.hostAddress != "" {
			snapshot.Hosts[i].Addresses = append(snapshot.Hosts[i].Addresses, w.hostAddress)
		}
	}
	return snapshot
}

// statePath returns the path of the host's state, below the world's directory or its copy.
func (w *stateWorld) statePath(dir string) string {
	return filepath.Join(dir, "state", "states", filepath.FromSlash(generator.RootDir(w.host)), "terraform.tfstate")
}

// restore restores the files and guests from before any attack.
func (w *stateWorld) restore() {
	w.t.Helper()
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", w.kept, w.dir).CombinedOutput(); err != nil {
		w.t.Fatalf("restoring the fleet: %v\n%s", err, out)
	}
	now := map[int]pvesim.GuestState{}
	for _, guest := range w.sim.Guests() {
		now[guest.VMID] = guest
	}
	for vmid := range now {
		if _, before := w.guests[vmid]; !before {
			w.sim.RemoveGuest(vmid)
		}
	}
	for vmid, guest := range w.guests {
		if is, exists := now[vmid]; exists && is.Raw == guest.Raw && is.Running == guest.Running {
			continue
		}
		if err := w.sim.PutGuest(pvesim.Guest{VMID: vmid, Host: guest.Host, Kind: guest.Kind, Config: maps.Clone(guest.Config), Running: guest.Running}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.sim.ResetCalls()
}

// stateDoc is a state as JSON.
type stateDoc map[string]any

// read returns the state from before any attack.
func (w *stateWorld) read() stateDoc {
	w.t.Helper()
	raw, err := os.ReadFile(w.statePath(w.kept))
	if err != nil {
		w.t.Fatal(err)
	}
	doc := stateDoc{}
	if err := json.Unmarshal(raw, &doc); err != nil {
		w.t.Fatal(err)
	}
	return doc
}

// action is an operation of numaform on a fleet with an edited state.
type action struct {
	name string
	// do runs the action on the VMs with edited states, given their names.
	do func(names []string) error
	// all is set if the action may write to all VMs of the fleet, and create new ones.
	all bool
}

// attack edits the state and runs the action. Like an operator, it reverts the edits that
// numaform's error names, and repeats the action. It returns the edits that were not
// refused.
func (w *stateWorld) attack(act action, edits []stateEdit) []stateEdit {
	w.t.Helper()
	for len(edits) > 0 {
		w.restore()
		doc := w.read()
		for _, edit := range edits {
			edit.do(w.t, doc)
		}
		raw, err := json.Marshal(doc)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(w.statePath(w.dir), raw, 0o600); err != nil {
			w.t.Fatal(err)
		}
		names := []string{}
		for _, edit := range edits {
			names = append(names, edit.vm)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		err = act.do(names)
		w.unharmed(act, names, edits)
		if err == nil {
			return edits
		}
		left := slices.DeleteFunc(slices.Clone(edits), func(edit stateEdit) bool { return strings.Contains(err.Error(), edit.vm) })
		if len(left) == len(edits) {
			if len(edits) == 1 {
				return nil
			}
			// The error does not name the edit: try each half separately.
			half := len(edits) / 2
			return append(w.attack(act, edits[:half]), w.attack(act, edits[half:])...)
		}
		edits = left
	}
	return nil
}

// removal removes the VMs with edited states.
func (w *stateWorld) removal() action {
	return action{name: "remove", do: func(names []string) error {
		change, err := w.scaler.ProposeRemoval(w.t.Context(), w.snapshot(), names)
		if err != nil {
			return err
		}
		_, err = w.scaler.Apply(w.t.Context(), change, approveAll)
		return err
	}}
}

// update restores the tags of the VMs, which were changed by hand.
func (w *stateWorld) update() action {
	return action{name: "update", do: func(names []string) error {
		w.retag(names)
		drift := slices.Clone(w.drift)
		for i := range drift {
			drift[i].VMs = slices.DeleteFunc(slices.Clone(drift[i].VMs), func(d scaler.VMDrift) bool { return !slices.Contains(names, d.VM.Name) })
		}
		change, held, err := w.scaler.ProposeRepair(w.t.Context(), w.snapshot(), drift)
		if err != nil || held != nil {
			return errors.Join(err, held)
		}
		if len(change.Repaired) != len(names) {
			w.t.Fatalf("%d VMs were repaired, want %v", len(change.Repaired), names)
		}
		_, err = w.scaler.Apply(w.t.Context(), change, approveAll)
		return err
	}}
}

// retagging makes a writer change the tags of the VMs, as the controller does. The plan is
// not refreshed, so the provider writes to the guest named in the state.
func (w *stateWorld) retagging() action {
	return action{name: "retag", do: func(names []string) error {
		writer := scaler.NewWriter(w.scaler, scaler.WriterConfig{
			Snapshot: func(ctx context.Context) (*topology.Snapshot, error) { return w.client.Snapshot(ctx) },
		})
		ctx, stop := context.WithCancel(w.t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- writer.Run(ctx) }()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		asked := false
		for settled := false; !settled; {
			select {
			case <-tick.C:
			case err := <-ended:
				return errors.Join(err, errors.New("the writer ended"))
			}
			if states := writer.VMs(); !asked && len(states) > 0 {
				for _, state := range states {
					if slices.Contains(names, state.VM.Name) {
						state.VM.Tags = []string{"blue"}
						writer.Update(state.VM)
					}
				}
				asked = true
				continue
			}
			settled = asked && !slices.ContainsFunc(writer.VMs(), func(s scaler.VMState) bool { return s.Changing && s.ChangeErr == nil })
		}
		var errs []error
		for _, state := range writer.VMs() {
			errs = append(errs, state.ChangeErr)
		}
		stop()
		return errors.Join(append(errs, <-ended)...)
	}}
}

// retag changes the tags of VMs by hand.
func (w *stateWorld) retag(names []string) {
	w.t.Helper()
	for _, vm := range w.fleet.VMs {
		if !slices.Contains(names, vm.Name) {
			continue
		}
		if _, err := w.sim.Shell(fmt.Sprintf("qm set %d --tags by-hand", vm.VMID)); err != nil {
			w.t.Fatal(err)
		}
	}
	w.sim.ResetCalls()
}

// lookForDrift records the drift of all VMs for update.
func (w *stateWorld) lookForDrift() {
	w.t.Helper()
	var names []string
	for _, vm := range w.fleet.VMs {
		names = append(names, vm.Name)
	}
	w.retag(names)
	var err error
	if w.drift, err = w.scaler.Drift(w.t.Context(), w.snapshot()); err != nil {
		w.t.Fatal(err)
	}
}

// settling applies the files, which imports or creates VMs that are not in the state.
func (w *stateWorld) settling() action {
	return action{name: "apply", all: true, do: func([]string) error {
		_, err := w.add(w.fleet.VMs, 0)
		return err
	}}
}

// creation creates another VM.
func (w *stateWorld) creation() action {
	return action{name: "create", all: true, do: func([]string) error {
		_, err := w.add(w.fleet.VMs, 1)
		return err
	}}
}

var guestPath = regexp.MustCompile(`^/nodes/[^/]+/(?:qemu|lxc)/(\d+)(?:/(\w+))?`)

// unharmed checks that the action wrote only to VMs of the fleet that it may change.
func (w *stateWorld) unharmed(act action, names []string, edits []stateEdit) {
	w.t.Helper()
	ours := map[string]bool{}
	for _, vm := range w.fleet.VMs {
		if act.all || slices.Contains(names, vm.Name) {
			ours[strconv.Itoa(int(vm.VMID))] = true
		}
	}
	for _, call := range w.sim.Calls() {
		if call.Method == "GET" {
			continue
		}
		match := guestPath.FindStringSubmatch(call.Path)
		if act.all && match != nil && match[2] == "clone" && w.free(call.Params["newid"]) {
			ours[call.Params["newid"]] = true
			continue
		}
		if match == nil || !ours[match[1]] {
			w.t.Errorf("%s after %v: %s %s", act.name, edits, call.Method, call.Path)
		}
	}
	for vmid, before := range w.guests {
		if ours[strconv.Itoa(vmid)] {
			continue
		}
		if now, exists := w.sim.Guest(vmid); !exists || now.Raw != before.Raw || now.Running != before.Running {
			w.t.Errorf("%s after %v: guest %d is %v, running %v:\n%s", act.name, edits, vmid, exists, now.Running, now.Raw)
		}
	}
}

// free reports whether a VMID is in the fleet's range and was unused.
func (w *stateWorld) free(newid string) bool {
	vmid, err := strconv.Atoi(newid)
	_, taken := w.guests[vmid]
	return err == nil && !taken && vmid >= 2000 && vmid <= 2999
}

// stateEdit is a change of one value in a state.
type stateEdit struct {
	// vm is the name of the VM, resource the type of its resource, and path the path of the
	// value within the resource. If resource is empty, path is within the state.
	vm, resource string
	path         []string
	value        any
}

func (e stateEdit) String() string {
	return fmt.Sprintf("%s %s %s=%v", e.vm, e.resource, strings.Join(e.path, "."), e.value)
}

func (e stateEdit) do(t *testing.T, doc stateDoc) {
	t.Helper()
	if e.resource == "" {
		put(map[string]any(doc), e.path, e.value)
		return
	}
	for _, r := range doc["resources"].([]any) {
		resource := r.(map[string]any)
		name, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprint(resource["module"]), "module."), "_")
		if name == e.vm && resource["type"] == e.resource {
			put(resource, e.path, e.value)
			return
		}
	}
	// An earlier edit changed the resource's identity.
}

// put sets a value in an object or a list. A missing path is ignored.
func put(doc any, path []string, value any) {
	switch d := doc.(type) {
	case map[string]any:
		if len(path) == 1 {
			d[path[0]] = value
			return
		}
		put(d[path[0]], path[1:], value)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(d) {
			return
		}
		if len(path) == 1 {
			d[i] = value
			return
		}
		put(d[i], path[1:], value)
	}
}

// pathsOf returns the paths of all values in a document, in order.
func pathsOf(doc any, prefix []string) [][]string {
	var paths [][]string
	switch d := doc.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(d)) {
			paths = append(paths, pathsOf(d[name], append(slices.Clone(prefix), name))...)
		}
	case []any:
		for i := range d {
			paths = append(paths, pathsOf(d[i], append(slices.Clone(prefix), strconv.Itoa(i)))...)
		}
	}
	if len(prefix) > 0 {
		paths = append(paths, prefix)
	}
	return paths
}

// valueAt returns the value at a path.
func valueAt(doc any, path []string) any {
	for _, step := range path {
		switch d := doc.(type) {
		case map[string]any:
			doc = d[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(d) {
				return nil
			}
			doc = d[i]
		}
	}
	return doc
}
