package provisioning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
	"sigs.k8s.io/karpenter/pkg/utils/apps"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// ReasonInvalidReserve is the reason of the event on a CapacityBuffer whose annotation
// numaform.dev/reserve is neither true nor false.
const ReasonInvalidReserve = "InvalidReserve"

// MaxReplicas is the maximum number of replicas of a CapacityBuffer. Each replica is a pod in
// every decision.
const MaxReplicas = 1000

const (
	// refillAfter is the time from the last wake of a NodePool's standby VM until standby VMs
	// are created for it. A host takes one change at a time, so the next wake there would
	// wait for the clone.
	refillAfter = 30 * time.Second
	// spareFor is how long a standby VM must be unneeded or outdated before it is removed
	// or replaced, so that a CapacityBuffer or a host that changes back and forth does not
	// cause replacements.
	spareFor = time.Minute
	// replaceEvery is how often the replacement of outdated standby VMs continues.
	replaceEvery = 10 * time.Second
)

// IsStandby reports whether a CapacityBuffer uses standby VMs. Karpenter's controller
// computes the replicas of every buffer, whatever its strategy.
func IsStandby(buffer *autoscalingv1beta1.CapacityBuffer) bool {
	return ptr.Deref(buffer.Spec.ProvisioningStrategy, "") == v1alpha1.StandbyStrategy
}

// TooLarge reports whether a CapacityBuffer has more than MaxReplicas replicas.
func TooLarge(buffer *autoscalingv1beta1.CapacityBuffer) bool {
	return ptr.Deref(buffer.Status.Replicas, 0) > MaxReplicas
}

// standbyPods returns the pods of all standby buffers, and the names of these buffers.
func (c *Controller) standbyPods(ctx context.Context) (pods []*corev1.Pod, buffers map[types.NamespacedName]bool, err error) {
	var list autoscalingv1beta1.CapacityBufferList
	if err := c.config.Client.List(ctx, &list); err != nil {
		return nil, nil, fmt.Errorf("listing CapacityBuffers: %w", err)
	}
	buffers = map[types.NamespacedName]bool{}
	for i := range list.Items {
		buffer := &list.Items[i]
		if !IsStandby(buffer) {
			continue
		}
		buffers[client.ObjectKeyFromObject(buffer)] = true
		if !buffer.DeletionTimestamp.IsZero() || TooLarge(buffer) || !apimeta.IsStatusConditionTrue(buffer.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition) {
			continue
		}
		resolved, err := apps.ResolveCapacityBuffer(ctx, c.config.Client, buffer)
		if apierrors.IsNotFound(err) {
			continue // the condition ReadyForProvisioning reports it
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading the pods of CapacityBuffer %s/%s: %w", buffer.Namespace, buffer.Name, err)
		}
		c.checkReserve(buffer)
		for _, pod := range virtualpods.BuildVirtualPods(buffer, resolved.PodTemplateSpec) {
			if reserve, set := buffer.Annotations[v1alpha1.AnnotationReserve]; set {
				pod.Annotations[v1alpha1.AnnotationReserve] = reserve
			}
			pods = append(pods, pod)
		}
	}
	return pods, buffers, nil
}

// checkReserve publishes an event if a buffer's annotation is invalid.
func (c *Controller) checkReserve(buffer *autoscalingv1beta1.CapacityBuffer) {
	value, set := buffer.Annotations[v1alpha1.AnnotationReserve]
	if _, err := strconv.ParseBool(value); !set || err == nil {
		return
	}
	message := fmt.Sprintf("annotation %s: %q is invalid: set it to true or false; until then, VMs with pinned CPUs reserve their CPUs and memory, and other VMs reserve neither",
		v1alpha1.AnnotationReserve, value)
	c.config.Recorder.Publish(events.Event{
		InvolvedObject: buffer, Type: corev1.EventTypeWarning, Reason: ReasonInvalidReserve, Message: message,
		DedupeValues: []string{string(buffer.UID), value},
	})
}

