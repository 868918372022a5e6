package nodeclass_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/nodeclass"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// running is a fleet that records the VMs that it should update.
type running struct {
	states []scaler.VMState
	asked  []fleet.VM
}

func (*running) Synced() bool { return true }

func (r *running) VMs() []scaler.VMState { return r.states }

func (r *running) Update(vms ...fleet.VM) { r.asked = append(r.asked, vms...) }

func TestVMsFollowTheirClass(t *testing.T) {
	member := func(name, class, pool string, phase scaler.Phase) scaler.VMState {
		return scaler.VMState{Phase: phase, VM: fleet.VM{
			Name: name, Spec: fleet.Spec{NodeClass: class, ResourcePool: pool, Tags: []string{"old"}},
			Placement: fleet.Placement{Host: topology.HostID{Region: "lab", Host: "pve-1"}},
		}}
	}
	fleetOf := &running{states: []scaler.VMState{
		member("a", "ready", "workers", scaler.PhaseMade), member("b", "ready", "locked", scaler.PhaseMade),
		member("c", "ready", "workers", scaler.PhaseRemoving), member("d", "unread", "workers", scaler.PhaseMade),
		member("e", "nobodys", "workers", scaler.PhaseMade), member("f", "ready", "locked", scaler.PhaseMade),
	}}
	c := newClient(t)
	for _, name := range []string{"ready", "unread"} {
		nc := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "inplace-" + name}}
		nc.Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithHostAgent, Emulator: v1alpha1.EmulatorShared}
		nc.Spec.Template.Name, nc.Spec.Tags, nc.Spec.Pool, nc.Spec.SecurityGroups = "debian", []string{"z", "a"}, "workers", []string{"k8s"}
		if err := c.Create(t.Context(), nc); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(context.Background(), nc) })
		nc.StatusConditions().SetTrue(v1alpha1.ConditionValid)
		nc.StatusConditions().SetTrue(v1alpha1.ConditionPlacementReady)
		if err := c.Status().Update(t.Context(), nc); err != nil {
			t.Fatal(err)
		}
		if name == "unread" { // its current generation was not validated yet
			nc.Spec.Tags = []string{"new"}
			if err := c.Update(t.Context(), nc); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The host agent places the emulator threads only of VMs that it pins.
	fleetOf.states[0].VM.Policy, fleetOf.states[0].VM.PinWith = fleet.PolicyDedicated, fleet.PinWithHostAgent
	fleetOf.states[1].VM.Policy, fleetOf.states[1].VM.PinWith = fleet.PolicyDedicated, fleet.PinWithAffinity
	for i := range fleetOf.states {
		fleetOf.states[i].VM.NodeClass = "inplace-" + fleetOf.states[i].VM.NodeClass
	}
	told, moves := &recorder{}, 0
	controller := nodeclass.NewInPlace(nodeclass.InPlaceConfig{
		Client: c, Recorder: told, Fleet: fleetOf,
		MayMove: func(_ context.Context, _ topology.RegionName, from, _ string) error {
			moves++
			if from == "locked" {
				return errors.New("no Pool.Allocate")
			}
			return nil
		},
	})
	if _, err := controller.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, vm := range fleetOf.asked {
		got = append(got, strings.Join([]string{vm.Name, strings.Join(vm.Tags, ","), vm.ResourcePool, strings.Join(vm.SecurityGroups, ","), string(vm.Emulator)}, " "))
	}
	if diff := cmp.Diff([]string{"a a,z workers k8s shared", "b a,z locked k8s ", "f a,z locked k8s "}, got); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	if messages := told.messages(nodeclass.ReasonPoolKept); len(messages) != 1 || !strings.Contains(messages[0], "Pool.Allocate") {
		t.Errorf("told %q", messages)
	}
	if moves != 1 { // one query for all VMs of a pool
		t.Errorf("asked Proxmox %d times whether VMs may move", moves)
	}
}
