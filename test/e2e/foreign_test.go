package e2e_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// stranger returns an unmanaged VM with the first VMID that numaform plans.
func stranger(host string) pvesim.Guest {
	return pvesim.Guest{
		VMID: 2000, Host: host, Running: true,
		Config: map[string]string{"name": "accounting", "cores": "2", "memory": "4096", "description": "do not touch", "scsi0": "local-lvm:vm-2000-disk-0,size=32G"},
	}
}

// TestStrangerTakesVMID checks that an unmanaged VM that takes a planned VMID, either
// between plan and apply or just before the engine clones, does not change, and that the
// next apply creates the fleet's VM with another VMID.
func TestStrangerTakesVMID(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// at is the call during which the unmanaged VM is created.
		at holding
	}{
		{"before the apply", holding{"GET", `^/cluster/resources`}},
		{"before the clone", holding{"POST", `/clone$`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stage := oneHost(t)
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--out", stage.Fleet(), "--no-engine")
			host := string(vmOf(t, stage, 2000).Host.Host)
			skip := 0
			if tt.at.method == "GET" {
				// The first call is the snapshot for the plan.
				skip = 1
			}
			raw := intrude(t, stage, tt.at, skip, host)
			if got := raw(); got == "" {
				t.Fatal("the unmanaged VM was not created")
			}
			// The next apply creates the refused VM with another VMID.
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			guest, ok := stage.Sim.Guest(2000)
			if !ok || guest.Raw != raw() {
				t.Errorf("the unmanaged VM was changed:\n%s\nbefore:\n%s", guest.Raw, raw())
			}
			desired, _ := readFleet(t, kept(t, stage))
			if slices.ContainsFunc(desired.VMs, func(vm fleet.VM) bool { return vm.VMID == 2000 }) {
				t.Error("a vm of the fleet has the VMID of the unmanaged VM")
			}
			for _, vm := range desired.VMs {
				if got, ok := stage.Sim.Guest(int(vm.VMID)); !ok || got.Config["name"] != vm.Name {
					t.Errorf("vm %s was not created", vm.Name)
				}
			}
			for _, call := range stage.Sim.Calls() {
				if call.Method != "GET" && strings.Contains(call.Path, "/qemu/2000/") {
					t.Errorf("the unmanaged VM was written to: %s %s", call.Method, call.Path)
				}
			}
		})
	}
}

// vmOf returns the fleet's VM with that VMID.
func vmOf(t *testing.T, stage *demo.Stage, vmid fleet.VMID) fleet.VM {
	t.Helper()
	desired, _ := readFleet(t, kept(t, stage))
	for _, vm := range desired.VMs {
		if vm.VMID == vmid {
			return vm
		}
	}
	t.Fatalf("no vm has VMID %d", vmid)
	return fleet.VM{}
}

// intrude runs apply, creates the unmanaged VM during a delayed call, and checks that the
// apply fails. It returns a function that returns the original configuration of the
// unmanaged VM.
func intrude(t *testing.T, stage *demo.Stage, at holding, skip int, host string) func() string {
	t.Helper()
	stage.Sim.AddFault(pvesim.Fault{Method: at.method, Path: at.path, Skip: skip, Delay: holdTime})
	done := make(chan int, 1)
	go func() {
		_, code := stage.Numaform(context.Background(), "apply", "-f", stage.Manifests(), "--auto-approve")
		done <- code
	}()
	held(t, stage, []holding{at})
	if _, exists := stage.Sim.Guest(2000); exists {
		t.Fatal("the unmanaged VM was created too late")
	}
	if err := stage.Sim.PutGuest(stranger(host)); err != nil {
		t.Fatal(err)
	}
	guest, _ := stage.Sim.Guest(2000)
	select {
	case code := <-done:
		if code != cli.ExitFailed {
			t.Errorf("apply onto a taken VMID: exit code %d, want %d", code, cli.ExitFailed)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("apply did not end")
	}
	return func() string { return guest.Raw }
}

// TestStrangerTakesVMIDOfLostVM checks that an unmanaged VM with the VMID of a VM that was
// deleted by hand does not change, although the state still contains the deleted VM, and
// that apply creates the deleted VM with another VMID.
func TestStrangerTakesVMIDOfLostVM(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	lost, _ := stage.Sim.Guest(2000)
	wanted, _ := readFleet(t, stage.Fleet())
	stage.Sim.RemoveGuest(2000)
	if err := stage.Sim.PutGuest(stranger(lost.Host)); err != nil {
		t.Fatal(err)
	}
	before, _ := stage.Sim.Guest(2000)
	run(t, stage, cli.ExitChanges, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if after, _ := stage.Sim.Guest(2000); after.Raw != before.Raw || !after.Running {
		t.Errorf("the unmanaged VM was changed:\n%s\nbefore:\n%s", after.Raw, before.Raw)
	}
	desired, _ := readFleet(t, kept(t, stage))
	if len(desired.VMs) != len(wanted.VMs) {
		t.Errorf("%d VMs after one was lost, before %d", len(desired.VMs), len(wanted.VMs))
	}
	for _, vm := range desired.VMs {
		if guest, ok := stage.Sim.Guest(int(vm.VMID)); !ok || guest.Config["name"] != vm.Name {
			t.Errorf("vm %s was not created", vm.Name)
		}
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
