package guard_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
)

// TestCheckAddresses checks that no static address is planned for two VMs of the fleet.
func TestCheckAddresses(t *testing.T) {
	t.Parallel()
	ip := netip.MustParseAddr
	claim := func(text string, of guard.Target) guard.AddressClaim {
		return guard.AddressClaim{Address: ip(text), Key: of.Key, VM: of.Name()}
	}
	for _, test := range []struct {
		name, plan    string
		first, second string // the addresses of the first and the second VM to create
		claims        []guard.AddressClaim
		part          string
	}{
		{"free", "create", "10.0.0.1", "10.0.0.2", []guard.AddressClaim{claim("10.0.0.3", vm(2005))}, ""},
		{"its own", "create", "10.0.0.1", "10.0.0.2", []guard.AddressClaim{claim("10.0.0.1", vm(2001)), claim("10.0.0.2", vm(2002))}, ""},
		{"of another VM", "create", "10.0.0.1", "10.0.0.2", []guard.AddressClaim{claim("10.0.0.2", vm(2005))}, "its address 10.0.0.2 belongs to VM \"" + vm(2005).Name() + "\""},
		{"of two VMs of the plan", "create", "10.0.0.1", "10.0.0.1", nil, "its address 10.0.0.1 belongs to VM \"" + vm(2002).Name() + "\""},
		{"of a VM that is updated", "update", "10.0.0.1", "", []guard.AddressClaim{claim("10.0.0.1", vm(2005))}, "its address 10.0.0.1 belongs to VM"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			intent := intents()[test.plan]
			intent.Addresses = test.claims
			intent.Create, intent.Update = slices.Clone(intent.Create), slices.Clone(intent.Update)
			targets := append(intent.Create, intent.Update...)
			targets[0].Addresses = []netip.Addr{ip(test.first)}
			if test.second != "" {
				targets[1].Addresses = []netip.Addr{ip(test.second)}
			}
			intent.Create, intent.Update = targets[:len(intent.Create)], targets[len(intent.Create):]
			v := check(edited(t, test.plan, nil), intent, guard.DefaultRules())
			if test.part == "" && v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
			if test.part != "" && (v.Decision != guard.Deny || !has(v, guard.Deny, guard.RuleAddresses, test.part)) {
				t.Errorf("want denied because of %q, got\n%s", test.part, v)
			}
		})
	}
}

// TestCheckAddressProblem checks that a VM whose addresses must not be used is not created, and
// that an existing VM can be imported with them.
func TestCheckAddressProblem(t *testing.T) {
	t.Parallel()
	for plan, denied := range map[string]bool{"create": true, "import": false} {
		intent := intents()[plan]
		intent.Create, intent.Import = slices.Clone(intent.Create), slices.Clone(intent.Import)
		targets := append(intent.Create, intent.Import...)
		targets[0].AddressProblem = "net0 has the address of the gateway"
		intent.Create, intent.Import = targets[:len(intent.Create)], targets[len(intent.Create):]
		v := check(edited(t, plan, nil), intent, guard.DefaultRules())
		if got := has(v, guard.Deny, guard.RuleAddresses, "net0 has the address of the gateway: restore the VM's file, or remove the VM"); got != denied || denied && v.Decision != guard.Deny {
			t.Errorf("%s: %s", plan, v)
		}
	}
}

// TestCheckKeptAddresses checks that the description of an existing VM keeps its static
// addresses, because the guest does.
func TestCheckKeptAddresses(t *testing.T) {
	t.Parallel()
	line := "\nAddresses: net0 10.0.0.1/24 from nodes, net0 fd00::1/64 from nodes6."
	for plan, at := range map[string]struct {
		change string
		vm     fleet.VMID
	}{"update": {first + "change.", 2001}, "import": {second, 2002}} {
		marker := "numaform/1 cluster=prod key=" + string(vm(at.vm).Key)
		for _, test := range []struct {
			name, before, after string
			denied              bool
		}{
			{"kept", marker + line, marker + line, false},
			{"lost", marker + line, marker, true},
			{"changed", marker + line, marker + strings.Replace(line, "fd00::1/", "fd00::2/", 1), true},
			{"added", marker, marker + line, false},
			{"of another tool", "Karpenter managed instance" + line, marker, false},
		} {
			v := check(edited(t, plan, edits{at.change + "before.description": test.before, at.change + "after.description": test.after}), intents()[plan], guard.DefaultRules())
			if got := has(v, guard.Deny, guard.RuleAddresses, "which the VM's file lacks, so another VM could get it"); got != test.denied {
				t.Errorf("%s, %s: %s", plan, test.name, v)
			}
		}
	}
}
