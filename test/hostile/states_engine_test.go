package hostile_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/state/guard"
)

// TestStatesID checks that numaform refuses to remove a VM whose ID in the state was
// changed, for example to the ID of an unmanaged VM. The provider destroys VMs by ID.
// `make test` tries only the IDs of the two unmanaged VMs.
func TestStatesID(t *testing.T) {
	t.Parallel()
	w := newStateWorld(t)
	name := w.fleet.VMs[0].Name
	ids := []any{"150", "2900", "2001", "2001/../../qemu/150", ""}
	if !enginetest.EveryCase() {
		ids = ids[:2]
	}
	for _, id := range ids {
		if passed := w.attack(w.removal(), []stateEdit{{name, guard.ResourceType, []string{"instances", "0", "attributes", "id"}, id}}); len(passed) > 0 {
			t.Errorf("a state with the ID %q was not refused", id)
		}
	}
}

// TestStatesEngine checks that the removal of VMs with the real engine changes no other
// guest after edits of the state: of each value of a VM and of its security groups, and of
// 200 random values.
func TestStatesEngine(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	w := newStateWorld(t)
	values := w.values()
	edits := values.each(w.fleet.VMs[0].Name)
	edits = append(edits, values.random(edits, 200)...)
	passed := values.attack(w, w.removal(), edits)
	t.Logf("%d edits of %d values: %d did not prevent the removal", len(edits), len(values), passed)
	if passed == 0 || passed == len(edits) {
		t.Errorf("%d of %d edits were not refused, want some but not all", passed, len(edits))
	}
}

// TestStatesActions checks that an update of the VMs, an apply of the fleet's files and the
// creation of another VM change no other guest after edits of the state: of random values,
// and of the values that identify the VM of an entry. `make nightly` combines every kind of
// wrong identity with each action; `make test` uses each kind once, with two of the
// actions.
func TestStatesActions(t *testing.T) {
	t.Parallel()
	names := []string{"update", "retag", "apply", "create"}
	if !enginetest.EveryCase() {
		names = []string{"update", "create"}
	}
	for n, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newStateWorld(t)
			w.lookForDrift()
			act := map[string]action{"update": w.update(), "retag": w.retagging(), "apply": w.settling(), "create": w.creation()}[name]
			if passed := w.attack(act, []stateEdit{{vm: w.fleet.VMs[0].Name, path: []string{"serial"}, value: w.read()["serial"]}}); len(passed) != 1 {
				t.Fatalf("%s is refused with an unchanged state", name)
			}
			values := w.values()
			each := values.each(w.fleet.VMs[0].Name)
			edits := slices.DeleteFunc(slices.Clone(each), func(e stateEdit) bool {
				return !slices.Contains([]string{"id", "vm_id", "name", "node_name", "description"}, e.path[len(e.path)-1]) || !values.readable(e)
			})
			count := 10
			if *full {
				count = 40
			}
			edits = append(edits, values.random(each, count)...)
			passed := values.attack(w, act, edits)
			for i, edit := range w.entryEdits() {
				if i%len(names) != n && !enginetest.EveryCase() {
					continue
				}
				edits = append(edits, edit)
				passed += len(w.attack(act, []stateEdit{edit}))
			}
			t.Logf("%d edits: %d were not refused", len(edits), passed)
			if passed == 0 {
				t.Error("all edits were refused, want some that are not")
			}
		})
	}
}

// TestStatesHead checks that no action on the fleet changes other guests after an edit of
// the state's metadata or outputs.
func TestStatesHead(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	w := newStateWorld(t)
	w.lookForDrift()
	output := func(value any) map[string]any {
		return map[string]any{"value": value, "type": "string"}
	}
	actions := []action{w.removal(), w.update(), w.settling(), w.creation()}
	for i, edit := range []stateEdit{
		{path: []string{"lineage"}, value: "5f9d6a0e-0000-4000-8000-000000000150"},
		{path: []string{"lineage"}, value: ""},
		{path: []string{"lineage"}, value: nil},
		{path: []string{"lineage"}, value: 150.0},
		{path: []string{"serial"}, value: 0.0},
		{path: []string{"serial"}, value: 1e9},
		{path: []string{"serial"}, value: -1.0},
		{path: []string{"serial"}, value: nil},
		{path: []string{"version"}, value: 3.0},
		{path: []string{"outputs"}, value: map[string]any{"vm_id": output("150")}},
		{path: []string{"outputs"}, value: map[string]any{"id": output("qemu/150"), "other": output("pve-1")}},
		{path: []string{"outputs"}, value: []any{"150"}},
		{path: []string{"outputs"}, value: nil},
	} {
		edit.vm = w.fleet.VMs[0].Name
		for j, act := range actions {
			if *full || j == i%len(actions) {
				w.attack(act, []stateEdit{edit})
			}
		}
	}
}

