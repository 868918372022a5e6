package scaler

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// writes reports whether there is anything to record: requests, changed files, a plan with
// changes, writes that no plan contains, or completed unfinished work.
func (c *Change) writes(plans []RootPlan) bool {
	if len(c.outside) > 0 || !c.Empty() || !sameFiles(c.BeforeFiles, withModules(c)) {
		return true
	}
	return slices.ContainsFunc(plans, func(p RootPlan) bool {
		return c.completes(&p) || len(p.outside) > 0 || p.Changes()
	})
}

// completes reports whether the plan completes unfinished work of its host, at least a part.
func (c *Change) completes(plan *RootPlan) bool {
	open, unfinished := c.open[plan.Host]
	allLeft := open.OnlyUpdates() && len(c.updatesLeft(plan)) == len(open.Updated)
	return unfinished && !allLeft
}

// record returns the record of a change, which is written before the change is applied.
func (s *Scaler) record(change *Change, plans []RootPlan, approver string) audit.Change {
	// Records sort by time, even if the clocks of two machines differ.
	now := s.config.Clock.Now().UTC()
	if recent := change.from.recent; len(recent) > 0 && !now.After(recent[len(recent)-1].Change.Time) {
		now = recent[len(recent)-1].Change.Time.Add(time.Microsecond)
	}
	// The ID sorts by time, to the microsecond, and is unique for each change.
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%d\n%s\n", change.from.revision, now.UnixNano(), s.config.Actor)
	id := fmt.Sprintf("%s-%06d%s", now.Format("20060102T150405Z"), now.Nanosecond()/1000, hex.EncodeToString(sum.Sum(nil)[:2]))

	record := audit.Change{
		Format: audit.FormatVersion, ID: id, Time: now, ClusterID: s.config.ClusterID, Actor: s.config.Actor, Version: s.config.Version,
		Kind: change.kind(plans), Undoes: change.Undoes,
		Added: change.Added, Removed: slices.Clone(change.Removed), Renumbered: change.Renumbered, Woken: change.Woken, Rested: change.Rested, Adopted: change.Foreign,
		Outside: slices.Clone(change.outside), Open: change.opens(id, plans),
		Rotations: rotations{},
	}
	if change.Approval != nil {
		approval := *change.Approval
		approval.By = approver
		record.Approval = &approval
	}
	maps.Copy(record.Rotations, change.rotations)
	for i := range plans {
		plan := &plans[i]
		record.Removed = append(record.Removed, plan.TakenOut...)
		record.Outside = append(record.Outside, plan.outside...)
		if record.Kind == audit.KindByHand {
			record.Added = append(record.Added, plan.Made...)
		}
		switch {
		case plan.templates != nil && plan.Plan != nil:
			intent := &plan.templates.intent
			record.Templates = append(record.Templates, audit.TemplatePlan{
				Host: plan.Host, PlanSHA256: plan.Plan.SHA256, PlanDigest: plan.Plan.Digest, Verdict: plan.Verdict, Approver: approver,
				Create: refs(slices.Concat(intent.Create, intent.Unfinished)), Delete: refs(intent.Delete),
			})
		case plan.templates == nil && (plan.Changes() || plan.Touched):
			record.Hosts = append(record.Hosts, plan.record(approver))
		}
		// VMs that others added to the files have used VMIDs, too.
		s.advance(record.Rotations, plan.Made)
	}
	record.Why = cmp.Or(change.Why, why(&record))
	return record
}

// kind returns the kind of a change for its record: its own if it contains requests;
// otherwise KindByHand for people's edits of the files, KindRepair for updates by a
// repair, or KindRecovery.
func (c *Change) kind(plans []RootPlan) audit.Kind {
	byHand, repaired := false, false
	for i := range plans {
		_, unfinished := c.open[plans[i].Host]
		byHand = byHand || len(plans[i].TakenOut) > 0 || (len(plans[i].Made) > 0 && !unfinished)
		repaired = repaired || len(plans[i].Intent.Update) > 0
	}
	switch {
	case !c.Empty():
		return c.Kind
	case byHand:
		return audit.KindByHand
	case c.Kind == audit.KindRepair && repaired:
		return audit.KindRepair
	}
	return audit.KindRecovery
}

