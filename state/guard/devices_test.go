package guard_test

import (
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
)

// TestDevices allows a VM the PCI devices in its file, by mapping, and no others.
func TestDevices(t *testing.T) {
	t.Parallel()
	const after = "resource_changes.0.change.after."
	gpu := map[string]any{"device": "hostpci0", "mapping": "gpu", "pcie": true}
	with := func(key string, value any) map[string]any {
		changed := map[string]any{key: value}
		for k, v := range gpu {
			if _, ok := changed[k]; !ok {
				changed[k] = v
			}
		}
		return changed
	}
	wanted := []fleet.PCIDevice{{Mapping: "gpu", PCIe: true}}
	for _, test := range []struct {
		name   string
		blocks []any
		wanted []fleet.PCIDevice
		says   string
	}{
		{"as asked", []any{gpu}, wanted, ""},
		{"none", nil, wanted, "0 PCI devices of its host instead of 1"},
		{"one too many", []any{gpu, gpu}, wanted, "2 PCI devices of its host instead of 1"},
		{"another mapping", []any{with("mapping", "nic")}, wanted, `another PCI device than "gpu"`},
		{"another place", []any{with("device", "hostpci1")}, wanted, "another PCI device"},
		{"a part of it", []any{with("mdev", "nvidia-63")}, wanted, "another PCI device"},
		{"as primary card", []any{with("xvga", true)}, wanted, "another PCI device"},
		{"with a firmware", []any{with("rom_file", "x.rom")}, wanted, "another PCI device"},
		{"by address beside the mapping", []any{with("id", "0000:01:00.0")}, wanted, "hostpci.id"},
		{"by address instead", []any{with("id", "0000:01:00.0"), gpu}, wanted, "hostpci.id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			asked := creating(2001, 2002)
			asked.Create[0].PCIDevices = test.wanted
			v := check(edited(t, "create", edits{after + "hostpci": test.blocks}), asked, guard.DefaultRules())
			switch {
			case test.says == "" && v.Decision != guard.Allow, test.says != "" && !has(v, guard.Deny, guard.RulePrivileged, test.says):
				t.Errorf("want %q, got\n%s", test.says, v)
			}
		})
	}
}
