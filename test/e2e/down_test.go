package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestHostDown checks that, during a scale-up while a host with VMs is down, plan reports
// the host, new VMs are created on other hosts only, and no guest of the host changes.
func TestHostDown(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	before, _ := readFleet(t, stage.Fleet())
	on := func(host string) []pvesim.GuestState {
		return slices.DeleteFunc(stage.Sim.Guests(), func(g pvesim.GuestState) bool { return g.Host != host })
	}
	there := on("pve-3")
	if len(there) < 2 { // the template and one VM
		t.Fatalf("pve-3 has guests %v, want some", there)
	}
	stage.Sim.SetHostOnline("pve-3", false)
	edit(t, stage, "manifests/pods.yaml", "replicas: 12", "replicas: 60")
	out := run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests())
	if !strings.Contains(out, "homelab/pve-3: host homelab/pve-3 cannot be used") {
		t.Errorf("plan does not report that pve-3 is down:\n%s", out)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	after, _ := readFleet(t, stage.Fleet())
	grown := slices.DeleteFunc(slices.Clone(after.VMs), func(vm fleet.VM) bool {
		return slices.ContainsFunc(before.VMs, func(old fleet.VM) bool { return old.Key == vm.Key })
	})
	if len(grown) == 0 {
		t.Error("no vm was added")
	}
	for _, vm := range grown {
		if guest, ok := stage.Sim.Guest(int(vm.VMID)); vm.Host.Host == "pve-3" || !ok || !guest.Running {
			t.Errorf("vm %s on %s: exists %t, running %t", vm.Name, vm.Host, ok, guest.Running)
		}
	}
	for i, guest := range on("pve-3") {
		if guest.Raw != there[i].Raw {
			t.Errorf("guest %d of the host that is down was changed", guest.VMID)
		}
	}
}
