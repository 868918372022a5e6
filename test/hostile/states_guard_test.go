package hostile_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

var updateStates = flag.Bool("update-states", false, "record the real engine's plans of states again")

// recordedPlan is a plan of the real engine, with its request.
type recordedPlan struct {
	Plan    json.RawMessage
	Intent  guard.Intent
	Inputs  map[string][]byte // by address
	Created map[string]bool   `json:",omitempty"`
}

// TestStatesRecord records plans of 20 VMs for TestStatesGuard: one removes half of the
// VMs, the other restores the tags of all VMs. It does nothing without
// -update-states.
func TestStatesRecord(t *testing.T) {
	t.Parallel()
	if !*updateStates {
		return
	}
	w := newStateWorld(t)
	var names []string
	for _, vm := range w.fleet.VMs[:stateVMs/2] { // more removals would need approval
		names = append(names, vm.Name)
	}
	removal, err := w.scaler.ProposeRemoval(t.Context(), w.snapshot(), names)
	if err != nil {
		t.Fatal(err)
	}
	w.record(removal, "delete")
	for _, vm := range w.fleet.VMs {
		if _, err := w.sim.Shell(fmt.Sprintf("qm set %d --tags by-hand", vm.VMID)); err != nil {
			t.Fatal(err)
		}
	}
	drift, err := w.scaler.Drift(t.Context(), w.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	repair, held, err := w.scaler.ProposeRepair(t.Context(), w.snapshot(), drift)
	if err != nil || held != nil {
		t.Fatal(err, held)
	}
	w.record(repair, "update")
}

func (w *stateWorld) record(change *scaler.Change, name string) {
	w.t.Helper()
	plans, err := w.scaler.Plan(w.t.Context(), change)
	if err != nil || len(plans) != 1 || plans[0].Err != nil {
		w.t.Fatal(err, plans)
	}
	if plans[0].Verdict.Decision != guard.Allow {
		w.t.Fatal(plans[0].Verdict)
	}
	raw, err := json.Marshal(plans[0].Plan.JSON)
	if err != nil {
		w.t.Fatal(err)
	}
	recorded := recordedPlan{Plan: raw, Intent: plans[0].Intent, Inputs: map[string][]byte{}}
	for i := range w.fleet.VMs {
		vm := &w.fleet.VMs[i]
		if recorded.Inputs[generator.Address(vm)], err = generator.Inputs(w.fleet.ClusterID, vm); err != nil {
			w.t.Fatal(err)
		}
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if err := json.NewEncoder(zip).Encode(recorded); err != nil {
		w.t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join("testdata", "states-"+name+".json.gz")
	if err := os.MkdirAll("testdata", 0o750); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// recorded reads a recorded plan.
func recorded(t *testing.T, name string) (raw []byte, intent guard.Intent) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "states-"+name+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	var plan recordedPlan
	if err := json.Unmarshal(text, &plan); err != nil {
		t.Fatal(err)
	}
	for _, targets := range [][]guard.Target{plan.Intent.Delete, plan.Intent.Update} {
		for i := range targets {
			targets[i].Inputs = plan.Inputs[targets[i].Address]
		}
	}
	plan.Intent.VMIDs = fleet.VMIDRange{Lower: 2000, Upper: 2999}
	return plan.Plan, plan.Intent
}

// TestStatesGuard checks that an edited plan that the guard allows writes only planned
// values to requested VMs. It edits each value of a VM in a recorded plan, and random
// values. `make nightly` edits every VM, and 2,000 random values; `make test` edits the
// first two VMs with the same actions, and 200 random values.
func TestStatesGuard(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"delete", "update"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, intent := recorded(t, name)
			plan := decode(t, raw)
			if v := guard.Check(plan, intent, guard.DefaultRules()); v.Decision != guard.Allow {
				t.Fatalf("the recorded plan: %s", v)
			}
			// The test covers the invariants: the policy could only add denials.
			policy, err := guard.ParsePolicy("all.yaml", []byte("rules:\n- {name: all, when: 'true', decision: allow}\n"))
			if err != nil {
				t.Fatal(err)
			}
			rules := guard.Rules{Limits: guard.DefaultLimits(), Policy: policy}
			var edits []planEdit
			alike := map[string]int{}
			for i, rc := range plan.ResourceChanges {
				kind := fmt.Sprint(rc.Type, rc.Change.Actions)
				alike[kind]++
				if alike[kind] > 2 && !enginetest.EveryCase() {
					continue
				}
				for side, values := range map[string]any{"before": rc.Change.Before, "after": rc.Change.After} {
					for _, path := range pathsOf(values, nil) {
						edits = append(edits, planEdit{i, side, path, hostileValue(valueAt(values, path))})
					}
				}
			}
			slices.SortFunc(edits, func(a, b planEdit) int { return strings.Compare(a.String(), b.String()) })
			each := len(edits)
			random := rand.New(rand.NewPCG(15, 2026))
			count := 100
			if enginetest.EveryCase() {
				count = 1000
			}
			for range count {
				edit := edits[random.IntN(each)]
				edit.value = hostileValues[random.IntN(len(hostileValues))]
				edits = append(edits, edit)
			}
			edits = slices.DeleteFunc(edits, func(edit planEdit) bool { return same(plan, edit) })
			allowed := 0
			for _, edit := range suspects(plan, intent, rules, edits) {
				undo := edit.do(plan)
				if v := guard.Check(plan, intent, rules); v.Decision != guard.Deny {
					allowed++
					if wrong := harms(plan, intent, edit); wrong != "" {
						t.Errorf("%s: %s, but the guard's verdict is %s", edit, wrong, v)
					}
				}
				undo()
			}
			t.Logf("%d edits changed the plan: %d were allowed and harmless", len(edits), allowed)
		})
	}
}

