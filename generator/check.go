package generator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// FieldError reports an invalid value of a fleet.
type FieldError struct {
	// VM is the name of the VM that the value belongs to, or empty.
	VM string
	// Field is the path of the value, such as "tags[1]".
	Field string
	// Value is the invalid value, or empty if the message must not contain it.
	Value string
	// Problem describes the fault and its fix.
	Problem string
}

// Error returns the field, its value and the problem in one line.
func (e *FieldError) Error() string {
	field := e.Field
	if e.VM != "" {
		field = "vm " + e.VM + ": " + field
	}
	if e.Value == "" {
		return field + ": " + e.Problem
	}
	return fmt.Sprintf("%s %q: %s", field, e.Value, e.Problem)
}

// The patterns of names in paths, HCL, Proxmox and Kubernetes.
var (
	placeName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	keyName       = regexp.MustCompile(`^[0-9a-f]{32}$`)
	moduleHash    = regexp.MustCompile(`^[0-9a-f]{16}$`)
	cpuType       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	storage       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*$`)
	diskInterface = regexp.MustCompile(`^(scsi|virtio|sata|ide)[0-9]+$`)
	bridge        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	mac           = regexp.MustCompile(`^([0-9A-F][02468ACE](:[0-9A-F]{2}){5})?$`)
	tag           = regexp.MustCompile(`^[a-z0-9_][a-z0-9_+.-]*$`)
	pool          = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,2}$`)
	group         = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{1,17}(@net(0|[1-9][0-9]?))?$`)
	mappingName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]+$`)
	mdevType      = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]*)?$`)
	searchDomain  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$`)
	addressPool   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	optionName    = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	machineType   = regexp.MustCompile(`^(pc|q35|pc-(i440fx|q35)-[0-9]+(\.[0-9]+)+(\+pve[0-9]+)?)?$`)
	cpuFlag       = regexp.MustCompile(`^[+-][a-z0-9][a-z0-9_.-]*$`)
	labelKey      = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValue    = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
)

// The limits of Proxmox and the provider.
const (
	maxCells      = 8
	maxNetworks   = 32
	maxPCIDevices = 16 // hostpci0 to hostpci15
	minMemoryMiB  = 64
	maxVLAN       = 4094
	maxMTU        = 65520
	minMTU        = 576
	maxQueues     = 64
	maxRateMBps   = 10_000_000
	minDisplayMiB = 4
	maxDisplayMiB = 512
)

// displays are the display types that Proxmox and the provider accept.
var displays = []string{
	"cirrus", "none", "qxl", "qxl2", "qxl3", "qxl4", "serial0", "serial1", "serial2", "serial3", "std", "virtio", "virtio-gl", "vmware",
}

// maxText limits free text, because Proxmox limits a VM's description to 8 KiB.
const maxText = 1024

// checker records the first error of a list of checks. After an error its methods do
// nothing, but Go still evaluates their arguments.
type checker struct{ err error }

// require records an error unless ok. The formatted problem contains the value.
func (c *checker) require(ok bool, field, format string, args ...any) {
	if c.err == nil && !ok {
		c.err = &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
	}
}

// valid records an error about a text value unless ok.
func (c *checker) valid(ok bool, field, value, problem string) {
	if c.err != nil || ok {
		return
	}
	if value == "" {
		problem = "is empty: " + problem
	}
	c.err = &FieldError{Field: field, Value: value, Problem: problem}
}

func (c *checker) match(field, value string, pattern *regexp.Regexp, problem string) {
	c.valid(pattern.MatchString(value), field, value, problem)
}

// oneOf requires one of accepted. The empty value is valid only if accepted lists it.
func (c *checker) oneOf(field, value string, accepted ...string) {
	if !slices.Contains(accepted, value) {
		c.valid(false, field, value, fmt.Sprintf("must be one of %q", accepted))
	}
}

// size requires a size of at least low that fits the provider's numbers.
func (c *checker) size(field string, value, low int64) {
	c.require(low <= value && value <= math.MaxInt32, field, "%d: must be from %d to %d", value, low, math.MaxInt32)
}

