package scaler_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestPlanOfAHostWithoutAWorkspace puts a file where the states of pve-1 belong: the host
// cannot be planned, and the error names the path.
func TestPlanOfAHostWithoutAWorkspace(t *testing.T) {
	t.Parallel()
	s := newScaler(t, noEngine)
	blocked := filepath.Join(s.Store().Path()+"-state", "states", "lab", "pve-1")
	must(t, os.MkdirAll(filepath.Dir(blocked), 0o700), os.WriteFile(blocked, nil, 0o600))
	change := propose(t, s, snapshot(), request(pve1))
	_, err := s.Apply(t.Context(), change, approveAll)
	if err == nil || !strings.Contains(err.Error(), blocked) {
		t.Errorf("got %v, want an error that names %s", err, blocked)
	}
}

// TestWholePlanAfterACrash checks that the targets of a change suffice only on a host
// without unfinished work: after a crash, and if an unsaved state names other resources
// than the saved one, the whole host is planned.
func TestWholePlanAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	add := func() (targeted bool) {
		t.Helper()
		wanted := request(host)
		wanted.Spec.Template = testenv.Template
		look := func(plans []scaler.RootPlan) (string, error) {
			if len(plans) != 1 {
				t.Errorf("%d plans, want one", len(plans))
			}
			targeted = plans[0].Intent.Targeted
			return "", nil
		}
		if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), wanted), look); err != nil {
			t.Fatal(err)
		}
		return targeted
	}

	// Without unfinished work, the targets suffice.
	add()
	if !add() {
		t.Error("the whole host is planned for one more VM")
	}

	// A killed process leaves only the record of its unfinished run.
	base := w.Store().Path() + "-state"
	work := filepath.Join(base, "work", string(host.Region), string(host.Host))
	now := time.Now()
	record, err := json.Marshal(map[string]any{"operation": "applying", "host": "other", "pid": 1, "began": now, "until": now, "dir": work})
	must(t, err, os.WriteFile(filepath.Join(work, ".terraform", "numaform", "run.json"), record, 0o600))
	if add() {
		t.Error("only the targets are planned after a crash")
	}

	// An older state names a VM that the backend's state does not have.
	states := filepath.Join(base, "states", string(host.Region), string(host.Host))
	older, err := os.ReadFile(filepath.Join(states, "terraform.tfstate"))
	must(t, err)
	change, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"workers-2000"})
	must(t, err)
	if _, err := w.Apply(t.Context(), change, approveAll); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(states, "errored.tfstate"), older, 0o600))
	if add() {
		t.Error("only the targets are planned after a state that names a lost VM")
	}
	if n := len(propose(t, w.Scaler, w.snapshot(t)).Before.VMs); n != 3 {
		t.Errorf("%d VMs, want 3", n)
	}
}