func (p *RootPlan) record(approver string) audit.HostPlan {
	host := audit.HostPlan{
		Host: p.Host, Create: p.Intent.Create, Delete: p.Intent.Delete, Import: p.Intent.Import, Update: p.Intent.Update, Wake: p.Intent.Wake,
		Verdict: p.Verdict,
	}
	if p.Plan != nil {
		host.PlanSHA256 = p.Plan.SHA256
		host.PlanDigest = p.Plan.Digest
	}
	switch {
	case p.approval != nil:
		host.Approver = p.approval.By
		if p.approval.Digest != "" {
			host.Approval = p.approval
		}
	case p.InPlace || len(p.Intent.Wake) > 0 || p.Verdict.Decision == guard.NeedsApproval:
		host.Approver = approver
	}
	if p.Err != nil {
		host.Error = p.Err.Error()
	}
	return host
}

// opens returns the unfinished work once the change has begun: the earlier work, and each
// host that is to change, or that the change touches but that could not be planned.
func (c *Change) opens(id string, plans []RootPlan) []audit.Open {
	open := maps.Clone(c.open)
	for _, vm := range c.Rested {
		if slices.ContainsFunc(plans, func(p RootPlan) bool { return p.Host == vm.Host && p.Err != nil }) {
			continue // its state may still have it as started
		}
		entry := open[vm.Host]
		entry.Woken = slices.DeleteFunc(slices.Clone(entry.Woken), func(key fleet.Key) bool { return key == vm.Key })
		if open[vm.Host] = entry; !entry.Whole && len(entry.Removed)+len(entry.Made)+len(entry.Updated)+len(entry.Woken) == 0 {
			delete(open, vm.Host)
		}
	}
	for i := range plans {
		plan := &plans[i]
		if plan.templates != nil {
			continue
		}
		entry, unfinished := open[plan.Host]
		entry.Later = c.updatesLeft(plan)
		if !plan.unfinished() {
			if unfinished {
				open[plan.Host] = entry
			}
			continue
		}
		entry.Host = plan.Host
		entry.Change = id
		entry.Removed = slices.Concat(entry.Removed, on(c.Removed, plan.Host), plan.TakenOut)
		entry.Made = plan.toCheck(entry.Made)
		entry.Updated = slices.Clone(entry.Updated)
		for _, vm := range on(c.Updated, plan.Host) {
			if !slices.Contains(entry.Updated, vm.Key) {
				entry.Updated = append(entry.Updated, vm.Key)
			}
		}
		for i, target := range slices.Concat(plan.Intent.Update, plan.Intent.Import) {
			updates := i < len(plan.Intent.Update) || target.Incomplete
			if updates && !slices.Contains(entry.Updated, target.Key) {
				entry.Updated = append(entry.Updated, target.Key)
			}
		}
		entry.Woken = slices.Clone(entry.Woken)
		for _, vm := range on(c.Woken, plan.Host) {
			if !slices.Contains(entry.Woken, vm.Key) {
				entry.Woken = append(entry.Woken, vm.Key)
			}
		}
		open[plan.Host] = entry
	}
	return slices.SortedFunc(maps.Values(open), func(a, b audit.Open) int { return topology.HostID.Compare(a.Host, b.Host) })
}

// unfinished reports whether work on the host is unfinished from the beginning of the change to
// its end, or, if the host could not be planned, to the end of a later change.
func (p *RootPlan) unfinished() bool {
	return p.Touched && p.Err != nil || p.left || p.Changes()
}

