package audit_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/topology"
)

const cluster = "homelab"

// installation is the key and the log of a numaform.
type installation struct {
	key    audit.Key
	signer *translog.Signer
	log    string
	tree   translog.Tree
	start  *audit.LogStart
}

func install(tb testing.TB, name string) *installation {
	tb.Helper()
	in := &installation{log: "1"}
	copy(in.key[:], name)
	var err error
	if in.signer, err = in.key.Signer(cluster); err != nil {
		tb.Fatal(err)
	}
	return in
}

func (in *installation) seal(tb testing.TB, leaf translog.Leaf) *translog.Seal {
	tb.Helper()
	seal, err := in.tree.Seal(leaf, in.signer, in.log)
	if err != nil {
		tb.Fatal(err)
	}
	in.tree = in.tree.Add(leaf)
	return seal
}

// place sets the place of a record whose leaf is returned by leafOf.
func (in *installation) place(tb testing.TB, logged *audit.Logged, leafOf func() (translog.Leaf, error)) {
	tb.Helper()
	logged.Seal = nil
	if in.tree.Size < 8 { // in two records after 6 older ones, as package store does
		logged.Start = in.start
	}
	leaf, err := leafOf()
	if err != nil {
		tb.Fatal(err)
	}
	logged.Seal = in.seal(tb, leaf)
}

func (in *installation) checkpoint() []byte { return in.signer.Checkpoint(in.tree, in.log) }

var began = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// change returns the i-th change.
func change(i int) audit.Change {
	at := began.Add(time.Duration(i) * time.Minute)
	return audit.Change{
		ID: at.Format("20060102T150405Z") + "-0123456789", Time: at, ClusterID: cluster, Kind: audit.KindScaleUp, Actor: "controller",
		Why: fmt.Sprint(i, " pods wait"), Approval: &audit.Approval{By: "ada@example", Digest: fmt.Sprint(i)},
	}
}

// add adds a sealed change to a history, and its outcome.
func (in *installation) add(tb testing.TB, history *[]audit.Entry, change audit.Change) {
	tb.Helper()
	in.place(tb, &change.Logged, func() (translog.Leaf, error) { return change.Leaf() })
	sealed, err := in.key.SealChange(cluster, change)
	if err != nil {
		tb.Fatal(err)
	}
	outcome := audit.Outcome{ID: change.ID, Time: change.Time.Add(time.Second), Duration: time.Second}
	in.place(tb, &outcome.Logged, func() (translog.Leaf, error) { return outcome.Leaf() })
	if outcome, err = in.key.SealOutcome(cluster, sealed.Digest, outcome); err != nil {
		tb.Fatal(err)
	}
	*history = append(*history, reread(tb, audit.Entry{Change: sealed, Outcome: &outcome}))
}

