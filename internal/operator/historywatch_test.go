package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
)

// reasonsOf collects the reasons of events.
type reasonsOf []string

func (p *reasonsOf) Publish(list ...events.Event) {
	for _, e := range list {
		*p = append(*p, e.Reason)
	}
}

// acceptance records a change that changes nothing, as scaler.Scaler.AcceptHistory.
type acceptance func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error)

// recorded counts the changes of all tests, so that each has another ID.
var recorded atomic.Int64

func recorder(s *store.Sealed, clk clock.PassiveClock) acceptance {
	return func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error) {
		count := recorded.Add(1)
		at := clk.Now().Add(time.Duration(count) * time.Microsecond)
		change := audit.Change{
			ID: fmt.Sprintf("%s-%06d", at.Format("20060102T150405Z"), count), Time: at, ClusterID: "prod", Kind: kind, Why: why, Accepts: audit.AcceptsOf(findings),
		}
		_, base, err := s.Read(ctx)
		if err == nil {
			err = s.Begin(ctx, base, generator.Files{}, change)
		}
		if err == nil {
			err = s.End(ctx, audit.Outcome{ID: change.ID, Time: at})
		}
		return change.ID, err
	}
}

// TestHistoryWatchPutBack forces the branch of a fleet back, again and again: the watch holds
// nothing, reports and counts each time, and records it once an hour.
func TestHistoryWatchPutBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote.git")
	git := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
		command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet", "--bare", "--initial-branch=main", remote)
	repository, err := store.NewGit(store.GitConfig{Clone: filepath.Join(dir, "clone"), Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	s := store.NewSealed(repository, store.FileVault(filepath.Join(dir, "key")), "prod")
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	record := recorder(s, clk)
	var reasons reasonsOf
	watch := operator.NewHistoryWatch(s, clk, &reasons, record)
	for range 3 {
		if _, err := record(t.Context(), audit.KindScaleUp, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, wantRecords := range []int{1, 1, 1, 2} {
		git("-C", remote, "update-ref", "refs/heads/main", "main~2")
		if i == 3 {
			clk.Step(2 * time.Hour)
		}
		waits, err := watch.Check(t.Context())
		if err != nil || waits > 0 || watch.Held || len(watch.Faults) > 0 || watch.PutBacks[true] != i+1 {
			t.Fatalf("%d waits, %v, held %t, faults %+v, pushed %v", waits, err, watch.Held, watch.Faults, watch.PutBacks)
		}
		if n := strings.Count(git("-C", remote, "log", "--format=%B", "main"), "Numaform-Kind: put-back"); n != wantRecords {
			t.Errorf("after %d forced pushes: %d records, want %d", i+1, n, wantRecords)
		}
	}
	if len(reasons) != 4 || reasons[0] != "HistoryPutBack" {
		t.Errorf("events %q", reasons)
	}
}

// TestHistoryWatch removes records: the watch holds all changes for a quarter of an hour, then
// records that it goes on, and does not hold them again on the same day. It waits for a user
// if the newest change is missing.
func TestHistoryWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleet, key := filepath.Join(dir, "fleet"), filepath.Join(dir, "keys", "key")
	s := store.NewSealed(store.NewDirectory(fleet), store.FileVault(key), "prod")
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	record := recorder(s, clk)
	// The user runs numaform history accept in another process.
	user := recorder(store.NewSealed(store.NewDirectory(fleet), store.FileVault(key), "prod"), clk)
	add := func() string {
		t.Helper()
		id, err := record(t.Context(), audit.KindScaleUp, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	var reasons reasonsOf
	place := store.CheckpointDir(filepath.Join(dir, "elsewhere"))
	watch := operator.NewHistoryWatch(s, clk, &reasons, record, place)
	check := func(held bool, faults int) {
		t.Helper()
		waits, err := watch.Check(t.Context())
		if err != nil || watch.Held != held || (waits > 0) != held || len(watch.Faults) != faults {
			t.Fatalf("held %t, %d waits, faults %+v, %v: want held %t and %d faults", watch.Held, waits, watch.Faults, err, held, faults)
		}
		_, err = record(t.Context(), audit.KindScaleUp, "", nil)
		_, is := errors.AsType[*store.RewrittenError](err)
		if is != held || !held && err != nil {
			t.Fatalf("a change: %v", err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(fleet, "history", name)); err != nil {
			t.Fatal(err)
		}
	}

	first, second, third := add(), add(), add()
	check(false, 0)
	if !watch.Readable {
		t.Error("the history is not readable")
	}
	history, aside := filepath.Join(fleet, "history"), filepath.Join(dir, "aside")
	if err := errors.Join(os.Rename(history, aside), os.WriteFile(history, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Check(t.Context()); err == nil || watch.Readable {
		t.Errorf("a history that is a file: %v, readable %t", err, watch.Readable)
	}
	if err := errors.Join(os.Remove(history), os.Rename(aside, history)); err != nil {
		t.Fatal(err)
	}
	check(false, 0)
	if !watch.Readable {
		t.Error("the history is not readable again")
	}
	if list, err := place.Load(t.Context()); err != nil || len(list) != 1 || watch.Places != 1 {
		t.Errorf("checkpoints %q in %d places, %v", list, watch.Places, err)
	}

	remove(first + ".outcome.json")
	check(true, 1)
	clk.Step(14 * time.Minute)
	check(true, 1)
	clk.Step(2 * time.Minute)
	check(false, 1) // it went on by itself
	check(false, 1)
	remove(second + ".outcome.json") // within a day: not again
	check(false, 2)
	clk.Step(25 * time.Hour)
	remove(third + ".outcome.json")
	check(true, 3)
	if _, err := user(t.Context(), audit.KindAccept, "a test", watch.Faults); err != nil {
		t.Fatal(err)
	}
	check(false, 0)

	add()
	check(false, 0)
	last := add()
	check(false, 0)
	files, err := filepath.Glob(filepath.Join(fleet, "history", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if filepath.Base(file) >= last {
			remove(filepath.Base(file))
		}
	}
	check(true, 1)
	clk.Step(24 * time.Hour)
	check(true, 1)
	if _, err := user(t.Context(), audit.KindAcceptRestore, "restored", watch.Faults); err != nil {
		t.Fatal(err)
	}
	check(false, 0)
	if len(reasons) == 0 || reasons[0] != "HistoryRewritten" {
		t.Errorf("events %q", reasons)
	}
}

// TestHistoryWatchRemovedContinue removes the record that the controller went on by itself:
// the controller does not stop again on the same day.
func TestHistoryWatchRemovedContinue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleet := filepath.Join(dir, "fleet")
	s := store.NewSealed(store.NewDirectory(fleet), store.FileVault(filepath.Join(dir, "keys", "key")), "prod")
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	record := recorder(s, clk)
	var reasons reasonsOf
	continued := ""
	watch := operator.NewHistoryWatch(s, clk, &reasons, func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error) {
		id, err := record(ctx, kind, why, findings)
		if kind == audit.KindContinue {
			continued = id
		}
		return id, err
	})
	check := func(held bool) {
		t.Helper()
		if _, err := watch.Check(t.Context()); err != nil || watch.Held != held {
			t.Fatalf("held %t, %v: want %t", watch.Held, err, held)
		}
	}
	remove := func(id string) {
		t.Helper()
		for _, suffix := range []string{".json", ".outcome.json"} {
			if err := os.Remove(filepath.Join(fleet, "history", id+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, err := record(t.Context(), audit.KindScaleUp, "", nil)
	if err == nil {
		_, err = record(t.Context(), audit.KindScaleUp, "", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	check(false)
	remove(first)
	check(true)
	clk.Step(16 * time.Minute)
	for range 3 {
		check(false)
		if _, err := record(t.Context(), audit.KindScaleUp, "", nil); err != nil {
			t.Fatal(err)
		}
		check(false)
		remove(continued)
		clk.Step(time.Hour)
	}
	clk.Step(24 * time.Hour)
	check(true)
}

// TestHistoryWatchClockWasAhead goes on by itself after a record was written while the clock was
// ahead, so that the record of that is from the future, too: the controller stops again after a
// day.
func TestHistoryWatchClockWasAhead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleet := filepath.Join(dir, "fleet")
	s := store.NewSealed(store.NewDirectory(fleet), store.FileVault(filepath.Join(dir, "keys", "key")), "prod")
	now := time.Now().Add(-30 * 24 * time.Hour)
	clk := clocktesting.NewFakeClock(now)
	last := now.Add(90 * 24 * time.Hour)
	record := func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error) {
		last = last.Add(time.Second)
		change := audit.Change{ID: last.UTC().Format("20060102T150405Z") + "-0000", Time: last, ClusterID: "prod", Kind: kind, Why: why, Accepts: audit.AcceptsOf(findings)}
		_, base, err := s.Read(ctx)
		if err == nil {
			err = s.Begin(ctx, base, generator.Files{}, change)
		}
		if err == nil {
			err = s.End(ctx, audit.Outcome{ID: change.ID, Time: clk.Now()})
		}
		return change.ID, err
	}
	var list []string
	for range 4 {
		id, err := record(t.Context(), audit.KindScaleUp, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, id)
	}
	var reasons reasonsOf
	watch := operator.NewHistoryWatch(s, clk, &reasons, record)
	check := func(held bool) {
		t.Helper()
		if _, err := watch.Check(t.Context()); err != nil || watch.Held != held {
			t.Fatalf("held %t, %v: want %t", watch.Held, err, held)
		}
	}
	remove := func(id string) {
		t.Helper()
		if err := os.Remove(filepath.Join(fleet, "history", id+".outcome.json")); err != nil {
			t.Fatal(err)
		}
	}
	check(false)
	remove(list[0])
	check(true)
	clk.Step(16 * time.Minute)
	check(false)
	remove(list[1])
	check(false) // not again within a day
	clk.Step(25 * time.Hour)
	remove(list[2])
	check(true)
}

// countedPlace is a place for checkpoints that counts how often it is read.
type countedPlace struct{ loads int }

func (p *countedPlace) Load(context.Context) ([][]byte, error) {
	p.loads++
	return nil, nil
}

func (p *countedPlace) Save(context.Context, string, []byte) error { return nil }

func (p *countedPlace) String() string { return "memory" }

// TestHistoryWatchWithoutDrift runs a controller's watches while its drift check is disabled:
// the history is verified anyway, at the start and once an hour.
func TestHistoryWatchWithoutDrift(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		fleet := filepath.Join(dir, "fleet")
		s := store.NewSealed(store.NewDirectory(fleet), store.FileVault(filepath.Join(dir, "keys", "key")), "prod")
		record := recorder(s, clock.RealClock{})
		first, err := record(t.Context(), audit.KindScaleUp, "", nil)
		if err == nil {
			_, err = record(t.Context(), audit.KindScaleUp, "", nil)
		}
		if err != nil {
			t.Fatal(err)
		}

		var reasons reasonsOf
		place := &countedPlace{}
		watch := operator.NewHistoryWatch(s, clock.RealClock{}, &reasons, record, place)
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := watch.RunWithoutDrift(ctx); err != nil {
				t.Error(err)
			}
		}
		run(150 * time.Minute)
		if place.loads != 3 || watch.Held {
			t.Errorf("%d verifications in 2.5 hours, held %t: want 3, and no hold", place.loads, watch.Held)
		}
		if err := os.Remove(filepath.Join(fleet, "history", first+".json")); err != nil {
			t.Fatal(err)
		}
		run(time.Second)
		if !watch.Held {
			t.Error("changes are not held after a record was removed")
		}
	})
}