// updatesLeft returns the VMs of earlier changes whose updates in place are still unfinished
// when the plan has been applied.
func (c *Change) updatesLeft(plan *RootPlan) []fleet.Key {
	if plan.templates != nil || plan.left {
		return nil
	}
	var left []fleet.Key
	desired := on(c.After.VMs, plan.Host)
	for _, key := range c.open[plan.Host].Updated {
		if !slices.Contains(plan.retried, key) && hasKey(desired, key) {
			left = append(left, key)
		}
	}
	return left
}

// toCheck returns the VMs to check once they exist: the ones of an earlier change, and
// the ones that the plan creates or completes.
func (p *RootPlan) toCheck(earlier []guard.Target) []guard.Target {
	made := slices.Clone(earlier)
	for i, target := range slices.Concat(p.Intent.Create, p.Intent.Import) {
		known := slices.ContainsFunc(made, func(t guard.Target) bool { return t.Key == target.Key })
		if created := i < len(p.Intent.Create); !known && (created || target.Incomplete) {
			made = append(made, target)
		}
	}
	return made
}

// why summarizes a change in one line.
func why(record *audit.Change) string {
	listed := func(lead string, vms []fleet.VM) string {
		if len(vms) == 0 {
			return ""
		}
		return lead + names(vms)
	}
	switch record.Kind {
	case audit.KindScaleUp:
		pods := 0
		for i := range record.Added {
			pods += record.Added[i].Demand.Pods
		}
		lead := fmt.Sprintf("%d pods need ", pods)
		switch pods {
		case 0: // no pod causes the change
			lead = "create "
		case 1:
			lead = "1 pod needs "
		}
		return strings.Trim(fmt.Sprintf("%s; %s", listed(lead, record.Added), listed("files were deleted: ", record.Removed)), "; ")
	case audit.KindScaleDown:
		return "remove " + names(record.Removed)
	case audit.KindByHand:
		return strings.Trim(fmt.Sprintf("%s; %s", listed("files were restored: ", record.Added), listed("files were deleted: ", record.Removed)), "; ")
	case audit.KindRepair:
		return "revert drift"
	case audit.KindUpdate:
		return "change tags, pool, security groups or emulator in place"
	case audit.KindWake:
		return fmt.Sprintf("wake %s: %s", topology.Count(len(record.Woken), "standby VM"), names(record.Woken))
	case audit.KindAdopt:
		return "adopt " + names(record.Adopted)
	case audit.KindUndo:
		return "undo " + record.Undoes
	case audit.KindRecovery:
		if len(record.Rested) > 0 {
			return "not started, standby again: " + names(record.Rested)
		}
		if len(record.Hosts) == 0 && len(record.Outside) > 0 {
			return "record writes outside a plan"
		}
	}
	return "finish an earlier change"
}

func names(vms []fleet.VM) string {
	list := make([]string, len(vms))
	for i := range vms {
		list[i] = vms[i].Name
	}
	return strings.Join(list, ", ")
}

// outcome returns the record of how an approved change ended on each host.
func (s *Scaler) outcome(id string, approved time.Time, results []Result) audit.Outcome {
	now := s.config.Clock.Now()
	outcome := audit.Outcome{ID: id, Time: now.UTC(), Duration: now.Sub(approved)}
	for _, result := range results {
		ended := audit.Ended{Host: result.Host, Duration: result.Duration}
		if result.Err != nil {
			ended.Error = result.Err.Error()
		}
		if result.templates {
			outcome.Templates = append(outcome.Templates, ended)
		} else {
			outcome.Hosts = append(outcome.Hosts, ended)
		}
		outcome.Outside = append(outcome.Outside, result.Outside...)
	}
	return outcome
}

// Origin identifies the recorded change that created a VM, or woke it, with the plan of its
// host.
type Origin struct {
	// Change is the change's ID, and Commit the commit that contains it, in a git store.
	Change, Commit string
	// Time is when the change began.
	Time time.Time
	// PlanSHA256 identifies the plan, PlanDigest its changes.
	PlanSHA256, PlanDigest string
	Verdict                guard.Decision
	// Approver is who approved the plan, or empty if the guard allowed it.
	Approver string
}

