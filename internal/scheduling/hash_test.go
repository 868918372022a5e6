package scheduling_test

import (
	"regexp"
	"testing"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

const hashedClass = `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
	placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`

// TestClassHashIsFixed checks that the hash of a class does not change between versions,
// because a change replaces every node.
func TestClassHashIsFixed(t *testing.T) {
	for spec, want := range map[string]string{
		`{template: {name: t}}`: "9a007f9f6f6e9e3b", hashedClass: "51b99fac396db567",
	} {
		if got := scheduling.ClassHash(nodeClass(t, spec)); got != want {
			t.Errorf("hash of %s is %s, want %s: if this is meant, raise ClassHashVersion", spec, got, want)
		}
	}
}

func TestClassHash(t *testing.T) {
	base := scheduling.ClassHash(nodeClass(t, hashedClass))
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(base) {
		t.Errorf("hash is %q", base)
	}
	const rest = `template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
		placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}`
	tests := []struct {
		name, spec string
		same       bool
	}{
		{"the same", "{" + rest + "}", true},
		{"region", "{region: lab, " + rest + "}", true},
		{"hosts", "{hosts: [a], " + rest + "}", true},
		{"sizing", "{sizing: {families: [c1]}, " + rest + "}", true},
		{"tags", "{tags: [a], " + rest + "}", true},
		{"pool", "{pool: a, " + rest + "}", true},
		{"VMID range", "{vmidRange: {lower: 100, upper: 200}, " + rest + "}", true},
		{"security groups", "{securityGroups: [ab], " + rest + "}", true},
		{"security groups of a device", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0, securityGroups: [ab]}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, true},
		{"token", "{tokenTTL: 1h, " + rest + "}", true},
		{"join timeout", "{joinTimeout: 5m, " + rest + "}", true},
		{"memory overhead", "{memoryOverheadMiB: 9, " + rest + "}", true},
		{"defaults written out", "{clone: full, cpuType: host, metadata: {type: none}, " + rest + "}", true},
		{"spread", `{template: {name: t}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5", spread: Hosts}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, true},
		{"host selection", `{template: {name: t}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5", hostSelection: MostAllocated, maxHostLoad: 80}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, true},
		{"clone", "{clone: linked, " + rest + "}", false},
		{"CPU type", "{cpuType: x86-64-v3, " + rest + "}", false},
		{"seeds", "{metadata: {type: cdrom}, " + rest + "}", false},
		{"order and spelling", `{template: {name: t, tags: [b, a]}, bootDevice: {size: 40Gi, storage: s}, networks: [{bridge: vmbr0, model: virtio}],
			placement: {overcommit: "1.50"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [y, x]}}`, true},
		{"template", `{template: {vmid: 9000}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, true},
		{"disk", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 41G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"storage", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"network", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0, vlan: 1}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"overcommit", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"memory overcommit", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5", memoryOvercommit: "1.2"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"memory that is not overcommitted", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5", memoryOvercommit: "1.0"}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, true},
		{"policy", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: NUMA}, kubelet: {maxPods: 50, allowedUnsafeSysctls: [x, y]}}`, false},
		{"kubelet", `{template: {name: t, tags: [a, b]}, bootDevice: {size: 40G, storage: s}, networks: [{bridge: vmbr0}],
			placement: {policy: Shared, overcommit: "1.5"}, kubelet: {maxPods: 51, allowedUnsafeSysctls: [x, y]}}`, false},
	}
	for _, test := range tests {
		if got := scheduling.ClassHash(nodeClass(t, test.spec)); (got == base) != test.same {
			t.Errorf("%s: hash is the same: %v, want %v", test.name, got == base, test.same)
		}
	}
	pages := nodeClass(t, `{template: {name: t}, placement: {policy: NUMA}}`)
	plain := scheduling.ClassHash(pages)
	if pages.Spec.Placement.HugePages = v1alpha1.HugePages1Gi; scheduling.ClassHash(pages) == plain {
		t.Error("huge pages do not change the hash")
	}
	devices := nodeClass(t, `{template: {name: t}, placement: {policy: NUMA}, pciDevices: []}`)
	if scheduling.ClassHash(devices) != plain {
		t.Error("an empty list of devices changes the hash")
	}
	for _, list := range [][]v1alpha1.PCIDevice{{{Mapping: "gpu"}}, {{Mapping: "gpu", PCIe: true}}, {{Mapping: "gpu"}, {Mapping: "gpu"}}} {
		before := scheduling.ClassHash(devices)
		if devices.Spec.PCIDevices = list; scheduling.ClassHash(devices) == before {
			t.Errorf("devices %v do not change the hash", list)
		}
	}
	macs := nodeClass(t, `{template: {name: t}, networks: [{bridge: a}]}`)
	random := scheduling.ClassHash(macs)
	macs.Spec.Networks[0].MACPrefix = "BC:24:11"
	upper := scheduling.ClassHash(macs)
	if macs.Spec.Networks[0].MACPrefix = "bc:24:11"; upper == random || scheduling.ClassHash(macs) != upper {
		t.Error("a MAC prefix does not change the hash, or the way to write it does")
	}
	machines := nodeClass(t, `{template: {name: t}, placement: {policy: NUMA}, hardware: {vga: {}}}`)
	if scheduling.ClassHash(machines) != plain {
		t.Error("hardware that changes nothing changes the hash")
	}
	for _, hardware := range []v1alpha1.Hardware{
		{Machine: "q35"},
		{VGA: &v1alpha1.VGA{Type: "std"}},
		{VGA: &v1alpha1.VGA{MemoryMiB: 4}},
		{Tablet: new(false)},
		{CPUFlags: []string{"+aes"}},
		{Watchdog: &v1alpha1.Watchdog{}},
		{Watchdog: &v1alpha1.Watchdog{Model: "ib700"}},
	} {
		before := scheduling.ClassHash(machines)
		if machines.Spec.Hardware = &hardware; scheduling.ClassHash(machines) == before {
			t.Errorf("hardware %+v does not change the hash", hardware)
		}
	}
	for _, network := range []v1alpha1.Network{{Bridge: "a"}, {Bridge: "a", RateMBps: "1"}, {Bridge: "a", Queues: 1}, {Bridge: "a", Trunks: []int32{1}}, {Bridge: "a", Disconnected: true}} {
		before := scheduling.ClassHash(machines)
		if machines.Spec.Networks = []v1alpha1.Network{network}; scheduling.ClassHash(machines) == before {
			t.Errorf("network %+v does not change the hash", network)
		}
	}
	disks := nodeClass(t, `{template: {name: t}, placement: {policy: NUMA}, dataDisks: []}`)
	if scheduling.ClassHash(disks) != plain {
		t.Error("an empty list of data disks changes the hash")
	}
	for _, list := range [][]v1alpha1.DataDisk{{{Size: "1G"}}, {{Size: "2G"}}, {{Size: "2G", Storage: "fast"}}, {{Size: "2G"}, {Size: "2G"}}, {{Size: "1T"}}} {
		before := scheduling.ClassHash(disks)
		if disks.Spec.DataDisks = list; scheduling.ClassHash(disks) == before {
			t.Errorf("data disks %v do not change the hash", list)
		}
	}
	before := scheduling.ClassHash(disks)
	if disks.Spec.DataDisks = []v1alpha1.DataDisk{{Size: "1024Gi"}}; scheduling.ClassHash(disks) != before {
		t.Error("another way to write a size changes the hash")
	}
	whole := nodeClass(t, `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, wholeCores: Require}}`)
	strict := scheduling.ClassHash(whole)
	if whole.Spec.Placement.WholeCores = ""; scheduling.ClassHash(whole) != strict {
		t.Error("wholeCores changes the hash, though it is about VMs to come")
	}
	bare := scheduling.ClassHash(nodeClass(t, `{template: {name: t}}`))
	if got := scheduling.ClassHash(nodeClass(t, `{template: {name: t}, bootDevice: {}, kubelet: {}, placement: {policy: Shared, overcommit: "1"}}`)); got != bare {
		t.Errorf("empty fields change the hash from %s to %s", bare, got)
	}
}
