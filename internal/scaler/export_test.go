package scaler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	tfjson "github.com/hashicorp/terraform-json"
	"go.opentelemetry.io/otel/trace"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// HostView exports hostView.
type HostView = hostView

// Look returns the view of a host with the change's own snapshot.
func (s *Scaler) Look(ctx context.Context, change *Change, host topology.HostID) (*HostView, error) {
	return s.viewHost(ctx, change, host, false)
}

// Repin runs repin on a plan of a host, and returns the VMs that the plan may update.
func (s *Scaler) Repin(ctx context.Context, change *Change, host topology.HostID, plan *RootPlan, made *tfjson.Plan) ([]guard.Target, error) {
	change.from = &reading{}
	v, err := s.viewHost(ctx, change, host, false)
	if err != nil {
		return nil, err
	}
	plan.Plan = &state.Plan{JSON: made}
	err = v.repin(plan)
	return plan.Intent.Update, err
}

// Open returns the unfinished work.
func (s *Scaler) Open(t *testing.T) map[topology.HostID]audit.Open {
	t.Helper()
	now, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now.open
}

// Record returns the record of a change.
func (s *Scaler) Record(change *Change, plans []RootPlan) audit.Change {
	return s.record(change, plans, "")
}

// Outcome returns the record of the results.
func (s *Scaler) Outcome(id string, started time.Time, results []Result) audit.Outcome {
	return s.outcome(id, started, results)
}

// Begin records the beginning of a change of a host, but no outcome, as if the process
// died.
func (s *Scaler) Begin(t *testing.T, host topology.HostID, removed ...fleet.VM) {
	t.Helper()
	now, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change := &Change{from: now, open: now.open, rotations: now.rotations, Removed: removed, Kind: audit.KindScaleDown}
	record := s.record(change, []RootPlan{{Host: host, Touched: true, Intent: guard.Intent{Delete: make([]guard.Target, 1)}}}, "")
	if err := s.config.Store.Begin(t.Context(), now.revision, now.files, record); err != nil {
		t.Fatal(err)
	}
}

// Made records a VM as created successfully an hour ago.
func (s *Scaler) Made(t *testing.T, vm fleet.VM) {
	t.Helper()
	now, err := s.read(t.Context())
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

// RecordedVMs returns the VMs whose spec is in the history, by key.
func RecordedVMs(entries []audit.Entry) map[fleet.Key]fleet.VM { return recordedVMs(entries) }

// Adopt restores the files of VMs that are only in the history.
func (s *Scaler) Adopt(ctx context.Context, change *Change, v *HostView, plan *tfjson.Plan) (bool, error) {
	return s.adopt(ctx, change, []RootPlan{{orphans: v.orphans(plan)}})
}

// Stale returns the addresses to forget.
func (v *hostView) Stale(plan *tfjson.Plan) []string { return v.stale(plan) }

// Imports returns the VMs to import.
func (v *hostView) Imports(plan *tfjson.Plan) ([]fleet.VM, error) { return v.imports(plan) }

// Intent returns the operations that the plan must perform.
func (v *hostView) Intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	return v.intent(plan, imported)
}

// TakenOut returns the VMs whose files were deleted by hand.
func (v *hostView) TakenOut(plan *tfjson.Plan) []fleet.VM { return v.takenOut(plan) }

// StillCloneable checks the VMs to create right before an apply.
func (v *hostView) StillCloneable(targets []guard.Target) error { return v.stillCloneable(targets) }

// StillFree checks an intent right before its apply.
func (v *hostView) StillFree(intent guard.Intent) error { return v.stillFree(intent) }

// Kept is the store of a fleet in a directory with a sealed history.
type Kept struct {
	*store.Directory
	sealed *store.Sealed
}

// Begin begins a change in this installation's name.
func (k Kept) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	return k.sealed.Begin(ctx, base, files, change)
}

// End records an outcome in this installation's name.
func (k Kept) End(ctx context.Context, outcome audit.Outcome) error {
	return k.sealed.End(ctx, outcome)
}

// Store returns the fleet's store.
func (s *Scaler) Store() Kept {
	sealed := s.config.Store.(*store.Sealed)
	return Kept{sealed.Unwrap().(*store.Directory), sealed}
}

