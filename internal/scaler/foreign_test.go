package scaler_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// theirs returns the configuration of a VM as karpenter-provider-proxmox leaves it
// (pkg/providers/instance/instance_utils.go, instanceCreate), with options that numaform's
// own module would reset.
func theirs(vmid int) map[string]string {
	return map[string]string{
		"name": "default-x7k2p", "cores": "2", "sockets": "2", "cpu": "host,flags=+aes", "memory": "4096", "balloon": "0",
		"numa": "1", "numa0": "cpus=0-3,hostnodes=0,memory=4096,policy=bind", "affinity": "4-7",
		"net0":  fmt.Sprintf("virtio=BC:24:11:00:00:%02X,bridge=vmbr0,firewall=1,queues=2,mtu=1", vmid%256),
		"scsi0": ",discard=on,iothread=1,size=8G,ssd=1", "scsihw": "virtio-scsi-single",
		"ide2": "none,media=cdrom", "boot": "order=scsi0", "ostype": "l26", "serial0": "socket", "vga": "serial0", "onboot": "1", "cpuunits": "200",
		"smbios1":     "uuid=8c1f1c3e-64a3-4b73-b0a8-0f5d4d0d1" + fmt.Sprintf("%03d", vmid%1000) + ",serial=aD1kZWZhdWx0,sku=dDEuNHZjcHU=,base64=1",
		"description": "Karpenter managed instance, class=default, capacity-type=on-demand, affinity=4-7", "tags": "karpenter;kubernetes", "protection": "1",
	}
}

// foreign returns the VM of theirs as an adoption describes it.
func foreign(vmid fleet.VMID) fleet.VM {
	v := fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", 0xad0000+int(vmid))), VMID: vmid, Name: "default-x7k2p", Module: modules.Adopted,
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "shared", InstanceType: "t1.4vcpu-4gb", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 4096,
			Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithAffinity, Clone: fleet.CloneLinked, CPUType: "host", Tags: []string{"karpenter", "kubernetes"},
		},
		Placement: fleet.Placement{
			Host: topology.HostID{Region: testenv.Region, Host: "pve-1"}, CPUs: topology.CPUs(4, 5, 6, 7), VCPUPins: []int{4, 5, 6, 7},
			Cells:  []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(0), MemoryMiB: 4096, Policy: topology.NUMABind}},
			Reason: "a test",
		},
	}
	return v
}

func permitted(context.Context) error { return nil }

// newForeign returns a world with a VM of another tool.
func newForeign(t *testing.T, change func(map[string]string)) (*world, pvesim.GuestState) {
	t.Helper()
	w := newWorld(t)
	config := theirs(2003)
	change(config)
	testenv.ForeignVM(t, w.sim, "pve-1", 9001, 2003, config)
	before, _ := w.sim.Guest(2003)
	return w, before
}

// adopt proposes and applies the adoption of VM 2003, and returns the verdict.
func (w *world) adopt(t *testing.T, permit func(context.Context) error) (guard.Verdict, error) {
	t.Helper()
	change, err := w.ProposeAdoption(t.Context(), w.snapshot(t), []fleet.VM{foreign(2003)}, permit)
	if err != nil {
		t.Fatal(err)
	}
	var verdict guard.Verdict
	_, err = w.Apply(t.Context(), change, func(plans []scaler.RootPlan) (string, error) {
		for i := range plans {
			verdict = plans[i].Verdict
			if plans[i].Err != nil {
				return "", plans[i].Err
			}
		}
		return "somebody", nil
	})
	return verdict, err
}

// wantAdopted checks that the VM has the marker, and is otherwise as it was: it still runs,
// and has no pending changes.
func (w *world) wantAdopted(t *testing.T, before pvesim.GuestState) {
	t.Helper()
	after, exists := w.sim.Guest(2003)
	if !exists || !after.Running || len(after.Pending)+len(after.Delete) > 0 {
		t.Fatalf("VM is %+v", after)
	}
	want := maps.Clone(before.Config)
	want["tags"] = "karpenter;kubernetes;numaform;numaform-test"
	want["description"] = after.Config["description"]
	if diff := cmp.Diff(want, after.Config); diff != "" {
		t.Errorf("the configuration changed (-before +after):\n%s", diff)
	}
	if marker, ok := fleet.ParseMarker(after.Config["description"]); !ok || marker.Key != foreign(2003).Key || len(marker.Pins) > 0 {
		t.Errorf("the description is %q", after.Config["description"])
	}
}

