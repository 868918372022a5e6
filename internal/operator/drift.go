package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
)

// reasonDrifted is the event reason for VMs that differ from their files.
const reasonDrifted = "VMDrifted"

// driftWatch periodically compares all VMs with Proxmox, by a full plan of each host, and
// reports the differences. It fixes nothing.
type driftWatch struct {
	*builder
	scaler   *scaler.Scaler
	vms      func() []scaler.VMState
	observer *metrics.Observer
}

// run checks until ctx ends.
func (d *driftWatch) run(ctx context.Context) error {
	ticker := time.NewTicker(d.settings.DriftEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := d.check(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "could not check for drift")
		}
	}
}

// check compares all VMs once, and publishes an event for each VM that differs.
func (d *driftWatch) check(ctx context.Context) error {
	before := d.vms()
	snapshot, err := d.inventory.Snapshot(ctx)
	if err != nil {
		return err
	}
	found, err := d.scaler.Drift(ctx, snapshot)
	if err != nil {
		return err
	}
	found = settled(found, before, d.vms())
	d.observer.Drifted(found)
	for i := range found {
		for _, vm := range found[i].VMs {
			if vm.Class == scaler.DriftNone {
				continue
			}
			text := fmt.Sprintf("vm %s on %s: %s", vm.VM.Name, cmp.Or(vm.Host, vm.VM.Host), vm.Class)
			if vm.Advice != "" {
				text += ": " + vm.Advice
			}
			log.FromContext(ctx).Info("found drift", logkey.VM, vm.VM.Name, logkey.Reason, text)
			d.recorder.Publish(events.Event{
				InvolvedObject: d.self(),
				Type:           corev1.EventTypeWarning,
				Reason:         reasonDrifted,
				Message:        text,
				DedupeValues:   []string{vm.VM.Name, string(vm.Class)},
			})
		}
	}
	return nil
}

// settled returns the drift without the VMs that numaform created, woke or removed between two
// states of the fleet: they have a file but do not exist yet, or the other way round.
func settled(found []scaler.RootDrift, before, after []scaler.VMState) []scaler.RootDrift {
	phases := func(states []scaler.VMState) map[fleet.Key]scaler.Phase {
		all := map[fleet.Key]scaler.Phase{}
		for i := range states {
			all[states[i].VM.Key] = states[i].Phase
		}
		return all
	}
	was, is := phases(before), phases(after)
	busy := []scaler.Phase{scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseRemoving}
	for i := range found {
		found[i].VMs = slices.DeleteFunc(found[i].VMs, func(vm scaler.VMDrift) bool {
			key := vm.VM.Key
			return was[key] != is[key] || slices.Contains(busy, is[key])
		})
	}
	return found
}
