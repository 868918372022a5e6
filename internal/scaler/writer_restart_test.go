package scaler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
)

// countingLocks counts how often a store's lock is acquired.
type countingLocks struct {
	store.Store
	taken atomic.Int64
}

func (c *countingLocks) Lock(ctx context.Context) (func() error, error) {
	c.taken.Add(1)
	return c.Store.Lock(ctx)
}

// TestWriterRests checks that a writer without work does not acquire the fleet's lock.
func TestWriterRests(t *testing.T) {
	t.Parallel()
	locks := &countingLocks{}
	w := newWorldWith(t, func(config *scaler.Config) {
		locks.Store = config.Store
		config.Store = locks
	})
	writer := w.run(t, nil) // it checks every second
	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade)
	ticker := time.NewTicker(3 * time.Second)
	defer ticker.Stop()
	<-ticker.C // the completed change has its outcome
	before := locks.taken.Load()
	<-ticker.C
	if again := locks.taken.Load() - before; again > 0 {
		t.Errorf("took the lock %d times in three seconds without anything to do", again)
	}
}

// TestWriterAwaitsAnEarlierClone starts a writer while the clone of an earlier run is in
// progress: the writer checks again soon, not only after Poll.
func TestWriterAwaitsAnEarlierClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sim.SetDelays(pvesim.Delays{Clone: 8 * time.Second})
	earlier, stop := w.runUntil(t, nil)
	vm := ensure(t, earlier, on(first))[0]
	cloned := make(chan struct{})
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, After: true, Disconnect: true, Hit: func(context.Context, pvesim.Call) { close(cloned) }})
	<-cloned
	stop()
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Poll = 10 * time.Minute })
	phases(t, writer, scaler.PhaseMade)
	w.exist(t, int(vm.VMID))
}
