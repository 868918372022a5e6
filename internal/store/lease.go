package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// leaseDuration is how long a lock lasts without being renewed.
	leaseDuration = 30 * time.Second
	// leaseRenewal is the interval between renewals.
	leaseRenewal = leaseDuration / 3
)

// ErrLeaseLost is returned by the unlock function of ConfigMap.Lock if the lock was not
// renewed in time and another process acquired it.
var ErrLeaseLost = errors.New("the lock expired before it was released, so another numaform may have changed the fleet meanwhile: plan again")

// lease is a lock that this process acquired.
type lease struct {
	lock   *resourcelock.LeaseLock
	record resourcelock.LeaderElectionRecord
	// lost is set once another process holds the lock.
	lost bool
}

// aheadLock is a lock whose holder renewed it in the future, because its clock is or was ahead.
type aheadLock struct {
	holder  string
	renewed time.Time
	// seen is when this process first read the lock with that time.
	seen time.Time
}

// Lock acquires the fleet's Lease until unlock is called, or returns ErrLocked at once.
// It renews the Lease until then. If the holder dies, the Lease expires after leaseDuration.
// If its clock was ahead, it expires only for processes that call Lock again after that time.
// Because this depends on clocks, a lock can be lost: Begin then returns ErrMoved if another
// holder has written.
func (c *ConfigMap) Lock(ctx context.Context) (unlock func() error, err error) {
	l, err := c.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("locking fleet %s: %w", c.where(), err)
	}
	c.fence.Store(int64(l.record.LeaderTransitions))

	ctx = context.WithoutCancel(ctx)
	renewing, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	ticker := c.clock.NewTicker(leaseRenewal)
	go func() {
		defer close(stopped)
		defer ticker.Stop()
		for !l.lost {
			select {
			case <-renewing.Done():
				return
			case <-ticker.C():
				l.record.RenewTime = metav1.NewTime(c.clock.Now())
				_ = l.update(renewing) // if the API server is unreachable, the next renewal may succeed
			}
		}
	}()

	return func() error {
		stop()
		<-stopped
		c.fence.Store(0)
		if !l.lost {
			l.record.HolderIdentity = ""
			if err := l.update(ctx); err != nil && !l.lost {
				return fmt.Errorf("unlocking fleet %s: %w: the lock expires by itself within %s", c.where(), err, leaseDuration)
			}
		}
		if l.lost {
			return fmt.Errorf("unlocking fleet %s: %w", c.where(), ErrLeaseLost)
		}
		return nil
	}, nil
}

// Holder names the process that holds the Lease, or returns "" if the lock is free.
func (c *ConfigMap) Holder(ctx context.Context) (string, error) {
	lease, err := c.client.CoordinationV1().Leases(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the lock of fleet %s: %w", c.where(), err)
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if held, _ := c.held(record); !held {
		return "", nil
	}
	return record.HolderIdentity, nil
}

// held reports whether a process holds the lock. ahead is set if that process renewed it so far
// in the future that only its next renewal shows that the process still runs: such a lock expires
// once this process has not seen a renewal for the lock's duration.
func (c *ConfigMap) held(record *resourcelock.LeaderElectionRecord) (held, ahead bool) {
	duration := leaseDuration
	if record.LeaseDurationSeconds > 0 {
		duration = time.Duration(record.LeaseDurationSeconds) * time.Second
	}
	age := c.clock.Since(record.RenewTime.Time)
	if record.HolderIdentity == "" || age >= -duration {
		return record.HolderIdentity != "" && age < duration, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead.holder != record.HolderIdentity || !c.ahead.renewed.Equal(record.RenewTime.Time) {
		c.ahead = aheadLock{holder: record.HolderIdentity, renewed: record.RenewTime.Time, seen: c.clock.Now()}
	}
	return c.clock.Since(c.ahead.seen) < duration, true
}

// acquire writes the Lease, or returns ErrLocked if another process holds it. The lock's
// number is higher than the number of any earlier lock, even if the Lease has been deleted.
func (c *ConfigMap) acquire(ctx context.Context) (*lease, error) {
	root, err := c.root(ctx)
	if err != nil {
		return nil, err
	}
	holder := processName() + " (" + rand.Text()[:8] + ")"
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: c.name, Namespace: c.namespace},
		Client:     c.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: holder},
		Labels:     map[string]string{fleetLabel: c.name},
	}

	write := lock.Update
	old, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) {
		write = lock.Create
		old, err = &resourcelock.LeaderElectionRecord{}, nil
	}
	if err != nil {
		return nil, err
	}
	if held, ahead := c.held(old); held {
		err := fmt.Errorf("held by %s since %s: %w", old.HolderIdentity, old.AcquireTime.UTC().Format(time.RFC3339), ErrLocked)
		if ahead {
			err = fmt.Errorf("%w; the holder's clock is or was ahead (%s): if the holder no longer runs, run kubectl delete lease --namespace %s %s",
				err, old.RenewTime.UTC().Format(time.RFC3339), c.namespace, c.name)
		}
		return nil, err
	}

	now := metav1.NewTime(c.clock.Now())
	record := resourcelock.LeaderElectionRecord{
		HolderIdentity:       holder,
		LeaseDurationSeconds: int(leaseDuration / time.Second),
		LeaderTransitions:    max(old.LeaderTransitions, int(fenceOf(root))) + 1,
		AcquireTime:          now,
		RenewTime:            now,
	}
	err = write(ctx, record)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		err = ErrLocked
	}
	return &lease{lock: lock, record: record}, err
}

// update writes the record to the Lease. If the Lease has changed or does not exist, it
// checks who holds the Lease, and sets lost if it is not this process. It may still be this
// process, if the response to an earlier update was lost.
func (l *lease) update(ctx context.Context) error {
	err := l.lock.Update(ctx, l.record)
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, _, getErr := l.lock.Get(ctx)
	switch {
	case getErr == nil && current.HolderIdentity == l.lock.Identity():
		return l.lock.Update(ctx, l.record) // Get has read the current version
	case getErr == nil, apierrors.IsNotFound(getErr):
		l.lost = true
	}
	return err
}

// fenceOf returns the number of the lock under which a root was written; 0 if it is missing
// or invalid.
func fenceOf(root *corev1.ConfigMap) int64 {
	if root == nil {
		return 0
	}
	fence, err := strconv.ParseInt(root.Annotations[fenceAnnotation], 10, 32)
	if err != nil {
		return 0
	}
	return fence
}
