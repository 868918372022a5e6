package generator_test

import (
	"fmt"
	"strconv"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// vmAt returns a simple valid VM.
func vmAt(host topology.HostID, id fleet.VMID) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", id)), VMID: id, Name: fleet.NodeName("workers", id),
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "default", InstanceType: "m4x8", CapacityType: "on-demand",
			VCPUs: 4, MemoryMiB: 8192, Policy: fleet.PolicyShared, Template: "debian", Clone: fleet.CloneLinked, CPUType: "host",
		},
		Placement: fleet.Placement{Host: host, Reason: "the only host"},
		Source:    fleet.Source{VMID: 9000, DiskInterface: "scsi0", DiskGiB: 20, Storage: "local"},
		Module:    modules.Hash(),
	}
}

// somewhere is the host of most tests' VMs.
var somewhere = topology.HostID{Region: "region-1", Host: "pve-1"}

// fleetOf returns a fleet of region-1 with the VMs.
func fleetOf(vms ...fleet.VM) fleet.Fleet {
	return fleet.Fleet{
		ClusterID: "prod",
		Backend:   fleet.Backend{Type: "kubernetes", Config: map[string]string{"namespace": "numaform"}},
		Regions:   []fleet.Region{{Name: "region-1", Endpoint: "https://pve-1.example:8006/"}},
		VMs:       vms,
	}
}

// text draws one valid line of text, including characters that are special in HCL.
func text() *rapid.Generator[string] {
	return rapid.StringMatching(`([!-~äß日€${}%"\\#][ -~äß日€${}%"\\#]{0,30}[!-~äß日€${}%"\\#])?`)
}

// fleets draws valid fleets in canonical form.
func fleets() *rapid.Generator[fleet.Fleet] {
	return rapid.Custom(func(t *rapid.T) fleet.Fleet {
		f := fleetOf()
		f.Regions = append(f.Regions, fleet.Region{
			Name: "Region_2", Endpoint: "https://10.0.0.7:8006", Insecure: true,
		})
		for i := range rapid.IntRange(0, 4).Draw(t, "vms") {
			f.VMs = append(f.VMs, drawVM(t, fleet.VMID(2001+i)))
		}
		f.Hosts = rapid.SliceOfN(hosts(), 0, 3).Draw(t, "hosts")
		return canonical(f)
	})
}

func hosts() *rapid.Generator[topology.HostID] {
	return rapid.Custom(func(t *rapid.T) topology.HostID {
		return topology.HostID{
			Region: rapid.SampledFrom([]topology.RegionName{"region-1", "Region_2"}).Draw(t, "region"),
			Host:   rapid.SampledFrom([]topology.HostName{"pve-1", "PVE_1", "9.pve"}).Draw(t, "host"),
		}
	})
}

func drawVM(t *rapid.T, id fleet.VMID) fleet.VM {
	vm := vmAt(hosts().Draw(t, "host"), id)
	vm.Pool = rapid.SampledFrom([]string{"workers", "3d", "a-1"}).Draw(t, "pool")
	vm.Name = fleet.NodeName(vm.Pool, id)
	vm.NodeClass, vm.Template, vm.Reason = text().Draw(t, "class"), text().Draw(t, "template"), text().Draw(t, "reason")
	vm.VCPUs = rapid.IntRange(1, 16).Draw(t, "vcpus")
	vm.MemoryMiB = int64(1024 * vm.VCPUs)
	vm.Overcommit = rapid.Float64Range(0, 100).Draw(t, "overcommit")
	vm.Demand = fleet.Demand{Pods: rapid.IntRange(0, 99).Draw(t, "pods"), CPUMilli: rapid.Int64Range(0, 1<<40).Draw(t, "cpu")}
	vm.Labels = rapid.SampledFrom([]map[string]string{nil, {"for": "", "example.com/tier": "a_b"}, {"x": "1"}}).Draw(t, "labels")
	vm.PinWith = rapid.SampledFrom([]fleet.PinWith{fleet.PinWithAffinity, fleet.PinWithHostAgent}).Draw(t, "pin with")
	vm.Policy = rapid.SampledFrom([]fleet.Policy{
		fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated,
	}).Draw(t, "policy")
	if vm.Policy.Pinned() {
		vm.VCPUPins = rapid.SliceOfNDistinct(rapid.IntRange(0, 255), vm.VCPUs, vm.VCPUs, rapid.ID).Draw(t, "pins")
		vm.CPUs = topology.CPUs(vm.VCPUPins...)
		vm.L3 = rapid.SliceOfN(rapid.IntRange(0, 31), 1, 3).Draw(t, "l3")
	}
	if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithHostAgent {
		vm.Emulator = rapid.SampledFrom([]fleet.Emulator{"", fleet.EmulatorGuest, fleet.EmulatorShared}).Draw(t, "emulator")
	}
	if vm.Policy == fleet.PolicyShared {
		vm.MemoryOvercommit = rapid.SampledFrom([]float64{0, 1.25, fleet.MaxMemoryOvercommit}).Draw(t, "memory overcommit")
	} else {
		vm.Cells = drawCells(t, vm.VCPUs)
		drawHugePages(t, &vm)
	}
	vm.Source.Host = rapid.SampledFrom([]topology.HostName{"", "pve-7"}).Draw(t, "source host")
	vm.Spread = rapid.SampledFrom([]fleet.Spread{"", fleet.SpreadHosts}).Draw(t, "spread")
	vm.WholeCores = vm.Policy == fleet.PolicyDedicated && rapid.Bool().Draw(t, "whole cores")
	vm.Standby = rapid.Bool().Draw(t, "standby")
	vm.Reserve = rapid.Bool().Draw(t, "reserve")
	drawDevices(t, &vm)
	seconds := rapid.IntRange(0, 7200)
	vm.Timeouts = rapid.SampledFrom([]fleet.Timeouts{{}, {Create: 1, Start: seconds.Draw(t, "start"), Delete: seconds.Draw(t, "delete")}}).Draw(t, "timeouts")
	return vm
}

