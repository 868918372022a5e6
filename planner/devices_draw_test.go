package planner_test

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// drawDevices sometimes gives a host PCI devices of the mappings gpu, one and nic. The
// mappings gpu and one may share devices.
func drawDevices(t *rapid.T, h *topology.Host) {
	if rapid.Bool().Draw(t, "no devices") {
		return
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "devices") {
		node := topology.Unknown
		if len(h.NUMANodes) > 0 && rapid.Bool().Draw(t, "device is located") {
			node = h.NUMANodes[rapid.IntRange(0, len(h.NUMANodes)-1).Draw(t, "device's node")].ID
		}
		for _, mapping := range rapid.SampledFrom([][]string{{"gpu"}, {"gpu", "one"}, {"nic"}}).Draw(t, "mappings") {
			h.PCIDevices = append(h.PCIDevices, topology.PCIDevice{Mapping: mapping, Path: fmt.Sprintf("0000:%02x:00.0", i), NUMANode: node})
		}
	}
}

// drawWanted draws the devices of a spec; most specs get none.
func drawWanted(t *rapid.T) []fleet.PCIDevice {
	return rapid.SampledFrom([][]fleet.PCIDevice{
		nil, nil, nil, nil, nil, nil, {{Mapping: "gpu"}}, {{Mapping: "nic"}, {Mapping: "gpu"}}, {{Mapping: "one"}}, {{Mapping: "gpu", MDev: "half"}},
	}).Draw(t, "pci devices")
}

// drawPassed draws the devices of an unmanaged guest.
func drawPassed(t *rapid.T) []topology.PassedDevice {
	return rapid.SampledFrom([][]topology.PassedDevice{nil, nil, nil, {{Mapping: "gpu"}}, {{Address: "01:00.0"}}, {{Mapping: "one", MDev: "half"}}}).Draw(t, "passed")
}

// starter is a guest that gets its PCI devices from Proxmox when it starts.
type starter struct {
	devices []topology.PassedDevice
	fresh   bool
}

// mustGetDevices starts all guests of a host in several orders, each taking the first free
// device of a mapping as Proxmox does, and checks that the new VMs get theirs.
func mustGetDevices(t tb, h *topology.Host, here []resident, existing []fleet.VM) {
	t.Helper()
	var all []starter
	for _, r := range here {
		s := starter{fresh: r.fresh}
		for _, d := range r.spec.PCIDevices {
			s.devices = append(s.devices, topology.PassedDevice{Mapping: d.Mapping, MDev: d.MDev})
		}
		all = append(all, s)
	}
	for _, g := range h.Guests {
		ours := slices.ContainsFunc(existing, func(vm fleet.VM) bool { return vm.Host == h.ID() && int(vm.VMID) == g.VMID })
		if !g.Template && !ours {
			all = append(all, starter{devices: g.PCIDevices})
		}
	}
	for range 2 {
		for first := range all {
			mustStartInTurn(t, h, append(slices.Clone(all[first:]), all[:first]...))
		}
		slices.Reverse(all)
	}
}

func mustStartInTurn(t tb, h *topology.Host, all []starter) {
	t.Helper()
	var taken []string
	for _, s := range all {
		var own []string
		for _, d := range s.devices {
			path := firstFree(h, d, append(slices.Clone(taken), own...))
			switch {
			case path == "" && s.fresh:
				t.Fatalf("%s: a new VM finds no device of mapping %s; taken are %v of %v", h.ID(), d.Mapping, taken, h.PCIDevices)
			case path == "":
				own = nil // it does not start
			case d.MDev == "":
				own = append(own, path)
			}
		}
		taken = append(taken, own...)
	}
}

// firstFree returns the path of the device that Proxmox assigns, or an empty string.
func firstFree(h *topology.Host, requested topology.PassedDevice, taken []string) string {
	if requested.Address != "" {
		return "0000:" + requested.Address
	}
	for _, d := range h.PCIDevices {
		if d.Mapping == requested.Mapping && (!slices.Contains(taken, d.Path) || requested.MDev != "") {
			return d.Path
		}
	}
	return ""
}
