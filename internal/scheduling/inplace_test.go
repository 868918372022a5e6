package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/modules"
)

// TestInPlaceGroups checks which security groups a running VM gets from its class: only
// groups that have an effect on its devices, and that its modules support. A VM that lacks a
// device of its class is replaced, but must not prevent changes of the fleet until then.
func TestInPlaceGroups(t *testing.T) {
	t.Parallel()
	nc := nodeClass(t, `{template: {name: t}, securityGroups: [kube], networks: [
		{bridge: vmbr0, firewall: true, securityGroups: [web]}, {bridge: vmbr1, firewall: true, securityGroups: [storage, backup]}]}`)
	const older = "f95ae3a2e756d6a4"
	for _, test := range []struct {
		name   string
		vm     []fleet.Network
		module string
		want   []string
	}{
		{"as in the class", []fleet.Network{{Bridge: "vmbr0", Firewall: true}, {Bridge: "vmbr1", Firewall: true}}, "", []string{"web@net0", "backup@net1", "storage@net1", "kube"}},
		{"one device", []fleet.Network{{Bridge: "vmbr0", Firewall: true}}, "", []string{"web@net0", "kube"}},
		{"a device without firewall", []fleet.Network{{Bridge: "vmbr0", Firewall: true}, {Bridge: "vmbr1"}}, "", []string{"web@net0", "kube"}},
		{"another device", []fleet.Network{{Bridge: "vmbr0", Firewall: true}, {Bridge: "vmbr2", Firewall: true}}, "", []string{"web@net0", "kube"}},
		{"no firewall", []fleet.Network{{Bridge: "vmbr0"}}, "", nil},
		{"devices of the template", nil, "", []string{"kube"}},
		{"older modules", []fleet.Network{{Bridge: "vmbr0", Firewall: true}}, older, []string{"kube"}},
	} {
		spec := fleet.Spec{Networks: test.vm}
		scheduling.InPlace(nc, &spec, test.module)
		if diff := cmp.Diff(test.want, spec.SecurityGroups); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestInPlaceEmulator checks which running VMs get the emulator setting of their class: only
// VMs that the host agent pins, and whose modules support it. A plan of other modules would
// fail, also for the other VMs of the host.
func TestInPlaceEmulator(t *testing.T) {
	t.Parallel()
	nc := nodeClass(t, `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, emulator: shared}}`)
	pinned := fleet.Spec{Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent}
	for _, test := range []struct {
		name   string
		vm     fleet.Spec
		module string
		want   fleet.Emulator
	}{
		{"new", pinned, "", fleet.EmulatorShared},
		{"current modules", pinned, modules.Hash(), fleet.EmulatorShared},
		{"older modules", pinned, "da59ea1a23b689cb", ""},
		{"pinned by affinity", fleet.Spec{Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithAffinity}, "", ""},
		{"not pinned", fleet.Spec{Policy: fleet.PolicyNUMA, PinWith: fleet.PinWithHostAgent}, "", ""},
	} {
		scheduling.InPlace(nc, &test.vm, test.module)
		if test.vm.Emulator != test.want {
			t.Errorf("%s: emulator %q, want %q", test.name, test.vm.Emulator, test.want)
		}
	}
}

// TestInPlaceAdopted checks that an adopted VM keeps all fields that its class changes in
// place: its modules write none of them.
func TestInPlaceAdopted(t *testing.T) {
	t.Parallel()
	nc := nodeClass(t, `{template: {name: t}, tags: [new], pool: nodes, securityGroups: [kube], placement: {policy: Dedicated, pinWith: HostAgent, emulator: shared}}`)
	spec := fleet.Spec{Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithAffinity, Tags: []string{"karpenter"}}
	want := spec
	scheduling.InPlace(nc, &spec, modules.Adopted)
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
