package audit_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

const prod = "prod"

var (
	ours   = audit.Key{1, 2, 3}
	theirs = audit.Key{4}
)

// record returns the JSON of a change and of its outcome, sealed by a key.
func record(t testing.TB, key audit.Key) (change, outcome string) {
	t.Helper()
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	began := time.Date(2026, 11, 21, 13, 45, 1, 123456000, time.UTC)
	sealed, err := key.SealChange(prod, audit.Change{
		ID: "20261121T134501Z-123456abcd", Time: began, ClusterID: prod, Kind: audit.KindScaleUp, Why: "2 < 3 pods & \u2028 “more”",
		Added:     []fleet.VM{{VMID: 2000, Name: "workers-2000", Key: "k", Spec: fleet.Spec{VCPUs: 2}, Placement: fleet.Placement{Host: host}}},
		Rotations: map[topology.RegionName]fleet.Rotation{"lab": {Last: 2000, Round: 1}, "b": {Last: 1}},
		Open:      []audit.Open{{Host: host}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := key.SealOutcome(prod, sealed.Digest, audit.Outcome{
		ID: sealed.ID, Time: began.Add(time.Minute), Duration: 1<<62 + 1, Hosts: []audit.Ended{{Host: host}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return text(t, sealed), text(t, ended)
}

func text(t testing.TB, value any) string {
	t.Helper()
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// read returns the entry of two records as read by a store, verified with our key.
func read(t testing.TB, change, outcome string) audit.Entry {
	t.Helper()
	e := audit.Entry{Outcome: &audit.Outcome{}}
	if err := json.Unmarshal([]byte(change), &e.Change); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(outcome), e.Outcome); err != nil {
		t.Fatal(err)
	}
	ours.Verify(prod, nil, &e)
	return e
}

func TestVerify(t *testing.T) {
	t.Parallel()
	change, outcome := record(t, ours)
	otherChange, otherOutcome := record(t, theirs)
	replaced := func(in, old, with string) string {
		t.Helper()
		out := strings.Replace(in, old, with, 1)
		if out == in {
			t.Fatalf("%s does not hold %q", in, old)
		}
		return out
	}
	var compact map[string]any
	if err := json.Unmarshal([]byte(change), &compact); err != nil {
		t.Fatal(err)
	}
	later, err := ours.SealChange(prod, audit.Change{ID: "20261121T134502Z-1", ClusterID: prod})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name            string
		change, outcome string
		want, wantEnd   bool
	}{
		{"as written", change, outcome, true, true},
		{"in another order and without white space", text(t, compact), outcome, true, true},
		{"of another key", otherChange, otherOutcome, false, false},
		{"with another key's outcome", change, otherOutcome, true, false},
		{"amended", replaced(change, `"2 `, `"3 `), outcome, false, false},
		{"with a field more", replaced(change, `"kind"`, `"future": 1, "kind"`), outcome, false, false},
		{"with a field in another case", replaced(change, `"kind"`, `"OPEN": [], "kind"`), outcome, false, false},
		{"with its MAC in another case", replaced(change, `"mac"`, `"MAC"`), outcome, false, false},
		{"without its MAC", replaced(change, `"mac": "`, `"mac": "", "none": "`), outcome, false, false},
		{"with an outcome that failed", change, replaced(outcome, `"host":`, `"error": "no room", "host":`), true, false},
		{"with an outcome that takes longer", change, replaced(outcome, "4611686018427387905", "4611686018427387904"), true, false},
		{"with the outcome of another change", text(t, later), outcome, true, false},
		{"with a change as its outcome", change, change, true, false},
		{"of another cluster", replaced(change, `"cluster_id": "prod"`, `"cluster_id": "test"`), outcome, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := read(t, tt.change, tt.outcome)
			if got.Verified != tt.want || got.OutcomeVerified != tt.wantEnd {
				t.Errorf("verified %t and its outcome %t, want %t and %t", got.Verified, got.OutcomeVerified, tt.want, tt.wantEnd)
			}
			if wantResult := tt.wantEnd; (got.Result() != nil) != wantResult {
				t.Errorf("result %v, want one: %t", got.Result(), wantResult)
			}
		})
	}
	elsewhere := read(t, change, outcome)
	if ours.Verify("test", nil, &elsewhere); elsewhere.Verified || elsewhere.OutcomeVerified {
		t.Error("a record of cluster prod is verified for cluster test")
	}
}

// TestDuplicates adds a duplicate of a field to a record, and checks that the record is not
// read: the digest could cover one of them, and the decoder read the other.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	change, _ := record(t, ours)
	for _, old := range []string{"{", `"lab": {`} {
		forged := strings.Replace(change, old, old+`"open": [{"removed": [{"Name": "forged"}]}], "last": 2999,`, 1)
		var read audit.Change
		if err := json.Unmarshal([]byte(forged), &read); err == nil || !strings.Contains(err.Error(), "duplicate") {
			t.Errorf("got %+v, %v from %s", read, err, forged)
		}
	}
}

// TestReadAgain decodes a record into a variable that contains another record. It checks
// that no field of the other record remains: the digest would not cover such a field.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	change, outcome := record(t, ours)
	used := audit.Entry{
		Change:  audit.Change{Format: 9, Undoes: "x", Outside: []string{"x"}},
		Outcome: &audit.Outcome{Format: 9, Outside: []string{"x"}},
	}
	if err := json.Unmarshal([]byte(change), &used.Change); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(outcome), used.Outcome); err != nil {
		t.Fatal(err)
	}
	ours.Verify(prod, nil, &used)
	if diff := cmp.Diff(read(t, change, outcome), used); diff != "" {
		t.Errorf("a verified record differs (-read once +read again):\n%s", diff)
	}
	if used.Change.Format != audit.FormatVersion || used.Outcome.Format != audit.FormatVersion {
		t.Errorf("formats %d and %d, want %d", used.Change.Format, used.Outcome.Format, audit.FormatVersion)
	}
}

// TestAdopted checks that adopted records without a MAC are verified, and that they are not
// if they were edited or have an invalid MAC.
func TestAdopted(t *testing.T) {
	t.Parallel()
	change, outcome := `{"format": 1, "id": "20261121T134501Z-1", "cluster_id": "prod"}`, `{"format": 1, "id": "20261121T134501Z-1"}`
	e := read(t, change, outcome)
	adopted := map[audit.Tag]bool{}
	for _, tag := range ours.Tags(prod, &e) {
		adopted[tag] = true
	}
	check := func(what, change, outcome string, want, wantEnd bool) {
		t.Helper()
		got := read(t, change, outcome)
		if ours.Verify(prod, adopted, &got); got.Verified != want || got.OutcomeVerified != wantEnd {
			t.Errorf("%s: verified %t and its outcome %t", what, got.Verified, got.OutcomeVerified)
		}
	}
	check("as adopted", change, outcome, true, true)
	check("amended", strings.Replace(change, `"format"`, `"why": "x", "format"`, 1), outcome, false, false)
	check("with another outcome", change, strings.Replace(outcome, `"format"`, `"duration_ns": 1, "format"`, 1), true, false)
	check("with a false MAC", strings.Replace(change, `"format"`, `"mac": "00", "format"`, 1), outcome, false, false)
	if e := read(t, change, outcome); e.Verified || e.OutcomeVerified {
		t.Error("verified though nothing is adopted")
	}
}

// TestAnyEdit edits or removes a random field of a sealed record, and checks that the
// record is then not verified. An edit of the change also invalidates its outcome.
func TestAnyEdit(t *testing.T) {
	t.Parallel()
	change, outcome := record(t, ours)
	rapid.Check(t, func(t *rapid.T) {
		edited, which := change, rapid.Bool().Draw(t, "of the outcome")
		if which {
			edited = outcome
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(edited), &fields); err != nil {
			t.Fatal(err)
		}
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(fields))).Draw(t, "field")
		switch value := fields[name].(type) {
		case string:
			if name == "time" {
				fields[name] = "9999-01-01T00:00:00Z"
				break
			}
			fields[name] = value + rapid.StringN(1, 9, -1).Draw(t, "more")
		case float64:
			fields[name] = int64(rapid.IntRange(2, 9).Draw(t, "number"))
		default:
			delete(fields, name)
		}
		content, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		e := audit.Entry{Outcome: &audit.Outcome{}}
		changeText, outcomeText := change, string(content)
		if !which {
			changeText, outcomeText = string(content), outcome
		}
		if err := json.Unmarshal([]byte(changeText), &e.Change); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(outcomeText), e.Outcome); err != nil {
			t.Fatal(err)
		}
		ours.Verify(prod, nil, &e)
		if e.OutcomeVerified || e.Verified != which {
			t.Fatalf("verified %t and its outcome %t after an edit of %s", e.Verified, e.OutcomeVerified, name)
		}
	})
}

