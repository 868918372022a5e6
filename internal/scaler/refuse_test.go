package scaler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
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

// refusing is a store whose operations fail on demand.
type refusing struct {
	store.Store
	reads, begins atomic.Bool
}

func (r *refusing) Read(ctx context.Context) (generator.Files, store.Revision, error) {
	if r.reads.Load() {
		return nil, "", errors.New("cannot reach the remote")
	}
	return r.Store.Read(ctx)
}

func (r *refusing) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	if r.begins.Load() {
		return errors.New("the branch is protected")
	}
	return r.Store.Begin(ctx, base, files, change)
}

// TestPostponedChanges checks that a VM reports for how long no change could begin, and why,
// and is created as soon as one can.
func TestPostponedChanges(t *testing.T) {
	t.Parallel()
	fleetStore := &refusing{}
	w := newWorldWith(t, func(c *scaler.Config) {
		fleetStore.Store = c.Store
		c.Store = fleetStore
	})
	writer := w.run(t, nil)
	fleetStore.begins.Store(true)
	ensure(t, writer, on(first))
	var since time.Time
	for _, text := range []string{"the branch is protected", "cannot reach the remote"} {
		await(t, writer, func(states []scaler.VMState) bool {
			outage := scaler.OutageOf(&states[0])
			if outage == nil || !strings.Contains(outage.Summary(), text) {
				return false
			}
			reason, began := outage.Cause()
			if reason != v1alpha1.ReasonChangePostponed || !since.IsZero() && !began.Equal(since) || states[0].Phase != scaler.PhaseReserved {
				t.Errorf("%s since %s, phase %s, want since %s", reason, began, states[0].Phase, since)
			}
			since = began
			return true
		})
		fleetStore.reads.Store(true)
	}
	w.exist(t)
	fleetStore.begins.Store(false)
	fleetStore.reads.Store(false)
	if state := phases(t, writer, scaler.PhaseMade)[0]; state.Err != nil {
		t.Errorf("a VM that was created waits: %v", state.Err)
	}
}

// TestPostponedChangesEnd checks that a VM no longer reports an outage that is over, although it
// still waits for another change of its host.
func TestPostponedChangesEnd(t *testing.T) {
	t.Parallel()
	fleetStore := &refusing{}
	w := newWorldWith(t, func(c *scaler.Config) {
		fleetStore.Store = c.Store
		c.Store = fleetStore
	})
	reached, release := make(chan struct{}), make(chan struct{})
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		close(reached)
		select {
		case <-release:
		case <-ctx.Done():
		}
	}})
	writer := w.run(t, nil)
	ensure(t, writer, on(first))
	<-reached
	fleetStore.reads.Store(true)
	ensure(t, writer, on(first))
	postponed := func(states []scaler.VMState) bool { return scaler.OutageOf(&states[1]) != nil }
	await(t, writer, postponed)
	fleetStore.reads.Store(false)
	await(t, writer, func(states []scaler.VMState) bool {
		return states[1].Phase == scaler.PhaseReserved && !postponed(states)
	})
	close(release)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
}
