package scaler_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
)

// TestPlaces checks how Places divides VMs in each phase, with and without a file.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var states []scaler.VMState
	for _, phase := range []scaler.Phase{
		scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade, scaler.PhaseFailed, scaler.PhasePendingApproval, scaler.PhaseRemoving,
	} {
		for _, filed := range []bool{false, true} {
			states = append(states, scaler.VMState{VM: vm(pve1, fleet.VMID(2000+len(states))), Phase: phase, Filed: filed})
		}
	}
	pods, rest := scaler.Places(states)
	if diff := cmp.Diff([]fleet.VMID{2000, 2001, 2002, 2003, 2004, 2005}, ids(pods)); diff != "" {
		t.Errorf("take pods (-want +got):\n%s", diff)
	}
	// A VM that is pending approval and has a file is a standby VM to be woken.
	if diff := cmp.Diff([]fleet.VMID{2007, 2009, 2010, 2011}, ids(rest)); diff != "" {
		t.Errorf("hold their places only (-want +got):\n%s", diff)
	}
}
