package scaler_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// TestWriterFailsOneVMAlone requests VMs of which one cannot be rendered, and one may not
// be pinned: the others are created in the same change.
func TestWriterFailsOneVMAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	unwritable, pinned := on(first), on(first)
	unwritable.Spec.Tags = []string{"Not A Tag"}
	pinned.Spec.Policy, pinned.Spec.PinWith, pinned.Spec.Overcommit = fleet.PolicyDedicated, fleet.PinWithAffinity, 0
	pinned.Placement.CPUs, pinned.Placement.VCPUPins = topology.CPUs(0, 1), []int{0, 1}
	vms := ensure(t, writer, unwritable, pinned, on(first), on(second))
	states := phases(t, writer, scaler.PhaseFailed, scaler.PhaseFailed, scaler.PhaseMade, scaler.PhaseMade)
	if !strings.Contains(states[0].Err.Error(), "Not A Tag") || !as[*scaler.RootOnlyError](states[1].Err) {
		t.Errorf("they failed for %v and %v", states[0].Err, states[1].Err)
	}
	w.exist(t, int(vms[2].VMID), int(vms[3].VMID))

	// A VM that cannot be rendered does not stop updates of others in place either.
	writer.Update(tagged(vms[2], "Neither This"), tagged(vms[3], "blue"))
	await(t, writer, func(states []scaler.VMState) bool {
		return states[2].ChangeErr != nil && !states[3].Changing && len(states[3].VM.Tags) > 0
	})
	w.hasTags(t, vms[3], "blue")
	w.hasTags(t, vms[2])
	w.underWay(t)
}