// originsIn returns the latest change of a history that created or woke each VM.
func originsIn(history []audit.Entry) map[fleet.Key]*Origin {
	origins := map[fleet.Key]*Origin{}
	for i := range history {
		entry := &history[i]
		for j := range entry.Change.Hosts {
			host := &entry.Change.Hosts[j]
			origin := &Origin{
				Change: entry.Change.ID, Commit: entry.Commit, Time: entry.Change.Time, PlanSHA256: host.PlanSHA256, PlanDigest: host.PlanDigest,
				Verdict: host.Verdict.Decision, Approver: host.Approver,
			}
			for _, target := range slices.Concat(host.Create, host.Wake) {
				origins[target.Key] = origin
			}
		}
	}
	return origins
}

// events returns the earlier changes in the guard's form, by host and pool. It omits
// changes without creates and deletes, however they ended, and deletes that were retried. parts
// are the plans of the change that the limits are checked for.
func events(from *reading, now time.Time, parts []guard.HostIntent) []guard.Event {
	var found []guard.Event
	began, retried := audit.Began(from.recent, now), retriedDeletes(from.recent, parts)
	for i := range from.recent {
		entry := &from.recent[i]
		failed := map[topology.HostID]bool{}
		for _, open := range entry.Unfinished() {
			if succeededOn(entry, open.Host) {
				continue
			}
			// A change without an outcome has not failed on a host if it is being applied now,
			// ended successfully, or died and was completed by a later change. An outcome that
			// this installation did not write proves nothing, not even that the change died.
			continues := from.busy[open.Host] || from.done[hostPart{entry.Change.ID, open.Host}] ||
				slices.ContainsFunc(from.recent[i+1:], func(later audit.Entry) bool { return succeededOn(&later, open.Host) })
			replaced := entry.Outcome != nil && entry.Result() == nil
			failed[open.Host] = !replaced && (entry.Result() != nil || !continues)
		}
		for _, host := range entry.Change.Hosts {
			amounts := map[string]guard.Amount{} // by pool
			for _, target := range host.Create {
				amount := amounts[target.Pool]
				amount.Creates++
				amounts[target.Pool] = amount
			}
			for _, target := range host.Delete {
				if retried[i][vmOn{host.Host, target.Key}] {
					continue
				}
				amount := amounts[target.Pool]
				amount.Deletes++
				amounts[target.Pool] = amount
			}
			for _, pool := range sortedKeys(amounts) {
				found = append(found, guard.Event{
					Change: entry.Change.ID, AgeSeconds: int64(now.Sub(began[i]) / time.Second),
					Host: host.Host, Failed: failed[host.Host], Pool: pool, Amount: amounts[pool],
				})
			}
		}
	}
	return found
}

// vmOn is a VM on a host.
type vmOn struct {
	host topology.HostID
	key  fleet.Key
}

// retriedDeletes returns, for each change, the VMs that a later change deletes again, although
// none re-created them: the delete failed. One VM that cannot be deleted must not use up the
// limits. parts are the plans of a change that was not recorded yet.
func retriedDeletes(entries []audit.Entry, parts []guard.HostIntent) []map[vmOn]bool {
	later := map[vmOn]bool{} // deleted later
	for _, part := range parts {
		for _, target := range part.Intent.Delete {
			later[vmOn{part.Host, target.Key}] = true
		}
	}
	retried := make([]map[vmOn]bool, len(entries))
	for i := range slices.Backward(entries) {
		retried[i] = map[vmOn]bool{}
		for _, host := range entries[i].Change.Hosts {
			for _, target := range host.Create {
				delete(later, vmOn{host.Host, target.Key})
			}
			for _, target := range host.Delete {
				vm := vmOn{host.Host, target.Key}
				retried[i][vm] = later[vm] && vm.key != ""
				later[vm] = true
			}
		}
	}
	return retried
}
