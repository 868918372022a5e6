package hostile_test

import (
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/state/guard"
)

// TestStatesResources checks that no action on the fleet changes other guests after an
// attacker added entries to its state, removed all entries, or replaced the state by one that
// the engine cannot read. An apply of the files also stops no VM that has a file, and its error
// says what is wrong. `make nightly` combines each attack with each action; `make test` only
// applies the files.
func TestStatesResources(t *testing.T) {
	t.Parallel()
	w := newSizedWorld(t, 2)
	name := w.fleet.VMs[0].Name
	resource := func(doc stateDoc) map[string]any {
		for _, r := range doc["resources"].([]any) {
			if r := r.(map[string]any); r["module"] == "module."+name && r["type"] == guard.ResourceType {
				return r
			}
		}
		t.Fatalf("the state has no entry of %s", name)
		return nil
	}
	text := func(doc stateDoc) []byte {
		content, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	// added adds an entry with these members to the state, and otherwise the members of the
	// VM's. Attributes are replaced one by one.
	added := func(members, attributes map[string]any) func(stateDoc) []byte {
		return func(doc stateDoc) []byte {
			entry := maps.Clone(resource(doc))
			instance := maps.Clone(entry["instances"].([]any)[0].(map[string]any))
			values := maps.Clone(instance["attributes"].(map[string]any))
			maps.Copy(values, attributes)
			instance["attributes"], entry["instances"] = values, []any{instance}
			for member, value := range members {
				if entry[member] = value; value == nil {
					delete(entry, member)
				}
			}
			doc["resources"] = append(doc["resources"].([]any), entry)
			return text(doc)
		}
	}
	set := func(member string, value any) func(stateDoc) []byte {
		return func(doc stateDoc) []byte {
			doc[member] = value
			return text(doc)
		}
	}
	raw := func(content string) func(stateDoc) []byte {
		return func(stateDoc) []byte { return []byte(content) }
	}
	theirs := map[string]any{"id": "150", "vm_id": 150.0, "name": "accounting", "description": "do not touch"}
	const foreign, twice, unreadable = "a resource that numaform did not create", "appears multiple times", "restore the state from a backup"
	for _, attack := range []struct {
		name string
		// edit returns the new state.
		edit func(stateDoc) []byte
		// want is part of the error of an apply of the whole host; empty if it may succeed.
		want string
	}{
		{"stranger's VM in the root", added(map[string]any{"module": nil}, theirs), foreign},
		{"stranger's VM in another module", added(map[string]any{"module": "module.accounting"}, theirs), "denied"},
		{"stranger's VM in a nested module", added(map[string]any{"module": "module." + name + ".module.accounting"}, theirs), foreign},
		{"stranger's VM in a list", added(map[string]any{"module": "module." + name + "[0]"}, theirs), foreign},
		{"stranger's VM beside the VM", added(map[string]any{"name": "other"}, theirs), foreign},
		{"stranger's VM in the VM's place", added(nil, theirs), twice},
		{"stranger's container", added(map[string]any{"module": nil, "type": "proxmox_virtual_environment_container"}, map[string]any{"id": "151", "vm_id": 151.0}), foreign},
		{"the VM twice", added(nil, nil), twice},
		{"the VM under another address", added(map[string]any{"module": "module.workers-2999"}, nil), "denied"},
		{"the VM under another name", added(map[string]any{"module": "module.workers-2999"}, map[string]any{"name": "workers-2999"}), `has name "workers-2000" in Proxmox`},
		{"resource of another provider", added(map[string]any{
			"module": nil, "type": "null_resource", "provider": `provider["registry.opentofu.org/hashicorp/null"]`,
		}, nil), "hashicorp/null"},
		{"no resources", set("resources", []any{}), ""},
		{"newer version", set("version", 5.0), unreadable},
		{"empty file", raw(""), ""},
		{"empty object", raw("{}"), unreadable},
		{"list", raw("[]"), unreadable},
		{"deep", raw(strings.Repeat("[", 1<<20)), unreadable},
	} {
		for i, act := range []action{w.settling(), w.removal(), w.creation()} {
			if i > 0 && !enginetest.EveryCase() {
				continue
			}
			t.Run(attack.name+"/"+act.name, func(t *testing.T) {
				w.t = t
				w.restore()
				if err := os.WriteFile(w.statePath(w.dir), attack.edit(w.read()), 0o600); err != nil {
					t.Fatal(err)
				}
				err := act.do([]string{name})
				t.Logf("error: %v", err)
				w.unharmed(act, []string{name}, nil)
				if i > 0 {
					return
				}
				if attack.want != "" && (err == nil || !strings.Contains(err.Error(), attack.want)) {
					t.Errorf("error %v, want one with %q", err, attack.want)
				}
				for _, vm := range w.fleet.VMs {
					if guest, exists := w.sim.Guest(int(vm.VMID)); !exists || !guest.Running {
						t.Errorf("VM %s, which has a file, was destroyed or stopped", vm.Name)
					}
				}
			})
		}
	}
}
