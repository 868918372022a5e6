package planner_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// card returns a device of a host.
func card(mapping, path string, node int) topology.PCIDevice {
	return topology.PCIDevice{Mapping: mapping, Path: path, NUMANode: node}
}

// withCards returns a host of two NUMA nodes with 8 CPUs each.
func withCards(name string, cards ...topology.PCIDevice) topology.Host {
	h := host(name, machine(shape{nodes: 2, cores: 8, smt: 1, memory: 32 * gib}))
	h.PCIDevices = cards
	return h
}

// requesting returns a Dedicated VM that requests devices of mappings.
func requesting(vcpus int, mappings ...string) fleet.Spec {
	s := spec(fleet.PolicyDedicated, vcpus, 4*gib, "pve-1", "pve-2")
	for _, m := range mappings {
		s.PCIDevices = append(s.PCIDevices, fleet.PCIDevice{Mapping: m})
	}
	return s
}

// TestDeviceDecidesTheNUMANode checks that a VM is placed on the NUMA node of its PCI
// device, and that the reason names that node.
func TestDeviceDecidesTheNUMANode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		policy fleet.Policy
		cards  []topology.PCIDevice
		node   string
		says   string
	}{
		{"on node 0", fleet.PolicyDedicated, []topology.PCIDevice{card("gpu", "0000:01:00.0", 0)}, "0", "; device gpu on NUMA node 0"},
		{"on node 1", fleet.PolicyDedicated, []topology.PCIDevice{card("gpu", "0000:81:00.0", 1)}, "1", "; device gpu on NUMA node 1"},
		{"of floating vCPUs", fleet.PolicyNUMA, []topology.PCIDevice{card("gpu", "0000:81:00.0", 1)}, "1", "; device gpu on NUMA node 1"},
		{"the first in turn", fleet.PolicyDedicated, []topology.PCIDevice{card("gpu", "0000:81:00.0", 1), card("gpu", "0000:01:00.0", 0)}, "1", "; device gpu, probably on NUMA node 1"},
		{"unknown node", fleet.PolicyDedicated, []topology.PCIDevice{card("gpu", "0000:81:00.0", topology.Unknown)}, "0", "; device gpu on an unknown NUMA node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := requesting(4, "gpu")
			s.Policy = tt.policy
			p := placeOne(t, snapshot(withCards("pve-1", tt.cards...)), nil, s)
			if got := p.Cells[0].HostNodes.String(); got != tt.node || len(p.Cells) != 1 || !strings.Contains(p.Reason, tt.says) {
				t.Errorf("on NUMA node %s, want %s: %s", got, tt.node, p.Reason)
			}
		})
	}
}

// TestDeviceComesAfterTheNumberOfNodes checks that a VM is placed on the one node that has
// room for it, even if the device is on the other.
func TestDeviceComesAfterTheNumberOfNodes(t *testing.T) {
	t.Parallel()
	h := withCards("pve-1", card("gpu", "0000:81:00.0", 1))
	h.Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 6, MemoryMiB: 512, Pins: topology.CPUs(8, 9, 10, 11, 12, 13)}}
	if p := placeOne(t, snapshot(h), nil, requesting(4, "gpu")); len(p.Cells) != 1 || p.Cells[0].HostNodes.String() != "0" {
		t.Errorf("in %d cells: %s", len(p.Cells), p.Reason)
	}
	// The host with a near device wins, although the VM would leave less unused capacity on
	// the other one.
	near := withCards("pve-2", card("gpu", "0000:01:00.0", 0))
	if p := placeOne(t, snapshot(h, near), nil, requesting(4, "gpu")); p.Host.Host != "pve-2" {
		t.Errorf("on %s: %s", p.Host, p.Reason)
	}
}

// TestDevicesAreCounted checks how many VMs of a batch are placed if they request PCI
// devices, and why the others are not. In most cases, pve-1 has two devices in mapping gpu;
// pve-2 never has any.
func TestDevicesAreCounted(t *testing.T) {
	t.Parallel()
	cards := []topology.PCIDevice{card("gpu", "0000:01:00.0", 0), card("gpu", "0000:81:00.0", 1)}
	vgpu := requesting(2)
	vgpu.PCIDevices = []fleet.PCIDevice{{Mapping: "gpu", MDev: "half"}}
	running := func(g topology.Guest) []topology.Guest {
		g.VMID, g.Kind, g.VCPUs, g.MemoryMiB = 100, topology.GuestVM, 1, 512
		return []topology.Guest{g}
	}
	for _, tt := range []struct {
		name   string
		cards  []topology.PCIDevice
		guests []topology.Guest
		specs  []fleet.Spec
		placed int
		says   string
	}{
		{"one each", cards, nil, same(requesting(2, "gpu"), 3), 2, "pve-1 has 0 of 2 devices of PCI mapping gpu free, 1 requested, no more on 1 other host: add a device to the mapping"},
		{"two at once", cards, nil, []fleet.Spec{requesting(2, "gpu", "gpu")}, 1, ""},
		{"more than exist", cards, nil, []fleet.Spec{requesting(2, "gpu", "gpu", "gpu")}, 0, "has 2 of 2 devices of PCI mapping gpu free, 3 requested"},
		{"no such mapping", cards, nil, []fleet.Spec{requesting(2, "nic")}, 0, "has no device of PCI mapping nic"},
		{"taken by a guest", cards, running(topology.Guest{Running: true, PCIDevices: []topology.PassedDevice{{Mapping: "gpu"}}}), same(requesting(2, "gpu"), 2), 1, "0 of 2"},
		{"taken by one that is stopped", cards, running(topology.Guest{PCIDevices: []topology.PassedDevice{{Mapping: "gpu"}}}), same(requesting(2, "gpu"), 2), 1, "0 of 2"},
		{"taken by its address", cards, running(topology.Guest{Running: true, PCIDevices: []topology.PassedDevice{{Address: "81:00"}}}), same(requesting(2, "gpu"), 2), 1, "0 of 2"},
		{"a template takes none", cards, running(topology.Guest{Template: true, PCIDevices: []topology.PassedDevice{{Mapping: "gpu"}}}), same(requesting(2, "gpu"), 2), 2, ""},
		{"mediated devices are shared", cards, nil, same(vgpu, 5), 5, ""},
		{"one that another mapping names too", append(cards, card("one", "0000:01:00.0", 0)), nil, []fleet.Spec{requesting(2, "one"), requesting(2, "gpu")}, 1, "free, 1 requested"},
		{"without devices", cards, nil, same(requesting(2), 3), 3, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := withCards("pve-1", tt.cards...)
			h.Guests = tt.guests
			placed, unplaced := place(t, snapshot(h, withCards("pve-2")), nil, tt.specs...)
			if len(placed) != tt.placed {
				t.Errorf("placed %d of %d, want %d", len(placed), len(tt.specs), tt.placed)
			}
			for _, u := range unplaced {
				if !strings.Contains(u.Reason, tt.says) {
					t.Errorf("refused with %q, want %q", u.Reason, tt.says)
				}
			}
		})
	}
}
