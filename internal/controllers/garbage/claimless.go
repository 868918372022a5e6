package garbage

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
)

// reservations handles VMs whose NodeClaim vanished. Karpenter does not request deletion
// of a VM if its claim was never launched or lost its finalizer.
type reservations struct {
	config    Config
	claimless since[fleet.Key]
}

func (*reservations) name() string { return "reservations" }

func (*reservations) every() time.Duration { return period }

func (*reservations) concerns() bool { return true }

func (r *reservations) run(ctx context.Context, v *view) error {
	var claimless []fleet.Key
	for _, state := range v.states {
		desired := state.Phase == scaler.PhaseReserved || state.Phase == scaler.PhaseMaking || state.Phase == scaler.PhaseMade
		// A standby VM has no Node: provisioning wakes and removes it.
		if desired && !state.VM.Standby && v.byKey[state.VM.Key] == nil {
			claimless = append(claimless, state.VM.Key)
		}
	}
	lasting := r.claimless.lasting(claimless, v.now, grace)
	var errs []error
	for _, key := range claimless {
		if !lasting[key] {
			continue
		}
		state := v.vms[key]
		node := v.nodeOf(state.VM)
		switch {
		case node == nil:
			errs = append(errs, r.config.release(ctx, v, state))
		case node.DeletionTimestamp.IsZero(): // else the Node is drained, and then the VM removed
			errs = append(errs, r.restoreClaim(ctx, v, state.VM, node))
		}
	}
	return errors.Join(errs...)
}

// restoreClaim re-creates the claim of a running Node, because the fleet, not the claims,
// defines which VMs are desired. No pods move, and Karpenter drains the Node when it is no
// longer needed. If the NodePool no longer exists, restoreClaim only publishes a warning.
// It does nothing while numaform is paused or the NodePool is being deleted.
func (r *reservations) restoreClaim(ctx context.Context, v *view, vm fleet.VM, node *corev1.Node) error {
	pool := v.pools[vm.Pool]
	if pool == nil {
		r.config.Recorder.Publish(warning(node, ReasonPoolGone, fmt.Sprintf(
			"its NodeClaim and NodePool %s no longer exist, so no controller manages it: re-create the NodePool, "+
				"or drain the Node and run `numaform remove %s`", vm.Pool, vm.Name,
		)))
		return nil
	}
	if v.paused || !pool.DeletionTimestamp.IsZero() {
		return nil
	}
	claim := r.config.NewNodeClaim(vm, pool)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[v1alpha1.AnnotationVM] = vm.Name
	claim.Annotations[v1alpha1.AnnotationKey] = string(vm.Key)
	if err := r.config.Client.Create(ctx, claim); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return fmt.Errorf("re-creating the NodeClaim of node %s: %w", node.Name, err)
	}
	r.config.Recorder.Publish(warning(node, ReasonClaimRestored,
		fmt.Sprintf("its NodeClaim was missing: re-created NodeClaim %s", claim.Name)))
	log.FromContext(ctx).Info("restored nodeclaim", logkey.NodeClaim, claim.Name, logkey.Node, node.Name, logkey.VM, vm.Name)
	return nil
}

// release removes a VM that has neither claim nor Node, after checking with the API
// server. It does nothing while numaform is paused.
func (c *Config) release(ctx context.Context, v *view, state *scaler.VMState) error {
	vm := state.VM
	if v.paused || v.nodeOf(vm) != nil {
		return nil
	}
	live := &view{vms: v.vms}
	if err := live.readClaims(ctx, c.Live); err != nil {
		return err
	}
	if live.byKey[vm.Key] != nil {
		return nil
	}
	var node corev1.Node
	err := c.Live.Get(ctx, client.ObjectKey{Name: vm.Name}, &node)
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %s: %w", vm.Name, err)
	}
	c.Writer.Remove(vm.Key)
	log.FromContext(ctx).Info("requested the removal of vm without nodeclaim", logkey.VM, vm.Name, logkey.VMID, vm.VMID,
		logkey.Host, vm.Host.String(), logkey.Key, string(vm.Key))
	return nil
}
