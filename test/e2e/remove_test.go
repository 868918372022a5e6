package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// TestRemoveVMThatIsGone removes a node whose VM somebody deleted by hand.
func TestRemoveVMThatIsGone(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	stage.Sim.RemoveGuest(2000)
	name := vmOf(t, stage, 2000).Name
	run(t, stage, cli.ExitOK, "remove", name, "-f", stage.Manifests(), "--auto-approve")
	desired, _ := readFleet(t, stage.Fleet())
	for _, vm := range desired.VMs {
		if vm.VMID == 2000 {
			t.Errorf("vm %s is still in the fleet", vm.Name)
		}
	}
}

// TestDeletedFileIsNoRequest deletes a node file by hand: its VM stays, and comes
// back with its file.
func TestDeletedFileIsNoRequest(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	before := stage.Sim.Guests()
	paths, err := filepath.Glob(filepath.Join(stage.Fleet(), "*", "*", "node-workers-2000.tf"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("file of workers-2000: %v, %v", paths, err)
	}
	content, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitFailed, "plan", "-f", stage.Manifests())
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--auto-approve")
	for _, guest := range before {
		if after, ok := stage.Sim.Guest(guest.VMID); !ok || after.Raw != guest.Raw || after.Running != guest.Running {
			t.Errorf("guest %d was changed", guest.VMID)
		}
	}
	if err := os.WriteFile(paths[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
