package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/internal/translog"
)

// Fault is a kind of damage of a history.
type Fault string

// The kinds of damage.
const (
	// FaultEdited means that the record, or its seal, is not what a known key signed: it was
	// edited, forged, or is the record of another change or installation.
	FaultEdited Fault = "edited"
	// FaultMissing means that records are missing, although later ones exist.
	FaultMissing Fault = "missing"
	// FaultForked means that the key signed two histories.
	FaultForked Fault = "forked"
	// FaultUnsealed means that the record has no seal and is not part of a log.
	FaultUnsealed Fault = "unsealed"
	// FaultCut means that the history ends too early.
	FaultCut Fault = "cut"
	// FaultUnreadable means that the record cannot be read.
	FaultUnreadable Fault = "unreadable"
	// FaultApproval means that a signature of an approval is not valid for the change.
	FaultApproval Fault = "approval"
	// FaultCheckpoint means that no known key signed a checkpoint.
	FaultCheckpoint Fault = "checkpoint"
)

// Faults returns all kinds of damage.
func Faults() []Fault {
	return []Fault{FaultApproval, FaultCheckpoint, FaultCut, FaultEdited, FaultForked, FaultMissing, FaultUnreadable, FaultUnsealed}
}

// Rewritten reports whether a fault means that records of the history were removed or
// replaced. Other faults can be caused by records that anyone with write access to the store
// adds.
func (f Fault) Rewritten() bool { return f == FaultMissing || f == FaultForked || f == FaultCut }

// Finding is one fault of a history.
type Finding struct {
	Fault Fault `json:"fault"`
	// Log is the origin of the log.
	Log string `json:"log,omitempty"`
	// Number and Last are the numbers in the log of the first and the last record concerned.
	Number int64 `json:"number,omitempty"`
	Last   int64 `json:"last,omitempty"`
	// Change is the ID of the change, if known, Kind the kind of its record, and Record the
	// digest of what the history has now.
	Change string        `json:"change,omitempty"`
	Kind   translog.Kind `json:"kind,omitempty"`
	Record string        `json:"record,omitempty"`
	// Checkpoint is the root in the checkpoint that the history contradicts.
	Checkpoint string `json:"checkpoint,omitempty"`
	Text       string `json:"text"`
	// Accepted is the ID of the change that accepts the finding, and AcceptedAs its kind.
	Accepted   string `json:"accepted,omitempty"`
	AcceptedAs Kind   `json:"accepted_as,omitempty"`
}

// FindingSize is the size of a finding's ID.
const FindingSize = 12

// ID identifies a finding. A different fault of the same record has another ID. The end of a
// log is one finding, whichever checkpoint shows it.
func (f *Finding) ID() [FindingSize]byte {
	last, checkpoint := f.Last, f.Checkpoint
	if f.Fault == FaultCut {
		last, checkpoint = 0, ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "numaform finding 1 %q %q %d %d %q %q %q %q",
		f.Fault, f.Log, f.Number, last, f.Change, f.Kind, f.Record, checkpoint))
	return [FindingSize]byte(sum[:])
}

// Report is the result of Verify.
type Report struct {
	Logs     []LogReport `json:"logs"`
	Findings []Finding   `json:"findings,omitempty"`
	// Unwritten are numbers in a log without a record, because numaform died before it wrote
	// the record, or because the record waits for review.
	Unwritten []Finding `json:"unwritten,omitempty"`
}

// LogReport describes one log. An installation begins another log if several machines have
// its key, if the head of the log was lost, and after a restore.
type LogReport struct {
	// Log is the origin of the log.
	Log string `json:"log"`
	// Size is the number of records in the log, of which the first Imported are older than
	// the log: the log only proves that they have not changed since it began.
	Size     int64 `json:"size"`
	Imported int64 `json:"imported,omitempty"`
	// Began and Signed are the times of the first and the last sealed record, and Change is
	// the change of the last one.
	Began  time.Time `json:"began"`
	Signed time.Time `json:"signed"`
	Change string    `json:"change"`
	// Checkpoint is the checkpoint in the last record's seal.
	Checkpoint string `json:"checkpoint"`
	// ID is the ID of the log.
	ID string `json:"-"`
}

