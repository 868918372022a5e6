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
	// leaseRenewal is how often it is renewed.
	leaseRenewal = leaseDuration / 3
)

// ErrLeaseLost is returned by the unlock of a ConfigMap's lock that another took
// over, as it was not renewed in time.
var ErrLeaseLost = errors.New("the fleet's lock was lost before it was given back: another numaform may have changed the fleet meanwhile")

// lease is a lock that is held.
type lease struct {
	fleet *ConfigMap

	// mu guards held.
	mu sync.Mutex
	// held is the lease as last written; nil once it is lost.
	held *coordinationv1.Lease
}

func (c *ConfigMap) leases() v1.LeaseInterface {
	return c.client.CoordinationV1().Leases(c.namespace)
}

// Lock takes the fleet's Lease until unlock is called, or returns ErrLocked at once.
// It is renewed meanwhile; one whose holder died is free again after leaseDuration.
// The holder's own clock decides that, so a lock may be lost: Begin of a holder that
// lost it to one who wrote is ErrMoved.
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

// acquire writes the lease, if it is free.
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

// holder says who holds a lease that has not expired, and since when.
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

// claim writes this process into a lease. The number of the lock is higher than that
// of any before it, even if the lease was deleted meanwhile.
func (c *ConfigMap) claim(l *coordinationv1.Lease, fence int64) {
	number := int32(fence) + 1 //nolint:gosec // a fence was a number of a lease
	if last := l.Spec.LeaseTransitions; last != nil {
		number = max(number, *last+1)
	}
	now := metav1.NewMicroTime(c.clock.Now())
	holder, seconds := self()+" ("+rand.Text()[:8]+")", int32(leaseDuration/time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.LeaseTransitions = &holder, &seconds, &number
	l.Spec.AcquireTime, l.Spec.RenewTime = &now, &now
}

// renew renews the lease at each tick until ctx ends or it is lost.
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

// once renews the lease, and reports whether it may still be ours. What cannot be
// reached now may be so the next time.
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

// again looks whose the lease is that somebody wrote. It may have been this process,
// whose answer did not arrive.
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

// release gives the lease back.
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

// mayWrite reports whether nobody wrote under a later lock than the one that this
// store holds.
func (c *ConfigMap) mayWrite(found *stored) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence == 0 || c.fence >= fenceOf(found.parts[""])
}

// signFence writes the number of the lock that this store holds into the root.
func (c *ConfigMap) signFence(root *corev1.ConfigMap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fence > 0 {
		root.Annotations[fenceAnnotation] = strconv.FormatInt(c.fence, 10)
	}
}
