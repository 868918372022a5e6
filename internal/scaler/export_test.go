package scaler

import (
	"context"
	"testing"
	"time"

	tfjson "github.com/hashicorp/terraform-json"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Wanted is what may happen on one host.
type Wanted = wanted

// Look gathers what may happen on a host with the change's own snapshot.
func (s *Scaler) Look(ctx context.Context, change *Change, shard fleet.Shard) (*Wanted, error) {
	return s.look(ctx, change, shard, false)
}

// Repin allows a host's plan to change pins, and returns the VMs that it may update.
func (s *Scaler) Repin(ctx context.Context, change *Change, shard fleet.Shard, plan *ShardPlan, made *tfjson.Plan) ([]guard.Target, error) {
	change.from = &standing{}
	w, err := s.look(ctx, change, shard, false)
	if err != nil {
		return nil, err
	}
	plan.Plan = &state.Plan{JSON: made}
	err = w.repin(plan)
	return plan.Intent.Update, err
}

// Open returns the unfinished work.
func (s *Scaler) Open(t *testing.T) map[fleet.Shard]audit.Open {
	t.Helper()
	now, err := s.stand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now.open()
}

// Record returns the record of a change.
func (s *Scaler) Record(change *Change, plans []ShardPlan) audit.Change {
	return s.record(change, plans, "")
}

// Outcome returns the record of the results.
func (s *Scaler) Outcome(id string, started time.Time, results []Result) audit.Outcome {
	return s.outcome(id, started, results)
}

// Begin begins a change of a host and then dies.
func (s *Scaler) Begin(t *testing.T, shard fleet.Shard, removed ...fleet.VM) {
	t.Helper()
	now, err := s.stand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change := &Change{from: now, open: now.open(), rotations: now.rotations, Removed: removed, Kind: audit.KindScaleDown}
	record := s.record(change, []ShardPlan{{Shard: shard, Touched: true, Intent: guard.Intent{Delete: make([]guard.Target, 1)}}}, "")
	if err := s.config.Store.Begin(t.Context(), now.revision, now.files, record); err != nil {
		t.Fatal(err)
	}
}

// Made records a VM as created successfully long ago.
func (s *Scaler) Made(t *testing.T, vm fleet.VM) {
	t.Helper()
	now, err := s.stand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	past := New(s.config)
	past.config.Clock = clocktesting.NewFakeClock(time.Now().Add(-time.Hour))
	record := past.record(&Change{from: now, rotations: now.rotations, Added: []fleet.VM{vm}, Kind: audit.KindScaleUp}, nil, "")
	if err := s.config.Store.Begin(t.Context(), now.revision, now.files, record); err != nil {
		t.Fatal(err)
	}
	if err := s.config.Store.End(t.Context(), audit.Outcome{ID: record.ID, Time: record.Time}); err != nil {
		t.Fatal(err)
	}
}

// TakeIn restores the files of VMs that are only in the history.
func (s *Scaler) TakeIn(ctx context.Context, change *Change, w *Wanted, plan *tfjson.Plan) (bool, error) {
	return s.takeIn(ctx, change, []ShardPlan{{strays: w.strays(plan)}})
}

// Stale returns the addresses to forget.
func (w *wanted) Stale(plan *tfjson.Plan) []string { return w.stale(plan) }

// Imports returns the VMs to import.
func (w *wanted) Imports(plan *tfjson.Plan) ([]fleet.VM, error) { return w.imports(plan) }

// Intent returns what the plan has to do.
func (w *wanted) Intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	return w.intent(plan, imported)
}

// TakenOut returns the VMs whose files were deleted by hand.
func (w *wanted) TakenOut(plan *tfjson.Plan) []fleet.VM { return w.takenOut(plan) }

// StillFree checks an intent right before its apply.
func (w *wanted) StillFree(intent guard.Intent) error { return w.stillFree(intent) }

// Kept is a fleet in a directory with a sealed history.
type Kept struct {
	*store.Directory
	sealed *store.Sealed
}

// Begin begins a change as this installation does.
func (k Kept) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	return k.sealed.Begin(ctx, base, files, change)
}

// End records an outcome as this installation does.
func (k Kept) End(ctx context.Context, outcome audit.Outcome) error {
	return k.sealed.End(ctx, outcome)
}

// Store returns the fleet's store.
func (s *Scaler) Store() Kept {
	sealed := s.config.Store.(*store.Sealed)
	return Kept{sealed.Unwrap().(*store.Directory), sealed}
}

