package scaler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	tfjson "github.com/hashicorp/terraform-json"
	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Result is the outcome of the apply on one host.
type Result struct {
	Host topology.HostID
	// PlanSHA256 identifies the plan, if there was anything to apply.
	PlanSHA256 string
	// Created, Imported, Deleted, Updated and Woken are the planned operations. If Err is
	// set, some of them may not have been performed.
	Created  []guard.Target
	Imported []guard.Target
	Deleted  []guard.Target
	Updated  []guard.Target
	Woken    []guard.Target
	// Later are the VMs of earlier changes whose updates in place are still unfinished although
	// Err is nil.
	Later []fleet.Key
	// Outside are the writes to Proxmox that no plan contains.
	Outside  []string
	Duration time.Duration
	Err      error
	// Unstarted are the VMs to wake that neither this change nor an earlier one has started;
	// set if Err is set because the plan could not be applied.
	Unstarted []fleet.Key
	// templates is set if the plan was for the host's templates, and left if the host left its
	// Proxmox cluster, so that its other VMs were not looked for.
	templates, left bool
}

// String returns the result in one line.
func (r Result) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: failed after %s: %v", r.Host, r.Duration.Round(time.Millisecond), r.Err)
	}
	var parts []string
	for _, part := range []struct {
		count int
		what  string
	}{
		{len(r.Created), "created"},
		{len(r.Imported), "imported"},
		{len(r.Deleted), "deleted"},
		{len(r.Updated), "changed in place"},
		{len(r.Woken), "woken"},
		{len(r.Later), "to change in place by the next apply"},
	} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.what))
		}
	}
	return fmt.Sprintf("%s: %s in %s", r.Host, cmp.Or(strings.Join(parts, ", "), "no VM changed"), r.Duration.Round(time.Millisecond))
}

// Approve evaluates the plans of a change; if it returns an error, no plan is applied.
// approver is who approved the plans that need approval, or empty if no plan needs it.
type Approve func([]RootPlan) (approver string, err error)

// Apply locks the fleet and plans the hosts that the change touches and, unless it is
// narrow, the hosts with unfinished work; if nothing is requested, it plans all hosts. It
// then calls approve, makes the change the desired state and records it, and applies
// exactly the plans that approve received, with several hosts concurrently. A host that
// cannot be planned or applied does not stop the others, unless approve returns an error.
// Afterwards, Apply removes adopted VMs whose removal had begun, and new VMs that conflict
// with another writer's. Its error joins all failures, and the next run checks the failed
// hosts again. If the store only proposes changes, Apply returns a store.ProposedError.
func (s *Scaler) Apply(ctx context.Context, change *Change, approve Approve) (results []Result, err error) {
	unlock, err := s.config.Store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	results, err = s.apply(ctx, change, approve)
	if err == nil {
		err = s.finishRemovals(ctx, change, approve)
	}
	var lost []fleet.VM
	for i := range results {
		conflict := &ConflictError{}
		if errors.As(results[i].Err, &conflict) {
			lost = append(lost, conflict.VMs...)
		}
	}
	if len(lost) > 0 {
		err = errors.Join(err, s.yield(context.WithoutCancel(ctx), change.Snapshot, lost))
	}
	return results, err
}

// apply begins and finishes a change. The caller holds the fleet's lock.
func (s *Scaler) apply(ctx context.Context, change *Change, approve Approve) (results []Result, err error) {
	begun, err := s.begin(ctx, change, approve)
	if err != nil {
		return nil, err
	}
	return s.finish(ctx, begun, func(Result) {})
}

