package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestRemoveMovedVM checks that plan and apply change nothing after a VM was moved to
// another host by hand, even though another VM has drifted, and that remove deletes only
// the moved VM. The state contains the new host only after a refresh.
func TestRemoveMovedVM(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	edit(t, stage, "manifests/nodepools.yaml", "clone: linked", "clone: full")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	migrate(t, stage, 2002, "pve-3")
	byHand(t, stage, 2005, map[string]string{"cores": "3"})
	moved := drift(t, stage, cli.ExitChanges)[2002]
	if notes := strings.Join(moved.Notes, "\n"); moved.Class != "moved" || !strings.Contains(notes, "were chosen on pve-2 and are different CPUs on pve-3") ||
		!strings.Contains(notes, "topology.kubernetes.io/zone is still pve-2") || !strings.Contains(notes, "pve-3 has no CPUs 42,46,50,54") {
		t.Errorf("got %+v", moved)
	}
	// The moved VM causes no change and blocks none.
	before := stage.Sim.Guests()
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	asTheyWere(t, stage, before)

	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2002).Name, "-f", stage.Manifests(), "--auto-approve")
	if guest, exists := stage.Sim.Guest(2002); exists {
		t.Errorf("the moved VM is still on %s", guest.Host)
	}
	for _, guest := range before {
		if after, exists := stage.Sim.Guest(guest.VMID); guest.VMID != 2002 && (!exists || after.Raw != guest.Raw) {
			t.Errorf("guest %d was changed", guest.VMID)
		}
	}
	desired, _ := readFleet(t, stage.Fleet())
	for _, vm := range desired.VMs {
		if vm.VMID == 2002 {
			t.Errorf("vm %s is still in the fleet", vm.Name)
		}
	}
}

// TestRemoveMovedVMOfDeadHost checks that remove changes no other guest if it deletes a VM
// that high availability restarted on another host after the VM's host failed.
func TestRemoveMovedVMOfDeadHost(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := quickstart(t)
	edit(t, stage, "manifests/nodepools.yaml", "clone: linked", "clone: full")
	edit(t, stage, "manifests/nodepools.yaml", "  placement: {policy: Shared, overcommit: \"2\"}\n",
		"  placement: {policy: Shared, overcommit: \"2\"}\n  networks: [{bridge: vmbr0, firewall: true}]\n  securityGroups: [k8s]\n")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	migrate(t, stage, 2005, "pve-3")
	stage.Sim.SetHostOnline("pve-2", false)
	vms := drift(t, stage, cli.ExitChanges)
	if vms[2005].Class != "moved" || vms[2004].Class != "unknown" || vms[2007].Class != "in sync" {
		t.Errorf("got %+v", vms)
	}
	before := stage.Sim.Guests()
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2005).Name, "-f", stage.Manifests(), "--auto-approve")
	left := slices.DeleteFunc(before, func(guest pvesim.GuestState) bool { return guest.VMID == 2005 })
	asTheyWere(t, stage, left)
}
