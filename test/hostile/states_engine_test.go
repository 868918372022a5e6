package hostile_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

// TestStatesID destroys a VM after the id in its state was changed to that of somebody
// else's: the provider destroys by the id.
func TestStatesID(t *testing.T) {
	t.Parallel()
	w := newStateWorld(t)
	name := w.fleet.VMs[0].Name
	for _, id := range []any{"150", "2900", "2001", "2001/../../qemu/150", ""} {
		if passed := w.attack([]stateEdit{{name, guard.ResourceType, []string{"instances", "0", "attributes", "id"}, id}}); len(passed) > 0 {
			t.Errorf("a state with the id %q was not refused", id)
		}
	}
}

// TestStatesEngine edits each value of a VM and of its security groups in a state once,
// and 200 by seed, and removes the VMs with the real engine. Edits that the engine can
// read are made on one VM each, many at a time.
func TestStatesEngine(t *testing.T) {
	t.Parallel()
	w := newStateWorld(t)
	var edits []stateEdit
	values := map[string]any{}
	for _, r := range w.read()["resources"].([]any) {
		resource := r.(map[string]any)
		name := w.fleet.VMs[0].Name
		if kind := fmt.Sprint(resource["type"]); resource["module"] == "module."+name || resource["module"] == "module."+name+"_security_groups" {
			for _, path := range pathsOf(resource, nil) {
				was := valueAt(resource, path)
				edits = append(edits, stateEdit{name, kind, path, hostileValue(was)})
				values[kind+strings.Join(path, ".")] = was
			}
		}
	}
	each := len(edits)
	random := rand.New(rand.NewPCG(15, 2026))
	for range 200 {
		edit := edits[random.IntN(each)]
		edit.value = hostileValues[random.IntN(len(hostileValues))]
		// What the engine cannot read it refuses, and such an edit is made alone: a few do.
		for i := random.IntN(20); i > 0 && !readable(edit, values); {
			edit = edits[random.IntN(each)]
		}
		edits = append(edits, edit)
	}
	var alone, vms, groups []stateEdit
	for _, edit := range edits {
		switch {
		case !readable(edit, values):
			alone = append(alone, edit)
		case edit.resource == guard.FirewallType:
			groups = append(groups, edit)
		default:
			vms = append(vms, edit)
		}
	}
	passed := 0
	for i := range alone {
		passed += len(w.attack(alone[i : i+1]))
	}
	for batch := range slices.Chunk(vms, stateVMs) {
		passed += len(w.attack(spread(w, batch, 1)))
	}
	for batch := range slices.Chunk(groups, stateVMs/2) {
		passed += len(w.attack(spread(w, batch, 2))) // every other VM has groups
	}
	t.Logf("%d edits of %d values, %d of them alone: %d did not keep the VM from being removed", len(edits), each, len(alone), passed)
	if passed == 0 || passed == len(edits) {
		t.Errorf("%d of %d edits passed, so the test shows nothing", passed, len(edits))
	}
}

// spread gives each of the edits a VM of its own.
func spread(w *stateWorld, edits []stateEdit, step int) []stateEdit {
	edits = slices.Clone(edits)
	for i := range edits {
		edits[i].vm = w.fleet.VMs[i*step].Name
	}
	return edits
}

// readable reports whether an edit leaves a state that the engine can read: an attribute
// gets a value of its kind. values are those before the edits.
func readable(edit stateEdit, values map[string]any) bool {
	was := values[edit.resource+strings.Join(edit.path, ".")]
	_, isMap := was.(map[string]any)
	return slices.Contains(edit.path, "attributes") && was != nil && !isMap && reflect.TypeOf(was) == reflect.TypeOf(edit.value)
}

// hostileValues are what an attacker would write.
var hostileValues = []any{
	"150", 150.0, "pve-1", "cluster", "", nil, true, false, 0.0, -1.0, 1e9,
	[]any{},
	map[string]any{},
	[]any{"150"},
	"accounting",
	"vm/pve-1/150", "../qemu/150",
}

// hostileValue returns another value of the same kind.
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