// finishRemovals removes the VMs that a change adopted although their removal had begun.
func (s *Scaler) finishRemovals(ctx context.Context, change *Change, approve Approve) error {
	var leaving []string
	for _, vm := range change.Adopted {
		if hasKey(change.open[vm.Host].Removed, vm.Key) {
			leaving = append(leaving, vm.Name)
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	removal, err := s.ProposeRemoval(ctx, change.Snapshot, leaving)
	if err != nil {
		return err
	}
	removal.Why = "finish removing " + names(removal.Removed)
	_, err = s.apply(ctx, removal, func(plans []RootPlan) (string, error) {
		change.Approval = nil // approve sets it again
		approver, err := approve(plans)
		removal.Approval = change.Approval
		return approver, err
	})
	return err
}

// begun is a change that has become the desired state, with the plans to apply.
type begun struct {
	change  *Change
	plans   []RootPlan
	started time.Time
	// approved is when approve returned.
	approved time.Time
	// id is the ID of the change's record, or empty if there was nothing to record; kind and
	// why are the record's.
	id   string
	kind audit.Kind
	why  string
}

// begin plans a change, calls approve, and makes the change the desired state if there is
// anything to record. It returns ErrFleetChanged if the fleet has changed since the change
// was proposed.
func (s *Scaler) begin(ctx context.Context, change *Change, approve Approve) (b *begun, err error) {
	b = &begun{change: change, started: s.config.Clock.Now()}
	// Do not plan from an outdated fleet. Comparing files is not enough: VMIDs may have
	// been assigned and released meanwhile.
	// A Writer has just read it, and Store.Begin compares the revisions again.
	revision := change.from.revision
	if !change.lean {
		if _, revision, err = s.config.Store.Read(ctx); err != nil {
			return nil, err
		}
	}
	newest, err := s.config.Store.History(ctx, b.started)
	if err != nil {
		return nil, err
	}
	if revision != change.from.revision || lastOf(newest) != change.from.last {
		return nil, ErrFleetChanged
	}
	at, err := s.permanentPlaces()
	if err != nil {
		return nil, err
	}

	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(b.plans))
			b = nil
		}
	}()
	var more []topology.HostID
	if change.Empty() && !change.lean {
		// The request is empty, so there is time to check everything.
		more = change.After.Hosts
	}
	if b.plans, err = s.planHosts(ctx, change, at, more); err != nil {
		return b, err
	}
	approver, err := approve(b.plans)
	if err != nil {
		return b, errors.Join(err, s.recordUnmade(ctx, change, b.plans))
	}
	b.approved = s.config.Clock.Now()
	if !change.writes(b.plans) {
		return b, nil
	}

	record := s.record(change, b.plans, approver)
	err = s.config.Store.Begin(ctx, change.from.revision, withModules(change), record)
	if errors.Is(err, store.ErrMoved) {
		err = fmt.Errorf("%w: %w", ErrFleetChanged, err)
	}
	b.id, b.kind, b.why = record.ID, record.Kind, record.Why
	return b, err
}

// recordUnmade records the writes that planning made and that no plan contains, if any,
// for a change that is not applied.
func (s *Scaler) recordUnmade(ctx context.Context, change *Change, plans []RootPlan) error {
	unmade := &Change{Kind: audit.KindRecovery, Why: "before a change that was not applied", from: change.from, open: change.open, rotations: change.rotations}
	record := s.record(unmade, nil, "")
	for i := range plans {
		record.Outside = append(record.Outside, plans[i].outside...)
	}
	if len(record.Outside) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.config.Store.Begin(ctx, change.from.revision, change.BeforeFiles, record); err != nil {
		return err
	}
	return s.config.Store.End(ctx, s.outcome(record.ID, record.Time, nil))
}

// withModules returns the files after a change, plus the existing modules, which older
// VMs still call, and the roots of templates, which only changes of templates write. The
// copies of modules are for readers only: the engine gets its modules from Release.
func withModules(change *Change) generator.Files {
	if change.templates != nil {
		return change.AfterFiles
	}
	files := generator.Files{}
	for name, content := range change.BeforeFiles {
		if store.IsModule(name) || generator.IsTemplate(name) {
			files[name] = content
		}
	}
	maps.Copy(files, change.AfterFiles)
	return files
}