// text accepts one line of text that survives a round trip through HCL unchanged.
func (c *checker) text(field, value string) {
	// Such characters break a comment line or are invisible in a diff.
	unprintable := func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
	}
	c.valid(utf8.ValidString(value), field, value, "is not valid UTF-8: write plain text")
	c.valid(norm.NFC.IsNormalString(value), field, value, "is not in Unicode Normalization Form C, and HCL would change it: write it in that form")
	c.valid(strings.IndexFunc(value, unprintable) < 0, field, value, "has a line break or another control character: write one line of plain text")
	c.require(len(value) <= maxText, field, "has %d bytes: must have at most %d", len(value), maxText)
	c.valid(strings.TrimSpace(value) == value, field, value, "begins or ends with a space, which Proxmox would remove: remove it")
}

// checkFleet checks all values of a fleet, and that names, keys and VMIDs are unique. It omits
// the values of the VMs with a known file, which Parse has accepted.
func checkFleet(f *fleet.Fleet, known [][]byte) error {
	if err := fleet.CheckClusterID(f.ClusterID); err != nil {
		return err
	}
	c := &checker{}
	c.backend(f.Backend)

	const placeProblem = "is the name of a directory: must have at most 63 letters, digits, '.', '_' and '-', " +
		"beginning and ending with a letter or digit"
	regions := map[topology.RegionName]bool{}
	for _, region := range f.Regions {
		name := string(region.Name)
		c.valid(name != modulesDir && !strings.Contains(name, ".."), "region", name,
			"must not be modules or contain \"..\", because it is the name of a directory: rename the region")
		c.match("region", name, placeName, placeProblem)
		c.endpoint("region "+name+": endpoint", region.Endpoint)
		c.valid(!regions[region.Name], "region", name, "is a duplicate: give each Proxmox cluster a unique name")
		regions[region.Name] = true
	}

	for _, host := range f.Hosts {
		name := string(host.Host)
		c.valid(regions[host.Region], "host "+host.String(), string(host.Region), "is not a region of the fleet: add it to clusters in numaform.yaml")
		c.valid(name != templatesDir && !strings.Contains(name, ".."), "host", name,
			"must not be templates or contain \"..\", because it is the name of a directory: rename the host")
		c.match("host", name, placeName, placeProblem)
	}

	owners := map[string]string{}
	for i := range f.VMs {
		if c.err != nil {
			return c.err
		}
		vm := &f.VMs[i]
		if known[i] == nil {
			c.vm(f.ClusterID, vm)
		}
		unique := func(field, scope, value, fix string) {
			id := field + " " + scope + value
			c.valid(owners[id] == "", field, scope+value, fmt.Sprintf("is also used by VM %s: %s", owners[id], fix))
			owners[id] = vm.Name
		}
		const otherVMID = "give one of the VMs another VMID, and each region a vmid_range that does not overlap others"
		unique("name", "", vm.Name, otherVMID)
		unique("key", "", string(vm.Key), "give each VM its own key")
		unique("vmid", string(vm.Host.Region)+"/", fmt.Sprint(vm.VMID), otherVMID)
		for _, ip := range vm.Addresses() {
			unique("address", "", ip.String(), "two nodes with one address lose their connections: restore the file of one of the VMs, or replace its node")
		}

		var field *FieldError
		if errors.As(c.err, &field) {
			field.VM = vm.Name
		}
	}
	return c.err
}

// endpoint accepts a URL in the provider's form, or "" if the engine's environment contains
// one of several endpoints. Its error does not contain a URL with a password.
func (c *checker) endpoint(field, value string) {
	if value == "" {
		return
	}
	c.require(!hasUserinfo(value), field, "contains a user or password: "+
		"remove them and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD")
	parsed, err := url.Parse(value)
	c.valid(err == nil && parsed.Scheme == "https" && parsed.Host != "" &&
		strings.Trim(parsed.Path, "/") == "" && parsed.RawQuery == "" && parsed.Fragment == "",
		field, value, "must have the form https://host:port/ without a path, such as https://pve-1.example:8006/")
	c.text(field, value)
}