// suspects returns the edits after which the guard does not deny the edited resource. It
// edits one value of each resource at a time, so that one check covers many edits.
func suspects(plan *tfjson.Plan, intent guard.Intent, rules guard.Rules, edits []planEdit) (left []planEdit) {
	byChange := map[int][]planEdit{}
	for _, edit := range edits {
		byChange[edit.change] = append(byChange[edit.change], edit)
	}
	for len(byChange) > 0 {
		denied := map[string]bool{}
		var round []planEdit
		var undo []func()
		for _, i := range slices.Sorted(maps.Keys(byChange)) {
			edit := byChange[i][0]
			round, undo = append(round, edit), append(undo, edit.do(plan))
			if byChange[i] = byChange[i][1:]; len(byChange[i]) == 0 {
				delete(byChange, i)
			}
		}
		for _, finding := range guard.Check(plan, intent, rules).Findings {
			denied[finding.Address] = denied[finding.Address] || finding.Decision == guard.Deny
		}
		for i, edit := range round {
			undo[i]()
			if !denied[plan.ResourceChanges[edit.change].Address] {
				left = append(left, edit)
			}
		}
	}
	return left
}

func decode(t *testing.T, raw []byte) *tfjson.Plan {
	t.Helper()
	plan, err := guard.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// planEdit changes one of the values that a plan has before or after a resource change.
type planEdit struct {
	change int
	side   string
	path   []string
	value  any
}

func (e planEdit) String() string {
	return fmt.Sprintf("change %d, %s.%s=%v", e.change, e.side, strings.Join(e.path, "."), e.value)
}

// do edits a plan and returns a function that reverts the edit.
func (e planEdit) do(plan *tfjson.Plan) (undo func()) {
	values := plan.ResourceChanges[e.change].Change.Before
	if e.side == "after" {
		values = plan.ResourceChanges[e.change].Change.After
	}
	was := valueAt(values, e.path)
	put(values, e.path, e.value)
	return func() { put(values, e.path, was) }
}

// harms describes the effects of an edited plan beyond the request: writes to other guests,
// or of other values. It returns "" if there are none.
func harms(plan *tfjson.Plan, intent guard.Intent, edit planEdit) string {
	rc := plan.ResourceChanges[edit.change]
	address := rc.Address
	if vm := guard.VMOf(address); vm != "" {
		address = vm
	}
	for _, target := range slices.Concat(intent.Delete, intent.Update) {
		if target.Address != address {
			continue
		}
		for _, side := range []any{rc.Change.Before, rc.Change.After} {
			values, _ := side.(map[string]any)
			switch {
			case values == nil:
			case fmt.Sprint(values["vm_id"]) != fmt.Sprint(target.VMID):
				return "another VMID"
			case rc.Type == guard.FirewallType:
				if node, _ := values["node_name"].(string); node == "" {
					return "the firewall of all hosts"
				}
			case values["id"] != fmt.Sprint(target.VMID):
				return "another id"
			case !strings.Contains(fmt.Sprint(values["description"]), string(target.Key)) && side != nil:
				return "another key"
			}
		}
	}
	if edit.side == "after" && !rc.Change.Actions.NoOp() && !rc.Change.Actions.Delete() && !empty(edit.value) {
		return "another value would be written"
	}
	return ""
}

// empty reports whether a value is null or empty.
func empty(v any) bool {
	return slices.Contains([]string{"", "0", "false", "[]", "map[]", "<nil>"}, fmt.Sprint(v))
}

// same reports whether an edit leaves the plan unchanged.
func same(plan *tfjson.Plan, edit planEdit) bool {
	change := plan.ResourceChanges[edit.change].Change
	values := map[string]any{"before": change.Before, "after": change.After}[edit.side]
	was := valueAt(values, edit.path)
	return fmt.Sprint(was) == fmt.Sprint(edit.value) || empty(was) && empty(edit.value)
}