// Evidence is what a history is compared with.
type Evidence struct {
	// Keys are the keys of the installations that wrote the history.
	Keys []*translog.Key
	// Checkpoints are signed checkpoints from other places: without them, records that were
	// removed from the end are not missed.
	Checkpoints [][]byte
	// Since is a time after which the history has a record; zero if none is known.
	Since time.Time
}

// ImportedSize is the number of bytes for each record in LogStart.Imported.
const ImportedSize = 6

// record is a record of a history as a log sees it.
type record struct {
	leaf   translog.Leaf
	logged *Logged
	time   time.Time
	change *Change
	// verified is what Key.Verify found.
	verified bool
	// by is the key that signed the seal, or nil, and after the tree that ends with the record.
	by    *translog.Key
	after translog.Tree
	// covered means that a log contains the record, although it has no seal.
	covered bool
	// invalid are the errors of the signatures of the change's approvals.
	invalid []error
}

// records returns the records of an entry.
func (e *Entry) records() []*record {
	list := []*record{{leaf: e.Change.leaf(), logged: &e.Change.Logged, time: e.Change.Time, change: &e.Change, verified: e.Verified}}
	if e.Outcome != nil {
		list = append(list, &record{leaf: e.Outcome.leaf(), logged: &e.Outcome.Logged, time: e.Outcome.Time, verified: e.OutcomeVerified})
	}
	return list
}

// Reduce removes what Verify does not use from an entry, which is most of it.
func (e *Entry) Reduce() {
	c := &e.Change
	var hosts []HostPlan
	for i := range c.Hosts {
		if approval := c.Hosts[i].Approval; approval != nil {
			hosts = append(hosts, HostPlan{Approval: approval})
		}
	}
	*c = Change{
		Format: c.Format, ID: c.ID, Time: c.Time, ClusterID: c.ClusterID, Kind: c.Kind, Approval: c.Approval, Hosts: hosts, Accepts: c.Accepts,
		MAC: c.MAC, Digest: c.Digest, Logged: c.Logged,
	}
	if o := e.Outcome; o != nil {
		e.Outcome = &Outcome{Format: o.Format, ID: o.ID, Time: o.Time, MAC: o.MAC, Digest: o.Digest, Logged: o.Logged}
	}
}

// Verify checks a complete history. It names each record that was edited, removed, moved or
// added since its seal was signed.
func Verify(entries []Entry, evidence Evidence) *Report {
	v := collect(entries, evidence)
	for _, id := range slices.SortedFunc(maps.Keys(v.roots), v.older) {
		v.log(id, v.logs[id], v.roots[id])
	}
	for _, r := range v.records {
		switch {
		case r.logged.Seal == nil && !r.covered:
			v.add(FaultUnsealed, Finding{}, r, "%s has no seal and is in no log: a version without the log or another installation wrote it, or it was forged", describe(r.leaf))
		case r.logged.Seal != nil && r.by == nil:
			v.add(FaultEdited, Finding{Log: r.logged.Seal.Log, Number: r.logged.Seal.Before.Size}, r,
				"%s is not what a given key signed: its record was edited or forged, or another installation wrote it", describe(r.leaf))
		}
		for _, invalid := range r.invalid {
			v.add(FaultApproval, Finding{}, r, "an approval of %s is not valid: %v", describe(r.leaf), invalid)
		}
	}
	if !evidence.Since.IsZero() && !slices.ContainsFunc(v.report.Logs, func(l LogReport) bool { return !l.Signed.Before(evidence.Since) }) {
		v.add(FaultCut, Finding{Number: evidence.Since.Unix()}, nil, "the history has no signed record since %s: its last records were removed", evidence.Since.UTC().Format(time.RFC3339))
	}
	v.accept()
	return v.report
}

// logID identifies a log among all keys.
type logID struct {
	key int // the index of the key
	log string
}

// place is a number in a log.
type place struct {
	log    string
	number int64
}

type verifier struct {
	report  *Report
	keys    []*translog.Key
	records []*record
	// unsealed are the records without a seal.
	unsealed map[translog.Leaf]*record
	// logs are the signed records by log, in the order of their numbers.
	logs map[logID][]*record
	// claims are the records that a key did not sign, by the place that they claim.
	claims map[place][]*record
	// roots are the roots of checkpoints by log and size. Each log has an entry.
	roots map[logID]map[int64][]tlog.Hash
}