// vm checks one VM, field by field.
func (c *checker) vm(clusterID string, vm *fleet.VM) {
	if err := fleet.CheckPool(vm.Pool); err != nil {
		c.require(false, "pool", "%v", err)
	}
	c.require(fleet.MinVMID <= vm.VMID && vm.VMID <= fleet.MaxVMID, "vmid",
		"%d is out of range: must be from %d to %d; correct vmid_range in numaform.yaml", vm.VMID, fleet.MinVMID, fleet.MaxVMID)
	if vm.VMIDs != (fleet.VMIDRange{}) {
		if err := vm.VMIDs.Check(); err != nil {
			c.require(false, "vmids", "%v", err)
		}
		c.require(vm.VMIDs.Contains(vm.VMID), "vmid", "%d is not in vmids %d to %d, the range of its class: "+
			"restore the file, or replace the node", vm.VMID, vm.VMIDs.Lower, vm.VMIDs.Upper)
	}
	if vm.Adopted() {
		c.adopted(vm)
	} else {
		name := fleet.NodeName(vm.Pool, vm.VMID)
		c.valid(vm.Name == name, "name", vm.Name, fmt.Sprintf("must be %s, the pool's name and the VMID", name))
	}
	if vm.Module != "" {
		c.match("module", vm.Module, moduleHash, "must be the 16 hex digits of a module hash")
	}
	c.match("key", string(vm.Key), keyName, "must be 32 hex digits")

	c.text("node_class", vm.NodeClass)
	c.text("instance_type", vm.InstanceType)
	c.text("capacity_type", vm.CapacityType)
	c.text("template", vm.Template)
	c.text("reason", vm.Reason)
	c.valid(vm.InstanceType != "", "instance_type", "", "the guest reads it as its product name: set it to the instance type")
	c.oneOf("policy", string(vm.Policy), string(fleet.PolicyShared), string(fleet.PolicyNUMA),
		string(fleet.PolicyDedicated), string(fleet.PolicyIsolated))
	c.oneOf("pin_with", string(vm.PinWith), "", string(fleet.PinWithAffinity), string(fleet.PinWithHostAgent))
	c.oneOf("huge_pages", string(vm.HugePages), "", string(fleet.HugePages2Mi), string(fleet.HugePages1Gi))
	c.oneOf("spread", string(vm.Spread), "", string(fleet.SpreadHosts))
	c.valid(vm.Emulator == "" || vm.Policy.Pinned() && vm.PinWith == fleet.PinWithHostAgent,
		"emulator", string(vm.Emulator), "must be empty, because the host agent does not pin the VM")
	c.oneOf("emulator", string(vm.Emulator), "", string(fleet.EmulatorGuest), string(fleet.EmulatorShared))
	c.oneOf("clone", string(vm.Clone), string(fleet.CloneLinked), string(fleet.CloneFull))
	for _, key := range slices.Sorted(maps.Keys(vm.Labels)) {
		value := vm.Labels[key]
		c.valid(labelKey.MatchString(key) && labelValue.MatchString(value), "labels", key+"="+value, "must be a Kubernetes label: "+
			"a key such as example.com/tier, and a value of at most 63 characters A-Z, a-z, 0-9, -, _ and ., which begins and ends with a letter or digit")
	}

	c.require(vm.VCPUs >= 1, "vcpus", "%d: must be at least 1", vm.VCPUs)
	c.size("memory_mib", vm.MemoryMiB, minMemoryMiB)
	c.require(vm.Overcommit >= 0 && vm.Overcommit <= math.MaxFloat64, "overcommit", "%v: must be a ratio of at least 0", vm.Overcommit)
	c.require(vm.MemoryOvercommit == 0 || vm.MemoryOvercommit >= 1 && vm.MemoryOvercommit <= fleet.MaxMemoryOvercommit && vm.Policy == fleet.PolicyShared && vm.HugePages == "",
		"memory_overcommit", "%v: must be a ratio from 1 to %v, and only of a VM with policy Shared", vm.MemoryOvercommit, fleet.MaxMemoryOvercommit)
	c.size("disk_gib", vm.DiskGiB, 0)
	c.require(min(int64(vm.Demand.Pods), vm.Demand.CPUMilli, vm.Demand.MemoryMiB) >= 0, "demand", "%+v: must not be negative", vm.Demand)
	t := vm.Timeouts
	c.require(min(t.Create, t.Start, t.Delete) >= 0 && max(t.Create, t.Start, t.Delete) <= math.MaxInt32,
		"timeouts", "%+v: must be seconds from 0 to %d", t, math.MaxInt32)
	c.require(len(vm.Hosts) == 0, "hosts", "%v: must be empty, because a placed VM has one host", vm.Hosts)
	c.match("cpu_type", vm.CPUType, cpuType, "must be a Proxmox CPU type, such as host or x86-64-v2-AES")

	c.disks(vm)
	c.devices(vm)
	c.placement(vm)
	c.seed(clusterID, vm)
}

