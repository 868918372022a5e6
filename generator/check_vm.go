package generator

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// The values that Proxmox and the provider accept.
const (
	maxCells     = 8
	maxNetworks  = 32
	minMemoryMiB = 64
	maxVLAN      = 4094
	maxMTU       = 65520
	minMTU       = 576
)

// vmChecker checks one VM, field by field.
type vmChecker struct{ vm *fleet.VM }

func checkVM(vm *fleet.VM) error {
	c := vmChecker{vm}
	return inVM(vm, first(
		c.identity(), c.class(), c.sizes(), c.machine(), c.disks(), c.networks(),
		c.devices(), c.lists(), c.place(), c.cells(), c.source(),
	))
}

// refusef returns an error about a value that is not text.
func refusef(field, format string, args ...any) error {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// oneOf checks that the value is one of accepted. The empty value is valid only if
// accepted lists it.
func oneOf(name, value string, accepted ...string) error {
	if slices.Contains(accepted, value) {
		return nil
	}
	return refuse(name, value, fmt.Sprintf("want one of %q", accepted))
}

func (c vmChecker) identity() error {
	vm := c.vm
	if err := fleet.CheckPool(vm.Pool); err != nil {
		return &FieldError{Field: "pool", Problem: err.Error()}
	}
	if vm.VMID < fleet.MinVMID || vm.VMID > fleet.MaxVMID {
		return refusef("vmid", "%d is not from %d to %d: mend vmid_range in numaform.yaml", vm.VMID, fleet.MinVMID, fleet.MaxVMID)
	}
	if want := fleet.NodeName(vm.Pool, vm.VMID); vm.Name != want {
		return refuse("name", vm.Name, fmt.Sprintf("want %s, the pool's name and the VMID", want))
	}
	if vm.Module != "" && !moduleHash.MatchString(vm.Module) {
		return refuse("module", vm.Module, "want the 16 hex digits that name a module's content")
	}
	return checkMatch("key", string(vm.Key), keyName, "want the 32 hex digits of a reservation")
}

func (c vmChecker) class() error {
	vm := c.vm
	texts := []struct{ name, value string }{
		{"node_class", vm.NodeClass},
		{"instance_type", vm.InstanceType},
		{"capacity_type", vm.CapacityType},
		{"template", vm.Template},
		{"reason", vm.Reason},
	}
	for _, text := range texts {
		if err := checkText(text.name, text.value); err != nil {
			return err
		}
	}
	if vm.InstanceType == "" {
		return refuse("instance_type", "", "the guest reads it as its product name; name the type")
	}
	return first(
		oneOf("policy", string(vm.Policy), string(fleet.PolicyShared), string(fleet.PolicyNUMA),
			string(fleet.PolicyDedicated), string(fleet.PolicyIsolated)),
		oneOf("pin_with", string(vm.PinWith), "", string(fleet.PinWithAffinity), string(fleet.PinWithHostAgent)),
		oneOf("huge_pages", string(vm.HugePages), "", string(fleet.HugePages2Mi), string(fleet.HugePages1Gi)),
		oneOf("spread", string(vm.Spread), "", string(fleet.SpreadHosts)),
		checkEmulator(vm),
		oneOf("clone", string(vm.Clone), string(fleet.CloneLinked), string(fleet.CloneFull)),
		checkLabels(vm),
	)
}

func (c vmChecker) sizes() error {
	vm := c.vm
	switch {
	case vm.VCPUs < 1:
		return refusef("vcpus", "%d: want at least 1", vm.VCPUs)
	case vm.MemoryMiB < minMemoryMiB || vm.MemoryMiB > math.MaxInt32:
		return refusef("memory_mib", "%d: want from %d to %d", vm.MemoryMiB, minMemoryMiB, math.MaxInt32)
	case !(vm.Overcommit >= 0 && vm.Overcommit <= math.MaxFloat64):
		return refusef("overcommit", "%v: want a ratio of at least 0", vm.Overcommit)
	case vm.DiskGiB < 0 || vm.DiskGiB > math.MaxInt32:
		return refusef("disk_gib", "%d: want from 0 to %d", vm.DiskGiB, math.MaxInt32)
	case min(int64(vm.Demand.Pods), vm.Demand.CPUMilli, vm.Demand.MemoryMiB) < 0:
		return refusef("demand", "%+v: want amounts of at least 0", vm.Demand)
	case min(vm.Timeouts.Create, vm.Timeouts.Start, vm.Timeouts.Delete) < 0,
		max(vm.Timeouts.Create, vm.Timeouts.Start, vm.Timeouts.Delete) > math.MaxInt32:
		return refusef("timeouts", "%+v: want seconds from 0 to %d", vm.Timeouts, math.MaxInt32)
	case len(vm.Hosts) > 0:
		return refusef("hosts", "%v: a placed VM has one host; clear the candidates", vm.Hosts)
	}
	return nil
}

func (c vmChecker) machine() error {
	vm := c.vm
	if vm.Clone == fleet.CloneLinked && vm.Storage != "" && vm.Storage != vm.Source.Storage {
		return refuse("storage", vm.Storage, fmt.Sprintf("a linked clone stays on its template's storage %q: "+
			"remove storage from the ProxmoxNodeClass, or ask for full clones", vm.Source.Storage))
	}
	if vm.Storage != "" {
		if err := checkMatch("storage", vm.Storage, storage, "want the name of a Proxmox storage"); err != nil {
			return err
		}
	}
	return checkMatch("cpu_type", vm.CPUType, cpuType, "want a CPU type of Proxmox, such as host or x86-64-v2-AES")
}

func (c vmChecker) networks() error {
	if len(c.vm.Networks) > maxNetworks {
		return refusef("networks", "%d of them: Proxmox knows at most %d", len(c.vm.Networks), maxNetworks)
	}
	for i, network := range c.vm.Networks {
		name := fmt.Sprintf("networks[%d].", i)
		err := first(
			checkMatch(name+"bridge", network.Bridge, bridge, "want the name of a bridge or vnet"),
			oneOf(name+"model", network.Model, "", "virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"),
			checkMatch(name+"mac", network.MAC, mac, "want the address of one device, as in BC:24:11:00:00:01, or none"),
		)
		switch {
		case err != nil:
			return err
		case network.VLAN < 0 || network.VLAN > maxVLAN:
			return refusef(name+"vlan", "%d: want from 1 to %d, or 0 for none", network.VLAN, maxVLAN)
		case network.MTU != 0 && network.MTU != 1 && (network.MTU < minMTU || network.MTU > maxMTU):
			return refusef(name+"mtu", "%d: want from %d to %d, 1 for the bridge's, or 0 for the default",
				network.MTU, minMTU, maxMTU)
		}
	}
	return nil
}

func (c vmChecker) lists() error {
	vm := c.vm
	for i, value := range vm.Tags {
		if err := checkMatch(fmt.Sprintf("tags[%d]", i), value, tag,
			"want lower case letters, digits, '_', '+', '.' and '-': Proxmox changes others"); err != nil {
			return err
		}
	}
	for i, value := range vm.SecurityGroups {
		if err := checkMatch(fmt.Sprintf("security_groups[%d]", i), value, group,
			"want 2 to 18 letters, digits, '_' and '-', a letter first"); err != nil {
			return err
		}
	}
	if len(vm.SecurityGroups) > 0 && len(vm.Networks) > 0 &&
		!slices.ContainsFunc(vm.Networks, func(n fleet.Network) bool { return n.Firewall }) {
		return refusef("security_groups", "no network has firewall: true, so they would do nothing: "+
			"turn it on for one in the ProxmoxNodeClass")
	}
	if vm.ResourcePool == "" {
		return nil
	}
	return checkMatch("resource_pool", vm.ResourcePool, pool, "want a pool's name, at most three joined by '/'")
}

// checkEmulator checks the emulator setting, which requires pinning by the host agent.
func checkEmulator(vm *fleet.VM) error {
	if vm.Emulator != "" && (!vm.Policy.Pinned() || vm.PinWith != fleet.PinWithHostAgent) {
		return refuse("emulator", string(vm.Emulator), "only VMs that the host agent pins have it")
	}
	return oneOf("emulator", string(vm.Emulator), "", string(fleet.EmulatorGuest), string(fleet.EmulatorShared))
}

// place checks the pins. The planner decides whether the host has these CPUs to give, and
// internal/startcheck checks it again.
func (c vmChecker) place() error {
	vm := c.vm
	if slices.ContainsFunc(vm.L3, func(id int) bool { return id < 0 }) {
		return refusef("l3", "%v: leave out caches that are not known", vm.L3)
	}
	if !vm.Policy.Pinned() {
		if !vm.CPUs.IsEmpty() || len(vm.VCPUPins) > 0 {
			return refusef("cpus", "%s: policy %s pins nothing; use Dedicated or Isolated", vm.CPUs, vm.Policy)
		}
		return nil
	}
	if vm.PinWith == "" {
		return refuse("pin_with", "", "a pinned VM needs Affinity or HostAgent")
	}
	if len(vm.VCPUPins) != vm.VCPUs || vm.CPUs.Size() != vm.VCPUs || !topology.CPUs(vm.VCPUPins...).Equal(vm.CPUs) {
		return refusef("vcpu_pins", "%v: want each of the %d CPUs %s once, one for each vCPU", vm.VCPUPins, vm.VCPUs, vm.CPUs)
	}
	if vm.VCPUPins[0] < 0 || slices.Min(vm.VCPUPins) < 0 {
		return refusef("vcpu_pins", "%v: CPUs are numbered from 0", vm.VCPUPins)
	}
	return nil
}

// cells makes the checks that Proxmox and QEMU make when the VM starts.
func (c vmChecker) cells() error {
	vm := c.vm
	switch {
	case len(vm.Cells) == 0 && vm.HugePages != "":
		return refusef("cells", "there are none: huge pages are of one NUMA node each; use the policy NUMA, Dedicated or Isolated")
	case len(vm.Cells) == 0:
		return nil
	case len(vm.Cells) > maxCells:
		return refusef("cells", "%d of them: Proxmox knows at most %d", len(vm.Cells), maxCells)
	}
	var memory int64
	var guestCPUs []int
	for i, cell := range vm.Cells {
		name := fmt.Sprintf("cells[%d].", i)
		if err := first(checkCell(name, cell), checkPages(name, cell, vm.HugePages)); err != nil {
			return err
		}
		memory += cell.MemoryMiB
		guestCPUs = append(guestCPUs, cell.GuestCPUs.List()...)
	}
	slices.Sort(guestCPUs)
	if !slices.Equal(guestCPUs, upTo(vm.VCPUs)) {
		return refusef("cells", "have guest CPUs %v: want each from 0 to %d once", guestCPUs, vm.VCPUs-1)
	}
	if memory != vm.MemoryMiB {
		return refusef("cells", "have %d MiB together: want the VM's %d, or Proxmox does not start it", memory, vm.MemoryMiB)
	}
	return nil
}

// checkSeed accepts only the volume that is named after this VM: the named volume is
// overwritten and deleted later.
func checkSeed(clusterID string, vm *fleet.VM) error {
	if vm.SeedStorage == "" && vm.Seed == "" {
		return nil
	}
	if vm.SeedStorage != fleet.AnySeedStorage {
		if err := checkMatch("seed_storage", vm.SeedStorage, storage, "want the name of a Proxmox storage, or "+fleet.AnySeedStorage); err != nil {
			return inVM(vm, err)
		}
	}
	seed, ok := fleet.ParseSeed(vm.Seed)
	switch {
	case !ok || !seed.Of(vm.VMID, vm.Key) || seed.ClusterID != clusterID:
		return inVM(vm, refuse("seed", vm.Seed, fmt.Sprintf("want %s, named after cluster, VMID and key",
			fleet.SeedVolume(cmp.Or(seed.Storage, "STORAGE"), clusterID, vm.VMID, vm.Key))))
	case vm.SeedStorage != fleet.AnySeedStorage && vm.SeedStorage != seed.Storage:
		return inVM(vm, refuse("seed", vm.Seed, fmt.Sprintf("want it on the seed storage %s", vm.SeedStorage)))
	}
	return nil
}

func checkCell(name string, cell topology.NUMACell) error {
	if cell.GuestCPUs.IsEmpty() || cell.HostNodes.IsEmpty() || cell.HostNodes.List()[0] < 0 || cell.MemoryMiB < 1 {
		return refusef(name+"host_nodes", "%s for guest CPUs %s with %d MiB: want all three",
			cell.HostNodes, cell.GuestCPUs, cell.MemoryMiB)
	}
	return oneOf(name+"policy", string(cell.Policy), string(topology.NUMABind),
		string(topology.NUMAPreferred), string(topology.NUMAInterleave))
}

// upTo returns 0..n-1.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// checkPages checks Proxmox' requirements for cells backed by huge pages.
func checkPages(name string, cell topology.NUMACell, pages fleet.HugePages) error {
	switch size := pages.MiB(); {
	case size == 0:
		return nil
	case cell.HostNodes.Size() != 1:
		return refusef(name+"host_nodes", "%s: huge pages are of one NUMA node for each cell", cell.HostNodes)
	case cell.MemoryMiB%size != 0:
		return refusef(name+"memory_mib", "%d is no multiple of %d, the size of its huge pages", cell.MemoryMiB, size)
	}
	return nil
}

func (c vmChecker) source() error {
	source := c.vm.Source
	if source.VMID < fleet.MinVMID || source.VMID > fleet.MaxVMID || source.VMID == c.vm.VMID {
		return refusef("source.vmid", "%d: want the VMID of template %s on host %s", source.VMID, c.vm.Template, c.vm.Host)
	}
	if template := c.vm.TemplateVMID; template < 0 || template > fleet.MaxVMID {
		return refusef("template_vmid", "%d: want the VMID of a template, or 0 for any of the name", template)
	}
	if source.DiskGiB < 0 || source.DiskGiB > math.MaxInt32 {
		return refusef("source.disk_gib", "%d: want at least 0", source.DiskGiB)
	}
	if err := first(checkText("source.storage", source.Storage),
		checkText("source.disk_interface", source.DiskInterface)); err != nil {
		return err
	}
	if grows(c.vm) {
		if err := first(
			checkMatch("source.storage", source.Storage, storage, "the disk must grow; say where it is"),
			checkMatch("source.disk_interface", source.DiskInterface, diskInterface, "the disk must grow; want one such as scsi0"),
		); err != nil {
			return err
		}
	}
	_, err := readHardware(c.vm)
	return err
}
