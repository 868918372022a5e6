package guestsim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// podState is the state of a pod in kubelet.
type podState struct {
	stage podStage
	// due is when the stage ends.
	due      time.Time
	began    metav1.Time
	refusals int
}

type podStage int

const (
	starting podStage = iota
	running
	stopping
	gone
)

// gracePeriod returns the grace period of a deleted pod.
func gracePeriod(pod *corev1.Pod) time.Duration {
	return time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 30)) * time.Second
}

// syncPods advances the node's pods, and returns when to check again.
func (k *kubelet) syncPods(ctx context.Context, pods []*corev1.Pod) time.Duration {
	next, there := idle, map[types.UID]bool{}
	for _, pod := range pods {
		there[pod.UID] = true
		state := k.pods[pod.UID]
		if state == nil {
			state = k.newPod(pod)
			k.pods[pod.UID] = state
		}
		next = min(next, k.syncPod(ctx, pod, state))
	}
	for key := range k.pods {
		if !there[key] {
			delete(k.pods, key)
		}
	}
	return next
}

// newPod returns the state of a pod that kubelet sees for the first time. A pod that was
// running when kubelet restarted is reported again; a terminated pod is not changed.
func (k *kubelet) newPod(pod *corev1.Pod) *podState {
	now := k.clock.Now()
	state := &podState{began: ptr.Deref(pod.Status.StartTime, metav1.NewTime(now)), due: now}
	switch pod.Status.Phase {
	case corev1.PodRunning:
	case corev1.PodSucceeded, corev1.PodFailed:
		state.stage = running
	default:
		state.due = now.Add(k.machine.guests.cfg.PodStart)
	}
	return state
}

// syncPod advances a pod, and returns when to check it again.
func (k *kubelet) syncPod(ctx context.Context, pod *corev1.Pod, state *podState) time.Duration {
	switch {
	case pod.DeletionTimestamp != nil && state.stage < stopping:
		state.stage = stopping
		state.due = k.clock.Now().Add(min(k.machine.guests.cfg.PodStop(pod), gracePeriod(pod)))
	case state.stage == running && calledUnready(pod):
		state.stage, state.due = starting, k.clock.Now()
	}
	if state.stage == running || state.stage == gone {
		return idle
	}
	if left := state.due.Sub(k.clock.Now()); left > 0 {
		return left
	}
	if err := k.act(ctx, pod, state); err != nil {
		k.failed(ctx, StepPod, err, &state.refusals)
		return k.machine.guests.cfg.Retry
	}
	state.refusals = 0
	state.stage++
	return idle
}

// act completes the pod's stage. It ignores pods that were deleted in the meantime.
func (k *kubelet) act(ctx context.Context, pod *corev1.Pod, state *podState) error {
	do := k.startPod
	if state.stage == stopping {
		do = k.endPod
	}
	if err := do(ctx, pod, state); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// calledUnready reports whether the status of a running pod is not ready. The controllers
// set this status when they miss the node's heartbeats.
func calledUnready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return pod.Status.Phase == corev1.PodRunning && condition.Status != corev1.ConditionTrue
		}
	}
	return false
}

func (k *kubelet) startPod(ctx context.Context, pod *corev1.Pod, state *podState) error {
	status := k.podStatus(pod, state)
	now := metav1.NewTime(k.clock.Now())
	containers := func(list []corev1.Container, initial bool) []corev1.ContainerStatus {
		var result []corev1.ContainerStatus
		for i := range list {
			result = append(result, containerStarted(&list[i], now, initial))
		}
		return result
	}
	status.Phase = corev1.PodRunning
	status.InitContainerStatuses = containers(pod.Spec.InitContainers, true)
	status.ContainerStatuses = containers(pod.Spec.Containers, false)
	status.Conditions = podConditions(corev1.ConditionTrue, now, "")
	return k.patchPod(ctx, pod, status)
}

// endPod reports the pod's containers as terminated, and removes the pod.
func (k *kubelet) endPod(ctx context.Context, pod *corev1.Pod, state *podState) error {
	status := k.podStatus(pod, state)
	now := metav1.NewTime(k.clock.Now())
	status.Phase = corev1.PodSucceeded
	for i := range pod.Spec.Containers {
		ended := corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: state.began, FinishedAt: now}
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image, Started: ptr.To(false),
			State: corev1.ContainerState{Terminated: &ended},
		})
	}
	status.Conditions = podConditions(corev1.ConditionFalse, now, "PodCompleted")
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		if err := k.patchPod(ctx, pod, status); err != nil {
			return err
		}
	}
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err != nil {
		return fmt.Errorf("removing pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// podStatus returns the part of the status that does not depend on whether the pod runs.
func (k *kubelet) podStatus(pod *corev1.Pod, state *podState) *corev1.PodStatus {
	ip := k.ip()
	status := &corev1.PodStatus{HostIP: ip, HostIPs: []corev1.HostIP{{IP: ip}}, StartTime: &state.began, ObservedGeneration: pod.Generation}
	if status.PodIP = ip; !pod.Spec.HostNetwork {
		status.PodIP = k.machine.guests.podIP(pod)
	}
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	return status
}

// podIP returns the pod's address, or an unused one in 10.128.0.0/9.
func (g *Guests) podIP(pod *corev1.Pod) string {
	if pod.Status.PodIP != "" {
		return pod.Status.PodIP
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addresses++
	return fmt.Sprintf("10.%d.%d.%d", 128|g.addresses>>16&127, g.addresses>>8&255, g.addresses&255)
}

func containerStarted(container *corev1.Container, now metav1.Time, initial bool) corev1.ContainerStatus {
	status := corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, ImageID: container.Image, ContainerID: "containerd://" + container.Name,
		Ready: true, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
	if initial && ptr.Deref(container.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
		status.Started = ptr.To(false)
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	}
	return status
}

func podConditions(ready corev1.ConditionStatus, now metav1.Time, reason string) []corev1.PodCondition {
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: now}
	}
	return []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, ready), condition(corev1.PodInitialized, corev1.ConditionTrue),
		condition(corev1.ContainersReady, ready), condition(corev1.PodReady, ready),
	}
}

// patchPod reports a pod's status, unless the pod was replaced in the meantime.
func (k *kubelet) patchPod(ctx context.Context, pod *corev1.Pod, status *corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("reporting the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
