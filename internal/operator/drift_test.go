package operator_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
)

// TestSettled checks that the drift check reports no VM that numaform created or removed
// meanwhile, but the VMs that did not change, and guests of which the fleet knows nothing.
func TestSettled(t *testing.T) {
	t.Parallel()
	states := func(phases map[fleet.Key]scaler.Phase) (all []scaler.VMState) {
		for key, phase := range phases {
			all = append(all, scaler.VMState{VM: fleet.VM{Key: key}, Phase: phase})
		}
		return all
	}
	before := states(map[fleet.Key]scaler.Phase{
		"lasting": scaler.PhaseMade, "failed": scaler.PhaseFailed, "created": scaler.PhaseMaking, "creating": scaler.PhaseMaking,
		"removing": scaler.PhaseRemoving, "removed": scaler.PhaseRemoving, "begun": scaler.PhaseMade,
	})
	after := states(map[fleet.Key]scaler.Phase{
		"lasting": scaler.PhaseMade, "failed": scaler.PhaseFailed, "created": scaler.PhaseMade, "creating": scaler.PhaseMaking,
		"removing": scaler.PhaseRemoving, "begun": scaler.PhaseRemoving, "new": scaler.PhaseMade,
	})
	found := []scaler.RootDrift{{}}
	for _, key := range []fleet.Key{"begun", "created", "creating", "failed", "lasting", "new", "removed", "removing", "stray"} {
		found[0].VMs = append(found[0].VMs, scaler.VMDrift{VM: fleet.VM{Key: key}, Class: scaler.DriftVanished})
	}
	var got []fleet.Key
	for _, vm := range operator.Settled(found, before, after)[0].VMs {
		got = append(got, vm.VM.Key)
	}
	if diff := cmp.Diff([]fleet.Key{"failed", "lasting", "stray"}, got); diff != "" {
		t.Errorf("VMs with drift (-want +got):\n%s", diff)
	}
}