// reread returns an entry as a store reads it: with the digests of its content.
func reread(tb testing.TB, e audit.Entry) audit.Entry {
	tb.Helper()
	content, err := json.Marshal(e)
	if err == nil {
		e = audit.Entry{}
		err = json.Unmarshal(content, &e)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// copyOf returns a history that shares nothing with another.
func copyOf(tb testing.TB, history []audit.Entry) []audit.Entry {
	tb.Helper()
	content, err := json.Marshal(history)
	if err == nil {
		history = nil
		err = json.Unmarshal(content, &history)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return history
}

// older returns a history by a version without the log, and begins the installation's log
// with it.
func (in *installation) older(tb testing.TB, changes int) []audit.Entry {
	tb.Helper()
	var history []audit.Entry
	for i := range changes {
		e := reread(tb, audit.Entry{Change: change(i), Outcome: &audit.Outcome{ID: change(i).ID}})
		e.Verified, e.OutcomeVerified = true, true
		history = append(history, e)
	}
	in.start = &audit.LogStart{}
	in.tree, in.start.Imported = audit.Imported(history, 100)
	return history
}

// verify verifies a history, and requires the same report of what Reduce leaves of it.
func verify(t *testing.T, history []audit.Entry, evidence audit.Evidence) *audit.Report {
	t.Helper()
	report := audit.Verify(history, evidence)
	reduced := slices.Clone(history)
	for i := range reduced {
		reduced[i].Reduce()
	}
	if diff := cmp.Diff(report, audit.Verify(reduced, evidence)); diff != "" {
		t.Errorf("the report of the reduced history (-complete +reduced):\n%s", diff)
	}
	return report
}

// finding is the part of a finding that a test expects.
type finding struct {
	fault  audit.Fault
	change string
}

// edit is a way to change a history.
type edit struct {
	name string
	// change changes a history, and returns the findings.
	change func(h *[]audit.Entry) []finding
	// forks is set if the key signed two records with one number: which of them is right
	// is unknown.
	forks bool
}

// editsOf returns all ways to change a history of 3 older and 9 sealed changes.
func editsOf(t *testing.T, random *rand.Rand) []edit {
	sealed := func() int { return 3 + random.IntN(9) }
	return []edit{
		{name: "edit a change", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[sealed()]
			e.Change.Why += "!"
			return []finding{{audit.FaultEdited, e.Change.ID}}
		}},
		{name: "edit an outcome", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[sealed()]
			e.Outcome.Duration++
			return []finding{{audit.FaultEdited, e.Change.ID}}
		}},
		{name: "edit a tree", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[sealed()]
			edge := e.Change.Seal.Before.Edge
			edge[random.IntN(len(edge))][random.IntN(32)] ^= byte(1 + random.IntN(255))
			return []finding{{audit.FaultEdited, e.Change.ID}}
		}},
		{name: "edit a signature", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[sealed()]
			e.Outcome.Seal.Signature[random.IntN(64)] ^= byte(1 + random.IntN(255))
			return []finding{{audit.FaultEdited, e.Change.ID}}
		}},
		{name: "edit the ID of a log", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[sealed()]
			e.Change.Seal.Log = "2"
			return []finding{{audit.FaultEdited, e.Change.ID}}
		}},
		{name: "swap two approvals", change: func(h *[]audit.Entry) []finding {
			i := 3 + random.IntN(8)
			a, b := &(*h)[i].Change, &(*h)[i+1].Change
			a.Approval, b.Approval = b.Approval, a.Approval
			return []finding{{audit.FaultEdited, a.ID}, {audit.FaultEdited, b.ID}}
		}},
		{name: "swap two outcomes", change: func(h *[]audit.Entry) []finding {
			i := 3 + random.IntN(8)
			a, b := &(*h)[i], &(*h)[i+1]
			a.Outcome, b.Outcome = b.Outcome, a.Outcome
			a.Outcome.ID, b.Outcome.ID = a.Change.ID, b.Change.ID
			return []finding{{audit.FaultEdited, a.Change.ID}, {audit.FaultEdited, b.Change.ID}}
		}},
		{name: "swap two seals", change: func(h *[]audit.Entry) []finding {
			i := 3 + random.IntN(8)
			a, b := &(*h)[i].Change, &(*h)[i+1].Change
			a.Seal, b.Seal = b.Seal, a.Seal
			return []finding{{audit.FaultEdited, a.ID}, {audit.FaultEdited, b.ID}}
		}},
		{name: "reorder two changes", change: func(h *[]audit.Entry) []finding {
			i := 3 + random.IntN(8)
			a, b := &(*h)[i].Change, &(*h)[i+1].Change
			a.ID, b.ID, a.Time, b.Time = b.ID, a.ID, b.Time, a.Time
			return []finding{{audit.FaultEdited, a.ID}, {audit.FaultEdited, b.ID}}
		}},
		{name: "forge a change", change: func(h *[]audit.Entry) []finding {
			forged := (*h)[sealed()]
			forged.Change.ID, forged.Outcome = fmt.Sprintf("20260101T110000Z-%010x", random.Uint32()), nil
			*h = slices.Insert(*h, 0, forged)
			return []finding{{audit.FaultEdited, forged.Change.ID}}
		}},
		{name: "forge a change without a seal", change: func(h *[]audit.Entry) []finding {
			forged := (*h)[sealed()]
			forged.Change.ID, forged.Change.Seal, forged.Outcome = fmt.Sprintf("2026%04dT110000Z-%010x", 101+random.IntN(2), random.Uint32()), nil, nil
			*h = append(*h, forged)
			return []finding{{audit.FaultUnsealed, forged.Change.ID}}
		}},
		{name: "remove a seal", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[4+random.IntN(8)]
			e.Change.Seal = nil
			return []finding{{audit.FaultUnsealed, e.Change.ID}}
		}},
		{name: "remove a change", change: func(h *[]audit.Entry) []finding {
			i := 4 + random.IntN(7)
			*h = slices.Delete(*h, i, i+1)
			return []finding{{audit.FaultMissing, ""}}
		}},
		{name: "remove an outcome", change: func(h *[]audit.Entry) []finding {
			(*h)[3+random.IntN(8)].Outcome = nil
			return []finding{{audit.FaultMissing, ""}}
		}},
		{name: "remove the end", change: func(h *[]audit.Entry) []finding {
			*h = (*h)[:4+random.IntN(7)]
			return []finding{{audit.FaultCut, ""}}
		}},
		{name: "remove all", change: func(h *[]audit.Entry) []finding {
			*h = nil
			return []finding{{audit.FaultCut, ""}}
		}},
		{name: "edit an older record", change: func(h *[]audit.Entry) []finding {
			e := &(*h)[random.IntN(3)]
			e.Change.Why += "!"
			return []finding{{audit.FaultUnsealed, e.Change.ID}, {audit.FaultMissing, ""}}
		}},
		{name: "remove an older record", change: func(h *[]audit.Entry) []finding {
			i := random.IntN(3)
			*h = slices.Delete(*h, i, i+1)
			return []finding{{audit.FaultMissing, ""}}
		}},
		{name: "rewrite with a stolen key", change: func(h *[]audit.Entry) []finding {
			thief := install(t, "controller")
			from := 3 + random.IntN(9)
			thief.tree = (*h)[from].Change.Seal.Before
			rewritten := (*h)[:from:from]
			for _, e := range (*h)[from:] {
				thief.start = e.Change.Start
				e.Change.Why += "!"
				thief.add(t, &rewritten, e.Change)
			}
			*h = rewritten
			return []finding{{audit.FaultForked, ""}}
		}},
		{name: "hide the lost with a stolen key", change: func(h *[]audit.Entry) []finding {
			// The thief removes changes, and lets the rest follow records that never were.
			thief := install(t, "controller")
			from := 4 + random.IntN(8)
			thief.tree = (*h)[from].Change.Seal.Before
			rewritten := (*h)[:from:from]
			accept := change(50)
			accept.Kind = audit.KindAccept
			for range 40 {
				leaf := translog.NewLeaf(translog.KindChange, "x", [32]byte{1})
				accept.Unsealed = append(accept.Unsealed, leaf)
				thief.tree = thief.tree.Add(leaf)
			}
			thief.add(t, &rewritten, accept)
			*h = rewritten
			return []finding{{audit.FaultForked, ""}}
		}},
		{name: "skip the lost with a stolen key", change: func(h *[]audit.Entry) []finding {
			thief := install(t, "controller")
			from := 4 + random.IntN(8)
			for range 50 {
				thief.tree = thief.tree.Add(translog.NewLeaf(translog.KindChange, "x", [32]byte{1}))
			}
			rewritten := (*h)[:from:from]
			accept := change(50)
			accept.Kind = audit.KindAccept
			thief.add(t, &rewritten, accept)
			*h = rewritten
			return []finding{{audit.FaultMissing, ""}}
		}},
		{name: "insert with a stolen key", forks: true, change: func(h *[]audit.Entry) []finding {
			thief := install(t, "controller")
			thief.tree = (*h)[4+random.IntN(8)].Change.Seal.Before
			forged := change(99)
			thief.add(t, h, forged)
			return []finding{{audit.FaultForked, forged.ID}, {audit.FaultForked, forged.ID}}
		}},
	}
}

