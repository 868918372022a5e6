package scaler_test

import (
	"context"
	"testing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// countingStore counts how often its fleet is read. Only the files of the first reading
// can be parsed: later readings may only compare the revision.
type countingStore struct {
	store.Store
	reads int
}

func (c *countingStore) Read(ctx context.Context) (generator.Files, store.Revision, error) {
	files, revision, err := c.Store.Read(ctx)
	if c.reads++; c.reads > 1 {
		files = generator.Files{"fleet.json": []byte("no JSON")}
	}
	return files, revision, err
}

// TestOneReadingPerChange checks that a change parses the fleet's files only once, from the
// decision to the record, because parsing 1,000 VMs takes half a second. The second
// reading of the command line, under the lock, only compares the revision.
func TestOneReadingPerChange(t *testing.T) {
	t.Parallel()
	var counted *countingStore
	count := func(config *scaler.Config) {
		noEngine(config)
		counted = &countingStore{Store: config.Store}
		config.Store = counted
	}
	made := vm(pve1, 2000)
	s := newScaler(t, count, made)

	change, err := s.NewChange(t.Context(), snapshot(guestOf(made)))
	if err != nil {
		t.Fatal(err)
	}
	if len(change.Before.VMs) != 1 {
		t.Errorf("the change starts from %d VMs", len(change.Before.VMs))
	}
	if err := s.AddVMs(t.Context(), change, []scaler.Request{request(pve2)}, nil); err != nil {
		t.Fatal(err)
	}
	results, err := s.Apply(t.Context(), change, approveAll)
	if len(results) != 1 || err == nil {
		t.Errorf("applied %v: %v, want a failure of the engine", results, err)
	}
	if counted.reads != 2 {
		t.Errorf("an apply read the fleet %d times", counted.reads)
	}

	counted.reads = -1 // the first attempt of a writer also reads the fleet while Proxmox is read
	writer := scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return snapshot(guestOf(made)), nil },
	})
	writer.NextBatch(t)
	counted.reads = 0
	move := writer.NextBatch(t)
	if move == nil {
		t.Fatal("the failed change is not retried")
	}
	if err := s.BeginBatch(t.Context(), move); err != nil {
		t.Fatal(err)
	}
	if counted.reads != 1 {
		t.Errorf("a writer's change read the fleet %d times", counted.reads)
	}
}