// add adds a finding about a record, or about none if it is nil.
func (v *verifier) add(fault Fault, f Finding, about *record, format string, args ...any) {
	f.Fault, f.Text = fault, fmt.Sprintf(format, args...)
	if about != nil {
		f.Change, f.Kind, f.Record = about.leaf.ID, about.leaf.Kind, about.leaf.Record
	}
	v.report.Findings = append(v.report.Findings, f)
}

// older orders logs by their first record.
func (v *verifier) older(a, b logID) int {
	first := func(id logID) time.Time {
		if list := v.logs[id]; len(list) > 0 {
			return list[0].time
		}
		return time.Time{}
	}
	return cmp.Or(first(a).Compare(first(b)), cmp.Compare(a.key, b.key), cmp.Compare(a.log, b.log))
}

// collect sorts records and checkpoints by their logs.
func collect(entries []Entry, evidence Evidence) *verifier {
	v := &verifier{
		report: &Report{}, keys: evidence.Keys, unsealed: map[translog.Leaf]*record{}, logs: map[logID][]*record{},
		claims: map[place][]*record{}, roots: map[logID]map[int64][]tlog.Hash{},
	}
	for i := range entries {
		e := &entries[i]
		if e.Unreadable != "" {
			v.add(FaultUnreadable, Finding{Change: e.Change.ID}, nil, "%s", e.Unreadable)
			if e.Change.LogDigest == (Digest{}) {
				continue
			}
		}
		v.records = append(v.records, e.records()...)
	}
	checkSignatures(v.records, v.keys)

	for _, r := range v.records {
		seal := r.logged.Seal
		switch {
		case seal == nil:
			v.unsealed[r.leaf] = r
		case r.by == nil:
			at := place{seal.Log, seal.Before.Size}
			v.claims[at] = append(v.claims[at], r)
		default:
			id := logID{slices.Index(v.keys, r.by), seal.Log}
			v.logs[id] = append(v.logs[id], r)
			v.rootsOf(id)
		}
	}
	for _, list := range v.logs {
		slices.SortStableFunc(list, func(a, b *record) int {
			return cmp.Compare(a.logged.Seal.Before.Size, b.logged.Seal.Before.Size)
		})
	}
	for i, signed := range evidence.Checkpoints {
		if !v.checkpoint(signed) {
			v.add(FaultCheckpoint, Finding{Checkpoint: fmt.Sprintf("%x", sha256.Sum256(signed))}, nil,
				"checkpoint %d is not of this history: no given key signed it", i+1)
		}
	}
	for _, r := range v.records {
		if r.by != nil && r.logged.Start != nil {
			for _, signed := range r.logged.Start.Continues {
				v.checkpoint([]byte(signed)) // a record of a known key has it
			}
		}
	}
	return v
}

// rootsOf returns the roots of a log's checkpoints, to which more can be added.
func (v *verifier) rootsOf(id logID) map[int64][]tlog.Hash {
	if v.roots[id] == nil {
		v.roots[id] = map[int64][]tlog.Hash{}
	}
	return v.roots[id]
}

// checkpoint adds a checkpoint, or returns false if no key signed it.
func (v *verifier) checkpoint(signed []byte) bool {
	for i, key := range v.keys {
		if c, err := key.Open(signed); err == nil {
			if roots := v.rootsOf(logID{i, c.Log}); !slices.Contains(roots[c.Size], c.Root) {
				roots[c.Size] = append(roots[c.Size], c.Root)
			}
			return true
		}
	}
	return false
}