// TestVerifyNamesEachEdit edits a history at random, and requires the findings that name each
// damaged record, and no others. In a nightly run, it makes 10,000 edits.
func TestVerifyNamesEachEdit(t *testing.T) {
	t.Parallel()
	in := install(t, "controller")
	history := in.older(t, 3)
	for i := range 9 {
		in.add(t, &history, change(i+3))
	}
	witnessed := in.checkpoint()
	evidence := audit.Evidence{Keys: []*translog.Key{install(t, "another").signer.Key(), in.signer.Key()}, Checkpoints: [][]byte{witnessed}, Since: change(11).Time}
	report := verify(t, copyOf(t, history), evidence)
	if len(report.Findings) != 0 || len(report.Logs) != 1 || report.Logs[0].Size != 24 || report.Logs[0].Imported != 6 ||
		!report.Logs[0].Signed.Equal(change(11).Time.Add(time.Second)) || report.Logs[0].Checkpoint != string(witnessed) {
		t.Fatalf("an untouched history: %+v", report)
	}
	evidence.Since = time.Time{}

	untouched, err := json.Marshal(history)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(22, 1))
	kinds := editsOf(t, random)
	edits := 40 * len(kinds)
	if enginetest.EveryCase() {
		edits = 10_000
	}
	for trial := range edits {
		kind := kinds[trial%len(kinds)]
		var h []audit.Entry
		if err := json.Unmarshal(untouched, &h); err != nil {
			t.Fatal(err)
		}
		want := kind.change(&h)
		report := verify(t, copyOf(t, h), evidence)
		var got []finding
		for _, f := range report.Findings {
			got = append(got, finding{f.Fault, f.Change})
		}
		for _, f := range want {
			if !slices.Contains(got, f) {
				t.Fatalf("trial %d (%s): findings %v, want %v", trial, kind.name, report.Findings, want)
			}
		}
		if kind.forks {
			continue
		}
		for _, f := range got {
			// A damaged record also misses at its number, or at the end, and what is missing cannot
			// be compared.
			if !slices.Contains(want, f) && f.fault != audit.FaultMissing && f.fault != audit.FaultCut {
				t.Fatalf("trial %d (%s): findings %v, want only %v", trial, kind.name, report.Findings, want)
			}
		}
		if audit.Verify(history, evidence).Findings != nil {
			t.Fatal("the untouched history does not pass")
		}
	}
}

