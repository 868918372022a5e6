package operator_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

var pve1 = topology.HostID{Region: "lab", Host: "pve-1"}

// previewer returns prepared edits and plans.
type previewer struct {
	edits   scaler.Edits
	invalid error
	plans   []scaler.RootPlan
	planned bool
}

func (p *previewer) Compare(_, _ generator.Files) (*scaler.Edits, error) { return &p.edits, p.invalid }

func (p *previewer) Preview(context.Context, *topology.Snapshot, *scaler.Edits) ([]scaler.RootPlan, error) {
	p.planned = true
	return p.plans, nil
}

// TestCheckMerge checks the result for a person's pull request. A fork's files are not
// planned.
func TestCheckMerge(t *testing.T) {
	t.Parallel()
	one := scaler.Edits{Removed: []fleet.VM{{Name: "a", Placement: fleet.Placement{Host: pve1}}}}
	plan := func(decision guard.Decision, findings ...guard.Finding) []scaler.RootPlan {
		return []scaler.RootPlan{{
			Host: pve1, Intent: guard.Intent{Delete: []guard.Target{{}}}, Verdict: guard.Verdict{Decision: decision, Findings: findings},
		}}
	}
	drained := guard.Finding{Rule: guard.RuleDrained, Decision: guard.Deny, Message: "it runs pods"}
	down := errors.New("the host is down")
	for name, c := range map[string]struct {
		edits   scaler.Edits
		invalid error
		plans   []scaler.RootPlan
		fork    bool
		ok      bool
		want    string
		err     error
	}{
		"nothing":        {ok: true, want: "no VM changes"},
		"invalid":        {invalid: errors.New("node-a.tf: bad"), want: "not a valid fleet: node-a.tf: bad"},
		"allowed":        {edits: one, plans: plan(guard.Allow), ok: true, want: "1 to delete on lab/pve-1; guard: allowed"},
		"in use":         {edits: one, plans: plan(guard.Deny, drained), ok: true, want: "1 to delete on lab/pve-1 once drained; guard: allowed"},
		"denied":         {edits: one, plans: plan(guard.Deny, drained, guard.Finding{Rule: "x", Decision: guard.Deny, Message: "a secret"}), want: "the guard denies it"},
		"needs approval": {edits: one, plans: plan(guard.NeedsApproval, guard.Finding{Rule: "x", Decision: guard.NeedsApproval, Message: "many"}), ok: true, want: "needs approval after the merge"},
		"a fork":         {edits: one, fork: true, ok: true, want: "from a fork, so without a plan: 1 to remove on lab/pve-1"},
		"not planned":    {edits: one, plans: []scaler.RootPlan{{Host: pve1, Err: down}}, err: down},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &previewer{edits: c.edits, invalid: c.invalid, plans: c.plans}
			ok, summary, err := operator.CheckMerge(t.Context(), p, !c.fork)
			if ok != c.ok || !strings.Contains(summary, c.want) || !errors.Is(err, c.err) {
				t.Errorf("got %t, %q, %v", ok, summary, err)
			}
			if c.fork && p.planned {
				t.Error("the files of a fork were planned")
			}
		})
	}
}

// TestForgeMistakes checks the messages about the configuration of a forge.
func TestForgeMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"{kind: gitbub}":                  `fleet.git.forge.kind "gitbub"`,
		"{approvers: [alice]}":            "fleet.git.forge: kind is not set",
		"{kind: gitea, merge: auto}":      "auto without approvers",
		"{kind: gitea, merge: always}":    `fleet.git.forge.merge "always"`,
		"{kind: gitea, quorum: 2}":        "fleet.git.forge.quorum: 2",
		"{kind: gitea, poll: 10ms}":       "fleet.git.forge.poll",
		"{kind: gitea, approver: [a, b]}": "approver",
		"{kind: gitea, labels: ['a,b']}":  `fleet.git.forge.labels: "a,b"`,
		"{kind: gitea, labels: ['']}":     `fleet.git.forge.labels: ""`,
		"{kind: gitea, reviewers: [a/b]}": "CODEOWNERS",

		"{kind: gitea, approvers: [alice, Alice], quorum: 2}": `fleet.git.forge.approvers: duplicate user "Alice"`,
	} {
		path := filepath.Join(t.TempDir(), "numaform.yaml")
		text := "clusterID: lab\nclusters: [{region: lab, url: 'https://pve:8006'}]\nfleet: {git: {remote: 'https://git.example/f.git', forge: " + settings + "}}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := operator.Load(path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", settings, err, want)
		}
	}
}