// adopted checks what an adopted VM has and lacks: its file describes the VM as it was, and
// has no argument that could change more than its description and tags.
func (c *checker) adopted(vm *fleet.VM) {
	c.valid(fleet.AdoptableName(vm.Name), "name", vm.Name, "must have at most 63 characters a-z, 0-9 and -, and begin and end with a letter or digit")
	rest := fleet.VM{
		Spec: fleet.Spec{
			Template: vm.Template, TemplateVMID: vm.TemplateVMID, DiskGiB: vm.DiskGiB, Storage: vm.Storage, DataDisks: vm.DataDisks,
			SeedStorage: vm.SeedStorage, Networks: vm.Networks, PCIDevices: vm.PCIDevices, ResourcePool: vm.ResourcePool,
			SecurityGroups: vm.SecurityGroups, HugePages: vm.HugePages, Hardware: vm.Hardware,
		},
		Source: vm.Source, Seed: vm.Seed, Standby: vm.Standby, Reserve: vm.Reserve,
	}
	c.require(reflect.DeepEqual(rest, fleet.VM{}), "adopted",
		"the file of an adopted VM must not set templates, disks, seeds, hardware, networks, devices, pools, groups, huge pages or standby: numaform does not change them")
	c.valid(vm.PinWith != fleet.PinWithHostAgent, "pin_with", string(vm.PinWith), "must not be HostAgent, because an adopted VM keeps its affinity")
}

// disks checks the template, its boot disk and the data disks.
func (c *checker) disks(vm *fleet.VM) {
	const mustBeStorage = "must be the name of a Proxmox storage"
	c.valid(vm.Clone != fleet.CloneLinked || vm.Storage == "" || vm.Storage == vm.Source.Storage, "storage", vm.Storage,
		fmt.Sprintf("a linked clone must stay on its template's storage %q: "+
			"remove bootDevice.storage from the ProxmoxNodeClass, or set clone: full", vm.Source.Storage))
	if vm.Storage != "" {
		c.match("storage", vm.Storage, storage, mustBeStorage)
	}

	free := fleet.FreeSlots([]string{vm.Source.DiskInterface}, math.MaxInt)
	for i, d := range vm.DataDisks {
		field := fmt.Sprintf("data_disks[%d].", i)
		slot := slices.Index(free, d.Interface)
		c.valid(slot >= 0, field+"interface", d.Interface, "must be an unused SCSI slot, such as scsi1")
		c.size(field+"size_gib", d.SizeGiB, 1)
		c.match(field+"storage", d.Storage, storage, mustBeStorage)
		if slot >= 0 {
			free = slices.Delete(free, slot, slot+1)
		}
	}

	source := vm.Source
	c.require(vm.Adopted() || fleet.MinVMID <= source.VMID && source.VMID <= fleet.MaxVMID && source.VMID != vm.VMID, "source.vmid",
		"%d: must be the VMID of template %s on host %s", source.VMID, vm.Template, vm.Host)
	if source.Host != "" {
		c.match("source.host", string(source.Host), placeName, "must be the name of the host with the template")
		c.require(source.Host != vm.Host.Host, "source.host", "%s: must be empty for a template on the VM's host", source.Host)
	}
	c.require(0 <= vm.TemplateVMID && vm.TemplateVMID <= fleet.MaxVMID, "template_vmid",
		"%d: must be the VMID of a template, or 0 if the template name is unique", vm.TemplateVMID)
	c.size("source.disk_gib", source.DiskGiB, 0)
	c.text("source.storage", source.Storage)
	c.text("source.disk_interface", source.DiskInterface)
	if grows(vm) {
		c.match("source.storage", source.Storage, storage, "must be the storage of the boot disk, which grows")
		c.match("source.disk_interface", source.DiskInterface, diskInterface, "must be the slot of the boot disk, which grows, such as scsi0")
	}
	if _, err := hardwareOf(vm); c.err == nil {
		c.err = err
	}
}

