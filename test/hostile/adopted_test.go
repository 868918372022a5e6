package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

// VMs of other tools: adoptedVMID is adopted, theirVMID could be, and otherVMID has the
// marker of another installation of numaform.
const (
	adoptedVMID, theirVMID, otherVMID = 2103, 2104, 2105

	otherKey fleet.Key = "0123456789abcdef0123456789abcdef"
)

// errNotApproved is the result of a change that an operator would have to approve.
var errNotApproved = errors.New("not approved")

// adoption returns a VM of another tool as numaform adopt describes it.
func (w *stateWorld) adoption(vmid fleet.VMID, name string) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", 0xad0000+int(vmid))), VMID: vmid, Name: name, Module: modules.Adopted,
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "shared", InstanceType: "t1.2VCPU-1GB", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 1024,
			Policy: fleet.PolicyShared, Clone: fleet.CloneLinked, CPUType: "host", Tags: []string{"karpenter"},
		},
		Placement: fleet.Placement{Host: w.host, Reason: "adopted; SMBIOS UUID 8c1f1c3e-64a3-4b73-b0a8-0f5d4d0d0001, MACs BC:24:11:00:10:01"},
	}
}

// adoptedWorld returns a fleet with a VM of its own and an adopted VM, beside VMs of others.
func adoptedWorld(t *testing.T) *stateWorld {
	t.Helper()
	w := newSizedWorld(t, 1)
	for vmid, name := range map[int]string{adoptedVMID: "default-k2103", theirVMID: "default-k2104", otherVMID: "default-k2105"} {
		config := map[string]string{
			"name": name, "cores": "2", "cpu": "host", "memory": "1024", "scsi0": ",size=8G", "scsihw": "virtio-scsi-single", "tags": "karpenter",
			"net0": fmt.Sprintf("virtio=BC:24:11:00:10:%02X,bridge=vmbr0", vmid-2100), "description": "Karpenter managed instance",
		}
		if vmid == otherVMID {
			config["description"] = "numaform/1 cluster=other key=" + string(otherKey)
			config["tags"] = "numaform;numaform-other"
		}
		testenv.ForeignVM(t, w.sim, "pve-1", 9001, vmid, config)
	}
	permit := func(context.Context) error { return nil }
	change, err := w.scaler.ProposeAdoption(t.Context(), w.snapshot(), []fleet.VM{w.adoption(adoptedVMID, "default-k2103")}, permit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.scaler.Apply(t.Context(), change, approveAll); err != nil {
		t.Fatal(err)
	}
	if guest, _ := w.sim.Guest(adoptedVMID); !strings.HasPrefix(guest.Config["description"], "numaform/1 cluster=hostile") {
		t.Fatalf("VM %d was not adopted: %v", adoptedVMID, guest.Config)
	}
	w.keep()
	return w
}

// push writes the fleet's files as an attacker who has the generator: every file is one that
// numaform itself could have written, except for the changes of text in it.
// It returns an error if the generator refuses the fleet.
func (w *stateWorld) push(edit func(f *fleet.Fleet), replace ...string) error {
	w.t.Helper()
	now, before, err := w.scaler.Fleet(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	edit(&now)
	after, err := generator.Render(now)
	if err != nil {
		return err
	}
	dir := filepath.Join(w.dir, "fleet")
	for name := range before {
		if _, kept := after[name]; !kept {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for name, content := range after {
		if strings.Contains(name, "/node-") {
			content = []byte(strings.NewReplacer(replace...).Replace(string(content)))
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return nil
}

// adopted returns the adopted VM in a fleet.
func adopted(f *fleet.Fleet) *fleet.VM {
	for i := range f.VMs {
		if f.VMs[i].Adopted() {
			return &f.VMs[i]
		}
	}
	return nil
}

// TestAdoptedFiles attacks a fleet with an adopted VM through its files: an attacker adds
// files that adopt VMs of others, and edits the file of the adopted VM. Nothing is written to
// any guest, whether nobody approves the change or an operator approves everything. A
// stranger's VM is adopted only by numaform adopt.
func TestAdoptedFiles(t *testing.T) {
	t.Parallel()
	w := adoptedWorld(t)
	add := func(vmid fleet.VMID, name string, change func(vm *fleet.VM)) func(*fleet.Fleet) {
		return func(f *fleet.Fleet) {
			vm := w.adoption(vmid, name)
			change(&vm)
			f.VMs = append(f.VMs, vm)
		}
	}
	edit := func(change func(vm *fleet.VM)) func(*fleet.Fleet) {
		return func(f *fleet.Fleet) { change(adopted(f)) }
	}
	same := func(*fleet.VM) {}
	for _, attack := range []struct {
		name    string
		edit    func(*fleet.Fleet)
		replace []string
		// refused is part of the error.
		refused string
	}{
		{"VM of another tool", add(theirVMID, "default-k2104", same), nil, "delete the VM's file"},
		{"VM of another tool under another name", add(theirVMID, "default-x", same), nil, "2104"},
		{"stranger's VM in the range", add(strangerInside, "accounting", same), nil, "lacks the marker"},
		{"stranger's VM outside the range", add(strangerOutside, "accounting", same), nil, "lacks the marker"},
		{"stranger's container", add(strangerContainer, "accounting", same), nil, "lacks the marker"},
		{"VM of another installation", add(otherVMID, "default-k2105", same), nil, "2105"},
		{"VM of another installation with its key", add(otherVMID, "default-k2105", func(vm *fleet.VM) { vm.Key = otherKey }), nil, "2105"},
		{"VM that does not exist", add(2199, "default-k2199", same), nil, "default-k2199"},
		{"the adopted VM twice", add(2198, "default-x", same), []string{"= 2198", "= 2103"}, "default-k2103"},
		{"VMID of another tool's VM", edit(func(vm *fleet.VM) { vm.VMID = theirVMID }), nil, "default-k2103"},
		{"VMID of a stranger's VM", edit(func(vm *fleet.VM) { vm.VMID = strangerInside }), nil, "default-k2103"},
		{"VMID of another installation's VM", edit(func(vm *fleet.VM) { vm.VMID, vm.Key = otherVMID, otherKey }), nil, "default-k2103"},
		{"key", edit(func(vm *fleet.VM) { vm.Key = otherKey }), nil, "2103"},
		{"cluster of the marker", edit(same), []string{"numaform/1 cluster=hostile key=" + "00000000000000000000000000ad0837", "numaform/1 cluster=other key=00000000000000000000000000ad0837"}, "default-k2103"},
		{"UUID and MAC", edit(func(vm *fleet.VM) { vm.Reason = "adopted; SMBIOS UUID none, MACs none" }), nil, "default-k2103"},
		{"tags", edit(func(vm *fleet.VM) { vm.Tags = append(vm.Tags, "debug") }), nil, "default-k2103"},
		{"name", edit(func(vm *fleet.VM) { vm.Name = "accounting" }), nil, "accounting"},
		{"own VM as an adopted one", func(f *fleet.Fleet) {
			own, as := &f.VMs[0], w.adoption(0, "")
			if own.Adopted() {
				own = &f.VMs[1]
			}
			as.Key, as.VMID, as.Name = own.Key, own.VMID, own.Name
			*own = as
		}, nil, "workers-"},
	} {
		for _, approver := range []struct {
			name    string
			approve func([]scaler.RootPlan) (string, error)
		}{
			{"nobody approves", func(plans []scaler.RootPlan) (string, error) {
				for i := range plans {
					if plans[i].Err != nil || plans[i].Verdict.Decision != guard.Allow {
						return "", fmt.Errorf("%w: %w", errNotApproved, errors.Join(plans[i].Err, errors.New(plans[i].Verdict.String())))
					}
				}
				return "", nil
			}},
			{"everything is approved", approveAll},
		} {
			t.Run(attack.name+"/"+approver.name, func(t *testing.T) {
				w.t = t
				w.restore()
				if err := w.push(attack.edit, attack.replace...); err != nil {
					t.Fatal(err)
				}
				change, err := w.scaler.Propose(t.Context(), w.snapshot(), nil, nil)
				if err == nil {
					_, err = w.scaler.Apply(t.Context(), change, approver.approve)
				}
				if err == nil || !strings.Contains(err.Error(), attack.refused) {
					t.Errorf("got %v, want an error with %q", err, attack.refused)
				}
				for _, call := range w.sim.Calls() {
					if call.Method != "GET" {
						t.Errorf("%s %s %v", call.Method, call.Path, call.Params)
					}
				}
				w.sameGuests()
			})
		}
	}
}

// sameGuests checks that all guests are as they were before any attack.
func (w *stateWorld) sameGuests() {
	w.t.Helper()
	now := map[int]pvesim.GuestState{}
	for _, guest := range w.sim.Guests() {
		now[guest.VMID] = guest
	}
	if len(now) != len(w.guests) {
		w.t.Errorf("%d guests, want %d", len(now), len(w.guests))
	}
	for vmid, before := range w.guests {
		if now[vmid].Raw != before.Raw || now[vmid].Running != before.Running {
			w.t.Errorf("guest %d, running %v, changed:\n%s", vmid, now[vmid].Running, now[vmid].Raw)
		}
	}
}