// drawCells distributes the guest's CPUs over cells in random order.
func drawCells(t *rapid.T, vcpus int) []topology.NUMACell {
	count := rapid.IntRange(1, min(vcpus, 8)).Draw(t, "cells")
	members := make([][]int, count)
	for i, id := range rapid.Permutation(topology.CPUs(span(vcpus)...).List()).Draw(t, "guest cpus") {
		members[i%count] = append(members[i%count], id)
	}
	var cells []topology.NUMACell
	for i, ids := range members {
		cells = append(cells, topology.NUMACell{
			GuestCPUs: topology.CPUs(ids...), HostNodes: topology.CPUs(i, i+8), MemoryMiB: int64(1024 * len(ids)),
			Policy: rapid.SampledFrom([]topology.NUMAPolicy{topology.NUMABind, topology.NUMAPreferred}).Draw(t, "numa policy"),
		})
	}
	return cells
}

// drawHugePages sometimes backs a VM with huge pages. Each cell then has one host NUMA node.
func drawHugePages(t *rapid.T, vm *fleet.VM) {
	vm.HugePages = rapid.SampledFrom([]fleet.HugePages{"", fleet.HugePages2Mi, fleet.HugePages1Gi}).Draw(t, "huge pages")
	for i := range vm.Cells {
		if vm.HugePages != "" {
			vm.Cells[i].HostNodes = topology.CPUs(i)
		}
	}
}

func span(count int) []int {
	ids := make([]int, count)
	for i := range ids {
		ids[i] = i
	}
	return ids
}

func drawDevices(t *rapid.T, vm *fleet.VM) {
	for range rapid.IntRange(0, 2).Draw(t, "networks") {
		vm.Networks = append(vm.Networks, fleet.Network{
			Bridge: "vmbr0", Model: rapid.SampledFrom([]string{"", "virtio", "e1000"}).Draw(t, "model"),
			VLAN: rapid.IntRange(0, 4094).Draw(t, "vlan"), MTU: rapid.SampledFrom([]int{0, 1, 9000}).Draw(t, "mtu"), Firewall: true,
			MAC:      rapid.SampledFrom([]string{"", "BC:24:11:00:FF:01"}).Draw(t, "mac"),
			RateMBps: rapid.SampledFrom([]float64{0, 0.001, 12.5, 1000}).Draw(t, "rate"), Queues: rapid.IntRange(0, 64).Draw(t, "queues"),
			Trunks: rapid.SampledFrom([][]int{nil, {1}, {7, 4094}}).Draw(t, "trunks"), Disconnected: rapid.Bool().Draw(t, "disconnected"),
		})
	}
	if rapid.Bool().Draw(t, "hardware") {
		vm.Hardware = &fleet.Hardware{
			Machine: rapid.SampledFrom([]string{"", "pc", "pc-q35-9.2+pve1"}).Draw(t, "machine"),
			Display: rapid.SampledFrom([]string{"", "none", "virtio", "qxl2"}).Draw(t, "display"), DisplayMiB: rapid.SampledFrom([]int{0, 4, 512}).Draw(t, "display memory"),
			NoTablet: rapid.Bool().Draw(t, "tablet"), CPUFlags: rapid.SampledFrom([][]string{nil, {"+aes", "-pcid"}}).Draw(t, "flags"),
			Watchdog: rapid.SampledFrom([]*fleet.Watchdog{nil, {Model: "ib700", Action: "none"}}).Draw(t, "watchdog"),
		}
	}
	if rapid.Bool().Draw(t, "full") {
		vm.Clone, vm.Storage = fleet.CloneFull, "fast"
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "data disks") {
		slot := "scsi" + strconv.Itoa(30-9*i)
		vm.DataDisks = append(vm.DataDisks, fleet.DataDisk{Interface: slot, SizeGiB: rapid.Int64Range(1, 1<<20).Draw(t, "size"), Storage: "fast"})
	}
	for range rapid.IntRange(0, 2).Draw(t, "pci devices") {
		vm.PCIDevices = append(vm.PCIDevices, fleet.PCIDevice{
			Mapping: rapid.SampledFrom([]string{"gpu", "for"}).Draw(t, "mapping"), MDev: rapid.SampledFrom([]string{"", "nvidia-63"}).Draw(t, "mdev"),
			PCIe: rapid.Bool().Draw(t, "pcie"), XVGA: rapid.Bool().Draw(t, "xvga"),
		})
	}
	vm.DiskGiB = rapid.Int64Range(0, 40).Draw(t, "disk")
	if rapid.Bool().Draw(t, "extras") {
		seeded(vm)
		vm.TemplateVMID = vm.Source.VMID
		vm.Tags, vm.SecurityGroups, vm.ResourcePool = []string{"z", "a"}, []string{"k8s"}, "k8s/prod"
		vm.Source.Options = map[string]string{"ostype": "l26", "serial0": "socket", "vga": "serial0,memory=4", "agent": "1", "scsi0": "discard=on,iothread=0,ssd=1", "smbios1": text().Draw(t, "option")}
	}
}