// Begun adds unfinished work on a host to a change.
func (c *Change) Begun(host topology.HostID, removed ...fleet.VM) *Change {
	c.open = map[topology.HostID]audit.Open{host: {Host: host, Removed: removed}}
	return c
}

// Waking marks VMs of a host as woken by a change that has not ended.
func (c *Change) Waking(host topology.HostID, vms ...fleet.VM) *Change {
	entry := audit.Open{Host: host}
	for i := range vms {
		entry.Woken = append(entry.Woken, vms[i].Key)
	}
	c.open = map[topology.HostID]audit.Open{host: entry}
	return c
}

// Leaving marks VMs whose removal was requested.
func (c *Change) Leaving(vms ...fleet.VM) *Change {
	c.leaving = map[fleet.Key]bool{}
	for i := range vms {
		c.leaving[vms[i].Key] = true
	}
	return c
}

// Making marks VMs of a host as created by a change that has not ended.
func (c *Change) Making(host topology.HostID, vms ...fleet.VM) *Change {
	entry := c.open[host]
	for i := range vms {
		entry.Made = append(entry.Made, targetOf(c.After.ClusterID, &vms[i]))
	}
	c.open[host] = entry
	return c
}

// Recovery is the work required before a plan can be checked.
type Recovery struct {
	Forget           []string
	Imports, Partial []fleet.VM
}

// Compare returns the work required before a plan can be checked.
func (v *hostView) Compare(plan *tfjson.Plan) (Recovery, error) {
	todo, err := v.compare(plan)
	return Recovery{Forget: todo.forget, Imports: todo.imports, Partial: todo.partial}, err
}

// CheckNodes records why VMs to be deleted must not be deleted yet.
func (s *Scaler) CheckNodes(ctx context.Context, v *HostView) { s.checkNodes(ctx, v, nil) }

// Conflict returns why VMs that an intent creates must be removed again, or nil.
func (v *hostView) Conflict(intent guard.Intent) error {
	if lost, _ := v.conflicts(intent.Create); len(lost.VMs) > 0 {
		return lost
	}
	return nil
}

// Note adds a write that no plan contains.
func (p *RootPlan) Note(line string) { p.outside = append(p.outside, line) }

// Writes reports whether a change without a plan must be recorded, given the lines
// written during it.
func (c *Change) Writes(outside ...string) bool {
	c.outside = outside
	return c.writes(nil)
}

// OutsideDue reports whether lines about writes to Proxmox have waited long enough to be
// recorded without another change.
func (w *Writer) OutsideDue() bool { return w.outsideDue() }

// Find returns the VM with that name.
func (w *Writer) Find(name string) (VMState, bool) {
	for _, state := range w.VMs() {
		if state.VM.Name == name {
			return state, true
		}
	}
	return VMState{}, false
}

// StillUpdatable checks targets right before they are changed in place.
func (s *Scaler) StillUpdatable(ctx context.Context, change *Change, host topology.HostID, targets []guard.Target) error {
	change.from = &reading{}
	v, err := s.viewHost(ctx, change, host, false)
	if err != nil {
		return err
	}
	return v.stillUpdatable(targets)
}

// StillAsPlanned compares a plan with the live state right before its apply.
func (s *Scaler) StillAsPlanned(ctx context.Context, change *Change, host topology.HostID, plan *tfjson.Plan, intent guard.Intent) error {
	change.from = &reading{}
	v, err := s.viewHost(ctx, change, host, false)
	if err != nil {
		return err
	}
	return v.stillAsPlanned(plan, intent)
}

// Next returns the VMs that the writer's next change removes, or nil.
func (w *Writer) Next(t *testing.T) []fleet.VM {
	t.Helper()
	b, err := w.nextBatch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		return nil
	}
	return b.change.Removed
}

// Places creates the directories for the engine and for the states, and moves an older
// version's states there.
func (s *Scaler) Places() error {
	_, err := s.permanentPlaces()
	return err
}

// Batch is a change that a writer makes.
type Batch = batch