// Begun makes a change find unfinished work on a host.
func (c *Change) Begun(shard fleet.Shard, removed ...fleet.VM) *Change {
	c.open = map[fleet.Shard]audit.Open{shard: {Host: shard, Removed: removed}}
	return c
}

// Step is what must be done before a plan can be checked.
type Step struct {
	Forget           []string
	Imports, Partial []fleet.VM
}

// Next returns what must be done before a plan can be checked.
func (w *wanted) Next(plan *tfjson.Plan) (Step, error) {
	todo, err := w.next(plan)
	return Step{Forget: todo.forget, Imports: todo.imports, Partial: todo.partial}, err
}

// AskNodes finds out why VMs to be deleted must stay for now.
func (s *Scaler) AskNodes(ctx context.Context, w *Wanted) { s.askNodes(ctx, w) }

// Contested returns why VMs of an intent cannot stay, or nil.
func (w *wanted) Contested(intent guard.Intent) error {
	if lost, _ := w.contested(intent.Create); len(lost.VMs) > 0 {
		return lost
	}
	return nil
}

// Note adds a write that no plan contains.
func (p *ShardPlan) Note(line string) { p.outside = append(p.outside, line) }

// Writes reports whether a change without a plan, during which the lines were written,
// must be recorded.
func (c *Change) Writes(outside ...string) bool {
	c.outside = outside
	return c.writes(nil)
}

// Notes reports whether lines have waited long enough for a change.
func (w *Writer) Notes() bool { return w.notes() }

// StillUpdatable checks targets right before they are changed in place.
func (s *Scaler) StillUpdatable(ctx context.Context, change *Change, shard fleet.Shard, targets []guard.Target) error {
	change.from = &standing{}
	w, err := s.look(ctx, change, shard, false)
	if err != nil {
		return err
	}
	return w.stillUpdatable(targets)
}

// Agree compares a plan with the live state right before its apply.
func (s *Scaler) Agree(ctx context.Context, change *Change, shard fleet.Shard, plan *tfjson.Plan, intent guard.Intent) error {
	change.from = &standing{}
	w, err := s.look(ctx, change, shard, false)
	if err != nil {
		return err
	}
	return w.agree(plan, intent)
}

// Next returns the removable VMs whose removal can begin now.
func (w *Writer) Next(t *testing.T) []fleet.VM {
	t.Helper()
	m, err := w.next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m == nil {
		return nil
	}
	return m.change.Removed
}

// Places creates the directories for the engine and for the states, with an older
// version's states.
func (s *Scaler) Places() error {
	_, err := s.keptPlaces()
	return err
}

// Move is a change that a writer makes.
type Move = move

// NextMove returns the change that can be begun now, or nil.
func (w *Writer) NextMove(t *testing.T) *Move {
	t.Helper()
	m, err := w.next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// BeginMove begins a writer's change and drops it.
func (s *Scaler) BeginMove(ctx context.Context, m *Move) error {
	b, err := s.begin(ctx, m.change, func([]ShardPlan) (string, error) { return "", nil })
	if err != nil {
		return err
	}
	return closeAll(b.plans)
}

// Keys returns the VMs that a change asks for; nil asks for none.
func (m *move) Keys() (coming, leaving, changing []fleet.Key) {
	if m == nil {
		return nil, nil, nil
	}
	return m.coming, m.leaving, m.changing
}

// Start takes a change for begun.
func (w *Writer) Start(m *Move) {
	w.begun(m, &begun{change: m.change, started: w.scaler.config.Clock.Now()})
}

// Finish takes a shard of a change for ended.
func (w *Writer) Finish(ctx context.Context, m *Move, shard fleet.Shard, err error) {
	w.ended(ctx, m, "", Result{Shard: shard, Err: err})
}

// Yield takes back VMs that another writer is in the way of.
func (s *Scaler) Yield(ctx context.Context, old *topology.Snapshot, lost ...fleet.VM) error {
	return s.yield(ctx, old, lost)
}

// ReadAgain reads the hosts of VMs again.
func (s *Scaler) ReadAgain(ctx context.Context, old *topology.Snapshot, vms ...fleet.VM) (*topology.Snapshot, error) {
	return s.readAgain(ctx, old, vms)
}

// DriftShards returns the hosts that are compared.
func DriftShards(change *Change) []fleet.Shard { return driftShards(change) }
