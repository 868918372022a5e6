package bench_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// maxControl is the maximum total CPU time of guard, audit and git, relative to a plan.
const maxControl = 0.10

// maxLog is the maximum CPU time of sealing the two records of a change into the log of the
// history, relative to a plan.
const maxLog = 0.03

// BenchmarkChangeControl compares the CPU time for evaluating, recording and committing a
// change with the CPU time of the engine and the provider for the plan of this change. The
// change adds one VM to a host with 20.
func BenchmarkChangeControl(b *testing.B) {
	f := build(b, 20, 1)
	f.add(b) // the first apply on a host also fetches the provider
	f.undo(b)
	change := f.propose(b, f.read(b), 1, f.last())
	rules := guard.DefaultRules()
	var planning, judging, keeping, logging time.Duration
	for b.Loop() {
		planning, judging, keeping, logging = time.Hour, time.Hour, time.Hour, time.Hour
		for range repetitions {
			before := children(b)
			plans, err := f.scaler.Plan(b.Context(), change)
			if err != nil || len(plans) != 1 || plans[0].Err != nil {
				b.Fatalf("plans %v, %v", plans, err)
			}
			planning = min(planning, children(b)-before)
			plan := &plans[0]
			before = own(b)
			verdict := guard.Check(plan.Plan.JSON, plan.Intent, rules)
			limits := guard.CheckLimits([]guard.HostIntent{{Host: plan.Host, Intent: plan.Intent}}, nil, rules.Limits)
			judging = min(judging, own(b)-before)
			if verdict.And(limits).Decision != guard.Allow {
				b.Fatalf("%s", verdict.And(limits))
			}
			record := audit.Change{
				ID: "20261121T134501Z-000000aa", Time: time.Date(2026, 11, 21, 13, 45, 1, 0, time.UTC), ClusterID: "bench",
				Kind: audit.KindScaleUp, Why: "a benchmark", Added: change.Added,
				Hosts: []audit.HostPlan{{Host: plan.Host, Create: plan.Intent.Create, Verdict: verdict, PlanSHA256: plan.Plan.SHA256}},
			}
			keeping = min(keeping, commit(b, change.BeforeFiles, change.AfterFiles, record))
			logging = min(logging, seal(b, record))
		}
	}
	part := (judging + keeping).Seconds() / planning.Seconds()
	b.ReportMetric(planning.Seconds()*1000, "plan-cpu-ms")
	b.ReportMetric(judging.Seconds()*1000, "guard-cpu-ms")
	b.ReportMetric(keeping.Seconds()*1000, "audit+git-cpu-ms")
	b.ReportMetric(logging.Seconds()*1000, "log-cpu-ms")
	b.ReportMetric(part*100, "%-of-plan")
	b.ReportMetric(logging.Seconds()/planning.Seconds()*100, "log-%-of-plan")
	b.ReportMetric(0, "ns/op")
	if part > maxControl {
		b.Errorf("guard, audit and git take %.1f %% of a plan's CPU, want at most %.0f %%", part*100, maxControl*100)
	}
	if logging > time.Duration(maxLog*float64(planning)) {
		b.Errorf("the log takes %v of a plan's %v, want at most %.0f %%", logging, planning, maxLog*100)
	}
}

// nowhere is a store that keeps nothing, so that what remains is the cost of the seal.
type nowhere struct{ store.Store }

func (nowhere) Begin(context.Context, store.Revision, generator.Files, audit.Change) error {
	return nil
}

func (nowhere) End(context.Context, audit.Outcome) error { return nil }

func (nowhere) History(context.Context, time.Time) ([]audit.Entry, error) { return nil, nil }

// seal returns the CPU time to seal a change and its outcome: the MACs, the signatures and the
// writes of the head.
func seal(b *testing.B, record audit.Change) time.Duration {
	b.Helper()
	sealed := store.NewSealed(nowhere{}, store.FileVault(filepath.Join(b.TempDir(), "key")), record.ClusterID)
	const changes = 100
	var started time.Duration
	for i := range changes + 1 { // the first one creates the key
		if i == 1 {
			started = own(b)
		}
		record.ID = fmt.Sprintf("20261121T134501Z-%08d", i)
		if err := sealed.Begin(b.Context(), "", nil, record); err != nil {
			b.Fatal(err)
		}
		if err := sealed.End(b.Context(), audit.Outcome{ID: record.ID, Time: record.Time}); err != nil {
			b.Fatal(err)
		}
	}
	return (own(b) - started) / changes
}

// commit returns the CPU time to fetch, commit and push a change and its outcome, including
// git at the remote end.
func commit(b *testing.B, before, after generator.Files, record audit.Change) time.Duration {
	b.Helper()
	remote := filepath.Join(b.TempDir(), "fleet.git")
	if out, err := exec.CommandContext(b.Context(), "git", "init", "--quiet", "--bare", remote).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	repository, err := store.NewGit(store.GitConfig{Clone: filepath.Join(b.TempDir(), "git"), Remote: remote})
	if err != nil {
		b.Fatal(err)
	}
	kept := store.NewSealed(repository, store.FileVault(filepath.Join(b.TempDir(), "key")), record.ClusterID)
	first := record
	first.ID, first.Time = "20261121T134500Z-000000aa", record.Time.Add(-time.Second)
	for i, one := range []struct {
		files  generator.Files
		record audit.Change
	}{{before, first}, {after, record}} {
		started := own(b) + children(b)
		_, revision, err := kept.Read(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := kept.Begin(b.Context(), revision, one.files, one.record); err != nil {
			b.Fatal(err)
		}
		if err := kept.End(b.Context(), audit.Outcome{ID: one.record.ID, Time: one.record.Time}); err != nil {
			b.Fatal(err)
		}
		if i == 1 {
			return own(b) + children(b) - started
		}
	}
	return 0
}

// own returns the CPU time of this process so far.
func own(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
