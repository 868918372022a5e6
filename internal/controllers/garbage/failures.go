package garbage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
)

// failures gives up VMs that could not be created: it reports why, prevents an immediate
// identical attempt, and deletes their claims so that the pods are scheduled again.
type failures struct {
	config  Config
	backoff *backoff
	// reported is the time at which each reported failure began, by VM.
	reported map[fleet.Key]time.Time
	// claimless are failed VMs without a claim.
	claimless since[fleet.Key]
}

func (*failures) name() string { return "failures" }

func (*failures) every() time.Duration { return failuresPeriod }

// concerns reports true while a VM has failed or waits, and once more afterwards. A pass
// reads all nodes, which is too expensive every two seconds while nothing fails.
func (f *failures) concerns() bool {
	waits := func(state *scaler.VMState) bool {
		return state.Phase == scaler.PhaseFailed || state.Phase == scaler.PhasePendingApproval || state.Phase == scaler.PhaseRemoving && state.Err != nil ||
			outageOf(state) != nil
	}
	return len(f.reported)+len(f.claimless) > 0 || f.config.Writer.Any(waits)
}

func (f *failures) run(ctx context.Context, v *view) error {
	var errs []error
	var claimless []fleet.Key
	reported := map[fleet.Key]time.Time{}
	for _, state := range v.states {
		// The writer has given up a failed VM. The next leader completes a canceled change.
		failed := state.Phase == scaler.PhaseFailed && !errors.Is(state.Err, context.Canceled)
		if !failed && state.Phase != scaler.PhasePendingApproval {
			continue
		}
		key := state.VM.Key
		if !f.reported[key].Equal(state.Since) {
			f.report(ctx, v, state)
		}
		reported[key] = state.Since
		claim := v.byKey[key]
		if claim == nil {
			claimless = append(claimless, key)
			continue
		}

		// Karpenter removes the VM of a deleted claim, after draining its Node if it has
		// one. It does not if the claim was never launched.
		if v.paused || !claim.DeletionTimestamp.IsZero() {
			continue
		}
		if err := f.config.deleteClaim(ctx, claim); err != nil {
			errs = append(errs, err)
			continue
		}
		if claim.Status.ProviderID == "" && v.nodeOf(state.VM) == nil {
			f.config.Writer.Remove(key)
		}
	}
	f.reported = reported

	// Report why VMs that are being removed still exist. The writer retries their removal.
	for _, state := range v.states {
		if state.Phase != scaler.PhaseRemoving || state.Err == nil {
			continue
		}
		vm := state.VM
		f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonRemovalWaits,
			fmt.Sprintf("removal of VM %s on %s is blocked: %s", vm.Name, vm.Host, brief(state.Err)))
	}

	f.reportOutages(v)

	lasting := f.claimless.lasting(claimless, v.now, grace)
	for _, key := range claimless {
		if lasting[key] {
			errs = append(errs, f.config.release(ctx, v, v.vms[key]))
		}
	}
	return errors.Join(errs...)
}

// reportOutages publishes an event on the claim of each VM that waits for the end of an
// outage.
func (f *failures) reportOutages(v *view) {
	for i := range v.states {
		state := &v.states[i]
		outage := outageOf(state)
		if claim := v.byKey[state.VM.Key]; outage != nil && claim != nil {
			reason, since := outage.Cause()
			f.config.Recorder.Publish(warning(claim, reason, brief(outage), since.String()))
		}
	}
}

// outageOf returns the outage for which a VM that is not created yet waits, or nil.
func outageOf(state *scaler.VMState) scaler.Outage {
	if state.Phase != scaler.PhaseReserved && state.Phase != scaler.PhaseMaking {
		return nil
	}
	return scaler.OutageOf(state)
}

// report reports why a VM was given up, and makes the affected offerings unavailable. A VM
// that is pending approval has not failed: its offering must still be available after the
// approval.
func (f *failures) report(ctx context.Context, v *view, state scaler.VMState) {
	vm := state.VM
	if state.Phase == scaler.PhasePendingApproval {
		f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonHeld, fmt.Sprintf(
			"VM %s on %s is pending approval: %s", vm.Name, vm.Host, brief(state.Err),
		))
		return
	}
	if gone := new(scaler.VanishedError); errors.As(state.Err, &gone) {
		f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonVMGone, brief(gone))
		log.FromContext(ctx).Info("gave up vm that another client removed", logkey.VM, vm.Name, logkey.VMID, vm.VMID, logkey.Host, vm.Host.String())
		return
	}
	offerings := v.affectedOfferings(vm, state.Err)
	message := fmt.Sprintf("creating VM %s on %s failed: %s", vm.Name, vm.Host, brief(state.Err))
	if len(offerings) > 0 {
		until := f.backoff.close(vm.NodeClass, offerings, v.now)
		message += fmt.Sprintf("; numaform does not create such a VM there before %s", until.UTC().Format(time.RFC3339))
	}
	f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonFailed, message)
	log.FromContext(ctx).Info("gave up vm", logkey.VM, vm.Name, logkey.VMID, vm.VMID, logkey.Host, vm.Host.String(),
		logkey.NodePool, vm.Pool, logkey.Reason, brief(state.Err))
}

// deleteClaim deletes this claim, but not a later claim with the same name.
func (c *Config) deleteClaim(ctx context.Context, claim *karpv1.NodeClaim) error {
	if err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting NodeClaim %s: %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("deleted nodeclaim", logkey.NodeClaim, claim.Name)
	return nil
}