// NextBatch returns the change that can be begun now, or nil.
func (w *Writer) NextBatch(t *testing.T) *Batch {
	t.Helper()
	b, err := w.nextBatch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// BeginBatch begins a writer's change, but does not apply it.
func (s *Scaler) BeginBatch(ctx context.Context, b *Batch) error {
	begun, err := s.begin(ctx, b.change, func([]RootPlan) (string, error) { return "", nil })
	if err != nil {
		return err
	}
	return closeAll(begun.plans)
}

// Keys returns the VMs that a change creates, removes and updates; nil has none.
func (b *batch) Keys() (creates, removes, updates []fleet.Key) {
	if b == nil {
		return nil, nil, nil
	}
	return b.creates, b.removes, b.updates
}

// Wakes returns the VMs that a change wakes; nil has none.
func (b *batch) Wakes() []fleet.Key {
	if b == nil {
		return nil
	}
	return b.wakes
}

// Start marks a change as begun.
func (w *Writer) Start(b *Batch) {
	begun := &begun{change: b.change, started: w.scaler.config.Clock.Now()}
	if b.change.from != nil {
		for _, host := range slices.Concat(b.change.Hosts(), b.change.unfinished()) {
			begun.plans = append(begun.plans, RootPlan{Host: host})
		}
	}
	w.batchBegun(b, begun, trace.SpanContext{})
}

// Refuse refuses the plan of a host of a change, and reports whether the change is postponed.
func (w *Writer) Refuse(ctx context.Context, b *Batch, plan RootPlan) (postponed bool) {
	return errors.Is(w.approve(ctx, b, []RootPlan{plan}), errReduced)
}

// Woken reports whether the writer takes its next step at once, and resets this.
func (w *Writer) Woken() bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

// Finish marks a host of a change as applied, or as failed if err is not nil.
func (w *Writer) Finish(ctx context.Context, b *Batch, host topology.HostID, err error) {
	w.hostApplied(ctx, b, "", Result{Host: host, Err: err})
}

// FinishWith marks a host of a change as applied with a result.
func (w *Writer) FinishWith(ctx context.Context, b *Batch, result Result) {
	w.hostApplied(ctx, b, "", result)
}

// Change returns the change.
func (b *batch) Change() *Change { return b.change }

// Yield removes VMs that conflict with another writer's VMs.
func (s *Scaler) Yield(ctx context.Context, old *topology.Snapshot, lost ...fleet.VM) error {
	return s.yield(ctx, old, lost)
}

// ReadAgain reads the hosts of VMs again.
func (s *Scaler) ReadAgain(ctx context.Context, old *topology.Snapshot, vms ...fleet.VM) (*topology.Snapshot, error) {
	return s.readAgain(ctx, old, vms)
}

// DriftHosts returns the hosts that are compared.
func DriftHosts(change *Change) []topology.HostID { return driftHosts(change) }

// Compare classifies the VMs of a host by the change's snapshot and by a refreshed plan,
// if there is one.
func (c *Change) Compare(host topology.HostID, plan *tfjson.Plan) map[fleet.VMID]VMDrift {
	comparison := newComparison(c)
	vms := byAddress(c.After.VMs, host)
	if plan != nil {
		comparison.read(plan, vms, guard.DefaultRules())
	}
	found := map[fleet.VMID]VMDrift{}
	for _, vm := range vms {
		found[vm.VMID] = comparison.classify(vm)
	}
	return found
}

// Differences returns the differences between values.
func Differences(change *tfjson.Change) []DriftDifference { return differences(change) }

// LeaveOut returns the VMs of a host that still have to be planned after an error, and
// whether the error names any VM.
func (c *Change) LeaveOut(host topology.HostID, err error) (left map[string]fleet.VM, named bool) {
	left = byAddress(c.After.VMs, host)
	named = newComparison(c).leaveOut(err, left)
	return left, named
}

// Compared returns the addresses that a refresh of a host's VMs reads.
func (c *Change) Compared(host topology.HostID) []string {
	return refreshTargets(byAddress(c.After.VMs, host), c.index())
}

// OnlyMovedAway reports whether a change of a host only removes VMs that are on other
// hosts now.
func (c *Change) OnlyMovedAway(host topology.HostID) bool { return c.onlyMovedAway(host) }

// HostsOf returns the hosts to read before a host is changed.
func (c *Change) HostsOf(host topology.HostID) []topology.HostName { return c.hostsOf(host) }

// Outdated returns the outdated entries of VMs to be removed in the state.
func (v *hostView) Outdated(resources ...state.Resource) (targets, groups []string) {
	return v.outdated(resources, v.movedAway())
}

// Repairable returns an error if VMs of a host must not be repaired now.
func (v *hostView) Repairable(repaired ...fleet.VM) error {
	return v.repairable(byAddress(repaired, v.id))
}

// IsNarrow reports whether planning is limited to the hosts that the change touches.
func (c *Change) IsNarrow() bool { return c.narrow }

// Failures returns the IDs of the changes in a history that count as failed while the hosts
// in busy are being applied.
func Failures(entries []audit.Entry, busy ...topology.HostID) (ids []string) {
	from := &reading{recent: entries, busy: map[topology.HostID]bool{}}
	for _, host := range busy {
		from.busy[host] = true
	}
	for _, event := range events(from, time.Now(), nil) {
		if event.Failed {
			ids = append(ids, event.Change)
		}
	}
	return ids
}

// EventsOf returns the events in a history for the limits of a change with these parts.
func EventsOf(entries []audit.Entry, now time.Time, parts ...guard.HostIntent) []guard.Event {
	return events(&reading{recent: entries}, now, parts)
}

// Events returns the events in the fleet's history for the limits.
func (s *Scaler) Events(t *testing.T) []guard.Event {
	t.Helper()
	now, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events(now, s.config.Clock.Now(), nil)
}

// Watch returns a context that ends when one of the hosts is lost, and a function that ends
// the watch.
func (s *Scaler) Watch(ctx context.Context, hosts ...topology.HostID) (watched context.Context, stop func(error) error) {
	return s.watch(ctx, hosts...)
}

// LaterHosts returns the hosts whose new VMs wait for the next change.
func (w *Writer) LaterHosts() []topology.HostID {
	later := w.laterHosts(&reading{}, w.scaler.config.Clock.Now())
	maps.DeleteFunc(later, func(_ topology.HostID, waits bool) bool { return !waits })
	return slices.SortedFunc(maps.Keys(later), topology.HostID.Compare)
}

// Reserve adds reserved VMs to a writer.
func (w *Writer) Reserve(vms ...fleet.VM) {
	for _, vm := range vms {
		w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseReserved}}
	}
}