func sameFiles(a, b generator.Files) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// finish applies a begun change, calls ended for each host, and records the outcome.
func (s *Scaler) finish(ctx context.Context, b *begun, ended func(Result)) (results []Result, err error) {
	results = make([]Result, len(b.plans))
	var group errgroup.Group
	group.SetLimit(maxParallelHosts)
	var done atomic.Int32
	s.config.Count(stepApplying, 0, len(b.plans))
	for i := range b.plans {
		group.Go(func() error {
			plan := &b.plans[i]
			result := Result{
				Host: plan.Host, Created: plan.Intent.Create, Imported: plan.Intent.Import, Deleted: plan.Intent.Delete, Updated: plan.Intent.Update,
				Woken: plan.Intent.Wake, Later: b.change.updatesLeft(plan), templates: plan.templates != nil, left: plan.left,
			}
			started := s.config.Clock.Now()
			switch {
			case plan.Err != nil:
				result.Err = plan.Err
			case plan.left:
				result.Outside, result.Err = s.forgetLeft(ctx, b.change, plan)
			case plan.Changes():
				result.PlanSHA256 = plan.Plan.SHA256
				ctx, span := tracing.Start(ctx, tracing.SpanApply)
				if span.IsRecording() {
					span.SetAttributes(planAttributes(plan)...)
				}
				result.Outside, result.Unstarted, result.Err = s.applyPlan(ctx, b.change, plan)
				tracing.End(span, result.Err)
				s.config.Observe.ApplyDone(plan.Host, s.config.Clock.Since(started), result.Err)
			case plan.templates == nil && len(b.change.open[plan.Host].Made) > 0:
				result.Err = s.awaitNoConflict(ctx, b.change, plan)
			}
			result.Duration = s.config.Clock.Since(started)
			// Other hosts of the change may take long, and the next change may need this
			// workspace.
			result.Err = errors.Join(result.Err, closeAll(b.plans[i:i+1]))
			results[i] = result
			s.config.Count(stepApplying, int(done.Add(1)), len(b.plans))
			ended(result)
			return nil
		})
	}
	_ = group.Wait() // the results contain the errors

	var failures []error
	for i := range results {
		if results[i].Err != nil {
			failures = append(failures, fmt.Errorf("applying %s: %w", results[i].Host, results[i].Err))
		}
	}
	if b.id != "" {
		// Record what was done even if the caller has given up meanwhile.
		failures = append(failures, s.config.Store.End(context.WithoutCancel(ctx), s.outcome(b.id, b.approved, results)))
	}
	return results, errors.Join(failures...)
}

// applyPlan reads the host again and applies the saved plan, or returns an error if the
// plan is no longer valid. outside lists the writes to Proxmox that the plan does not
// contain. If the plan was not applied, unstarted lists the VMs to wake that no change has
// started.
func (s *Scaler) applyPlan(ctx context.Context, change *Change, plan *RootPlan) (outside []string, unstarted []fleet.Key, err error) {
	if plan.Verdict.Decision == guard.Deny {
		return nil, nil, &DeniedError{Host: plan.Host, Verdict: plan.Verdict}
	}
	if plan.templates != nil {
		return nil, nil, s.applyTemplates(ctx, plan) // a download can take an hour, so it takes no slot
	}
	// Wait for a slot before the checks, because they would be outdated after the wait.
	release := s.engines.apply(ctx)
	defer release()

	v, outside, err := s.prepareApply(ctx, change, plan)
	if err != nil {
		return outside, change.unstarted(plan), err
	}
	var steps []string
	for _, step := range []struct {
		count int
		what  string
	}{
		{len(plan.Intent.Create), "create"},
		{len(plan.Intent.Wake), "wake"},
		{len(plan.Intent.Import), "import"},
		{len(plan.Intent.Update), "update"},
		{len(plan.Intent.Delete), "delete"},
	} {
		if step.count > 0 {
			steps = append(steps, fmt.Sprintf("%d to %s", step.count, step.what))
		}
	}
	s.routine(plan.Host, "applying: "+cmp.Or(strings.Join(steps, ", "), "nothing to do"))
	watched, stop := s.watch(ctx, v.working(plan.Intent.Create)...)
	watched, span := tracing.Start(watched, tracing.SpanEngineApply)
	_, err = plan.workspace.Apply(watched, plan.Plan)
	tracing.End(span, err)
	release()
	if err := stop(err); err != nil {
		return outside, nil, err
	}
	return outside, nil, s.awaitNoConflict(ctx, change, plan)
}

