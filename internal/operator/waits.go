package operator

import (
	"fmt"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// waitsOf returns why new nodes of a NodePool wait: because of a limit, for a plan that has
// not begun, for the approval of a reserved VM, or for the end of an outage.
func waitsOf(pool string, planned []scheduling.Wait, states []scaler.VMState) []scheduling.Wait {
	var waits []scheduling.Wait
	for _, wait := range planned {
		if wait.NodePool == pool {
			waits = append(waits, wait)
		}
	}
	for i := range states {
		state := &states[i]
		if state.VM.Pool != pool || state.Phase == scaler.PhaseMade {
			continue
		}
		if outage := scaler.OutageOf(state); outage != nil {
			reason, since := outage.Cause()
			waits = append(waits, scheduling.Wait{NodePool: pool, Reason: reason, Since: since, Message: outage.Summary()})
		} else if state.Phase == scaler.PhasePendingApproval {
			waits = append(waits, scheduling.Wait{
				NodePool: pool, Reason: v1alpha1.ReasonPendingApproval,
				Message: fmt.Sprintf("VM %s on %s waits for approval: to list the plans, run numaform plans", state.VM.Name, state.VM.Host),
			})
		}
	}
	return waits
}