// TestVerifyCut checks that the removal of the last records is found by a later checkpoint,
// or a time, and is not without them.
func TestVerifyCut(t *testing.T) {
	t.Parallel()
	in := install(t, "controller")
	var history []audit.Entry
	in.add(t, &history, change(0))
	early := in.checkpoint()
	in.add(t, &history, change(1))
	late := in.checkpoint()
	evidence := audit.Evidence{Keys: []*translog.Key{in.signer.Key()}, Checkpoints: [][]byte{early}}
	report := verify(t, history[:1], evidence)
	if len(report.Findings) != 0 || report.Logs[0].Size != 2 || !report.Logs[0].Signed.Equal(change(0).Time.Add(time.Second)) {
		t.Errorf("cut, with the checkpoint of its end: %+v", report)
	}
	evidence.Since = change(1).Time
	if report := verify(t, history[:1], evidence); len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultCut {
		t.Errorf("cut, with a time: %+v", report)
	}
	evidence.Checkpoints, evidence.Since = [][]byte{early, late}, time.Time{}
	if report := verify(t, history[:1], evidence); len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultCut {
		t.Errorf("cut, with a later checkpoint: %+v", report)
	}
	stranger := install(t, "stranger")
	stranger.add(t, &[]audit.Entry{}, change(0))
	evidence.Checkpoints = [][]byte{stranger.checkpoint()}
	if report := verify(t, history, evidence); len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultCheckpoint {
		t.Errorf("the checkpoint of a stranger: %+v", report)
	}
}

