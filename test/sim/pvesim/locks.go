package pvesim

import (
	"context"
	"fmt"
	"time"
)

// guestLock is the lock file of a guest, which is held by several shared holders or one
// exclusive holder.
type guestLock struct {
	readers int
	writer  bool
	changed chan struct{} // closed when the lock is released
}

// lockGuest takes the guest's lock file and returns a function that releases it. It waits
// at most for timeout. The caller must not hold the cluster's lock.
func (c *cluster) lockGuest(ctx context.Context, id int, shared bool, timeout time.Duration) (func(), error) {
	wait, release := c.tryLock(id, shared)
	if release != nil {
		return release, nil
	}
	timer := c.cfg.Clock.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-wait:
		case <-timer.C():
			return nil, dief("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
		case <-ctx.Done():
			return nil, fmt.Errorf("interrupted by signal: %w", ctx.Err())
		}
		if wait, release = c.tryLock(id, shared); release != nil {
			return release, nil
		}
	}
}

func (c *cluster) tryLock(id int, shared bool) (<-chan struct{}, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.locks[id]
	if l == nil {
		l = &guestLock{changed: make(chan struct{})}
		c.locks[id] = l
	}
	if l.writer || (!shared && l.readers > 0) {
		return l.changed, nil
	}
	if shared {
		l.readers++
	} else {
		l.writer = true
	}
	return nil, func() { c.unlock(id, l, shared) }
}

func (c *cluster) unlock(id int, l *guestLock, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shared {
		l.readers--
	} else {
		l.writer = false
	}
	close(l.changed)
	l.changed = make(chan struct{})
	if l.readers == 0 && !l.writer {
		delete(c.locks, id)
	}
}