// entryEdits returns edits that assign the entry of a VM to a future VM, another VM or an
// unknown name, remove its instance, or make the instance a deposed object.
func (w *stateWorld) entryEdits() []stateEdit {
	name := w.fleet.VMs[0].Name
	next := fleet.NodeName("workers", w.fleet.VMs[len(w.fleet.VMs)-1].VMID+1)
	edits := []stateEdit{
		{name, guard.ResourceType, []string{"module"}, "module." + next},
		{name, guard.ResourceType, []string{"module"}, "module." + w.fleet.VMs[1].Name},
		{name, guard.ResourceType, []string{"module"}, "module.accounting"},
		{name, guard.ResourceType, []string{"instances"}, []any{}},
	}
	for _, r := range w.read()["resources"].([]any) {
		if resource := r.(map[string]any); resource["module"] == "module."+name && resource["type"] == guard.ResourceType {
			// The VM is in the state only as a deposed object.
			instance := maps.Clone(valueAt(resource, []string{"instances", "0"}).(map[string]any))
			instance["deposed"] = "00000150"
			edits = append(edits, stateEdit{name, guard.ResourceType, []string{"instances"}, []any{instance}})
		}
	}
	return edits
}

// stateValues are values of a state by resource type and path.
type stateValues map[string]stateEdit

// values returns the values of the first VM and its security groups in the state.
func (w *stateWorld) values() stateValues {
	values := stateValues{}
	for _, r := range w.read()["resources"].([]any) {
		resource := r.(map[string]any)
		name := w.fleet.VMs[0].Name
		if kind := fmt.Sprint(resource["type"]); resource["module"] == "module."+name || resource["module"] == "module."+name+"_security_groups" {
			for _, path := range pathsOf(resource, nil) {
				values[kind+strings.Join(path, ".")] = stateEdit{name, kind, path, valueAt(resource, path)}
			}
		}
	}
	return values
}

// each returns an edit of each value.
func (v stateValues) each(name string) []stateEdit {
	var edits []stateEdit
	for _, key := range slices.Sorted(maps.Keys(v)) {
		edits = append(edits, stateEdit{name, v[key].resource, v[key].path, hostileValue(v[key].value)})
	}
	return edits
}

// random returns random edits.
func (v stateValues) random(each []stateEdit, count int) []stateEdit {
	var edits []stateEdit
	random := rand.New(rand.NewPCG(15, 2026))
	for range count {
		edit := each[random.IntN(len(each))]
		edit.value = hostileValues[random.IntN(len(hostileValues))]
		// The engine refuses unreadable states, so such an edit runs alone: a few are
		// enough.
		for i := random.IntN(20); i > 0 && !v.readable(edit); {
			edit = each[random.IntN(len(each))]
		}
		edits = append(edits, edit)
	}
	return edits
}

// attack makes readable edits together, each on a different VM, and unreadable edits one by
// one. It returns the number of edits that were not refused.
func (v stateValues) attack(w *stateWorld, act action, edits []stateEdit) (passed int) {
	var vms, groups []stateEdit
	for _, edit := range edits {
		switch {
		case !v.readable(edit):
			passed += len(w.attack(act, []stateEdit{edit}))
		case edit.resource == guard.FirewallType:
			groups = append(groups, edit)
		default:
			vms = append(vms, edit)
		}
	}
	for batch := range slices.Chunk(vms, stateVMs) {
		passed += len(w.attack(act, spread(w, batch, 1)))
	}
	for batch := range slices.Chunk(groups, stateVMs/2) {
		passed += len(w.attack(act, spread(w, batch, 2))) // every other VM has groups
	}
	return passed
}

// spread assigns each edit to a different VM.
func spread(w *stateWorld, edits []stateEdit, step int) []stateEdit {
	edits = slices.Clone(edits)
	for i := range edits {
		edits[i].vm = w.fleet.VMs[i*step].Name
	}
	return edits
}

// readable reports whether the engine can read the state after an edit, because the new
// value has the attribute's type.
func (v stateValues) readable(edit stateEdit) bool {
	was := v[edit.resource+strings.Join(edit.path, ".")].value
	_, isMap := was.(map[string]any)
	return slices.Contains(edit.path, "attributes") && was != nil && !isMap && reflect.TypeOf(was) == reflect.TypeOf(edit.value)
}

// hostileValues are values that an attacker can choose.
var hostileValues = []any{
	"150", 150.0, "pve-1", "cluster", "", nil, true, false, 0.0, -1.0, 1e9,
	[]any{},
	map[string]any{},
	[]any{"150"},
	"accounting",
	"vm/pve-1/150", "../qemu/150",
}

// hostileValue returns another value of the same type.
func hostileValue(was any) any {
	switch value := was.(type) {
	case bool:
		return !value
	case float64:
		return float64(strangerOutside)
	case string:
		if value == "150" {
			return "2900"
		}
		return "150"
	case []any:
		return []any{}
	case map[string]any:
		return map[string]any{}
	}
	return "150"
}
