package guard_test

import (
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
)

// TestDisks allows a VM its template's boot disk and all data disks in its file, empty,
// and no others.
func TestDisks(t *testing.T) {
	t.Parallel()
	const after = "resource_changes.0.change.after."
	boot := map[string]any{"interface": "scsi0", "datastore_id": "local", "size": 40, "file_id": "", "import_from": ""}
	data := map[string]any{"interface": "scsi1", "datastore_id": "fast", "size": 100, "file_id": "", "import_from": ""}
	with := func(key string, value any) map[string]any {
		changed := map[string]any{key: value}
		for k, v := range data {
			if _, ok := changed[k]; !ok {
				changed[k] = v
			}
		}
		return changed
	}
	wanted := []fleet.DataDisk{{Interface: "scsi1", SizeGiB: 100, Storage: "fast"}}
	for _, test := range []struct {
		name   string
		blocks []any
		wanted []fleet.DataDisk
		says   string
	}{
		{"as asked", []any{boot, data}, wanted, ""},
		{"a boot disk that does not grow", []any{data}, wanted, ""},
		{"a boot disk alone", []any{boot}, nil, ""},
		{"none", []any{boot}, wanted, "0 disks of its 1"},
		{"one too many", []any{boot, data, with("interface", "scsi2")}, wanted, `"scsi2" is not among those`},
		{"twice", []any{boot, data, data}, wanted, `"scsi1" is not among those`},
		{"on another slot", []any{with("interface", "scsi2")}, wanted, `"scsi2" is not among those`},
		{"nobody asked", []any{data}, nil, `"scsi1" is not among those`},
		{"larger", []any{with("size", 101)}, wanted, "scsi1 would not be of 100 GiB on fast"},
		{"on another storage", []any{with("datastore_id", "local")}, wanted, "scsi1 would not be of 100 GiB on fast"},
		{"of an image", []any{with("file_id", "local:iso/x.img")}, wanted, "what lies on a storage"},
		{"imported", []any{with("import_from", "local:import/x.qcow2")}, wanted, "what lies on a storage"},
		{"somebody else's", []any{with("path_in_datastore", "vm-100-disk-0")}, wanted, "what lies on a storage"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			asked := creating(2001, 2002)
			asked.Create[0].BootDisk, asked.Create[0].DataDisks = "scsi0", test.wanted
			v := check(edited(t, "create", edits{after + "disk": test.blocks}), asked, guard.DefaultRules())
			switch {
			case test.says == "" && v.Decision != guard.Allow, test.says != "" && !has(v, guard.Deny, guard.RulePrivileged, test.says):
				t.Errorf("want %q, got\n%s", test.says, v)
			}
		})
	}
}
