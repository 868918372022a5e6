package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
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

// deposedError reports that this run is not the leader any more.
type deposedError struct{ lease, holder string }

func (e *deposedError) Error() string {
	return fmt.Sprintf("leader election lost: %s now holds Lease %s", e.holder, e.lease)
}

// leadership compares the Lease in the API server with this run, the leader. client-go's elector
// reads the Lease only if it cannot renew it, and then tries to renew it until its deadline: a
// leader that was suspended until another one was elected would still act as the leader. leadership
// does not read with the elector's lock, because each read changes what the elector writes.
type leadership struct {
	kube                kubernetes.Interface
	namespace, identity string
}

// check returns a deposedError if another run holds the Lease.
func (l *leadership) check(ctx context.Context) error {
	lease, err := l.kube.CoordinationV1().Leases(l.namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // the elector creates it again
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking that this controller is still the leader: reading Lease %s/%s: %w", l.namespace, leaseName, err)
	}
	return l.deposed(lease)
}

func (l *leadership) deposed(lease *coordinationv1.Lease) error {
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != "" && holder != l.identity {
		return &deposedError{lease: l.namespace + "/" + leaseName, holder: holder}
	}
	return nil
}

// confirmEvery is the interval between attempts to confirm that another run holds the Lease.
const confirmEvery = time.Second

// watch returns a deposedError as soon as another run holds the Lease, and nil once ctx ends.
func (l *leadership) watch(ctx context.Context) error {
	leases := l.kube.CoordinationV1().Leases(l.namespace)
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, leaseName).String()
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return leases.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return leases.Watch(ctx, options)
		},
	}, l.kube)
	_, err := watchtools.UntilWithSync(ctx, source, &coordinationv1.Lease{}, nil, func(event watch.Event) (bool, error) {
		lease, is := event.Object.(*coordinationv1.Lease)
		if !is || l.deposed(lease) == nil {
			return false, nil
		}
		// The first list can be older than the election. A read is not.
		err := wait.PollUntilContextCancel(ctx, confirmEvery, true, func(ctx context.Context) (bool, error) {
			err := l.check(ctx)
			if _, deposed := errors.AsType[*deposedError](err); deposed {
				return false, err
			}
			return err == nil, nil
		})
		return false, err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the run ends
	}
	return err
}

// leadersStore is a store in which only the leader begins changes. A run that was suspended
// otherwise begins the change that it planned before, and then has to cancel it.
type leadersStore struct {
	store.Store
	leadership *leadership
}

// Begin returns an error, and records nothing, if another run is the leader.
func (s leadersStore) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	if err := s.leadership.check(ctx); err != nil {
		return err
	}
	return s.Store.Begin(ctx, base, files, change)
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