// bufferOf returns the name of a virtual pod's CapacityBuffer.
func bufferOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{
		Namespace: pod.Annotations[autoscalingv1beta1.BufferNamespaceAnnotation],
		Name:      pod.Annotations[autoscalingv1beta1.BufferNameAnnotation],
	}
}

// unready returns the standby VMs that cannot be woken now: they are being created or
// failed, or need an approval first.
func (c *Controller) unready(ctx context.Context, states []scaler.VMState) (map[fleet.Key]bool, error) {
	states = slices.DeleteFunc(slices.Clone(states), func(state scaler.VMState) bool { return !state.VM.Standby })
	mayWake := func(*fleet.VM) bool { return true }
	if len(states) > 0 {
		var err error
		if mayWake, err = c.config.Approvals.MayWake(ctx); err != nil {
			return nil, err
		}
	}
	keys := map[fleet.Key]bool{}
	for i := range states {
		if states[i].Phase != scaler.PhaseMade || !mayWake(&states[i].VM) {
			keys[states[i].VM.Key] = true
		}
	}
	return keys, nil
}

// wakeEarly wakes standby VMs for the pods of a batch that is not complete, unless some of
// them need new VMs. A change of new VMs keeps its hosts busy for as long as their clones
// take, so it contains the whole burst; a wake takes a second, and most bursts have ended by
// then. After a wake, only further pods need another decision.
func (c *Controller) wakeEarly(ctx context.Context) (reconciler.Result, error) {
	again := reconciler.Result{RequeueAfter: singleton.RequeueImmediately}
	if !c.config.Writer.Synced() || !c.config.State.Synced(ctx) {
		return again, nil
	}
	states, err := c.config.Writer.States(ctx)
	if err != nil {
		return again, nil //nolint:nilerr // the decision for the complete batch reports it
	}
	made := func(state scaler.VMState) bool { return state.VM.Standby && state.Phase == scaler.PhaseMade }
	if !slices.ContainsFunc(states, made) {
		return again, nil
	}
	log.FromContext(ctx).V(1).Info("batched pods to wake standby vms")
	woken, err := c.provision(ctx, true)
	if err != nil {
		c.batch.trigger()
		return reconciler.Result{}, err
	}
	if len(woken) > 0 {
		c.batch.end()
	}
	return again, nil
}

// onlyWakes reports whether pods need standby VMs and no new ones.
func onlyWakes(d *scheduling.Decision) bool {
	isNode := func(placed scheduling.Placed) bool { return !placed.Standby }
	return len(d.Woken) > 0 && !slices.ContainsFunc(d.New, isNode)
}

// wake wakes the standby VMs that pods need.
func (c *Controller) wake(ctx context.Context, woken []scheduling.Woken, pods podIndex) ([]reserved, error) {
	if len(woken) == 0 {
		return nil, nil
	}
	keys := make([]fleet.Key, len(woken))
	for i := range woken {
		keys[i] = woken[i].VM.Key
	}
	vms, err := c.config.Writer.Wake(ctx, keys...)
	if err != nil {
		return nil, err
	}
	list := make([]reserved, len(vms))
	for i, vm := range vms {
		list[i] = reserved{vm: vm, classHash: woken[i].ClassHash, pods: pods.of(woken[i].Pods)}
		log.FromContext(ctx).Info("requested the wake of standby vm", logkey.VM, vm.Name, logkey.NodePool, vm.Pool, logkey.Host, vm.Host.String(),
			logkey.InstanceType, vm.InstanceType, logkey.Pods, len(list[i].pods))
	}
	return list, nil
}

// keep returns the standby VMs that are not replaced in this decision: VMs that have not
// been outdated for long, or while removals are frozen, except on evacuated hosts.
func (c *Controller) keep(request *scheduling.Request) map[fleet.Key]bool {
	frozen := c.config.RemovalsFrozen()
	keys := map[fleet.Key]bool{}
	for i := range request.Existing {
		vm := &request.Existing[i]
		began, known := c.unneeded[vm.Key]
		long := known && request.Now.Sub(began) >= spareFor
		keys[vm.Key] = vm.Standby && (frozen || !long) && !slices.Contains(request.Evacuated, vm.Host)
	}
	return keys
}

