package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
)

// TestApproveByDigest checks that apply accepts only the digest that plan printed for the
// same change, on a host without VMs and on a host with VMs, where plan covers the whole
// host and apply only the request.
func TestApproveByDigest(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	edit(t, stage, "numaform.yaml", "fleet:\n", "policy: {limits: {per_change: {creates: 1}}}\nfleet:\n")
	digest := func() string {
		t.Helper()
		var report struct{ Digest string }
		if err := json.Unmarshal([]byte(run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "-o", "json")), &report); err != nil {
			t.Fatal(err)
		}
		if text := run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests()); report.Digest == "" || !strings.Contains(text, "--approve "+report.Digest) {
			t.Fatalf("plan -o json prints digest %q, plan:\n%s", report.Digest, text)
		}
		return report.Digest
	}
	empty := digest()
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--approve", strings.Repeat("0", 64))
	if guests := running(stage); guests > 0 {
		t.Fatalf("apply accepted a wrong digest: %d guests run", guests)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--approve", empty)
	before := running(stage)
	var history []struct {
		Change struct {
			ID       string
			Approval struct{ By, Digest string }
		}
	}
	if err := json.Unmarshal([]byte(run(t, stage, cli.ExitOK, "history", "-o", "json")), &history); err != nil {
		t.Fatal(err)
	}
	last := history[len(history)-1].Change
	if last.Approval.Digest != empty || !strings.HasSuffix(last.Approval.By, " by digest") {
		t.Errorf("the history contains the approval %+v, want the digest %s", last.Approval, empty)
	}
	if text := run(t, stage, cli.ExitOK, "history", last.ID); !strings.Contains(text, "digest "+empty) {
		t.Errorf("numaform history %s lacks the approved digest:\n%s", last.ID, text)
	}

	edit(t, stage, "manifests/pods.yaml", "replicas: 4", "replicas: 8")
	filled := digest()
	if filled == empty {
		t.Error("another change has the same digest")
	}
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--approve", empty)
	if got := running(stage); got != before {
		t.Fatalf("apply accepted the digest of another change: %d guests run, before %d", got, before)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--approve", filled)
	if got := running(stage); got <= before {
		t.Errorf("%d guests run, before %d", got, before)
	}
}

// running returns the number of running guests.
func running(stage *demo.Stage) int {
	count := 0
	for _, guest := range stage.Sim.Guests() {
		if guest.Running {
			count++
		}
	}
	return count
}