// TestVerifyUnwritten checks that a number without a record, which the next record names, is
// no fault, and that a record that was reviewed later takes its place.
func TestVerifyUnwritten(t *testing.T) {
	t.Parallel()
	in := install(t, "controller")
	var history, reviewed []audit.Entry
	in.add(t, &history, change(0))
	in.add(t, &reviewed, change(1)) // on a branch that is not merged yet
	ended := in.checkpoint()
	next := change(2)
	for _, list := range reviewed {
		for _, leafOf := range []func() (translog.Leaf, error){list.Change.Leaf, list.Outcome.Leaf} {
			leaf, err := leafOf()
			if err != nil {
				t.Fatal(err)
			}
			next.Unsealed = append(next.Unsealed, leaf)
		}
	}
	in.add(t, &history, next)
	evidence := audit.Evidence{Keys: []*translog.Key{in.signer.Key()}, Checkpoints: [][]byte{in.checkpoint()}}
	report := verify(t, history, evidence)
	if len(report.Findings) != 0 || len(report.Unwritten) != 2 || report.Unwritten[0].Change != change(1).ID || report.Unwritten[1].Number != 3 {
		t.Errorf("before the review: %+v", report)
	}
	report = verify(t, slices.Concat(history[:1], reviewed, history[1:]), evidence)
	if len(report.Findings) != 0 || len(report.Unwritten) != 0 {
		t.Errorf("after the review: %+v", report)
	}

	// A checkpoint that ends with a record proves that the record was written.
	evidence.Checkpoints = append(evidence.Checkpoints, ended)
	report = verify(t, history, evidence)
	if len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultMissing || report.Findings[0].Number != 3 || len(report.Unwritten) != 1 {
		t.Errorf("with a checkpoint that ends with a missing record: %+v", report)
	}
	if report = verify(t, slices.Concat(history[:1], reviewed, history[1:]), evidence); len(report.Findings) != 0 {
		t.Errorf("with a checkpoint that ends with an existing record: %+v", report)
	}
}

