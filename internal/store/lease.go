package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// leaseDuration is how long a lock lasts without being renewed.
	leaseDuration = 30 * time.Second
	// leaseRenewal is the interval between renewals.
	leaseRenewal = leaseDuration / 3
)

// ErrLeaseLost is returned by a ConfigMap's unlock if another process took the lock
// because it was not renewed in time.
var ErrLeaseLost = errors.New("the fleet's lock was lost before it was given back: another numaform may have changed the fleet meanwhile")

// lease is an acquired lock.
type lease struct {
	fleet *ConfigMap

	// mu guards held.
	mu sync.Mutex
	// held is the Lease as last written; nil once it is lost.
	held *coordinationv1.Lease
}

func (c *ConfigMap) leases() v1.LeaseInterface {
	return c.client.CoordinationV1().Leases(c.namespace)
}

// Lock acquires the fleet's Lease until unlock is called, or returns ErrLocked at once.
// It renews the Lease meanwhile; after its holder dies, the Lease is free again after
// leaseDuration. Because this depends on clocks, a lock can be lost: Begin then returns
// ErrMoved if another holder has written.
func (c *ConfigMap) Lock(ctx context.Context) (unlock func() error, err error) {
	held, err := c.acquire(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.fence = int64(*held.Spec.LeaseTransitions)
	c.mu.Unlock()
	l := &lease{fleet: c, held: held}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ticker, stopped := c.clock.NewTicker(leaseRenewal), make(chan struct{})
	go func() {
		defer close(stopped)
		defer ticker.Stop()
		l.renew(renewing, ticker.C())
	}()
	return func() error {
		stop()
		<-stopped
		c.mu.Lock()
		c.fence = 0
		c.mu.Unlock()
		return l.release(context.WithoutCancel(ctx))
	}, nil
}

// acquire writes the Lease, if it is free.
func (c *ConfigMap) acquire(ctx context.Context) (*coordinationv1.Lease, error) {
	root, err := c.root(ctx)
	if err != nil {
		return nil, err
	}
	found, err := c.leases().Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		found, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: c.name, Namespace: c.namespace, Labels: map[string]string{fleetLabel: c.name},
		}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("locking fleet %s: %w", c.where(), err)
	}
	if holder, ok := c.holder(found); ok {
		return nil, fmt.Errorf("locking fleet %s: held by %s: %w", c.where(), holder, ErrLocked)
	}
	c.claim(found, fenceOf(root))
	if found.ResourceVersion == "" {
		found, err = c.leases().Create(ctx, found, metav1.CreateOptions{})
	} else {
		found, err = c.leases().Update(ctx, found, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		err = ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("locking fleet %s: %w", c.where(), err)
	}
	return found, nil
}

// holder returns who holds an unexpired Lease, and since when.
func (c *ConfigMap) holder(found *coordinationv1.Lease) (string, bool) {
	spec := found.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || spec.RenewTime == nil {
		return "", false
	}
	lasts := leaseDuration
	if spec.LeaseDurationSeconds != nil {
		lasts = time.Duration(*spec.LeaseDurationSeconds) * time.Second
	}
	if c.clock.Since(spec.RenewTime.Time) >= lasts {
		return "", false
	}
	since := ""
	if spec.AcquireTime != nil {
		since = " since " + spec.AcquireTime.UTC().Format(time.RFC3339)
	}
	return *spec.HolderIdentity + since, true
}

// claim makes this process the holder of a Lease. The lock's number is higher than any
// before it, even if the Lease was deleted meanwhile.
func (c *ConfigMap) claim(l *coordinationv1.Lease, fence int64) {
	number := int32(fence) + 1 //nolint:gosec // the fence was a Lease's number
	if last := l.Spec.LeaseTransitions; last != nil {
		number = max(number, *last+1)
	}
	now := metav1.NewMicroTime(c.clock.Now())
	holder, seconds := self()+" ("+rand.Text()[:8]+")", int32(leaseDuration/time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.LeaseTransitions = &holder, &seconds, &number
	l.Spec.AcquireTime, l.Spec.RenewTime = &now, &now
}

// renew renews the Lease at each tick until ctx ends or it is lost.
func (l *lease) renew(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			if !l.once(ctx) {
				return
			}
		}
	}
}

// once renews the Lease once, and reports whether this process may still hold it. If the
// API server is unreachable, the next renewal may succeed.
func (l *lease) once(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.held.DeepCopy()
	now := metav1.NewMicroTime(l.fleet.clock.Now())
	next.Spec.RenewTime = &now
	written, err := l.fleet.leases().Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		l.held = written
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return l.again(ctx)
	}
	return true
}

// again checks who holds a Lease that has changed. It may have been this process, if the
// response was lost.
func (l *lease) again(ctx context.Context) bool {
	found, err := l.fleet.leases().Get(ctx, l.held.Name, metav1.GetOptions{})
	switch {
	case err == nil && found.Spec.HolderIdentity != nil && *found.Spec.HolderIdentity == *l.held.Spec.HolderIdentity:
		l.held = found
		return true
	case err == nil || apierrors.IsNotFound(err):
		l.held = nil
		return false
	}
	return true
}

// release releases the Lease.
func (l *lease) release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range 2 {
		if l.held == nil {
			return ErrLeaseLost
		}
		next := l.held.DeepCopy()
		nobody := ""
		next.Spec.HolderIdentity = &nobody
		_, err := l.fleet.leases().Update(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("unlocking fleet %s: it is free in %s: %w", l.fleet.where(), leaseDuration, err)
		}
		l.again(ctx)
	}
	return ErrLeaseLost
}

// fenceOf returns the number of the lock under which a root was written.
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

// mayWrite reports whether no other process has written under a later lock than this
// store's.
func (c *ConfigMap) mayWrite(found *stored) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence == 0 || c.fence >= fenceOf(found.parts[""])
}

// signFence writes the number of this store's lock into the root.
func (c *ConfigMap) signFence(root *corev1.ConfigMap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fence > 0 {
		root.Annotations[fenceAnnotation] = strconv.FormatInt(c.fence, 10)
	}
}