// prepareApply reads the host again, checks that the plan is still valid, and prepares the
// guests. outside lists the writes to Proxmox, also with an error.
func (s *Scaler) prepareApply(ctx context.Context, change *Change, plan *RootPlan) (v *hostView, outside []string, err error) {
	// Check again that VMIDs and CPUs are free, and that the VMs to change are ours,
	// match the plan and are drained.
	var changing []fleet.VMID // includes imports, and VMs whose files were deleted by hand
	for _, target := range slices.Concat(plan.Intent.Delete, plan.Intent.Update, plan.Intent.Import, plan.Intent.Wake) {
		changing = append(changing, target.VMID)
	}
	v, err = s.viewHost(ctx, change, plan.Host, true, changing...)
	if err != nil {
		return nil, nil, err
	}
	for i := range plan.TakenOut {
		v.removed[generator.Address(&plan.TakenOut[i])] = plan.TakenOut[i]
	}
	if err := change.permit(ctx, v); err != nil {
		return nil, nil, err
	}
	if err := v.stillFree(plan.Intent); err != nil {
		return nil, nil, err
	}
	if err := v.stillCloneable(plan.Intent.Create); err != nil {
		return nil, nil, err
	}
	if err := v.stillUpdatable(slices.Concat(plan.Intent.Update, plan.Intent.Wake)); err != nil {
		return nil, nil, err
	}
	if err := v.stillStopped(plan.Plan.JSON, plan.Intent); err != nil {
		return nil, nil, err
	}
	if err := v.stillAsPlanned(plan.Plan.JSON, plan.Intent); err != nil {
		return nil, nil, err
	}
	if lost, _ := v.conflicts(slices.Concat(plan.Intent.Create, plan.Intent.Wake)); len(lost.VMs) > 0 {
		return nil, nil, lost
	}
	if len(plan.Intent.Delete) > 0 {
		// A Node may have received pods since the plan was made.
		s.checkNodes(ctx, v, nil)
	}
	for _, target := range plan.Intent.Delete {
		if reason := v.blocked[target.Address]; reason != "" {
			return nil, nil, &NotDrainedError{VM: v.removed[target.Address].Name, Reason: reason}
		}
	}

	outside, err = s.prepareGuests(ctx, v, plan.Intent, change.leaving)
	return v, outside, err
}

// unstarted returns the VMs to wake that no change has started, if the plan was not applied:
// a wake sets the guest to start with its host before it starts the guest. The state shows
// whether an earlier wake has done that only if it was refreshed.
func (c *Change) unstarted(plan *RootPlan) []fleet.Key {
	onBoot := startsOnBoot(plan.Plan.JSON)
	var keys []fleet.Key
	for _, target := range plan.Intent.Wake {
		retried := slices.Contains(c.open[plan.Host].Woken, target.Key)
		if !onBoot[target.Address] && (!retried || plan.Intent.Targeted) {
			keys = append(keys, target.Key)
		}
	}
	return keys
}

// startsOnBoot returns the addresses of the VMs that start with their host, by the state
// from which a plan was made.
func startsOnBoot(plan *tfjson.Plan) map[string]bool {
	onBoot := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		before, _ := change.Change.Before.(map[string]any)
		onBoot[change.Address], _ = before["on_boot"].(bool)
	}
	return onBoot
}