// TestVerifyApprovals exchanges signatures of approvals before the records are sealed, as whoever
// has the installation's key can: verification finds them without a list of allowed signers.
func TestVerifyApprovals(t *testing.T) {
	t.Parallel()
	signers := make([]ssh.Signer, 2)
	for i := range signers {
		_, private, err := ed25519.GenerateKey(nil)
		if err == nil {
			signers[i], err = ssh.NewSignerFromKey(private)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	approval := func(plan string, signer ssh.Signer) audit.Approval {
		t.Helper()
		statement := signature.Statement{ClusterID: cluster, Hash: strings.Repeat("ab", 32), Subject: signature.ForScalePlan(plan, "uid")}
		text, err := statement.Text()
		if err != nil {
			t.Fatal(err)
		}
		armored, err := signature.Sign(signer, text)
		if err != nil {
			t.Fatal(err)
		}
		return audit.Approval{
			By: "ada", Digest: statement.Hash, ScalePlan: plan, Statement: string(text),
			Signatures: []audit.Signature{{Signer: "ada", Key: ssh.FingerprintSHA256(signer.PublicKey()), Signature: armored}},
		}
	}
	valid, other, bob := approval("a", signers[0]), approval("b", signers[0]), approval("a", signers[1])
	for name, tt := range map[string]struct {
		edit func(a *audit.Approval)
		want string
	}{
		"valid":                    {func(*audit.Approval) {}, ""},
		"of another plan":          {func(a *audit.Approval) { a.Statement, a.Signatures = other.Statement, other.Signatures }, "another change: scaleplan b"},
		"signature of another":     {func(a *audit.Approval) { a.Signatures = other.Signatures }, "another text"},
		"by another key":           {func(a *audit.Approval) { a.Signatures[0].Signature = bob.Signatures[0].Signature }, "it was made by key"},
		"of another digest":        {func(a *audit.Approval) { a.Digest = strings.Repeat("cd", 32) }, "another change"},
		"with another reason":      {func(a *audit.Approval) { a.BreakGlass = "hurry" }, "reason of the break-glass"},
		"second host with another": {nil, "another text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t, "controller")
			var history []audit.Entry
			c := change(0)
			first := valid
			first.Signatures = slices.Clone(valid.Signatures)
			c.Approval = nil
			c.Hosts = []audit.HostPlan{{Host: topology.HostID{Region: "r", Host: "a"}, Approval: &first}}
			if tt.edit != nil {
				tt.edit(&first)
			} else {
				second := valid
				second.Signatures = other.Signatures
				c.Hosts = append(c.Hosts, audit.HostPlan{Host: topology.HostID{Region: "r", Host: "b"}, Approval: &second})
			}
			in.add(t, &history, c)
			report := verify(t, history, audit.Evidence{Keys: []*translog.Key{in.signer.Key()}})
			switch {
			case tt.want == "" && len(report.Findings) == 0:
			case tt.want == "" || len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultApproval || report.Findings[0].Change != c.ID ||
				!strings.Contains(report.Findings[0].Text, tt.want):
				t.Errorf("findings %+v, want %q", report.Findings, tt.want)
			}
		})
	}
}

// TestVerifyApprovalOfAnotherChange attaches the signed approval of a command to another change
// with the same digest before the record is sealed, as whoever has the installation's key can.
func TestVerifyApprovalOfAnotherChange(t *testing.T) {
	t.Parallel()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	// after returns an approval of the change that follows a change.
	after := func(newest string) *audit.Approval {
		t.Helper()
		statement := signature.Statement{ClusterID: cluster, Hash: strings.Repeat("ab", 32), Subject: signature.ForChange(newest)}
		text, err := statement.Text()
		if err != nil {
			t.Fatal(err)
		}
		armored, err := signature.Sign(signer, text)
		if err != nil {
			t.Fatal(err)
		}
		return &audit.Approval{
			By: "ada", Digest: statement.Hash, Statement: string(text),
			Signatures: []audit.Signature{{Signer: "ada", Key: ssh.FingerprintSHA256(signer.PublicKey()), Signature: armored}},
		}
	}
	plan := after("")
	plan.Statement = strings.Replace(plan.Statement, signature.ForChange(""), signature.ForScalePlan("a", "uid"), 1)
	if plan.Signatures[0].Signature, err = signature.Sign(signer, []byte(plan.Statement)); err != nil {
		t.Fatal(err)
	}
	first, second := after(""), after(change(0).ID)
	type log []struct {
		change   int
		kind     audit.Kind
		approval *audit.Approval
		// waits means that the record was not known to be written when the next one was.
		waits bool
	}
	for name, tt := range map[string]struct {
		log log
		// want is the part of the text of a finding about the last change, or empty.
		want string
	}{
		"valid":                         {log{{change: 0, approval: first}, {change: 1, approval: second}}, ""},
		"after an acceptance":           {log{{change: 0}, {change: 1, kind: audit.KindAccept}, {change: 2, approval: second}}, ""},
		"after a change that waits":     {log{{change: 0}, {change: 1, approval: second, waits: true}, {change: 2, approval: second}}, ""},
		"after another that waits":      {log{{change: 0}, {change: 1, waits: true}, {change: 2, approval: second}}, ""},
		"used again":                    {log{{change: 0}, {change: 1, approval: second}, {change: 2, approval: second}}, "but change " + change(1).ID},
		"used later":                    {log{{change: 0}, {change: 1}, {change: 2, approval: second}}, "but change " + change(1).ID},
		"of the first change":           {log{{change: 0}, {change: 1, approval: first}}, "approves the first change, but change " + change(0).ID},
		"of a ScalePlan, for a command": {log{{change: 0, approval: plan}}, "another change: scaleplan a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t, "controller")
			var history []audit.Entry
			var waiting []translog.Leaf
			for _, step := range tt.log {
				c := change(step.change)
				c.Approval, c.Unsealed, waiting = step.approval, waiting, nil
				if step.kind != "" {
					c.Kind = step.kind
				}
				if !step.waits {
					in.add(t, &history, c)
					continue
				}
				leaf, err := c.Leaf()
				if err != nil {
					t.Fatal(err)
				}
				in.place(t, &c.Logged, func() (translog.Leaf, error) { return leaf, nil })
				if c, err = in.key.SealChange(cluster, c); err != nil {
					t.Fatal(err)
				}
				history, waiting = append(history, reread(t, audit.Entry{Change: c})), append(waiting, leaf)
			}
			report := verify(t, history, audit.Evidence{Keys: []*translog.Key{in.signer.Key()}})
			last := tt.log[len(tt.log)-1].change
			switch {
			case tt.want == "" && len(report.Findings) == 0:
			case tt.want == "" || len(report.Findings) != 1 || report.Findings[0].Fault != audit.FaultApproval || report.Findings[0].Change != change(last).ID ||
				!strings.Contains(report.Findings[0].Text, tt.want):
				t.Errorf("findings %+v, want %q", report.Findings, tt.want)
			}
		})
	}
}