// TestAdopt imports a VM of another tool, whatever that tool set: only its description and
// tags change, with one request. The import requires an approval, and is not undone.
func TestAdopt(t *testing.T) {
	t.Parallel()
	w, before := newForeign(t, func(map[string]string) {})
	w.sim.ResetCalls()
	verdict, err := w.adopt(t, permitted)
	if err != nil || verdict.Decision != guard.NeedsApproval {
		t.Fatalf("verdict %s, %v", verdict, err)
	}
	w.wantAdopted(t, before)
	var writes []string
	for _, call := range w.sim.Calls() {
		if call.Method != "GET" {
			writes = append(writes, call.Method+" "+call.Path)
		}
	}
	if len(writes) != 1 || !strings.HasSuffix(writes[0], "/qemu/2003/config") {
		t.Errorf("writes: %q", writes)
	}
	fleetNow, _, err := w.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.VM{foreign(2003)}, fleetNow.VMs); diff != "" {
		t.Errorf("VMs of the fleet (-want +got):\n%s", diff)
	}

	// From now on it is like any other VM.
	w.underWay(t)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 || history[0].Change.Kind != "adopt" || !history[0].Change.Names("default-x7k2p") || history[0].Change.Hosts[0].Approver != "somebody" {
		t.Fatalf("history %+v, %v", history, err)
	}
	var undo *scaler.UndoError
	if _, err := w.ProposeUndo(t.Context(), w.snapshot(t), &history[0].Change, nil); !errors.As(err, &undo) {
		t.Errorf("ProposeUndo: %v", err)
	}
	change, err := w.ProposeAdoption(t.Context(), w.snapshot(t), []fleet.VM{foreign(2003)}, permitted)
	if err != nil || !change.Empty() {
		t.Errorf("adopted again: %v, %v", change.Foreign, err)
	}
	removal, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"default-x7k2p"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), removal, approveAll); err == nil || !strings.Contains(err.Error(), "protection") {
		t.Errorf("removing a protected VM: %v", err)
	}
	guest, _ := w.sim.Guest(2003)
	delete(guest.Config, "protection")
	if err := w.sim.PutGuest(pvesim.Guest{VMID: 2003, Host: "pve-1", Running: true, Config: guest.Config}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatal(err)
	}
	w.exist(t)
}

// TestAdoptOwn adopts a VM that this fleet created and lost, with its history, as after the
// restore of an older backup: the VM keeps its key and its options, and is not created again. It does not matter whether the state still has the VM.
func TestAdoptOwn(t *testing.T) {
	t.Parallel()
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	for _, name := range []string{"state lost", "in the state"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			wanted := request(host)
			wanted.Spec.Template = testenv.Template
			first := propose(t, w.Scaler, w.snapshot(t), wanted)
			if _, err := w.Apply(t.Context(), first, approveAll); err != nil {
				t.Fatal(err)
			}
			was := first.Added[0]
			lost := []string{w.Store().Path()}
			if name != "in the state" {
				lost = append(lost, w.stateDir)
			}
			for _, dir := range lost {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			before, _ := w.sim.Guest(int(was.VMID))
			own := fleet.VM{
				Key: was.Key, VMID: was.VMID, Name: was.Name, Module: modules.Adopted,
				Spec: fleet.Spec{
					Pool: was.Pool, NodeClass: was.NodeClass, InstanceType: was.InstanceType, CapacityType: was.CapacityType,
					VCPUs: was.VCPUs, MemoryMiB: was.MemoryMiB, Policy: fleet.PolicyShared, Clone: fleet.CloneLinked, CPUType: was.CPUType,
				},
				Placement: fleet.Placement{Host: host, Reason: "returned to the fleet"},
			}
			adopt := func() *scaler.Change {
				t.Helper()
				change, err := w.ProposeAdoption(t.Context(), w.snapshot(t), []fleet.VM{own}, permitted)
				if err != nil {
					t.Fatal(err)
				}
				return change
			}
			change := adopt()
			if len(change.Foreign) != 1 {
				t.Fatalf("%+v is to be adopted", change.Foreign)
			}
			_, err := w.Apply(t.Context(), change, func(plans []scaler.RootPlan) (string, error) {
				for i := range plans {
					if plans[i].Verdict.Decision != guard.Allow {
						t.Errorf("verdict %+v", plans[i].Verdict)
					}
				}
				return "somebody", nil
			})
			if err != nil {
				t.Fatal(err)
			}
			after, exists := w.sim.Guest(int(was.VMID))
			want := maps.Clone(before.Config)
			want["description"] = after.Config["description"]
			if diff := cmp.Diff(want, after.Config); diff != "" || !exists || !after.Running || len(after.Pending)+len(after.Delete) > 0 {
				t.Errorf("VM %+v (-before +after):\n%s", after, diff)
			}
			if marker, ok := fleet.ParseMarker(after.Config["description"]); !ok || marker.Key != was.Key {
				t.Errorf("the description is %q", after.Config["description"])
			}
			w.exist(t, int(was.VMID))
			w.underWay(t)
			now, _, err := w.Fleet(t.Context())
			if diff := cmp.Diff([]fleet.VM{own}, now.VMs); err != nil || diff != "" {
				t.Errorf("VMs of the fleet (-want +got): %v\n%s", err, diff)
			}

			// From now on it is like any other VM.
			if again := adopt(); !again.Empty() {
				t.Errorf("adopted again: %v", again.Foreign)
			}
			plans, err := w.Plan(t.Context(), propose(t, w.Scaler, w.snapshot(t)))
			for i := range plans {
				if plans[i].Err != nil || plans[i].Changes() {
					t.Errorf("the next plan of %s changes the VM: %v", plans[i].Host, plans[i].Err)
				}
			}
			removal, err2 := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{was.Name})
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Apply(t.Context(), removal, approveAll); err != nil {
				t.Fatal(err)
			}
			w.exist(t)
		})
	}
}

