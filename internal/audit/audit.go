// Package audit defines the records of a fleet's history: a Change, recorded before an apply,
// is the plan and its reason; an Outcome, recorded after it, is the result. Records are
// added and never changed. The package does no I/O (see internal/store). Start at Entry.
package audit

import (
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// FormatVersion is the format version of the records.
const FormatVersion = 1

// Kind is the cause of a change.
type Kind string

// The kinds of changes.
const (
	KindScaleUp   Kind = "scale-up"
	KindScaleDown Kind = "scale-down"
	KindUndo      Kind = "undo"
	// KindByHand means that users edited the fleet's files or reverted a commit.
	KindByHand Kind = "by-hand"
	// KindRecovery completes an unfinished earlier change, or records writes that no plan
	// contains.
	KindRecovery Kind = "recovery"
	// KindUpdate updates the tags, pool, security groups or emulator of VMs in place, to
	// match their class.
	KindUpdate Kind = "update"
	// KindWake starts standby VMs.
	KindWake Kind = "wake"
	// KindRepair reverts drift.
	KindRepair Kind = "repair"
	// KindTemplates creates, updates or deletes templates.
	KindTemplates Kind = "templates"
	// KindAdopt imports VMs that another tool created.
	KindAdopt Kind = "adopt"
	// KindAccept records why a user goes on although the history was rewritten,
	// KindAcceptRestore although it was restored to an older state, and KindContinue that the
	// controller went on by itself. They change nothing.
	KindAccept        Kind = "accept"
	KindAcceptRestore Kind = "accept-restore"
	KindContinue      Kind = "continue"
	// KindPutBack records that numaform pushed its copy of the history again, because the
	// branch had lost it.
	KindPutBack Kind = "put-back"
)

// Change is a planned change. Its record is written before the apply and is not changed
// afterwards.
type Change struct {
	Format int `json:"format"`
	// ID sorts by time: 20261121T134501Z-2504811f2e.
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	ClusterID string    `json:"cluster_id"`
	Kind      Kind      `json:"kind"`
	// Actor is the user who ran numaform, as user@host, or the controller's identity.
	Actor string `json:"actor"`
	// Version is the version of numaform.
	Version string `json:"version,omitempty"`
	// Why is the reason for the change, in one line.
	Why string `json:"why"`
	// Undoes is the ID of the change that this one reverts.
	Undoes string `json:"undoes,omitempty"`
	// Approval is set if a user approved the whole change by its digest.
	Approval *Approval `json:"approval,omitempty"`
	// Added, Removed and Renumbered are the VMs that the change creates, deletes, or gives
	// another VMID, each with the reason for its placement.
	Added      []fleet.VM `json:"added,omitempty"`
	Removed    []fleet.VM `json:"removed,omitempty"`
	Renumbered []fleet.VM `json:"renumbered,omitempty"`
	// Woken are the standby VMs that the change starts.
	Woken []fleet.VM `json:"woken,omitempty"`
	// Rested are VMs that an earlier change was to wake, and that are standby VMs again,
	// because nothing started them.
	Rested []fleet.VM `json:"rested,omitempty"`
	// Adopted are the VMs of another tool that the change imports.
	Adopted []fleet.VM `json:"adopted,omitempty"`
	// Hosts are the plans of the affected hosts, sorted.
	Hosts []HostPlan `json:"shards,omitempty"`
	// Templates are the plans of the roots of templates.
	Templates []TemplatePlan `json:"templates,omitempty"`
	// Rotations are the VMID rotations after this change, by region and by the name of a class's
	// range. Each change contains the rotations of all ranges, so the newest change is
	// sufficient.
	Rotations map[topology.RegionName]fleet.Rotation `json:"rotations,omitempty"`
	// Open lists the unfinished work of this and earlier changes, by host. Together with
	// the Outcome it determines what the next run must check.
	Open []Open `json:"open,omitempty"`
	// Outside are the writes to a backend or to Proxmox that no plan contains, such as
	// breaking a lock, with the proof that its holder no longer exists.
	Outside []string `json:"outside,omitempty"`
	// Accepts are the IDs of the findings that a change of kind KindAccept, KindAcceptRestore
	// or KindContinue names, one after another.
	Accepts []byte `json:"accepts,omitempty"`
	// MAC proves that an installation wrote the record: see Key. Records of versions
	// without MACs have none.
	MAC string `json:"mac,omitempty"`
	// Digest is the digest of the record as it was read or sealed.
	Digest Digest `json:"-"`
	Logged
}

// Logged is the place of a record in the log of the history.
type Logged struct {
	// Unsealed are the leaves right before the record's without a seal: records of a version
	// without the log, and numbers without a record, because numaform died, or the record
	// waits for review.
	Unsealed []translog.Leaf `json:"unsealed,omitempty"`
	// Start is set in the first record of a log.
	Start *LogStart `json:"log_start,omitempty"`
	// Seal proves the record and its place. Records of versions without the log have none.
	Seal *translog.Seal `json:"seal,omitempty"`
	// LogDigest is the digest of the record without its MAC and seal, as it was read.
	LogDigest Digest `json:"-"`
}

// LogStart is what a log begins with.
type LogStart struct {
	// Imported has ImportedSize bytes for each record from before the log: the beginning of
	// the hash of its leaf. These records are the first leaves.
	Imported []byte `json:"imported,omitempty"`
	// Continues are the last checkpoints of the installation's earlier logs.
	Continues []string `json:"continues,omitempty"`
}

// Approval is the approval of a whole change by a command, or of the plan of one host by a
// ScalePlan.
type Approval struct {
	// By is the user who approved the change: user@host for a command, and for a ScalePlan
	// the user of the API server.
	By string `json:"by"`
	// Digest identifies the effect of the change, as the user saw it: on all hosts, or the
	// planHash of the ScalePlan.
	Digest string `json:"digest"`
	// ScalePlan is the name of the ScalePlan, or empty for a command.
	ScalePlan string `json:"scale_plan,omitempty"`
	// Statement is the text that was signed, and Signatures are its signatures; empty if
	// it has none.
	Statement  string      `json:"statement,omitempty"`
	Signatures []Signature `json:"signatures,omitempty"`
	// BreakGlass is the reason of an emergency approval, which does without the required
	// signatures and does not wait for the end of a freeze window.
	BreakGlass string `json:"break_glass,omitempty"`
}

// Signature is an SSH signature of an approval's statement.
type Signature struct {
	// Signer is the name of the key's owner in the file of allowed signers, and Key the
	// key's fingerprint.
	Signer string `json:"signer"`
	Key    string `json:"key"`
	// Signature is the signature as ssh-keygen -Y sign writes it.
	Signature string `json:"signature"`
}

// HostPlan is the plan for one host, with its verdict and approver.
type HostPlan struct {
	Host topology.HostID `json:"host"`
	// PlanSHA256 identifies the plan, PlanDigest its changes.
	PlanSHA256 string         `json:"plan_sha256,omitempty"`
	PlanDigest string         `json:"plan_digest,omitempty"`
	Create     []guard.Target `json:"create,omitempty"`
	Delete     []guard.Target `json:"delete,omitempty"`
	Import     []guard.Target `json:"import,omitempty"`
	Update     []guard.Target `json:"update,omitempty"`
	Wake       []guard.Target `json:"wake,omitempty"`
	Verdict    guard.Verdict  `json:"verdict"`
	// Approver is who approved the plan, or empty if the guard allowed it.
	Approver string `json:"approver,omitempty"`
	// Approval is set if a ScalePlan approved the plan.
	Approval *Approval `json:"approval,omitempty"`
	// Error is the reason why the host was not planned.
	Error string `json:"error,omitempty"`
}

// TemplatePlan is the plan for the templates of one host.
type TemplatePlan struct {
	Host       topology.HostID `json:"host"`
	PlanSHA256 string          `json:"plan_sha256"`
	PlanDigest string          `json:"plan_digest"`
	Create     []TemplateRef   `json:"create,omitempty"`
	Delete     []TemplateRef   `json:"delete,omitempty"`
	Verdict    guard.Verdict   `json:"verdict"`
	// Approver is the source of the approval, or empty if none was necessary.
	Approver string `json:"approver,omitempty"`
}

// TemplateRef identifies a template in a record.
type TemplateRef struct {
	Name string     `json:"name"`
	VMID fleet.VMID `json:"vmid"`
}

// Open is a host with unfinished changes.
type Open struct {
	Host topology.HostID `json:"host"`
	// Removed are the VMs whose files were removed on purpose and that may still exist.
	Removed []fleet.VM `json:"removed,omitempty"`
	// Made are new VMs that have not been checked yet for CPUs or memory that another
	// writer also assigned.
	Made []guard.Target `json:"made,omitempty"`
	// Updated are VMs whose tags, pool, security groups or emulator may differ from their
	// files.
	Updated []fleet.Key `json:"updated,omitempty"`
	// Later are the VMs in Updated that the change does not plan with a refresh, so that their
	// updates are still unfinished when the change has ended.
	Later []fleet.Key `json:"later,omitempty"`
	// Woken are standby VMs that may not have started yet.
	Woken []fleet.Key `json:"woken,omitempty"`
	// Whole is set if other installations recorded changes that cannot be verified: the host is
	// planned completely, as after a crash. Without the lists above, a host is always planned so.
	Whole bool `json:"whole,omitempty"`
	// Change is the ID of the latest change that began work on the host; empty means the
	// change that contains this list.
	Change string `json:"change,omitempty"`
}

// Outcome is the result of a change.
type Outcome struct {
	Format int `json:"format"`
	// ID is the ID of the change.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	// Duration is the time since the change was approved.
	Duration time.Duration `json:"duration_ns"`
	Hosts    []Ended       `json:"shards,omitempty"`
	// Templates are the results of the roots of templates.
	Templates []Ended `json:"templates,omitempty"`
	// Outside are the writes to Proxmox that no plan contains, such as the upload of a
	// seed.
	Outside []string `json:"outside,omitempty"`
	// MAC proves that the installation that wrote the change also wrote its outcome.
	MAC string `json:"mac,omitempty"`
	// Digest is the digest of the record as it was read or sealed.
	Digest Digest `json:"-"`
	Logged
}

// Ended is the result of the apply of one host.
type Ended struct {
	Host     topology.HostID `json:"host"`
	Duration time.Duration   `json:"duration_ns"`
	// Error is empty if the whole plan was applied.
	Error string `json:"error,omitempty"`
}

// Entry is one change in a fleet's history.
type Entry struct {
	Change Change `json:"change"`
	// Outcome is nil while the change is in progress, or if numaform died during it.
	Outcome *Outcome `json:"outcome,omitempty"`
	// Commit is the hash of the commit that contains the change, in a git store.
	Commit string `json:"commit,omitempty"`
	// Verified reports that this installation wrote or adopted the change's record, and
	// OutcomeVerified the same of the outcome's record. An unverified record is only for
	// display: no decision may depend on it.
	Verified        bool `json:"verified"`
	OutcomeVerified bool `json:"outcome_verified,omitempty"`
	// Doubt is why the change's record is not verified, and OutcomeDoubt why only the outcome's
	// is not; empty if it is verified, or if the key is not known.
	Doubt        Doubt `json:"doubt,omitempty"`
	OutcomeDoubt Doubt `json:"outcome_doubt,omitempty"`
	// Unreadable is the reason why this numaform cannot read the record of the change or of
	// the outcome, or empty. Such a record is empty except for a change's ID and time.
	Unreadable string `json:"unreadable,omitempty"`
}

// Doubt is why a record is not verified.
type Doubt string

// The reasons why a record is not verified.
const (
	// DoubtForged means that the record claims a place in this installation's log, or to be the
	// outcome of its change, but is not what the installation wrote: it was edited or forged.
	DoubtForged Doubt = "forged"
	// DoubtUnsealed means that the record has neither a seal nor a MAC: a version without them
	// wrote it, or it was forged.
	DoubtUnsealed Doubt = "unsealed"
	// DoubtOther means that this installation did not sign the record: another one wrote it, or
	// it was forged.
	DoubtOther Doubt = "other key"
)

// String describes the doubt in a sentence without a subject.
func (d Doubt) String() string {
	switch d {
	case DoubtForged:
		return "not what this installation signed: it was edited or forged"
	case DoubtUnsealed:
		return "without a seal and a MAC: a version without them wrote it, or it was forged"
	case DoubtOther:
		return "not signed by this installation: another one wrote it, or it was forged"
	}
	return ""
}

// Explain sets Doubt and OutcomeDoubt of entries after Key.Verify. Among the entries are
// verified ones, whose logs are the installation's.
func Explain(entries []Entry) {
	mine := map[string]bool{}
	for i := range entries {
		e := &entries[i]
		if e.Verified && e.Change.Seal != nil {
			mine[e.Change.Seal.Log] = true
		}
	}
	for i := range entries {
		e := &entries[i]
		e.Doubt, e.OutcomeDoubt = "", ""
		seal := e.Change.Seal
		switch {
		case e.Verified:
		case seal != nil && mine[seal.Log]:
			e.Doubt = DoubtForged
		case seal == nil && e.Change.MAC == "":
			e.Doubt = DoubtUnsealed
		default:
			e.Doubt = DoubtOther
		}
		if e.Verified && e.Outcome != nil && !e.OutcomeVerified {
			e.OutcomeDoubt = DoubtForged // only the installation itself adds an outcome to its change
		}
	}
}

// Result returns the outcome if it is verified, or nil.
func (e *Entry) Result() *Outcome {
	if !e.OutcomeVerified {
		return nil
	}
	return e.Outcome
}

// Began returns when each change of a history, oldest first, began, as known at now. That is
// the time of its record, unless it is in the future: records sort by time, so after one that was
// written while the clock was ahead, all get times after it. Such a change began no later than
// it ended, and no later than the next one.
func Began(entries []Entry, now time.Time) []time.Time {
	began := make([]time.Time, len(entries))
	next := now
	for i := range slices.Backward(entries) {
		e := &entries[i]
		began[i] = e.Change.Time
		if !e.Verified {
			continue
		}
		if e.Change.Time.After(now) {
			began[i] = next
			if result := e.Result(); result != nil && result.Time.Before(next) {
				began[i] = result.Time
			}
		}
		next = began[i]
	}
	return began
}

// Left returns the work that is left on the host, and whether there is any. ended reports
// whether the change has ended successfully there.
func (o Open) Left(ended bool) (left Open, remains bool) {
	if !ended {
		return o, true
	}
	return Open{Host: o.Host, Updated: o.Later}, len(o.Later) > 0
}

// OnlyUpdates reports whether nothing but updates in place is unfinished on the host.
func (o Open) OnlyUpdates() bool {
	return !o.Whole && len(o.Updated) > 0 && len(o.Removed)+len(o.Made)+len(o.Woken) == 0
}

// OnlyRemovals reports whether nothing but removals is unfinished on the host.
func (o Open) OnlyRemovals() bool {
	return !o.Whole && len(o.Removed) > 0 && len(o.Updated)+len(o.Made)+len(o.Woken) == 0
}

// Unfinished returns the hosts that the next run must check: the entries of Open whose
// apply did not end successfully according to a verified outcome, and what is left of the
// others.
func (e *Entry) Unfinished() []Open {
	ended := map[topology.HostID]bool{}
	if result := e.Result(); result != nil {
		for _, host := range result.Hosts {
			ended[host.Host] = host.Error == ""
		}
	}
	var left []Open
	for _, open := range e.Change.Open {
		if open, remains := open.Left(ended[open.Host]); remains {
			left = append(left, open)
		}
	}
	return left
}

// changes reports whether a change of its kind changes the fleet.
func (c *Change) changes() bool {
	return !slices.Contains([]Kind{KindAccept, KindAcceptRestore, KindContinue, KindPutBack}, c.Kind)
}

// Names reports whether the change affects the VM with that name.
func (c *Change) Names(vm string) bool {
	for _, list := range [][]fleet.VM{c.Added, c.Removed, c.Renumbered, c.Woken, c.Rested, c.Adopted} {
		if slices.ContainsFunc(list, func(one fleet.VM) bool { return one.Name == vm }) {
			return true
		}
	}
	for _, host := range c.Hosts {
		for _, target := range slices.Concat(host.Create, host.Delete, host.Import, host.Update, host.Wake) {
			if target.Name() == vm {
				return true
			}
		}
	}
	return false
}

// Head returns the format of the record and the ID of its change.
func (c *Change) Head() (format int, id string) { return c.Format, c.ID }

// Head returns the format of the record and the ID of its change.
func (o *Outcome) Head() (format int, id string) { return o.Format, o.ID }
