package faults_test

import (
	"context"
	"sync"
)

// gate stops the first visitor until the test opens the gate. Later visitors pass.
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

// pass enters the gate with a description of the visitor. It reports false if the visitor
// must be ignored because its process was killed.
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

// open releases the visitor, or drops it.
func (g *gate) open(drop bool) {
	g.mu.Lock()
	g.dropped = drop
	g.mu.Unlock()
	close(g.opened)
}
