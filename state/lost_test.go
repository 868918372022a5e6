package state_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/state"
)

// dropping returns a state with the next serial and without the resources of the given
// name.
func dropping(t testing.TB, content []byte, name string) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(content, &doc); err != nil {
		t.Fatal(err)
	}
	resources, _ := doc["resources"].([]any)
	var left []any
	for _, r := range resources {
		if r.(map[string]any)["name"] != name {
			left = append(left, r)
		}
	}
	doc["resources"] = left
	doc["serial"] = doc["serial"].(float64) + 1
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestApplyWhoseStateIsLost(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	b.change(func(content []byte) []byte { return dropping(t, content, "b") })
	_, err := w.Apply(t.Context(), plan)
	var lost *state.LostResourcesError
	if !errors.As(err, &lost) || !cmp.Equal(lost.Lost, both[1:]) || len(lost.Regained) > 0 || !strings.Contains(err.Error(), "has lost terraform_data.b") {
		t.Errorf("got %v, want b lost", err)
	}
	b.change(nil)
	if again := mustPlan(t, w, state.PlanOptions{Targets: both[:1]}); !cmp.Equal(again.Lost, both[1:]) {
		t.Errorf("lost: %v, want it still known", again.Lost)
	}
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	if again := mustPlan(t, w, state.PlanOptions{}); len(again.Lost) > 0 || again.Changes {
		t.Errorf("lost: %v, changes %v, want it mended", again.Lost, again.Changes)
	}
}

func TestDestroyedResourceIsBack(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	dir := root(t, httpBackend(b))
	w := open(t, dir, nil)
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	before := b.saved()
	write(t, dir, "b.tf", "")
	plan := mustPlan(t, w, state.PlanOptions{})
	b.change(func([]byte) []byte { return before })
	_, err := w.Apply(t.Context(), plan)
	var lost *state.LostResourcesError
	if !errors.As(err, &lost) || !cmp.Equal(lost.Regained, both[1:]) || len(lost.Lost) > 0 {
		t.Errorf("got %v, want b back", err)
	}
}

func TestForgottenIsNotLost(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	if err := w.Forget(t.Context(), both[1]); err != nil {
		t.Fatal(err)
	}
	if plan := mustPlan(t, w, state.PlanOptions{}); len(plan.Lost) > 0 {
		t.Errorf("lost: %v", plan.Lost)
	}
}

// TestPlanThatForgets checks that a resource that is removed from the state without being
// destroyed does not count as lost.
func TestPlanThatForgets(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine *state.Engine) {
		dir := root(t, httpBackend(newBackend(t)))
		w := open(t, dir, with(engine))
		mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
		write(t, dir, "b.tf", "removed {\n  from = terraform_data.b\n  lifecycle {\n    destroy = false\n  }\n}\n")
		mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
		if plan := mustPlan(t, w, state.PlanOptions{}); len(plan.Lost) > 0 || plan.Changes {
			t.Errorf("lost %v, changes %t, want neither", plan.Lost, plan.Changes)
		}
	})
}

// TestRecoverKeepsWhatOthersWrote checks that an unsaved state is set aside if the
// backend's state, although older, contains another client's resource.
func TestRecoverKeepsWhatOthersWrote(t *testing.T) {
	t.Parallel()
	eachEngine(t, recoverKeepsWhatOthersWrote)
}

func recoverKeepsWhatOthersWrote(t *testing.T, engine *state.Engine) {
	t.Helper()
	b, w, file := failedSave(t, engine)
	content := mustRead(t, file)
	others := strings.ReplaceAll(string(header(t, dropping(t, content, "b"), "", serial(t, file)-1)), `"name":"a"`, `"name":"theirs"`)
	b.setState([]byte(others))
	recovery, err := w.Recover(t.Context())
	if err != nil || recovery.Pushed || recovery.SetAside == "" || !cmp.Equal(recovery.Lost, both) {
		t.Errorf("got %+v, %v, want the state set aside with what it alone knows", recovery, err)
	}
	if string(b.saved()) != others {
		t.Error("what someone else wrote is overwritten")
	}
}

func TestRecoverAFirstStateWithoutLineage(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	dir := root(t, httpBackend(b))
	write(t, dir, "errored.tfstate", `{"version":4,"terraform_version":"1.9.0","serial":0,"lineage":"","outputs":{},"resources":[]}`)
	w := open(t, dir, nil)
	if recovery, err := w.Recover(t.Context()); err != nil || !recovery.Pushed {
		t.Errorf("got %+v, %v, want it saved", recovery, err)
	}
	if !strings.Contains(string(b.saved()), `"lineage":`) || strings.Contains(string(b.saved()), `"lineage": ""`) {
		t.Errorf("saved: %s", b.saved())
	}
}

func TestEncryptionIsAskedForOnBothSides(t *testing.T) {
	t.Parallel()
	tofu, terraform := &state.Engine{Path: "/opt/tofu"}, &state.Engine{Path: "/opt/terraform"}
	given := map[string]string{"TF_ENCRYPTION": "key"}
	for name, tt := range map[string]struct {
		config state.Config
		want   string
	}{
		"asked and given":       {state.Config{Engine: tofu, Encryption: true, Env: given}, ""},
		"neither":               {state.Config{Engine: terraform}, ""},
		"with terraform":        {state.Config{Engine: terraform, Encryption: true, Env: given}, "requires OpenTofu"},
		"asked and not given":   {state.Config{Engine: tofu, Encryption: true}, "is not set"},
		"given and not asked":   {state.Config{Engine: tofu, Env: given}, "does not enable state encryption"},
		"given, with terraform": {state.Config{Engine: terraform, Env: given}, "does not enable state encryption"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.config.Dir = t.TempDir()
			_, err := state.New(tt.config)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