// prepareGuests uploads the seeds of the VMs that the plan creates, completes or wakes, and
// shuts down the VMs that it deletes. A VM in leaving that the plan completes or wakes gets
// no seed, because its removal follows.
func (s *Scaler) prepareGuests(ctx context.Context, v *hostView, intent guard.Intent, leaving map[fleet.Key]bool) (written []string, err error) {
	if s.config.Guests == nil {
		return nil, nil
	}
	var created, deleted []fleet.VM
	for _, target := range intent.Create {
		if vm, ok := v.vms[target.Address]; ok {
			created = append(created, vm)
		}
	}
	for _, target := range intent.Wake {
		if vm, ok := v.vms[target.Address]; ok && !leaving[vm.Key] {
			created = append(created, vm)
		}
	}
	for _, target := range intent.Import {
		if vm, ok := v.vms[target.Address]; ok && target.Incomplete && !leaving[vm.Key] {
			created = append(created, vm)
		}
	}
	for _, target := range intent.Delete {
		if vm, ok := v.removed[target.Address]; ok {
			deleted = append(deleted, vm)
		}
	}

	if len(created) > 0 {
		if written, err = s.config.Guests.Seed(ctx, created); err != nil {
			return written, fmt.Errorf("seeding %s: %w", names(created), err)
		}
	}
	if len(deleted) == 0 {
		return written, nil
	}
	more, err := s.config.Guests.ShutDown(ctx, deleted)
	if err != nil {
		err = fmt.Errorf("shutting down %s: %w", names(deleted), err)
	}
	return append(written, more...), err
}

// stillFree returns an error if, right before an apply, a guest has the VMID of a VM that
// the plan creates, or if the VMID of a VM that it deletes may belong to another guest.
func (v *hostView) stillFree(intent guard.Intent) error {
	for _, target := range intent.Create {
		if guest, taken := v.guests[guestID{v.id.Region, target.VMID}]; taken {
			return &VMIDTakenError{VM: v.vms[target.Address].Name, VMID: target.VMID, Guest: guest.Name, Host: guest.host}
		}
	}
	for _, target := range intent.Delete {
		vm := v.removed[target.Address] // no file may describe it any more
		vm.Key, vm.VMID, vm.Host = target.Key, target.VMID, v.id
		guest, exists := v.guests[guestID{v.id.Region, target.VMID}]
		if !exists || v.is(guest, &vm) {
			continue
		}
		if err := v.mayBe(guest, &vm); err != nil {
			return err
		}
		return &GuestGoneError{Address: target.Address, VMID: target.VMID, Guest: guest.Name}
	}
	return nil
}

// working returns the host, and the hosts with templates of the VMs to create: they run the
// tasks of the clones.
func (v *hostView) working(targets []guard.Target) []topology.HostID {
	hosts := []topology.HostID{v.id}
	for _, target := range targets {
		source := topology.HostID{Region: v.id.Region, Host: v.vms[target.Address].Source.Host}
		if source.Host != "" && !slices.Contains(hosts, source) {
			hosts = append(hosts, source)
		}
	}
	return hosts
}

// SourceError reports that a VM cannot be cloned from the template of another host in its
// file.
type SourceError struct {
	VM      string
	Source  fleet.VMID
	On      topology.HostName
	Problem string
}

func (e *SourceError) Error() string {
	return fmt.Sprintf("cloning vm %s from template %d on %s: %s: run numaform remove %s, and its pods get another node", e.VM, e.Source, e.On, e.Problem, e.VM)
}

// stillCloneable returns an error if VMs to create are clones of a template that is not on the
// host in their files, whose host is down, or that is not on shared storage: without shared
// storage, the provider would clone on that host and migrate the clone.
func (v *hostView) stillCloneable(targets []guard.Target) error {
	for _, target := range targets {
		vm := v.vms[target.Address]
		if vm.Source.Host == "" {
			continue
		}
		id := topology.HostID{Region: v.id.Region, Host: vm.Source.Host}
		from := v.snapshot.Host(id)
		if problem := problemOf(from); problem != "" {
			return &HostDownError{Host: id, Problem: problem}
		}
		problem := "the host has no such template"
		for i := range from.Templates {
			if fleet.VMID(from.Templates[i].VMID) == vm.Source.VMID {
				problem = v.host.CloneProblem(&from.Templates[i], from, fullStorage(&vm.Spec))
			}
		}
		if problem != "" {
			return &SourceError{VM: vm.Name, Source: vm.Source.VMID, On: vm.Source.Host, Problem: problem}
		}
	}
	return nil
}