// TestGiveBack removes marker, tags and file of an adopted VM, as a person does who gives it
// back: numaform forgets the VM without changing it, and can adopt it again. The message of
// undo names all three. A VM with tags of numaform, or with a file, is not forgotten.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	w, before := newForeign(t, func(config map[string]string) { delete(config, "protection") })
	if _, err := w.adopt(t, permitted); err != nil {
		t.Fatal(err)
	}
	w.underWay(t)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 {
		t.Fatalf("history %+v, %v", history, err)
	}
	vm := foreign(2003)
	var undo *scaler.UndoError
	_, err = w.ProposeUndo(t.Context(), w.snapshot(t), &history[0].Change, nil)
	if !errors.As(err, &undo) || !strings.Contains(err.Error(), "default-x7k2p: VM 2003 on homelab/pve-1, file "+generator.NodeFile(&vm)+", NodeClaim workers-2003") {
		t.Errorf("undo: %v", err)
	}

	put := func(edit func(config map[string]string)) {
		t.Helper()
		guest, _ := w.sim.Guest(2003)
		edit(guest.Config)
		if err := w.sim.PutGuest(pvesim.Guest{VMID: 2003, Host: "pve-1", Running: true, Config: guest.Config}); err != nil {
			t.Fatal(err)
		}
	}
	apply := func() error {
		_, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), func(plans []scaler.RootPlan) (string, error) {
			for i := range plans {
				if plans[i].Err != nil {
					return "", plans[i].Err
				}
			}
			return "somebody", nil
		})
		return err
	}
	file := filepath.Join(w.Store().Path(), generator.NodeFile(&vm))
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(file))
	put(func(config map[string]string) { config["description"] = "ours again" })
	var lost *scaler.MarkerLostError
	if err := apply(); !errors.As(err, &lost) { // the tags are still there
		t.Errorf("with the tags of numaform: %v", err)
	}
	put(func(config map[string]string) { config["tags"] = before.Config["tags"] })
	given, _ := w.sim.Guest(2003)
	w.sim.ResetCalls()
	must(t, os.WriteFile(file, content, 0o600))
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	if now, _, err := w.Fleet(t.Context()); err != nil || len(now.VMs) != 1 {
		t.Errorf("with the file, the fleet has %+v, %v", now.VMs, err)
	}
	must(t, os.Remove(file))
	for range 2 {
		if err := apply(); err != nil {
			t.Fatal(err)
		}
	}
	for _, call := range w.sim.Calls() {
		if call.Method != "GET" {
			t.Errorf("%s %s", call.Method, call.Path)
		}
	}
	if after, exists := w.sim.Guest(2003); !exists || after.Raw != given.Raw || !after.Running {
		t.Errorf("the VM is %+v", after)
	}
	if now, _, err := w.Fleet(t.Context()); err != nil || len(now.VMs) != 0 {
		t.Errorf("the fleet has %+v, %v", now.VMs, err)
	}
	if _, err := w.adopt(t, permitted); err != nil {
		t.Fatal(err)
	}
	w.wantAdopted(t, before)
}

// TestGivenBackHasNoFile checks that numaform does not change an adopted VM that has its file,
// but no marker.
func TestGivenBackHasNoFile(t *testing.T) {
	t.Parallel()
	a := foreign(2003)
	a.Host = pve1
	guest := guestOf(a)
	guest.ClusterID, guest.Key = "", ""
	view, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{a}}, Snapshot: snapshot(guest)}, pve1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = view.Compare(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{update(a, "tags", []any{}, []any{"x"})}})
	var lost *scaler.MarkerLostError
	if !errors.As(err, &lost) {
		t.Errorf("got %v, want a lost marker", err)
	}
}

// TestAdoptBareVM imports a VM with almost no options. Without scsihw, the provider would
// write its default: see proxmox.Identity.
func TestAdoptBareVM(t *testing.T) {
	t.Parallel()
	w, before := newForeign(t, func(config map[string]string) {
		maps.DeleteFunc(config, func(name, _ string) bool {
			return !slices.Contains([]string{"name", "cores", "memory", "sockets", "tags", "scsi0", "scsihw", "affinity"}, name)
		})
	})
	if _, err := w.adopt(t, permitted); err != nil {
		t.Fatal(err)
	}
	w.wantAdopted(t, before)
}

