package adopt

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kppLease is the Lease of the leader of karpenter-provider-proxmox:
// charts/karpenter-provider-proxmox/templates/deployment.yaml, -leader-election-name.
const kppLease = "proxmox-karpenter-leader-election"

// peerImages are parts of the names of the images of other autoscalers for Proxmox.
func peerImages() []string {
	return []string{"karpenter-provider-proxmox", "kproximate", "kubenodesmith"}
}

// RunningError reports that another autoscaler runs, so that its nodes must not be adopted.
type RunningError struct{ Object, Problem, Fix string }

func (e *RunningError) Error() string {
	return fmt.Sprintf("another autoscaler runs: %s %s, and two autoscalers must not manage the same nodes: %s, then run the command again; nodes that were adopted already stay adopted",
		e.Object, e.Problem, e.Fix)
}

// CheckStopped returns a *RunningError if another autoscaler for Proxmox runs in the
// cluster: if its leader has renewed its Lease and the Lease has not expired, or if a
// Deployment has replicas of it.
func CheckStopped(ctx context.Context, c client.Reader, now time.Time) error {
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases); err != nil {
		return fmt.Errorf("reading Leases: %w", err)
	}
	for i := range leases.Items {
		lease := &leases.Items[i]
		if lease.Name != kppLease || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil {
			continue
		}
		seconds := int32(15) // the default of leader election
		if lease.Spec.LeaseDurationSeconds != nil {
			seconds = *lease.Spec.LeaseDurationSeconds
		}
		expires := lease.Spec.RenewTime.Add(time.Duration(seconds) * time.Second)
		if now.Before(expires) {
			return &RunningError{
				Object:  fmt.Sprintf("Lease %s/%s", lease.Namespace, lease.Name),
				Problem: fmt.Sprintf("is held by %s and was renewed at %s", *lease.Spec.HolderIdentity, lease.Spec.RenewTime.UTC().Format(time.RFC3339)),
				Fix:     fmt.Sprintf("scale its Deployment in namespace %s to 0 and wait %d seconds", lease.Namespace, seconds),
			}
		}
	}

	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments); err != nil {
		return fmt.Errorf("reading Deployments: %w", err)
	}
	for i := range deployments.Items {
		deployment := &deployments.Items[i]
		replicas := int32(1)
		if deployment.Spec.Replicas != nil {
			replicas = *deployment.Spec.Replicas
		}
		for _, container := range deployment.Spec.Template.Spec.Containers {
			for _, image := range peerImages() {
				if replicas+deployment.Status.Replicas > 0 && strings.Contains(strings.ToLower(container.Image), image) {
					return &RunningError{
						Object:  fmt.Sprintf("Deployment %s/%s", deployment.Namespace, deployment.Name),
						Problem: fmt.Sprintf("has the image %s and is not scaled to 0", container.Image),
						Fix:     fmt.Sprintf("run kubectl scale --namespace %s deployment %s --replicas 0", deployment.Namespace, deployment.Name),
					}
				}
			}
		}
	}
	return nil
}
