// Package audit holds the nouns of a fleet's history: a Change is written before
// an apply and says what shall happen and why, an Outcome is written after it and
// says what did. Records are only ever added. It does no I/O, see internal/store:
// start at Entry.
package audit

import (
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// FormatVersion is the format of the records.
const FormatVersion = 1

// Kind says what made a change.
type Kind string

// The kinds of changes.
const (
	KindScaleUp   Kind = "scale-up"
	KindScaleDown Kind = "scale-down"
	KindUndo      Kind = "undo"
	// KindByHand: people edited the fleet's files, or reverted a commit.
	KindByHand Kind = "by-hand"
	// KindRecovery: what an earlier change left unfinished.
	KindRecovery Kind = "recovery"
	// KindUpdate: tags, pool, security groups or emulator of VMs follow their class, in place.
	KindUpdate Kind = "update"
	// KindRepair: drift is taken back.
	KindRepair Kind = "repair"
)

// Change is what shall happen. It is complete before anything happens.
type Change struct {
	Format int `json:"format"`
	// ID sorts by time: 20261121T134501Z-2504811f2e.
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	ClusterID string    `json:"cluster_id"`
	Kind      Kind      `json:"kind"`
	// Actor is who ran numaform: user@host, or the controller's identity.
	Actor string `json:"actor"`
	// Version is numaform's own.
	Version string `json:"version,omitempty"`
	// Why is the request in one line.
	Why string `json:"why"`
	// Undoes is the change that this one takes back.
	Undoes string `json:"undoes,omitempty"`
	// Added, Removed and Renumbered are the VMs, each with the reason of its place.
	Added      []fleet.VM `json:"added,omitempty"`
	Removed    []fleet.VM `json:"removed,omitempty"`
	Renumbered []fleet.VM `json:"renumbered,omitempty"`
	// Shards are the hosts that are planned to change, sorted.
	Shards []Shard `json:"shards,omitempty"`
	// Rotations are how far VMIDs are given out with this change. They are carried
	// over from change to change, so that the newest one says it for all regions.
	Rotations map[topology.RegionName]fleet.Rotation `json:"rotations,omitempty"`
	// Open is what this and earlier changes have begun and not finished, by shard;
	// with the Outcome it says where the next run must look.
	Open []Open `json:"open,omitempty"`
	// Outside are writes to a backend that no plan holds, such as a broken lock with
	// the proof that its holder is gone.
	Outside []string `json:"outside,omitempty"`
	// MAC proves that an installation wrote the record, see Key. Records of versions
	// without it have none.
	MAC string `json:"mac,omitempty"`
	// Digest is of the record as it was read or sealed.
	Digest Digest `json:"-"`
}

// Shard is what was planned for one host, and who let it pass.
type Shard struct {
	Host fleet.Shard `json:"host"`
	// PlanSHA256 names exactly the plan, PlanDigest what it changes.
	PlanSHA256 string         `json:"plan_sha256,omitempty"`
	PlanDigest string         `json:"plan_digest,omitempty"`
	Create     []guard.Target `json:"create,omitempty"`
	Delete     []guard.Target `json:"delete,omitempty"`
	Import     []guard.Target `json:"import,omitempty"`
	Update     []guard.Target `json:"update,omitempty"`
	Verdict    guard.Verdict  `json:"verdict"`
	// Approver is who allowed what the guard did not allow alone, or empty.
	Approver string `json:"approver,omitempty"`
	// Error is why the shard was not planned.
	Error string `json:"error,omitempty"`
}

// Open is a shard with something unfinished.
type Open struct {
	Host fleet.Shard `json:"host"`
	// Removed are the VMs whose files were taken out on purpose and that may
	// still exist.
	Removed []fleet.VM `json:"removed,omitempty"`
	// Made are new VMs of which nobody has looked yet whether another writer gave the
	// same CPUs away.
	Made []guard.Target `json:"made,omitempty"`
	// Updated are VMs whose files say other tags, another pool or other security groups
	// than they may have by now.
	Updated []fleet.Key `json:"updated,omitempty"`
	// Change is the id of the change that is under way there, if it is an earlier one
	// that goes on beside this.
	Change string `json:"change,omitempty"`
}

// Outcome is what happened.
type Outcome struct {
	Format int `json:"format"`
	// ID is the change's.
	ID       string        `json:"id"`
	Time     time.Time     `json:"time"`
	Duration time.Duration `json:"duration_ns"`
	Shards   []Ended       `json:"shards,omitempty"`
	// Outside are writes to Proxmox that no plan holds, such as the upload of a seed.
	Outside []string `json:"outside,omitempty"`
	// MAC proves that the installation which wrote the change wrote its outcome too.
	MAC string `json:"mac,omitempty"`
	// Digest is of the record as it was read or sealed.
	Digest Digest `json:"-"`
}

// Ended is how the apply of one host ended.
type Ended struct {
	Host     fleet.Shard   `json:"host"`
	Duration time.Duration `json:"duration_ns"`
	// Error is empty if the host has all that was planned.
	Error string `json:"error,omitempty"`
}

// Entry is one change of a fleet's history.
type Entry struct {
	Change Change `json:"change"`
	// Outcome is nil while the change is under way, or if numaform died in it.
	Outcome *Outcome `json:"outcome,omitempty"`
	// Commit is the hash of the commit that holds the change, in a git store.
	Commit string `json:"commit,omitempty"`
	// Verified says that this installation wrote the record of the change, and
	// OutcomeVerified that of the outcome. Without it a record is for people to read:
	// nothing may be decided from it.
	Verified        bool `json:"verified"`
	OutcomeVerified bool `json:"outcome_verified,omitempty"`
	// Unreadable says why the record of the change or that of the outcome is none that this
	// numaform can read. The record is then empty, but for the ID and the time of a change.
	Unreadable string `json:"unreadable,omitempty"`
}

// Result returns the outcome if it is verified, or nil.
func (e *Entry) Result() *Outcome {
	if !e.OutcomeVerified {
		return nil
	}
	return e.Outcome
}

// Unfinished returns the shards that the next run must look at, and the VMs whose
// removal has begun there: those that were open and did not end well.
func (e *Entry) Unfinished() []Open {
	ended := map[fleet.Shard]bool{}
	if result := e.Result(); result != nil {
		for _, shard := range result.Shards {
			ended[shard.Host] = shard.Error == ""
		}
	}
	var left []Open
	for _, open := range e.Change.Open {
		if !ended[open.Host] {
			left = append(left, open)
		}
	}
	return left
}

// Names returns whether the change is about the VM of a name.
func (c *Change) Names(vm string) bool {
	for _, list := range [][]fleet.VM{c.Added, c.Removed, c.Renumbered} {
		if slices.ContainsFunc(list, func(one fleet.VM) bool { return one.Name == vm }) {
			return true
		}
	}
	for _, shard := range c.Shards {
		for _, target := range slices.Concat(shard.Create, shard.Delete, shard.Import, shard.Update) {
			if strings.HasPrefix(target.Address, "module."+vm+".") {
				return true
			}
		}
	}
	return false
}