// devices checks networks, PCI devices, tags, security groups and the resource pool.
func (c *checker) devices(vm *fleet.VM) {
	c.require(len(vm.Networks) <= maxNetworks, "networks", "has %d entries: Proxmox supports at most %d", len(vm.Networks), maxNetworks)
	firewall := len(vm.Networks) == 0
	var filtered []string // the devices with firewall
	for i, n := range vm.Networks {
		field := fmt.Sprintf("networks[%d].", i)
		c.match(field+"bridge", n.Bridge, bridge, "must be the name of a bridge or vnet")
		c.oneOf(field+"model", n.Model, "", "virtio", "e1000", "e1000e", "rtl8139", "vmxnet3")
		c.match(field+"mac", n.MAC, mac, "must be a unicast address such as BC:24:11:00:00:01, or empty")
		c.require(0 <= n.VLAN && n.VLAN <= maxVLAN, field+"vlan", "%d: must be from 1 to %d, or 0 for none", n.VLAN, maxVLAN)
		c.require(n.MTU == 0 || n.MTU == 1 || minMTU <= n.MTU && n.MTU <= maxMTU, field+"mtu",
			"%d: must be from %d to %d, 1 for the bridge's MTU, or 0 for the default", n.MTU, minMTU, maxMTU)
		c.require(0 <= n.Queues && n.Queues <= maxQueues, field+"queues", "%d: must be from 1 to %d, or 0 for one per vCPU", n.Queues, maxQueues)
		c.require(n.RateMBps >= 0 && n.RateMBps <= maxRateMBps, field+"rate_mbps", "%v: must be megabytes per second, or 0 for no limit", n.RateMBps)
		for _, vlan := range n.Trunks {
			c.require(1 <= vlan && vlan <= maxVLAN, field+"trunks", "%d: must be from 1 to %d", vlan, maxVLAN)
		}
		if n.Firewall {
			firewall = true
			filtered = append(filtered, fmt.Sprintf("net%d", i))
		}
		for j := range n.Addresses {
			c.address(fmt.Sprintf("%saddresses[%d].", field, j), &n.Addresses[j])
		}
	}

	c.require(len(vm.PCIDevices) <= maxPCIDevices, "pci_devices", "has %d entries: Proxmox supports at most %d", len(vm.PCIDevices), maxPCIDevices)
	for i, device := range vm.PCIDevices {
		field := fmt.Sprintf("pci_devices[%d].", i)
		c.match(field+"mapping", device.Mapping, mappingName, "must be the name of a resource mapping")
		c.match(field+"mdev", device.MDev, mdevType, "must be a type of mediated device, such as nvidia-63")
	}

	for i, value := range vm.Tags {
		c.match(fmt.Sprintf("tags[%d]", i), value, tag,
			"must have lower case letters, digits, '_', '+', '.' and '-' only: Proxmox changes other characters")
	}
	for i, value := range vm.SecurityGroups {
		field := fmt.Sprintf("security_groups[%d]", i)
		c.match(field, value, group, "must have 2 to 18 letters, digits, '_' and '-', and begin with a letter; "+
			"a group of one network device ends with the device, such as @net0")
		if _, device, single := strings.Cut(value, "@"); single {
			c.valid(slices.Contains(filtered, device), field, value, fmt.Sprintf("there is no network device %s with firewall: true: "+
				"enable it for the network in the ProxmoxNodeClass", device))
		}
	}
	c.require(len(vm.SecurityGroups) == 0 || firewall, "security_groups",
		"no network has firewall: true, so they have no effect: enable it for a network in the ProxmoxNodeClass")
	if vm.ResourcePool != "" {
		c.match("resource_pool", vm.ResourcePool, pool, "must be the name of a pool, with at most three levels separated by '/'")
	}
}

// address checks one static address. A guest with a wrong one would join nowhere.
func (c *checker) address(field string, a *fleet.Address) {
	prefix, err := netip.ParsePrefix(a.CIDR)
	c.valid(err == nil && prefix.String() == a.CIDR && prefix.Addr().Zone() == "", field+"address", a.CIDR, "must be an address with its prefix length, such as 192.168.1.7/24")
	c.match(field+"pool", a.Pool, addressPool, "must be the name of an address pool")
	for _, text := range append([]string{a.Gateway}, a.DNSServers...) {
		ip, err := netip.ParseAddr(text)
		c.valid(text == "" || err == nil && ip.String() == text && ip.Zone() == "", field+"gateway and dns_servers", text, "must be an IP address")
	}
	for _, domain := range a.SearchDomains {
		c.match(field+"search_domains", domain, searchDomain, "must be a domain such as lab.example")
	}
}

