package scaler

import (
	"context"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// Wanted is what may happen to one shard.
type Wanted = wanted

// Journal is the scaler's memory of what is under way.
type Journal = journal

// Look gathers what may happen to a shard by the change's own snapshot.
func (s *Scaler) Look(ctx context.Context, change *Change, shard fleet.Shard) (*Wanted, error) {
	return s.look(ctx, change, shard, false)
}

// Journal returns the scaler's journal.
func (s *Scaler) Journal() Journal { return s.journal() }

// Begin notes that a change starts.
func (j journal) Begin(shard fleet.Shard, removed []fleet.VM) error { return j.begin(shard, removed) }

// End notes that nothing is under way.
func (j journal) End(shard fleet.Shard) error { return j.end(shard) }

// Removed returns what the journal says was taken out.
func (j journal) Removed(shard fleet.Shard) ([]fleet.VM, error) {
	current, err := j.read(shard)
	return current.Removed, err
}

// Shards returns the shards with a change under way.
func (j journal) Shards() ([]fleet.Shard, error) { return j.shards() }

// Path returns the file of a shard's entry.
func (j journal) Path(shard fleet.Shard) string { return j.path(shard) }

// Stale returns the addresses to forget.
func (w *wanted) Stale(plan *tfjson.Plan) []string { return w.stale(plan) }

// Imports returns the VMs to import.
func (w *wanted) Imports(plan *tfjson.Plan) ([]fleet.VM, error) { return w.imports(plan) }

// Intent says what the plan has to do.
func (w *wanted) Intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	return w.intent(plan, imported)
}

// StillFree checks an intent right before its apply.
func (w *wanted) StillFree(intent guard.Intent) error { return w.stillFree(intent) }

// Store returns where the scaler's fleet is kept.
func (s *Scaler) Store() *store.Directory { return s.config.Store }