// stillUpdatable returns an error if, right before an apply, a VM that the plan updates or
// wakes no longer exists or is no longer ours.
func (v *hostView) stillUpdatable(targets []guard.Target) error {
	for _, target := range targets {
		vm, known := v.vms[target.Address]
		if !known {
			continue
		}
		guest, exists := v.with(&vm)
		if exists && v.is(guest, &vm) {
			continue
		}
		if exists {
			if err := v.mayBe(guest, &vm); err != nil {
				return err
			}
		}
		return &VanishedError{VM: vm.Name, VMID: vm.VMID, Host: vm.Host}
	}
	return nil
}

// PartialError is implemented by errors for which the apply on a host fails because of some
// of its VMs, although nothing is wrong with the host and its other VMs.
type PartialError interface {
	error
	// Concerns reports whether the VM with a key is one of those VMs.
	Concerns(key fleet.Key) bool
}

// StartedByHandError reports that a standby VM runs although numaform did not start it, so
// that it has no join data.
type StartedByHandError struct {
	VM   string
	Key  fleet.Key
	VMID fleet.VMID
	Host topology.HostID
}

func (e *StartedByHandError) Error() string {
	return fmt.Sprintf("vm %s: standby guest %d on %s runs, but numaform did not start it: it has no join data and cannot become a node: "+
		"run qm stop %d, then numaform can wake it", e.VM, e.VMID, e.Host, e.VMID)
}

// Concerns implements PartialError.
func (e *StartedByHandError) Concerns(key fleet.Key) bool { return key == e.Key }

// stillStopped refuses, right before an apply, to wake a VM that is already running,
// unless an interrupted wake may have started it. The history does not distinguish an
// interrupted wake from a refused one, which wrote nothing. A refreshed plan does: a wake
// sets the guest to start with its host before it starts the guest.
func (v *hostView) stillStopped(plan *tfjson.Plan, intent guard.Intent) error {
	refreshed := v.retrying && intent.Targeted
	onBoot := startsOnBoot(plan)
	for _, target := range intent.Wake {
		vm, known := v.vms[target.Address]
		guest, exists := v.with(&vm)
		if !known || !exists || !guest.Running {
			continue
		}
		retried := slices.Contains(v.change.open[v.id].Woken, target.Key)
		if !retried || (refreshed && !onBoot[target.Address]) {
			return &StartedByHandError{VM: vm.Name, Key: vm.Key, VMID: vm.VMID, Host: v.id}
		}
	}
	return nil
}

// stillAsPlanned refuses, right before an apply, to write to a VM for which state, plan
// and Proxmox disagree. The guard has checked that state and plan agree with the intent.
func (v *hostView) stillAsPlanned(plan *tfjson.Plan, intent guard.Intent) error {
	targets := map[string]guard.Target{}
	for _, target := range slices.Concat(intent.Delete, intent.Import, intent.Update, intent.Wake) {
		targets[target.Address] = target
	}
	for _, change := range plan.ResourceChanges {
		target, requested := targets[change.Address]
		if !requested || change.Type != guard.ResourceType {
			continue
		}
		before, _ := change.Change.Before.(map[string]any)
		if err := v.agrees(target, before, func(string) bool { return true }); err != nil {
			return err
		}
		after, _ := change.Change.After.(map[string]any)
		planned := func(attribute string) bool { return attribute != "name" && after[attribute] != nil }
		if err := v.agrees(target, after, planned); err != nil {
			return err
		}
	}
	return nil
}

