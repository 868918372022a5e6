package garbage_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/scaler"
)

// safeWriter is a writer that is safe for concurrent use.
type safeWriter struct {
	// mu guards the field below.
	mu sync.Mutex
	writer
}

func (w *safeWriter) VMs() []scaler.VMState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writer.VMs()
}

func (w *safeWriter) Any(condition func(*scaler.VMState) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writer.Any(condition)
}

func (w *safeWriter) Remove(keys ...fleet.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writer.Remove(keys...)
}

// TestUnderManager checks that the controllers work under a manager, with a cache.
func TestUnderManager(t *testing.T) {
	vm := newVM(2000)
	writes := &safeWriter{writer: writer{synced: true}}
	var manager controllerruntime.Manager
	w := newWorld(t, func(c *garbage.Config) {
		var err error
		manager, err = controllerruntime.NewManager(plane.Cluster(t).Config, controllerruntime.Options{
			Scheme: newScheme(t), Metrics: server.Options{BindAddress: "0"},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Client, c.Live, c.Writer = manager.GetClient(), manager.GetAPIReader(), writes
	})
	w.claim(vm)
	writes.states = []scaler.VMState{{VM: vm, Phase: scaler.PhaseFailed, Err: errors.New("broken"), Since: w.clock.Now()}}
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range w.collector.Controllers() {
		if err := c.Register(ctx, manager); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for w.fate(vm.Name) != "deleting" {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("the claim of a VM that failed was not deleted")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
