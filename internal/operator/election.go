package operator

import (
	"context"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// leaseName is the Lease that elects the leader among several controllers.
const leaseName = "numaform-controller"

// releaseTimeout limits the requests that release the Lease.
const releaseTimeout = 10 * time.Second

// newElection returns the lock of the leader's Lease, with an identity that no other run of
// a controller has. Requests time out after half of the deadline. The lock records no events,
// because it outlives the recorder of the run.
func newElection(settings *ControllerSettings, deadline time.Duration) (resourcelock.Interface, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("naming the candidate for leader: %w", err)
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, settings.Namespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}, settings.Rest, deadline)
	if err != nil {
		return nil, fmt.Errorf("preparing Lease %s: %w", leaseName, err)
	}
	return lock, nil
}

// release gives up the Lease if this run still holds it: otherwise the next leader would wait
// until it expires. Call it only when nothing that this run started can write any more, because
// the next leader writes immediately.
func release(ctx context.Context, lock resourcelock.Interface, clk clock.PassiveClock) error {
	held, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading Lease %s: %w", lock.Describe(), err)
	}
	if held.HolderIdentity != lock.Identity() {
		return nil
	}
	held.HolderIdentity = ""
	held.LeaseDurationSeconds = 1 // the API server rejects 0
	held.RenewTime.Time = clk.Now()
	if err := lock.Update(ctx, *held); err != nil {
		return fmt.Errorf("releasing Lease %s: %w", lock.Describe(), err)
	}
	return nil
}

// Leader returns the controller that holds the leader's Lease in numaform's namespace, or ""
// if none does.
func Leader(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) (string, error) {
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking for a running controller: reading Lease %s/%s: %w", namespace, leaseName, err)
	}
	held := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if now.Sub(held.RenewTime.Time) >= time.Duration(held.LeaseDurationSeconds)*time.Second {
		return "", nil
	}
	return held.HolderIdentity, nil
}