// Later defers VMs to a change after this one.
func (c *Change) Later(vms ...fleet.VM) { c.later = vms }

// ApprovePart approves the plans of a change whose remaining VMs wait for the next
// change, and reports whether the next change contains all VMs.
func (w *Writer) ApprovePart(ctx context.Context, change *Change, plans []RootPlan) (whole bool) {
	err := w.approve(ctx, &batch{change: change}, plans)
	return w.whole && errors.Is(err, errReduced)
}

// ApproveCreates approves the plans of a change that creates reserved VMs, and reports
// whether the change has to continue without some of them.
func (w *Writer) ApproveCreates(ctx context.Context, plans []RootPlan, keys ...fleet.Key) (reduced bool) {
	err := w.approve(ctx, &batch{change: &Change{}, creates: keys}, plans)
	return errors.Is(err, errReduced)
}

// ApproveUnfinished approves the plans of a change that only completes unfinished work, and
// reports whether the work is postponed.
func (w *Writer) ApproveUnfinished(ctx context.Context, plans []RootPlan) (postponed bool) {
	err := w.approve(ctx, &batch{change: &Change{}}, plans)
	return errors.Is(err, errReduced)
}

// ApproverOf returns the recorded approver of an approved plan of a writer.
func ApproverOf(plan *RootPlan) string { return plan.record("").Approver }

// ApplyCreates marks a change that creates VMs as begun and its host as applied.
func (w *Writer) ApplyCreates(ctx context.Context, host topology.HostID, err error, keys ...fleet.Key) {
	b := &batch{change: &Change{}, creates: keys}
	w.Start(b)
	w.Finish(ctx, b, host, err)
}

// Restoring sets the function that is called before each step of a restore, and ends the
// restore if it returns an error.
func (s *Scaler) Restoring(f func(step string) error) { s.restoring = f }

// Forgets reports whether a change only forgets the VMs that it removes from a host.
func (s *Scaler) Forgets(ctx context.Context, change *Change, host topology.HostID) bool {
	v, err := s.viewHost(ctx, change, host, false)
	return err == nil && v.left
}

// OfHostThatLeft returns the result as of a host that left its Proxmox cluster.
func (r Result) OfHostThatLeft() Result {
	r.left = true
	return r
}