// TestAdoptStops checks that nothing is written to the VM if the last check fails, or if
// Proxmox refuses the write, and that a repeated adoption then completes. Meanwhile, no
// other change touches the VM.
func TestAdoptStops(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(w *world) (permit func(context.Context) error, repair func()){
		"the other tool started": func(*world) (func(context.Context) error, func()) {
			return func(context.Context) error { return errors.New("the lease is live") }, func() {}
		},
		"the write fails": func(w *world) (func(context.Context) error, func()) {
			return permitted, w.sim.AddFault(pvesim.Fault{Method: "PUT", Path: "/qemu/2003/config$", Status: 500, Reason: "no"})
		},
		"the other tool renamed it": func(w *world) (func(context.Context) error, func()) {
			rename := func(name string) {
				guest, _ := w.sim.Guest(2003)
				guest.Config["name"] = name
				if err := w.sim.PutGuest(pvesim.Guest{VMID: 2003, Host: "pve-1", Running: true, Config: guest.Config}); err != nil {
					t.Error(err)
				}
			}
			return func(context.Context) error { rename("accounting"); return errors.New("renamed") }, func() { rename("default-x7k2p") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, before := newForeign(t, func(map[string]string) {})
			permit, repair := stop(w)
			if _, err := w.adopt(t, permit); err == nil {
				t.Fatal("adopted")
			}
			repair()
			if after, _ := w.sim.Guest(2003); after.Raw != before.Raw {
				t.Errorf("the VM was changed:\n%s\nbefore:\n%s", after.Raw, before.Raw)
			}
			// An apply does not adopt what was not adopted.
			var lost *scaler.MarkerLostError
			_, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), func(plans []scaler.RootPlan) (string, error) {
				var problems []error
				for i := range plans {
					problems = append(problems, plans[i].Err)
				}
				return "", errors.Join(problems...)
			})
			if name != "the write fails" && !errors.As(err, &lost) { // there, the state has the VM
				t.Errorf("an apply without adoption: %v", err)
			}
			if _, err := w.adopt(t, permitted); err != nil {
				t.Fatal(err)
			}
			w.wantAdopted(t, before)
			w.underWay(t)
		})
	}
}

// TestAdoptRefuses checks the VMs that are not adopted.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	good := topology.Guest{VMID: 2003, Name: "default-x7k2p", Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 4096}
	for want, edit := range map[string]func(vm *fleet.VM, guest *topology.Guest){
		"":                 func(*fleet.VM, *topology.Guest) {},
		"widen vmid_range": func(vm *fleet.VM, guest *topology.Guest) { vm.VMID, guest.VMID = 1000, 1000 },
		"does not exist":   func(_ *fleet.VM, guest *topology.Guest) { guest.VMID = 2004 },
		"another numaform": func(_ *fleet.VM, guest *topology.Guest) {
			guest.ClusterID, guest.Key = "other", strings.Repeat("0", 32)
		},
		"of another VM": func(_ *fleet.VM, guest *topology.Guest) {
			guest.ClusterID, guest.Key = clusterID, strings.Repeat("0", 32)
		},
		"it is another VM":       func(_ *fleet.VM, guest *topology.Guest) { guest.Name = "accounting" },
		"locked (backup)":        func(_ *fleet.VM, guest *topology.Guest) { guest.Lock = "backup" },
		"does not run":           func(_ *fleet.VM, guest *topology.Guest) { guest.Running = false },
		"container or a templat": func(_ *fleet.VM, guest *topology.Guest) { guest.Template = true },
		"VMID 2001 already":      func(vm *fleet.VM, guest *topology.Guest) { vm.VMID, guest.VMID = 2001, 2001 },
		"moved from":             func(vm *fleet.VM, _ *topology.Guest) { vm.Host.Host = "pve-2" },
		"must not set templates": func(vm *fleet.VM, _ *topology.Guest) { vm.SeedStorage = "local" },
		"must have at most 63":   func(vm *fleet.VM, guest *topology.Guest) { vm.Name, guest.Name = "a.b", "a.b" },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			adopted, guest := foreign(2003), good
			adopted.Host = pve1
			edit(&adopted, &guest)
			existing := vm(pve1, 2001)
			s := newScaler(t, nil, existing)
			change, err := s.ProposeAdoption(t.Context(), snapshot(guestOf(existing), guest), []fleet.VM{adopted}, permitted)
			if want == "" {
				if err != nil || len(change.Foreign) != 1 || change.Empty() {
					t.Errorf("%+v, %v", change, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
