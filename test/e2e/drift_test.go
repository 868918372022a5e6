package e2e_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestStateLost checks that remove deletes a node after the states were lost, and changes
// no other guest. This requires an import, because a plan deletes only VMs in the state.
func TestStateLost(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	before := stage.Sim.Guests()
	states, err := stage.States()
	if err != nil || len(states) == 0 {
		t.Fatalf("states %v, %v", states, err)
	}
	for _, state := range states {
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
	}
	name := vmOf(t, stage, 2000).Name
	run(t, stage, cli.ExitOK, "remove", name, "-f", stage.Manifests(), "--auto-approve")
	for _, guest := range before {
		if after, ok := stage.Sim.Guest(guest.VMID); guest.VMID != 2000 && (!ok || after.Raw != guest.Raw) {
			t.Errorf("guest %d was changed", guest.VMID)
		}
	}
	if _, exists := stage.Sim.Guest(2000); exists {
		t.Error("the node still exists")
	}
}

// TestVMDeletedByHand checks that apply re-creates a VM that was deleted by hand, because
// its file is still in the fleet.
func TestVMDeletedByHand(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	stage.Sim.RemoveGuest(2000)
	run(t, stage, cli.ExitChanges, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}

// TestDescriptionEdited checks that, if the marker in a VM's description was overwritten,
// apply reports the line to restore and creates and removes no guest, and remove fails.
func TestDescriptionEdited(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	guest, _ := stage.Sim.Guest(2000)
	config := maps.Clone(guest.Config)
	config["description"] = "the accountants' node"
	if err := stage.Sim.PutGuest(pvesim.Guest{VMID: 2000, Host: guest.Host, Running: true, Config: config}); err != nil {
		t.Fatal(err)
	}
	before := stage.Sim.Guests()
	out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if !strings.Contains(out, "add this line to the description: numaform/1 cluster=quickstart key=") {
		t.Errorf("apply does not report the lost marker:\n%s", out)
	}
	after := stage.Sim.Guests()
	if len(after) != len(before) {
		t.Errorf("%d guests, before %d", len(after), len(before))
	}
	run(t, stage, cli.ExitFailed, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
	if _, exists := stage.Sim.Guest(2000); !exists {
		t.Error("a vm without the fleet's marker was removed")
	}
}

// TestStateLostAndNothingAsked checks that apply imports the VMs after the states were
// lost, even if no pod needs a change.
func TestStateLostAndNothingAsked(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := quickstart(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	states, err := stage.States()
	if err != nil || len(states) != 3 {
		t.Fatalf("states %v, %v, want 3", states, err)
	}
	for _, state := range states {
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
	}
	before := stage.Sim.Guests()
	out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if strings.Count(out, " to import, 0 to add") != 3 {
		t.Errorf("apply does not import on all hosts:\n%s", out)
	}
	for _, guest := range before {
		if after, ok := stage.Sim.Guest(guest.VMID); !ok || after.Raw != guest.Raw || after.Running != guest.Running {
			t.Errorf("guest %d was changed", guest.VMID)
		}
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
