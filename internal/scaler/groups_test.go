package scaler_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestGroupsLeaveWithTheirVM destroys a VM with security groups by hand. The re-created VM
// gets the groups, too, although the state records them as set. When this VM has also been
// destroyed by hand, it can be removed from the fleet.
func TestGroupsLeaveWithTheirVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	guarded := request(topology.HostID{Region: testenv.Region, Host: "pve-1"})
	guarded.Spec.Template, guarded.Spec.SecurityGroups = testenv.Template, []string{"k8s"}
	guarded.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), guarded), approveAll); err != nil {
		t.Fatal(err)
	}
	w.sim.RemoveGuest(2000)
	w.sim.ResetCalls()
	if results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t, 2000)
	set := false
	for _, call := range w.sim.Calls() {
		set = set || (call.Method == "POST" && strings.HasSuffix(call.Path, "/qemu/2000/firewall/rules") && call.Params["action"] == "k8s")
	}
	if !set {
		t.Error("the VM was made again without its security groups")
	}

	w.sim.RemoveGuest(2000)
	change, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	if results, err := w.Apply(t.Context(), change, approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t)
	w.underWay(t)
}