// FuzzDigest compares the digests of records with those that encoding/json gives, as in the
// first release: with another digest, earlier records would not be valid.
func FuzzDigest(f *testing.F) {
	change, outcome := record(f, ours)
	for _, seed := range []string{
		change, outcome, "{}", `{"mac": 1, "A": {}, "a": -0, "id": "é", "É": 1.50e+3, "b": {"z": 1, "a": [null, true, "<&>\u2028\u007f\ud83d\ude00\u0001\b\/", {"y": "", "x\u003c": 0}]}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		var read audit.Change
		if json.Unmarshal([]byte(content), &read) != nil {
			return
		}
		decoder := json.NewDecoder(strings.NewReader(content))
		decoder.UseNumber()
		var fields map[string]any
		if err := decoder.Decode(&fields); err != nil {
			t.Fatalf("%s is read, but is no object: %v", content, err)
		}
		for _, got := range []struct {
			without string
			digest  audit.Digest
		}{{"mac", read.Digest}, {"seal", read.LogDigest}} {
			delete(fields, got.without)
			sorted, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			beyond := strings.ContainsFunc(string(sorted), func(r rune) bool { return r > 0xFFFF }) // names with it have another order
			if want := audit.Digest(sha256.Sum256(sorted)); got.digest != want && !beyond {
				t.Errorf("the digest of %s without its %s is %x, want %x", content, got.without, got.digest, want)
			}
		}
	})
}

func FuzzRecord(f *testing.F) {
	change, outcome := record(f, ours)
	for _, seed := range []string{change, outcome, "{}", "null", "[]", `{"mac": 1}`, `{"open": null, "open": [{}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		var e audit.Entry
		if json.Unmarshal([]byte(content), &e.Change) != nil {
			return
		}
		ours.Verify(prod, nil, &e)
		var known, given any
		if e.Verified && (json.Unmarshal([]byte(change), &known) != nil || json.Unmarshal([]byte(content), &given) != nil || fmt.Sprint(known) != fmt.Sprint(given)) {
			t.Errorf("verified: %s", content)
		}
	})
}
