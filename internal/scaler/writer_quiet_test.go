package scaler_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// forgetful is a store that completes a write but loses its response, once.
type forgetful struct {
	store.Store
	done atomic.Bool
}

func (f *forgetful) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	err := f.Store.Begin(ctx, base, files, change)
	if err == nil && f.done.CompareAndSwap(false, true) {
		return errors.New("no answer")
	}
	return err
}

// TestWriterWithoutAnAnswer creates a VM whose change was written although the store
// returned an error. It checks that the VM is created once.
func TestWriterWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(config *scaler.Config) { config.Store = &forgetful{Store: config.Store} })
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.exist(t, int(vm.VMID))
}

// plansOf counts how often hosts are planned.
type plansOf struct {
	// mu guards lines.
	mu    sync.Mutex
	lines bytes.Buffer
}

func (p *plansOf) progress(host topology.HostID, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines.WriteString(host.String() + " " + message + "\n")
}

func (p *plansOf) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.lines.String(), " planning\n")
}

// TestWriterLeavesOrphansAlone checks that an unknown guest with the fleet's marker does
// not make the writer plan its host again and again.
func TestWriterLeavesOrphansAlone(t *testing.T) {
	t.Parallel()
	seen := &plansOf{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Progress = seen.progress })
	made := w.run(t, nil)
	vm := ensure(t, made, on(first))[0]
	phases(t, made, scaler.PhaseMade)
	nobodys := fleet.Marker{ClusterID: clusterID, Key: "ffeeddccbbaa99887766554433221100"}
	err := w.sim.PutGuest(pvesim.Guest{VMID: 2900, Host: string(vm.Host.Host), Running: true, Config: map[string]string{
		"name": "lost", "description": nobodys.String(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	before := seen.count()
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	<-ticker.C
	if again := seen.count() - before; again > 4 {
		t.Errorf("planned %d times in 15 s for a guest that nobody wants", again)
	}
}

// TestWriterContinuesOnOtherHosts begins a change of two hosts, one of which clones
// slowly: the other takes the next VM meanwhile.
func TestWriterContinuesOnOtherHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: "^/nodes/pve-2/.*/clone$", Hit: func(ctx context.Context, _ pvesim.Call) {
		select {
		case <-release:
		case <-ctx.Done():
		}
	}})
	writer := w.run(t, nil)
	ensure(t, writer, on(first), on(second))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMaking)
	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMaking, scaler.PhaseMade)
	close(release)
	for _, state := range phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade) {
		if state.Err != nil {
			t.Errorf("%s: %v", state.VM.Name, state.Err)
		}
	}
}

// TestWriterDoesNotFillTheHistory deletes the file of a VM whose Node runs pods: while
// the VM cannot be deleted, nothing is recorded.
func TestWriterDoesNotFillTheHistory(t *testing.T) {
	t.Parallel()
	seen := &plansOf{}
	w := newWorldWith(t, func(config *scaler.Config) {
		config.Progress = seen.progress
		config.Drained = func(_ context.Context, node string) error { return errors.New(node + " runs pods") }
	})
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	files, err := w.Store().Files()
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if strings.Contains(name, vm.Name) {
			delete(files, name)
		}
	}
	before := seen.count()
	if err := w.Store().Write(files); err != nil {
		t.Fatal(err)
	}
	phases(t, writer, scaler.PhaseRemoving)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for began := time.Now(); seen.count() < before+3 && time.Since(began) < time.Minute; <-ticker.C {
		continue
	}
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 {
		t.Errorf("%d changes after %d tries (%v), want 1", len(history), seen.count()-before, err)
	}
	w.exist(t, int(vm.VMID))
}

// TestWriterReleasesTheLockWhileItWaits leaves a half-adopted VM in the fleet, with which the
// writer can do nothing: between its attempts, other programs can lock the fleet.
func TestWriterReleasesTheLockWhileItWaits(t *testing.T) {
	t.Parallel()
	w, _ := newForeign(t, func(map[string]string) {})
	if _, err := w.adopt(t, func(context.Context) error { return errors.New("killed") }); err == nil {
		t.Fatal("adopted")
	}
	w.run(t, func(config *scaler.WriterConfig) { config.Poll = time.Hour })
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for held, free := false, 0; !held || free < 10; {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("the fleet was never free for a second; locked by the writer: %t", held)
		}
		unlock, err := store.NewDirectory(w.Store().Path()).Lock(t.Context())
		switch {
		case errors.Is(err, store.ErrLocked):
			held, free = true, 0
		case err != nil:
			t.Fatal(err)
		default:
			free++
			must(t, unlock())
		}
	}
}
