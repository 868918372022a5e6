package faults_test

import (
	"context"
	"sync"
)

// gate holds the first that comes to it, until it is opened. Who comes later
// passes.
type gate struct {
	once    sync.Once
	reached chan string
	opened  chan struct{}
	// mu guards dropped.
	mu      sync.Mutex
	dropped bool
}

func newGate() *gate {
	return &gate{reached: make(chan string, 1), opened: make(chan struct{})}
}

// pass comes to the gate and says with what. It reports false if that must be
// forgotten: who asked for it is dead.
func (g *gate) pass(ctx context.Context, what string) bool {
	passed := true
	g.once.Do(func() {
		g.reached <- what
		select {
		case <-g.opened:
		case <-ctx.Done():
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		passed = !g.dropped
	})
	return passed
}

// open lets through what is held, or drops it.
func (g *gate) open(drop bool) {
	g.mu.Lock()
	g.dropped = drop
	g.mu.Unlock()
	close(g.opened)
}