// removeSpare removes standby VMs that no CapacityBuffer has needed for a while. An
// outdated VM is removed after its replacement was created, or before if there is room for
// only one of them. On evacuated hosts, VMs are removed immediately. If CapacityBuffers are
// not read, all VMs remain until pods need them.
//
// A VM whose removal is requested can no longer be woken. So removeSpare requests none in a
// freeze window, and none on a host where an earlier removal waits for an approval: each time
// that the CapacityBuffer grows again, another VM would be created instead. VMs on evacuated
// hosts cannot be woken anyway.
func (c *Controller) removeSpare(ctx context.Context, d *scheduling.Decision, states []scaler.VMState, evacuated []topology.HostID) {
	if c.config.Virtual == nil {
		return
	}
	creating, unapproved := standbyInProgress(d, states)
	frozen := c.config.RemovalsFrozen()
	now := c.config.Clock.Now()
	since := map[fleet.Key]time.Time{}
	for i := range d.Standby {
		vm := &d.Standby[i].VM
		held := len(d.Standby[i].Pods) > 0
		outdated := d.Standby[i].Outdated
		if held && outdated == "" {
			continue
		}
		began, known := c.unneeded[vm.Key]
		if !known {
			began = now
		}
		since[vm.Key] = began
		leaving := slices.Contains(evacuated, vm.Host)
		if wait := spareFor - now.Sub(began); wait > 0 && !leaving {
			c.batch.triggerIn(wait)
			continue
		}
		if frozen && !leaving {
			c.batch.triggerIn(spareFor) // the end of a freeze window triggers no decision
			continue
		}
		if held {
			continue // other VMs are replaced first
		}
		if unapproved[vm.Host] && !leaving {
			c.batch.triggerIn(spareFor) // an approval triggers no decision
			continue
		}
		if outdated != "" && creating[vm.Pool] {
			c.batch.triggerIn(replaceEvery)
			continue
		}
		c.config.Writer.Remove(vm.Key)
		c.batch.triggerIn(replaceEvery)
		reason := cmp.Or(outdated, "no CapacityBuffer needs it")
		log.FromContext(ctx).Info("requested the removal of standby vm", logkey.VM, vm.Name, logkey.NodePool, vm.Pool, logkey.Host, vm.Host.String(), logkey.Reason, reason)
	}
	c.unneeded = since
}

// standbyInProgress returns the NodePools whose standby VMs are being created, and the hosts
// where the removal of a standby VM waits for an approval.
func standbyInProgress(d *scheduling.Decision, states []scaler.VMState) (creating map[string]bool, held map[topology.HostID]bool) {
	creating, held = map[string]bool{}, map[topology.HostID]bool{}
	for i := range d.New {
		creating[d.New[i].NodePool] = creating[d.New[i].NodePool] || d.New[i].Standby
	}
	for i := range states {
		vm := &states[i].VM
		switch phase := states[i].Phase; {
		case !vm.Standby:
		case phase == scaler.PhaseReserved, phase == scaler.PhaseMaking:
			creating[vm.Pool] = true
		case phase == scaler.PhaseRemoving:
			held[vm.Host] = held[vm.Host] || errors.As(states[i].Err, new(*scaler.PendingApprovalError))
		}
	}
	return creating, held
}

// refill returns the new VMs that may be created now: nodes, and standby VMs of NodePools
// without a wake for a while. Other NodePools do not wait: their pending ScalePlans would
// change because of each wake.
func (c *Controller) refill(d *scheduling.Decision) []scheduling.Placed {
	now := c.config.Clock.Now()
	maps.DeleteFunc(c.lastWake, func(_ string, at time.Time) bool { return now.Sub(at) >= refillAfter })
	for i := range d.Woken {
		c.lastWake[d.Woken[i].VM.Pool] = now
	}
	var ready []scheduling.Placed
	for i := range d.New {
		placed := &d.New[i]
		if woken, recently := c.lastWake[placed.NodePool]; placed.Standby && recently {
			c.batch.triggerIn(refillAfter - now.Sub(woken))
			continue
		}
		ready = append(ready, *placed)
	}
	return ready
}
