package generator_test

import (
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// large returns a fleet of 1,000 pinned VMs.
func large() fleet.Fleet {
	f := fleetOf()
	for i := range 1000 {
		vm := vmAt(somewhere, fleet.VMID(2001+i))
		vm.Policy, vm.PinWith, vm.VCPUPins = fleet.PolicyDedicated, fleet.PinWithHostAgent, []int{0, 1, 2, 3}
		vm.CPUs = topology.CPUs(vm.VCPUPins...)
		vm.Cells = []topology.NUMACell{{
			GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(0), MemoryMiB: vm.MemoryMiB, Policy: topology.NUMABind,
		}}
		vm.Source.Options = map[string]string{"agent": "1", "boot": "order=scsi0", "ostype": "l26", "scsihw": "virtio-scsi-single", "serial0": "socket"}
		f.VMs = append(f.VMs, vm)
	}
	return f
}

func BenchmarkRender(b *testing.B) {
	f := large()
	for b.Loop() {
		if _, err := generator.Render(f); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	files, err := generator.Render(large())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := generator.Parse(files); err != nil {
			b.Fatal(err)
		}
	}
}