// checkSignatures checks the seals of records and the signatures of approvals in parallel, and
// sets by, after and invalid.
func checkSignatures(records []*record, keys []*translog.Key) {
	const partSize = 1024
	group := &errgroup.Group{}
	group.SetLimit(runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(records, partSize) {
		group.Go(func() error {
			for _, r := range part {
				if r.change != nil {
					r.invalid = r.change.invalidSignatures()
				}
			}
			left := slices.DeleteFunc(slices.Clone(part), func(r *record) bool { return r.logged.Seal == nil })
			for _, key := range keys {
				sealed := make([]translog.Sealed, len(left))
				for i, r := range left {
					sealed[i] = translog.Sealed{Leaf: r.leaf, Seal: r.logged.Seal}
				}
				for i, after := range key.CheckAll(sealed) {
					if after.Size > 0 {
						left[i].by, left[i].after = key, after
					}
				}
				left = slices.DeleteFunc(left, func(r *record) bool { return r.by != nil })
			}
			return nil
		})
	}
	_ = group.Wait() // no part returns an error
}

// replay is the replay of one log.
type replay struct {
	*verifier
	origin string
	id     logID
	tree   translog.Tree
	// roots are the roots of checkpoints by size that were not compared yet.
	roots map[int64][]tlog.Hash
}

// add adds a finding of the log.
func (r *replay) add(fault Fault, number, last int64, about *record, format string, args ...any) {
	r.verifier.add(fault, Finding{Log: r.origin, Number: number, Last: last}, about, format, args...)
}

// advance sets the tree, and compares it with the checkpoints of its size.
func (r *replay) advance(tree translog.Tree) {
	r.tree = tree
	for _, root := range r.roots[tree.Size] {
		if root != tree.Root() {
			r.verifier.add(FaultForked, Finding{Log: r.origin, Last: tree.Size - 1, Checkpoint: root.String()}, nil,
				"the first %d records of %s differ from a signed checkpoint: the history was rewritten", tree.Size, r.origin)
		}
	}
	delete(r.roots, tree.Size)
}

// skip reports the checkpoints that cannot be compared because records are missing.
func (r *replay) skip(before int64) {
	for _, size := range slices.Sorted(maps.Keys(r.roots)) {
		if size <= r.tree.Size || size >= before {
			continue
		}
		for _, root := range r.roots[size] {
			r.verifier.add(FaultMissing, Finding{Log: r.origin, Number: size, Last: size, Checkpoint: root.String()}, nil,
				"a signed checkpoint of %s with %d records cannot be checked, because records before it are missing", r.origin, size)
		}
		delete(r.roots, size)
	}
}

// log checks the records of one log, in order. After a fault it continues at the tree in the
// next record's seal.
func (v *verifier) log(id logID, records []*record, roots map[int64][]tlog.Hash) {
	key := v.keys[id.key]
	r := &replay{verifier: v, origin: key.Origin(id.log), id: id, roots: maps.Clone(roots)}
	report := LogReport{Log: r.origin, ID: id.log, Imported: r.start(records)}
	var last *record      // the last one that is no fork
	newest := ""          // the newest change before a record that was known to be written
	var undecided *record // the last change, until the next record shows whether it was known
	for _, next := range records {
		r.unsealedBefore(next)
		if undecided != nil && !slices.Contains(next.logged.Unsealed, undecided.leaf) { // its record was known to be written
			newest = max(newest, undecided.leaf.ID)
		}
		undecided = nil
		seal := next.logged.Seal
		before, size := seal.Before, r.tree.Size
		switch {
		case before.Size < size:
			r.add(FaultForked, before.Size, before.Size, next, "%s has the number %d of another record of %s: the key signed two histories", describe(next.leaf), before.Size, r.origin)
			continue
		case before.Size > size:
			r.add(FaultMissing, size, before.Size-1, nil, "%s before %s", r.missing(size, before.Size-1), describe(next.leaf))
			r.skip(before.Size)
			r.advance(before)
		case !before.Equal(r.tree):
			r.add(FaultForked, size, size, next, "%s follows other records of %s than these: the key signed two histories", describe(next.leaf), r.origin)
		}
		r.advance(next.after)
		if last == nil {
			report.Began = next.time
		}
		last = next
		if next.change != nil {
			r.approved(next, newest)
			if next.change.changes() {
				undecided = next
			}
		}
	}
	report.Size = r.tree.Size
	if len(r.roots) > 0 {
		if size := slices.Max(slices.Collect(maps.Keys(r.roots))); size > report.Size {
			v.add(FaultCut, Finding{Log: r.origin, Number: report.Size, Last: size - 1, Checkpoint: r.roots[size][0].String()}, nil,
				"%s ends after %d records, but a signed checkpoint has %d: %s", r.origin, report.Size, size, r.missing(report.Size, size-1))
		}
	}
	if last != nil {
		report.Signed, report.Change, report.Checkpoint = last.time, last.leaf.ID, string(key.Checkpoint(last.leaf, last.logged.Seal))
		v.report.Logs = append(v.report.Logs, report)
	}
}

// approved adds a finding if the signed approval of a change by a command is for another place in
// the history: the signed text names the newest change at that time, but newest, which is later,
// is before the change in the log. Whoever has the key could otherwise use an approval again.
func (r *replay) approved(next *record, newest string) {
	second := func(id string) string {
		at, _, _ := strings.Cut(id, "-") // changes within a second can be in any order
		return at
	}
	for _, a := range next.change.Approvals() {
		if a.ScalePlan != "" || len(a.Signatures) == 0 {
			continue
		}
		statement, err := signature.ParseStatement(a.Statement)
		if err != nil {
			continue // it is one of invalid
		}
		named, is := statement.After()
		switch {
		case !is:
			r.verifier.add(FaultApproval, Finding{}, next, "an approval of %s is not valid: it approves another change: %s", describe(next.leaf), statement.Subject)
		case second(newest) > second(named):
			r.verifier.add(FaultApproval, Finding{}, next, "an approval of %s is not valid: it approves the %s, but change %s was recorded before",
				describe(next.leaf), statement.Subject, newest)
		}
	}
}

// missing describes missing records, with the records that claim their places.
func (r *replay) missing(first, last int64) string {
	text := fmt.Sprintf("the records with numbers %d to %d of %s are missing", first, last, r.origin)
	if first == last {
		text = fmt.Sprintf("the record with number %d of %s is missing", first, r.origin)
	}
	const limit = 10
	for number := first; number <= min(last, first+limit); number++ {
		for _, claim := range r.claims[place{r.id.log, number}] {
			text += fmt.Sprintf(" (%s claims number %d, but is not what the key signed)", describe(claim.leaf), number)
		}
	}
	return text
}

// start adds the records from before the log, and returns their number.
func (r *replay) start(records []*record) int64 {
	i := slices.IndexFunc(records, func(next *record) bool { return next.logged.Start != nil })
	if i < 0 {
		return 0
	}
	want := records[i].logged.Start.Imported
	older := map[string]*record{}
	for _, one := range r.records {
		if one.logged.Seal == nil {
			older[importedHash(one.leaf)] = one
		}
	}
	count := int64(len(want) / ImportedSize)
	missing := int64(0)
	var tree translog.Tree
	for part := range slices.Chunk(want, ImportedSize) {
		one := older[string(part)]
		if one == nil {
			missing++
			r.add(FaultMissing, tree.Size+missing-1, tree.Size+missing-1, nil,
				"a record from before %s is missing or was edited: number %d of %d", r.origin, tree.Size+missing-1, count)
			continue
		}
		one.covered = true
		if missing == 0 {
			tree = tree.Add(one.leaf)
			r.advance(tree)
		}
	}
	if missing > 0 {
		// The tree cannot be computed: continue with what the first record says.
		seal := records[0].logged.Seal
		if seal.Before.Size == count+int64(len(records[0].logged.Unsealed)) && len(records[0].logged.Unsealed) == 0 {
			r.skip(count)
			r.advance(seal.Before)
		}
	}
	return count
}

func importedHash(leaf translog.Leaf) string {
	hash := leaf.Hash()
	return string(hash[:ImportedSize])
}

// unsealedBefore adds the leaves without a seal that are right before a record.
func (r *replay) unsealedBefore(next *record) {
	list := next.logged.Unsealed
	first := next.logged.Seal.Before.Size - int64(len(list))
	for i, leaf := range list {
		number := first + int64(i)
		one := r.unsealed[leaf]
		if one != nil {
			one.covered = true
		}
		if r.tree.Size != number { // a record that was reviewed later has this number
			continue
		}
		tree := r.tree.Add(leaf)
		// A checkpoint is of a record that exists, and ends with it.
		existed := slices.Contains(r.roots[tree.Size], tree.Root())
		r.advance(tree)
		switch {
		case one != nil:
		case existed:
			r.add(FaultMissing, number, number, nil, "number %d of %s, %s, is missing: a signed checkpoint ends with it, so it was written, and removed later",
				number, r.origin, describe(leaf))
		default:
			f := Finding{Log: r.origin, Number: number, Last: number, Change: leaf.ID, Kind: leaf.Kind, Record: leaf.Record}
			f.Text = fmt.Sprintf("number %d of %s, %s, does not exist: numaform was interrupted before it wrote it, or it waits for review, "+
				"or it was removed before the next record was written", number, r.origin, describe(leaf))
			r.report.Unwritten = append(r.report.Unwritten, f)
		}
	}
}

// accept marks the findings that a signed change accepts.
func (v *verifier) accept() {
	type acceptance struct {
		change string
		kind   Kind
	}
	accepted := map[[FindingSize]byte]acceptance{}
	for _, r := range v.records {
		if r.by == nil || r.change == nil || !slices.Contains([]Kind{KindAccept, KindAcceptRestore, KindContinue}, r.change.Kind) {
			continue
		}
		for part := range slices.Chunk(r.change.Accepts, FindingSize) {
			if len(part) != FindingSize {
				continue
			}
			id := [FindingSize]byte(part)
			if earlier, known := accepted[id]; !known || earlier.kind == KindContinue {
				accepted[id] = acceptance{r.leaf.ID, r.change.Kind}
			}
		}
	}
	for i := range v.report.Findings {
		f := &v.report.Findings[i]
		if by, ok := accepted[f.ID()]; ok {
			f.Accepted, f.AcceptedAs = by.change, by.kind
		}
	}
}

// Imported returns the beginning of a log: the tree of its first leaves, which are the
// records without a seal in verified entries, and their hashes for LogStart. If there are
// more than limit records, it omits the oldest.
func Imported(entries []Entry, limit int) (tree translog.Tree, hashes []byte) {
	leaves := UnsealedOf(entries)
	for _, leaf := range leaves[max(0, len(leaves)-limit):] {
		tree = tree.Add(leaf)
		hashes = append(hashes, importedHash(leaf)...)
	}
	return tree, hashes
}

// UnsealedOf returns the leaves of the records in verified entries that have no seal.
func UnsealedOf(entries []Entry) []translog.Leaf {
	var leaves []translog.Leaf
	for i := range entries {
		for _, r := range entries[i].records() {
			if r.verified && r.logged.Seal == nil {
				leaves = append(leaves, r.leaf)
			}
		}
	}
	return leaves
}

// LastSealed returns the last record in each log of a key that entries contain, by the ID of the
// log.
func LastSealed(entries []Entry, key *translog.Key) map[string]translog.Sealed {
	var sealed []translog.Sealed
	for i := range entries {
		for _, r := range entries[i].records() {
			if r.logged.Seal != nil {
				sealed = append(sealed, translog.Sealed{Leaf: r.leaf, Seal: r.logged.Seal})
			}
		}
	}
	slices.SortStableFunc(sealed, func(a, b translog.Sealed) int { return cmp.Compare(a.Seal.Before.Size, b.Seal.Before.Size) })
	last := map[string]translog.Sealed{}
	for _, r := range slices.Backward(sealed) {
		if _, found := last[r.Seal.Log]; !found && key.Check(r.Leaf, r.Seal) {
			last[r.Seal.Log] = r
		}
	}
	return last
}

// Ends returns the checkpoints of the last records of a key's logs, without those that the
// start of another log already has.
func Ends(entries []Entry, key *translog.Key) []string {
	last := LastSealed(entries, key)
	known := map[string]bool{}
	for i := range entries {
		for _, r := range entries[i].records() {
			if r.logged.Start != nil {
				for _, checkpoint := range r.logged.Start.Continues {
					known[checkpoint] = true
				}
			}
		}
	}
	var ends []string
	for _, log := range slices.Sorted(maps.Keys(last)) {
		if end := string(key.Checkpoint(last[log].Leaf, last[log].Seal)); !known[end] {
			ends = append(ends, end)
		}
	}
	return ends
}

// Open returns the findings that no user accepted. A finding after which the controller went
// on by itself is among them.
func (r *Report) Open() []Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Accepted != "" && f.AcceptedAs != KindContinue })
}

// AcceptsOf returns the IDs of findings, as a change of kind KindAccept names them.
func AcceptsOf(findings []Finding) []byte {
	var ids []byte
	for i := range findings {
		id := findings[i].ID()
		ids = append(ids, id[:]...)
	}
	return ids
}

// Fingerprint identifies a set of findings.
func Fingerprint(findings []Finding) string {
	sum := sha256.Sum256(AcceptsOf(findings))
	return hex.EncodeToString(sum[:8])
}

// describe names the record of a leaf.
func describe(leaf translog.Leaf) string {
	if leaf.Kind == translog.KindOutcome {
		return "the outcome of change " + leaf.ID
	}
	return "change " + leaf.ID
}
