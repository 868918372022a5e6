package scaler_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// alice approves every plan.
type alice struct{}

func (alice) Approver(context.Context, *scaler.RootPlan) (*audit.Approval, error) {
	return &audit.Approval{By: "alice"}, nil
}

func (alice) Approved(context.Context, *scaler.RootPlan) (*audit.Approval, error) { return nil, nil }

func (alice) Freeze(bool, bool) string { return "" }

func (alice) Asks(context.Context, *scaler.RootPlan) (bool, error) { return false, nil }

// hostname approves each plan as its host.
type hostname struct{ alice }

func (hostname) Approver(_ context.Context, plan *scaler.RootPlan) (*audit.Approval, error) {
	return &audit.Approval{By: string(plan.Host.Host)}, nil
}

// TestEachHostHasItsApprover checks that each plan of a change has only its own approver, and
// a plan that the guard allows has none.
func TestEachHostHasItsApprover(t *testing.T) {
	t.Parallel()
	writer := scaler.NewWriter(scaler.New(scaler.Config{Clock: clock.RealClock{}}), scaler.WriterConfig{Gate: hostname{}})
	plans := make([]scaler.RootPlan, 3)
	for i := range plans {
		plans[i].Host = topology.HostID{Region: "lab", Host: topology.HostName(fmt.Sprintf("pve%d", i))}
		plans[i].Verdict.Decision = guard.NeedsApproval
		plans[i].Touched = true
	}
	plans[2].Verdict.Decision = guard.Allow
	plans[2].Intent.Wake = []guard.Target{{Address: "x"}}
	if writer.ApproveCreates(t.Context(), plans) {
		t.Fatal("a plan was not approved")
	}
	for i, want := range []string{"pve0", "pve1", ""} {
		if got := scaler.ApproverOf(&plans[i]); got != want {
			t.Errorf("approver of %s is %q, want %q", plans[i].Host, got, want)
		}
	}
}

// TestWriterLogsEachStep creates VMs with a plan that needs approval: plan, verdict,
// approval, change, apply and outcome have one line each, with the ids of the history, and
// the VMs have their origin.
func TestWriterLogsEachStep(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(c *scaler.Config) { c.Rules.Limits.PerChange.Creates = 1 })
	var mu sync.Mutex
	var lines []string
	logger := funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}, funcr.Options{})
	writer := scaler.NewWriter(w.Scaler, scaler.WriterConfig{
		Snapshot: func(ctx context.Context) (*topology.Snapshot, error) { return w.client.Snapshot(ctx) },
		Poll:     time.Second, Gate: alice{},
	})
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), logger))
	var running sync.WaitGroup
	running.Go(func() {
		if err := writer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	vms := ensure(t, writer, on(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	stop()

	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 || len(history[0].Change.Hosts) != 1 {
		t.Fatalf("history %+v (%v), want one change of one host", history, err)
	}
	change := history[0].Change
	plan := change.Hosts[0]
	var got []string
	message := regexp.MustCompile(`"msg"="([^"]*)"`)
	for _, line := range lines {
		found := message.FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("line %s has no message", line)
		}
		got = append(got, found[1])
		ids := []string{`"host"="` + first.String() + `"`, `"plan-sha256"="` + plan.PlanSHA256 + `"`, `"workspace"="`}
		switch found[1] {
		case "planned host", "began apply":
			ids = append(ids, vms[0].Name, vms[1].Name)
		case "evaluated plan":
			ids = append(ids, `"verdict"="needs approval"`)
		case "approved plan":
			ids = append(ids, `"approver"="alice"`)
		case "began change", "completed change":
			ids = nil
		}
		if slices.Contains([]string{"began change", "began apply", "applied plan", "completed change"}, found[1]) {
			ids = append(ids, `"change"="`+change.ID+`"`)
		}
		for _, id := range ids {
			if !strings.Contains(line, id) {
				t.Errorf("line %s lacks %s", line, id)
			}
		}
	}
	want := []string{"planned host", "evaluated plan", "approved plan", "began change", "began apply", "applied plan", "completed change"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}

	again := w.run(t, nil) // reads the history
	states, err := again.States(t.Context())
	if err != nil || len(states) != 2 {
		t.Fatalf("states %+v (%v)", states, err)
	}
	origin := &scaler.Origin{Change: change.ID, Time: change.Time, PlanSHA256: plan.PlanSHA256, PlanDigest: plan.PlanDigest, Verdict: guard.NeedsApproval, Approver: "alice"}
	for i := range states {
		if diff := cmp.Diff(origin, states[i].Origin); diff != "" {
			t.Errorf("origin of %s (-want +got):\n%s", states[i].VM.Name, diff)
		}
	}
}