// TestExplain checks why records are not verified.
func TestExplain(t *testing.T) {
	t.Parallel()
	in, stranger := install(t, "controller"), install(t, "stranger")
	stranger.log = "2"
	var history []audit.Entry
	for i := range 3 {
		in.add(t, &history, change(i))
	}
	stranger.add(t, &history, change(3))
	history[1].Change.Why += "!"
	history[2].Outcome.Duration++
	history = append(copyOf(t, history), reread(t, audit.Entry{Change: change(4)}))
	for i := range history {
		in.key.Verify(cluster, nil, &history[i])
	}
	audit.Explain(history)
	var got [][2]audit.Doubt
	for _, e := range history {
		got = append(got, [2]audit.Doubt{e.Doubt, e.OutcomeDoubt})
	}
	want := [][2]audit.Doubt{
		{}, {audit.DoubtForged, ""}, {"", audit.DoubtForged}, {audit.DoubtOther, ""}, {audit.DoubtUnsealed, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestVerifyAccepts checks that a signed change accepts the findings that it names, and no
// others.
func TestVerifyAccepts(t *testing.T) {
	t.Parallel()
	in := install(t, "controller")
	var history []audit.Entry
	for i := range 4 {
		in.add(t, &history, change(i))
	}
	evidence := audit.Evidence{Keys: []*translog.Key{in.signer.Key()}}
	history = slices.Delete(history, 1, 2)
	found := verify(t, history, evidence)
	if len(found.Open()) != 1 {
		t.Fatalf("a missing change: %+v", found.Findings)
	}
	forged := change(4)
	forged.Kind, forged.Accepts = audit.KindAccept, audit.AcceptsOf(found.Findings)
	if report := verify(t, append(slices.Clone(history), audit.Entry{Change: forged}), evidence); len(report.Open()) != 2 {
		t.Errorf("a forged acceptance: %+v", report.Findings)
	}
	for i, kind := range []audit.Kind{audit.KindContinue, audit.KindAccept} {
		accept := change(5 + i)
		accept.Kind, accept.Accepts = kind, audit.AcceptsOf(found.Findings)
		in.add(t, &history, accept)
		report := verify(t, history, evidence)
		if len(report.Findings) != 1 || report.Findings[0].AcceptedAs != kind || (len(report.Open()) == 0) != (kind == audit.KindAccept) {
			t.Errorf("%s: %+v", kind, report.Findings)
		}
	}
	history[1].Change.Why += "!"
	if report := verify(t, copyOf(t, history), evidence); len(report.Open()) != 2 { // edited, and missing with its neighbors
		t.Errorf("an edit after the acceptance: %+v", report.Findings)
	}
}

// BenchmarkVerify verifies a history of 100,000 changes, whose records were read before.
func BenchmarkVerify(b *testing.B) {
	in := install(b, "controller")
	var history []audit.Entry
	for i := range 100_000 {
		in.add(b, &history, change(i))
	}
	evidence := audit.Evidence{Keys: []*translog.Key{in.signer.Key()}}
	before := cpuTime(b)
	for b.Loop() {
		if report := audit.Verify(history, evidence); len(report.Findings) > 0 {
			b.Fatal(report.Findings)
		}
	}
	b.ReportMetric((cpuTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// cpuTime returns the CPU time of this process so far, which the load of the machine changes
// less than the wall-clock time.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
