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
// identical attempt, and makes pods look for another place.
type failures struct {
	config  Config
	closing *closing
	// told are the reported failures, by the time of their start.
	told map[fleet.Key]time.Time
	// claimless are failed VMs without a claim.
	claimless since[fleet.Key]
	// waits are the last reported reasons for which removals wait.
	waits map[fleet.Key]string
}

func newFailures(config Config, closing *closing) *failures {
	return &failures{config: config, closing: closing, told: map[fleet.Key]time.Time{}, claimless: since[fleet.Key]{}}
}

func (*failures) name() string { return "failures" }

func (*failures) every() time.Duration { return eager }

func (f *failures) run(ctx context.Context, v *view) error {
	var errs []error
	var claimless []fleet.Key
	told := map[fleet.Key]time.Time{}
	for _, state := range v.states {
		if !gaveUp(state) {
			continue
		}
		if !f.told[state.VM.Key].Equal(state.Since) {
			f.tell(ctx, v, state)
		}
		told[state.VM.Key] = state.Since
		if claim := v.byKey[state.VM.Key]; claim != nil {
			errs = append(errs, f.giveUp(ctx, v, state, claim))
		} else {
			claimless = append(claimless, state.VM.Key)
		}
	}
	f.told = told
	f.tellWaiting(v)
	lasting := f.claimless.lasting(claimless, v.now, grace)
	for _, key := range claimless {
		if lasting[key] {
			errs = append(errs, f.config.release(ctx, v, v.vms[key]))
		}
	}
	return errors.Join(errs...)
}

// tellWaiting reports why VMs to be removed still exist. Their removal is retried
// automatically.
func (f *failures) tellWaiting(v *view) {
	waits := map[fleet.Key]string{}
	for _, state := range v.states {
		if state.Phase != scaler.PhaseRemoving || state.Err == nil {
			continue
		}
		vm := state.VM
		why := brief(state.Err)
		waits[vm.Key] = why
		if f.waits[vm.Key] != why {
			f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonRemovalWaits,
				fmt.Sprintf("removing VM %s on %s waits: %s", vm.Name, vm.Host, why))
		}
	}
	f.waits = waits
}

// gaveUp reports whether the writer has given up a VM. The next leader completes what was
// canceled.
func gaveUp(state scaler.VMState) bool {
	if state.Phase == scaler.PhaseHeld {
		return true
	}
	return state.Phase == scaler.PhaseFailed && !errors.Is(state.Err, context.Canceled)
}

// tell reports why a VM was given up, and makes the affected offerings unavailable. A VM
// that is pending approval has not failed: after approval, the same solution must be
// possible again.
func (f *failures) tell(ctx context.Context, v *view, state scaler.VMState) {
	vm := state.VM
	if state.Phase == scaler.PhaseHeld {
		f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonHeld, fmt.Sprintf(
			"VM %s on %s waits for a person: %s", vm.Name, vm.Host, brief(state.Err),
		))
		return
	}
	if gone := new(scaler.VanishedError); errors.As(state.Err, &gone) {
		f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonVMGone, brief(gone))
		log.FromContext(ctx).Info("gave up vm that somebody removed", logkey.VM, vm.Name, logkey.VMID, vm.VMID, logkey.Host, vm.Host.String())
		return
	}
	offers := v.offersOf(vm, state.Err)
	message := fmt.Sprintf("making VM %s on %s failed: %s", vm.Name, vm.Host, brief(state.Err))
	if len(offers) > 0 {
		until := f.closing.close(vm.NodeClass, offers, v.now, brief(state.Err))
		message += fmt.Sprintf("; the same is not tried there before %s", until.UTC().Format(time.RFC3339))
	}
	f.config.publish(v, vm.Pool, v.byKey[vm.Key], ReasonFailed, message)
	log.FromContext(ctx).Info("gave up vm", logkey.VM, vm.Name, logkey.VMID, vm.VMID, logkey.Host, vm.Host.String(),
		logkey.NodePool, vm.Pool, logkey.Reason, brief(state.Err))
}

// giveUp deletes the claim of a VM that was given up. Karpenter then removes the VM,
// after draining its Node if it has one.
func (f *failures) giveUp(ctx context.Context, v *view, state scaler.VMState, claim *karpv1.NodeClaim) error {
	if v.paused || !claim.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := f.config.deleteClaim(ctx, claim); err != nil {
		return err
	}
	// Karpenter does not remove the VM of a claim that was never launched.
	if claim.Status.ProviderID == "" && v.nodeOf(state.VM) == nil {
		f.config.Writer.Remove(state.VM.Key)
	}
	return nil
}

// deleteClaim deletes exactly this claim.
func (c *Config) deleteClaim(ctx context.Context, claim *karpv1.NodeClaim) error {
	if err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting nodeclaim %s: %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("deleted nodeclaim", logkey.NodeClaim, claim.Name)
	return nil
}
