package fleet_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
)

// TestGiveMACs checks that addresses derive from the key and are unique.
func TestGiveMACs(t *testing.T) {
	t.Parallel()
	spec := []fleet.Network{{Bridge: "a", MAC: "BC:24:11"}, {Bridge: "b"}, {Bridge: "c", MAC: "02:00:AA"}, {Bridge: "d", MAC: "BC:24:11"}}
	one, again, other := fleet.VM{Key: "1"}, fleet.VM{Key: "1"}, fleet.VM{Key: "2"}
	for _, vm := range []*fleet.VM{&one, &again, &other} {
		vm.Networks = spec
		fleet.GiveMACs(vm, nil)
	}
	seen := map[string]bool{}
	for _, n := range append(one.Networks, other.Networks...) {
		if n.Bridge == "b" && n.MAC == "" {
			continue
		}
		if !regexp.MustCompile(`^(BC:24:11|02:00:AA)(:[0-9A-F]{2}){3}$`).MatchString(n.MAC) || seen[n.MAC] {
			t.Errorf("address %q, of those %v", n.MAC, seen)
		}
		seen[n.MAC] = true
	}
	if diff := cmp.Diff(one.Networks, again.Networks); diff != "" {
		t.Errorf("the same key gives (-once +again):\n%s", diff)
	}
	if spec[0].MAC != "BC:24:11" {
		t.Error("the spec's list was written into")
	}
	again.Networks = spec
	fleet.GiveMACs(&again, []fleet.VM{one})
	for i, n := range again.Networks {
		if n.MAC != "" && n.MAC == one.Networks[i].MAC {
			t.Errorf("address %s is given twice", n.MAC)
		}
	}
	// A replaced address keeps its prefix.
	before := one.Networks[0].MAC
	fleet.GiveMACs(&one, []fleet.VM{one})
	if got := one.Networks[0].MAC; got == before || got[:8] != "BC:24:11" {
		t.Errorf("address %s becomes %s", before, got)
	}
}