// agrees returns a DisagreeError if a guest differs from values in an attribute that
// relevant selects. The values are from the state, from an import or from the plan.
func (v *hostView) agrees(target guard.Target, values map[string]any, relevant func(attribute string) bool) error {
	guest, exists := v.guests[guestID{v.id.Region, target.VMID}]
	if !exists {
		return nil // stillUpdatable reports a missing guest; one to be deleted may be missing
	}
	recorded, marker, _ := recordedVM(values)
	host, _ := values["node_name"].(string)
	id, _ := values["id"].(string)
	live := fmt.Sprint(guest.VMID)
	if vm := v.vms[target.Address]; v.foreign(&vm) && v.adoptable(guest, &vm) == nil {
		// Only the plan has a marker.
		marked := relevant
		relevant = func(attribute string) bool { return attribute != "description" && marked(attribute) }
	}
	for _, one := range []struct{ of, attribute, state, live string }{
		{"id", "id", id, live},
		{"vm_id", "vm_id", fmt.Sprint(recorded.VMID), live},
		{"name", "name", recorded.Name, guest.Name},
		{"node_name", "host", host, string(guest.host.Host)},
		{"description", "marker", v.clusterID, guest.ClusterID},
		{"description", "marker", marker.ClusterID, guest.ClusterID},
		{"description", "key", string(target.Key), guest.Key},
		{"description", "key", string(marker.Key), guest.Key},
	} {
		if relevant(one.of) && one.state != one.live {
			return &DisagreeError{
				VM: recorded.Name, Key: target.Key, VMID: target.VMID, Host: v.id, Attribute: one.attribute, State: one.state, Live: one.live,
			}
		}
	}
	return nil
}

// While the provider waits for a clone to be unlocked, it treats every error as
// temporary: if the host goes down, the provider waits for the maximum time of a clone,
// and ignores the engine's request to stop. The scaler therefore checks during the apply
// whether the cluster still reaches the host.
const (
	// onlinePoll is the interval between checks, and offlineReadings how many consecutive
	// checks must find the host offline before it counts as lost: a brief failure of its
	// cluster network is shorter.
	onlinePoll      = 10 * time.Second
	offlineReadings = 3
)

// HostLostError reports that a host went offline while a plan was applied to it, and that
// the apply was canceled.
type HostLostError struct {
	Host topology.HostID
	// Offline is the minimum time for which the cluster has not reached the host.
	Offline time.Duration
}

func (e *HostLostError) Error() string {
	return fmt.Sprintf("host %s went offline during the apply and was still offline after %s, so the apply was canceled: "+
		"start the host, or check its cluster network (pvecm status); once it is back, the next apply completes the VMs created there",
		e.Host, e.Offline)
}

// Unwrap returns state.ErrHostLost, which makes providers end without waiting for the
// host.
func (e *HostLostError) Unwrap() error { return state.ErrHostLost }

// watch returns a context that ends when one of the hosts, all of one region, is lost, which
// cancels an apply in an orderly way: the engine saves the state and releases its lock. stop
// ends the watch and returns its argument. If a host was lost and the argument is an error,
// stop adds a HostLostError to it.
func (s *Scaler) watch(ctx context.Context, hosts ...topology.HostID) (watched context.Context, stop func(error) error) {
	live := s.region(hosts[0].Region).Live
	if live == nil {
		return ctx, func(err error) error { return err }
	}
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := s.config.Clock.NewTicker(onlinePoll)
		defer ticker.Stop()
		for offline := make([]int, len(hosts)); ; {
			select {
			case <-watched.Done():
				return
			case <-ticker.C():
			}
			for i, host := range hosts {
				// A missing response, or an error, does not prove that the host is offline.
				online, err := live.Online(watched, host.Host)
				offline[i]++
				if err != nil || online {
					offline[i] = 0
				}
				if offline[i] == offlineReadings {
					s.config.Progress(host, "the host is offline: canceling the apply")
					cancel(&HostLostError{Host: host, Offline: (offlineReadings - 1) * onlinePoll})
					return
				}
			}
		}
	}()
	return watched, func(err error) error {
		cancel(nil)
		<-done
		var lost *HostLostError
		if err != nil && errors.As(context.Cause(watched), &lost) {
			return fmt.Errorf("%w: %w", lost, err)
		}
		return err
	}
}

func hasKey(vms []fleet.VM, key fleet.Key) bool {
	return slices.ContainsFunc(vms, func(vm fleet.VM) bool { return vm.Key == key })
}