// placement checks pins and cells as Proxmox and QEMU do when the VM starts. It does not
// check whether the host has these CPUs: the planner does, and test/startcheck checks that.
func (c *checker) placement(vm *fleet.VM) {
	unknown := func(id int) bool { return id < 0 }
	c.require(!slices.ContainsFunc(vm.L3, unknown), "l3", "%v: must contain known caches only", vm.L3)
	if vm.Policy.Pinned() {
		c.valid(vm.PinWith != "", "pin_with", "", "a pinned VM requires Affinity or HostAgent")
		c.require(len(vm.VCPUPins) == vm.VCPUs && vm.CPUs.Size() == vm.VCPUs && topology.CPUs(vm.VCPUPins...).Equal(vm.CPUs), "vcpu_pins",
			"%v: must contain each of the %d CPUs %s once, one for each vCPU", vm.VCPUPins, vm.VCPUs, vm.CPUs)
		c.require(!slices.ContainsFunc(vm.VCPUPins, unknown), "vcpu_pins", "%v: CPU numbers must not be negative", vm.VCPUPins)
	} else {
		c.require(vm.CPUs.IsEmpty() && len(vm.VCPUPins) == 0, "cpus", "%s: policy %s does not pin CPUs; use Dedicated or Isolated", vm.CPUs, vm.Policy)
	}

	if len(vm.Cells) == 0 {
		c.require(vm.HugePages == "", "cells", "are missing: huge pages require a policy that binds memory: NUMA, Dedicated or Isolated")
		return
	}
	c.require(len(vm.Cells) <= maxCells, "cells", "has %d entries: Proxmox supports at most %d", len(vm.Cells), maxCells)
	least := int64(minMemoryMiB)
	if vm.Adopted() { // its module does not write its cells
		least = 1
	}
	var memory int64
	var guestCPUs []int
	for i, cell := range vm.Cells {
		field := fmt.Sprintf("cells[%d].", i)
		c.require(!cell.GuestCPUs.IsEmpty() && !cell.HostNodes.IsEmpty() && !slices.ContainsFunc(cell.HostNodes.List(), unknown),
			field+"host_nodes", "%s for guest CPUs %s: a cell requires NUMA nodes and guest CPUs", cell.HostNodes, cell.GuestCPUs)
		c.size(field+"memory_mib", cell.MemoryMiB, least)
		c.oneOf(field+"policy", string(cell.Policy), string(topology.NUMABind), string(topology.NUMAPreferred), string(topology.NUMAInterleave))
		if page := vm.HugePages.MiB(); page > 0 {
			c.require(cell.HostNodes.Size() == 1, field+"host_nodes", "%s: with huge pages, each cell must have one NUMA node", cell.HostNodes)
			c.require(cell.MemoryMiB%page == 0, field+"memory_mib", "%d is not a multiple of %d, the size of its huge pages", cell.MemoryMiB, page)
		}
		memory += cell.MemoryMiB
		guestCPUs = append(guestCPUs, cell.GuestCPUs.List()...)
	}
	slices.Sort(guestCPUs)
	once := len(guestCPUs) == vm.VCPUs
	for i, cpu := range guestCPUs {
		once = once && cpu == i
	}
	c.require(once, "cells", "have guest CPUs %v: must contain each from 0 to %d once", guestCPUs, vm.VCPUs-1)
	c.require(memory == vm.MemoryMiB, "cells", "have %d MiB in total: must be the VM's %d, otherwise Proxmox does not start it", memory, vm.MemoryMiB)
}

// seed accepts only the volume that is named after this VM, because numaform overwrites and
// deletes the volume.
func (c *checker) seed(clusterID string, vm *fleet.VM) {
	if vm.SeedStorage == "" && vm.Seed == "" {
		return
	}
	if vm.SeedStorage != fleet.AnySeedStorage {
		c.match("seed_storage", vm.SeedStorage, storage, "must be the name of a Proxmox storage, or "+fleet.AnySeedStorage)
	}
	seed, ok := fleet.ParseSeed(vm.Seed)
	c.valid(ok && seed.Of(vm.VMID, vm.Key) && seed.ClusterID == clusterID, "seed", vm.Seed,
		fmt.Sprintf("must be %s, which contains cluster ID, VMID and key", fleet.SeedVolume(cmp.Or(seed.Storage, "STORAGE"), clusterID, vm.VMID, vm.Key)))
	c.valid(vm.SeedStorage == fleet.AnySeedStorage || vm.SeedStorage == seed.Storage, "seed", vm.Seed,
		fmt.Sprintf("must be on the seed storage %s", vm.SeedStorage))
}
