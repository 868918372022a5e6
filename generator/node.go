package generator

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// call is the first module call of a node file, which creates the VM, with its arguments
// in order. The last one, the record, contains the values that only numaform uses.
type call struct {
	FormatVersion int               `json:"format_version"`
	ClusterID     string            `json:"cluster_id"`
	Name          string            `json:"name"`
	VMID          fleet.VMID        `json:"vm_id"`
	Host          topology.HostName `json:"node_name"`
	Description   []string          `json:"description"`
	Tags          []string          `json:"tags,omitempty"`
	ResourcePool  string            `json:"pool_id,omitempty"`
	InstanceType  string            `json:"instance_type"`
	Clone         clone             `json:"clone,omitzero"`
	CPU           cpu               `json:"cpu"`
	MemoryMiB     int64             `json:"memory_mib"`
	HugePages     string            `json:"hugepages,omitempty"`
	NUMA          []cell            `json:"numa,omitempty"`
	Disk          *disk             `json:"disk,omitempty"`
	DataDisks     []disk            `json:"data_disks,omitempty"`
	Networks      []device          `json:"network_devices,omitempty"`
	PCIDevices    []fleet.PCIDevice `json:"pci_devices,omitempty"`
	Seed          string            `json:"seed,omitempty"`
	Standby       bool              `json:"standby,omitempty"`
	Timeouts      fleet.Timeouts    `json:"timeouts,omitzero"`
	Hardware      *hardware         `json:"hardware,omitempty"`
	Record        record            `json:"record"`
}

type clone struct {
	VMID        fleet.VMID        `json:"vm_id"`
	Host        topology.HostName `json:"node_name,omitempty"`
	Full        bool              `json:"full"`
	DatastoreID string            `json:"datastore_id,omitempty"`
}

type cpu struct {
	Type     string `json:"type"`
	Sockets  int    `json:"sockets"`
	Cores    int    `json:"cores"`
	Affinity string `json:"affinity,omitempty"`
	// Flags change the CPU type.
	Flags []string `json:"flags,omitempty"`
}

type cell struct {
	CPUs      string              `json:"cpus"`
	HostNodes string              `json:"hostnodes"`
	MemoryMiB int64               `json:"memory_mib"`
	Policy    topology.NUMAPolicy `json:"policy"`
}

type device struct {
	Bridge   string `json:"bridge"`
	Model    string `json:"model,omitempty"`
	Firewall bool   `json:"firewall,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	VLAN     int    `json:"vlan_id,omitempty"`
	MAC      string `json:"mac_address,omitempty"`

	RateMBps     float64 `json:"rate_limit,omitempty"`
	Queues       int     `json:"queues,omitempty"`
	Trunks       []int   `json:"trunks,omitempty"`
	Disconnected bool    `json:"disconnected,omitempty"`
}

// record contains the values of a VM that are not in the module's other arguments.
type record struct {
	Key          fleet.Key      `json:"key"`
	Pool         string         `json:"pool"`
	NodeClass    string         `json:"node_class"`
	CapacityType string         `json:"capacity_type"`
	Policy       fleet.Policy   `json:"policy"`
	PinWith      fleet.PinWith  `json:"pin_with,omitempty"`
	Emulator     fleet.Emulator `json:"emulator,omitempty"`
	Overcommit   float64        `json:"overcommit,omitempty"`
	// MemoryOvercommit is missing in the files of most VMs.
	MemoryOvercommit float64 `json:"memory_overcommit,omitempty"`

	Spread     fleet.Spread `json:"spread,omitempty"`
	WholeCores bool         `json:"whole_cores,omitempty"`
	Reserve    bool         `json:"reserve,omitempty"`
	VCPUPins   []int        `json:"vcpu_pins,omitempty"`
	L3         []int        `json:"l3,omitempty"`
	// Labels are sorted key=value strings, because a key may be an HCL keyword, which is
	// not valid as an attribute.
	Labels       []string        `json:"labels,omitempty"`
	VMIDs        fleet.VMIDRange `json:"vmids,omitzero"`
	Demand       fleet.Demand    `json:"demand"`
	Reason       string          `json:"reason"`
	Template     string          `json:"template"`
	TemplateVMID fleet.VMID      `json:"template_vmid,omitempty"`
	// Addresses are the static addresses, by network device.
	Addresses   []deviceAddress `json:"addresses,omitempty"`
	Storage     string          `json:"storage,omitempty"`
	SeedStorage string          `json:"seed_storage,omitempty"`
	DiskGiB     int64           `json:"disk_gib,omitempty"`
	// Hardware is the part of the argument hardware that is not the template's.
	Hardware *fleet.Hardware `json:"hardware,omitempty"`
	Source   source          `json:"source"`
}

// deviceAddress is a static address of a network device: 0 for net0.
type deviceAddress struct {
	Device int `json:"device"`
	fleet.Address
}

// source is fleet.Source without the VMID and the host, which are in clone.
type source struct {
	DiskInterface string            `json:"disk_interface"`
	DiskGiB       int64             `json:"disk_gib"`
	Storage       string            `json:"storage"`
	Options       map[string]string `json:"options,omitempty"`
}

// groupsCall contains the arguments that numaform reads from the second module call of a
// node file, which sets the VM's security groups.
type groupsCall struct {
	SecurityGroups []string `json:"security_groups"`
}

// Inputs returns the arguments that Render passes to a VM's modules, as JSON keyed by
// variable name, without the record, which configures nothing.
func Inputs(clusterID string, vm *fleet.VM) ([]byte, error) {
	content, err := callOf(clusterID, vm)
	if err != nil {
		return nil, fmt.Errorf("listing the arguments of vm %s: %w", vm.Name, err)
	}
	return json.Marshal(struct {
		*call
		groupsCall
		Record *struct{} `json:"record,omitempty"`
	}{call: content, groupsCall: groupsCall{SecurityGroups: vm.SecurityGroups}})
}

// renderNode renders a VM's file.
func renderNode(clusterID string, vm *fleet.VM) ([]byte, error) {
	content, err := callOf(clusterID, vm)
	if err != nil {
		return nil, err
	}
	list, err := arguments(content)
	if err != nil {
		return nil, err
	}

	file := hclwrite.NewEmptyFile()
	body := file.Body()
	comment(body, fmt.Sprintf("%s%s, VM %s. DO NOT EDIT.", nodeHeader, vm.Pool, vm.Name), "")
	comment(body, explain(vm)...)
	body.AppendNewline()
	appendCall := func(label, module string) *hclwrite.Body {
		block := body.AppendNewBlock("module", []string{label}).Body()
		setText(block, "source", moduleSource(module, vm.Module))
		block.AppendNewline()
		return block
	}
	node := appendCall(label(vm.Name), modules.NodeModule)
	for _, arg := range list {
		node.SetAttributeRaw(arg.name, arg.value)
	}
	if len(vm.SecurityGroups) == 0 {
		return file.Bytes(), nil
	}

	// The second call refers to the first one for host and VMID, so that the engine creates
	// the VM first and deletes it last.
	list, err = arguments(groupsCall{SecurityGroups: vm.SecurityGroups})
	if err != nil {
		return nil, err
	}
	body.AppendNewline()
	groups := appendCall(groupsLabel(vm.Name), modules.GroupsModule)
	for _, output := range []string{"node_name", "vm_id"} {
		groups.SetAttributeTraversal(output, hcl.Traversal{
			hcl.TraverseRoot{Name: "module"},
			hcl.TraverseAttr{Name: label(vm.Name)},
			hcl.TraverseAttr{Name: output},
		})
	}
	for _, arg := range list {
		groups.SetAttributeRaw(arg.name, arg.value)
	}
	return file.Bytes(), nil
}

// moduleSource returns the path of a module relative to a root's directory.
func moduleSource(module, hash string) string { return path.Join("../..", modulesDir, module, hash) }

// maxDescription is the maximum size of a VM's description in Proxmox, in bytes.
const maxDescription = 8192

// callOf returns the arguments for a VM. vmOf is its inverse.
func callOf(clusterID string, vm *fleet.VM) (*call, error) {
	fromTemplate, err := hardwareOf(vm)
	if err != nil {
		return nil, err
	}
	content := &call{
		FormatVersion: FormatVersion,
		ClusterID:     clusterID,
		Name:          vm.Name,
		VMID:          vm.VMID,
		Host:          vm.Host.Host,
		Tags:          vm.Tags,
		ResourcePool:  vm.ResourcePool,
		InstanceType:  vm.InstanceType,
		Clone:         clone{VMID: vm.Source.VMID, Host: vm.Source.Host},
		CPU:           guestCPU(vm),
		MemoryMiB:     vm.MemoryMiB,
		PCIDevices:    vm.PCIDevices,
		Seed:          vm.Seed,
		Standby:       vm.Standby,
		Timeouts:      vm.Timeouts,
		Hardware:      &fromTemplate,
		Record: record{
			Key:          vm.Key,
			Pool:         vm.Pool,
			NodeClass:    vm.NodeClass,
			CapacityType: vm.CapacityType,
			Policy:       vm.Policy,
			PinWith:      vm.PinWith,
			Emulator:     vm.Emulator,
			Overcommit:   vm.Overcommit,

			MemoryOvercommit: vm.MemoryOvercommit,

			Spread:       vm.Spread,
			WholeCores:   vm.WholeCores,
			Reserve:      vm.Reserve,
			VCPUPins:     vm.VCPUPins,
			L3:           vm.L3,
			VMIDs:        vm.VMIDs,
			Demand:       vm.Demand,
			Reason:       vm.Reason,
			Template:     vm.Template,
			TemplateVMID: vm.TemplateVMID,
			Storage:      vm.Storage,
			SeedStorage:  vm.SeedStorage,
			DiskGiB:      vm.DiskGiB,
			Hardware:     vm.Hardware,
			Source: source{
				DiskInterface: vm.Source.DiskInterface,
				DiskGiB:       vm.Source.DiskGiB,
				Storage:       vm.Source.Storage,
				Options:       vm.Source.Options,
			},
		},
	}

	if vm.Adopted() {
		content.Hardware = nil
	}
	bootStorage := vm.Source.Storage
	if vm.Clone == fleet.CloneFull {
		content.Clone.Full = true
		content.Clone.DatastoreID = vm.Storage
		if vm.Storage != "" {
			bootStorage = vm.Storage
		}
	}
	if grows(vm) {
		boot := diskOf(vm, vm.Source.DiskInterface, bootStorage, vm.DiskGiB)
		content.Disk = &boot
	}
	for _, d := range vm.DataDisks {
		content.DataDisks = append(content.DataDisks, diskOf(vm, d.Interface, d.Storage, d.SizeGiB))
	}

	if vm.HugePages != "" {
		content.HugePages = strconv.FormatInt(vm.HugePages.MiB(), 10)
	}
	for _, c := range vm.Cells {
		content.NUMA = append(content.NUMA, cell{
			CPUs:      semicolons(c.GuestCPUs),
			HostNodes: semicolons(c.HostNodes),
			MemoryMiB: c.MemoryMiB,
			Policy:    c.Policy,
		})
	}
	for i, n := range vm.Networks {
		content.Networks = append(content.Networks, device{
			Bridge: n.Bridge, Model: n.Model, Firewall: n.Firewall, MTU: n.MTU, VLAN: n.VLAN, MAC: n.MAC,
			RateMBps: n.RateMBps, Queues: n.Queues, Trunks: n.Trunks, Disconnected: n.Disconnected,
		})
		for _, address := range n.Addresses {
			content.Record.Addresses = append(content.Record.Addresses, deviceAddress{Device: i, Address: address})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Labels)) {
		content.Record.Labels = append(content.Record.Labels, key+"="+vm.Labels[key])
	}

	marker := fleet.Marker{ClusterID: clusterID, Key: vm.Key}
	if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithHostAgent {
		marker.Pins = vm.VCPUPins
		marker.Emulator = vm.Emulator
	}
	content.Description = append([]string{marker.String()}, explain(vm)...)
	c := &checker{}
	size := len(strings.Join(content.Description, "\n"))
	c.require(size <= maxDescription, "description", "%d bytes, but Proxmox allows %d: shorten the names of class and type", size, maxDescription)
	return content, c.err
}

// vmOf returns the VM that a node file's calls create. It returns an error only for CPU
// lists that it cannot parse: Parse checks all other values of the fleet.
func vmOf(region topology.RegionName, moduleHash string, c *call, groups []string) (fleet.VM, error) {
	r := c.Record
	vm := fleet.VM{
		Key:      r.Key,
		VMID:     c.VMID,
		Name:     c.Name,
		Seed:     c.Seed,
		Standby:  c.Standby,
		Reserve:  r.Reserve,
		Timeouts: c.Timeouts,
		Module:   moduleHash,
		Spec: fleet.Spec{
			Pool:         r.Pool,
			NodeClass:    r.NodeClass,
			InstanceType: c.InstanceType,
			CapacityType: r.CapacityType,
			VCPUs:        c.CPU.Sockets * c.CPU.Cores,
			MemoryMiB:    c.MemoryMiB,
			Policy:       r.Policy,
			PinWith:      r.PinWith,
			Emulator:     r.Emulator,
			Overcommit:   r.Overcommit,

			MemoryOvercommit: r.MemoryOvercommit,

			HugePages:      fleet.HugePages(c.HugePages),
			Spread:         r.Spread,
			WholeCores:     r.WholeCores,
			Template:       r.Template,
			TemplateVMID:   r.TemplateVMID,
			Clone:          fleet.CloneLinked,
			CPUType:        c.CPU.Type,
			Hardware:       r.Hardware,
			DiskGiB:        r.DiskGiB,
			Storage:        r.Storage,
			SeedStorage:    r.SeedStorage,
			Tags:           c.Tags,
			ResourcePool:   c.ResourcePool,
			SecurityGroups: groups,
			VMIDs:          r.VMIDs,
			Demand:         r.Demand,
			PCIDevices:     c.PCIDevices,
		},
		Placement: fleet.Placement{
			Host:     topology.HostID{Region: region, Host: c.Host},
			CPUs:     topology.CPUs(r.VCPUPins...),
			VCPUPins: r.VCPUPins,
			L3:       r.L3,
			Reason:   r.Reason,
		},
		Source: fleet.Source{
			VMID:          c.Clone.VMID,
			Host:          c.Clone.Host,
			DiskInterface: r.Source.DiskInterface,
			DiskGiB:       r.Source.DiskGiB,
			Storage:       r.Source.Storage,
			Options:       r.Source.Options,
		},
	}

	if c.Clone.Full {
		vm.Clone = fleet.CloneFull
	}
	for _, size := range []fleet.HugePages{fleet.HugePages2Mi, fleet.HugePages1Gi} {
		if c.HugePages == strconv.FormatInt(size.MiB(), 10) {
			vm.HugePages = size
		}
	}
	for _, d := range c.DataDisks {
		vm.DataDisks = append(vm.DataDisks, fleet.DataDisk{Interface: d.Interface, SizeGiB: d.SizeGiB, Storage: d.DatastoreID})
	}
	for _, d := range c.Networks {
		vm.Networks = append(vm.Networks, fleet.Network{
			Bridge: d.Bridge, Model: d.Model, Firewall: d.Firewall, MTU: d.MTU, VLAN: d.VLAN, MAC: d.MAC,
			RateMBps: d.RateMBps, Queues: d.Queues, Trunks: d.Trunks, Disconnected: d.Disconnected,
		})
	}
	for _, a := range r.Addresses {
		if a.Device < 0 || a.Device >= len(vm.Networks) {
			return vm, fmt.Errorf("record.addresses: there is no network device net%d", a.Device)
		}
		vm.Networks[a.Device].Addresses = append(vm.Networks[a.Device].Addresses, a.Address)
	}
	if len(r.Labels) > 0 {
		vm.Labels = map[string]string{}
	}
	for _, label := range r.Labels {
		key, value, _ := strings.Cut(label, "=")
		vm.Labels[key] = value
	}
	for i, numa := range c.NUMA {
		guest, err := topology.ParseCPUSet(strings.ReplaceAll(numa.CPUs, ";", ","))
		if err != nil {
			return vm, fmt.Errorf("numa%d: %w", i, err)
		}
		nodes, err := topology.ParseCPUSet(strings.ReplaceAll(numa.HostNodes, ";", ","))
		if err != nil {
			return vm, fmt.Errorf("numa%d: %w", i, err)
		}
		vm.Cells = append(vm.Cells, topology.NUMACell{
			GuestCPUs: guest,
			HostNodes: nodes,
			MemoryMiB: numa.MemoryMiB,
			Policy:    numa.Policy,
		})
	}
	return vm, nil
}

// guestCPU returns the CPU topology of the guest. Contiguous cells of equal size
// become its sockets, so that no socket spans two NUMA nodes.
func guestCPU(vm *fleet.VM) cpu {
	shape := cpu{Type: vm.CPUType, Sockets: 1, Cores: vm.VCPUs, Affinity: affinity(vm)}
	if vm.Hardware != nil {
		shape.Flags = vm.Hardware.CPUFlags
	}
	cells := len(vm.Cells)
	if cells == 0 || vm.VCPUs%cells != 0 {
		return shape
	}
	size := vm.VCPUs / cells
	for i, c := range vm.Cells {
		ids := c.GuestCPUs.List()
		if len(ids) != size || ids[0] != i*size || ids[size-1] != (i+1)*size-1 {
			return shape
		}
	}
	shape.Sockets = cells
	shape.Cores = size
	return shape
}

// affinity returns the host CPUs to which Proxmox pins a VM. It is empty if the host agent
// pins the VM.
func affinity(vm *fleet.VM) string {
	if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithAffinity {
		return vm.CPUs.String()
	}
	return ""
}

// semicolons formats a set for numaN, where commas separate fields.
func semicolons(set topology.CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }

// explain returns a few lines that explain why a VM exists and why it has this placement.
func explain(vm *fleet.VM) []string {
	asked := fmt.Sprintf("Asked: pool %s", vm.Pool)
	if vm.Demand != (fleet.Demand{}) {
		asked += fmt.Sprintf(", pods %d, together %dm CPU and %d MiB",
			vm.Demand.Pods, vm.Demand.CPUMilli, vm.Demand.MemoryMiB)
	}
	size := fmt.Sprintf("Size: type %s (%s), class %s: %d vCPUs, %d MiB, template %s.",
		vm.InstanceType, vm.CapacityType, vm.NodeClass, vm.VCPUs, vm.MemoryMiB, vm.Template)
	if vm.Adopted() {
		asked = fmt.Sprintf("Adopted: pool %s", vm.Pool)
		size = fmt.Sprintf("Size: type %s (%s), %d vCPUs, %d MiB, as another tool created it; class %s.",
			vm.InstanceType, vm.CapacityType, vm.VCPUs, vm.MemoryMiB, vm.NodeClass)
	}

	place := fmt.Sprintf("Place: host %s, policy %s", vm.Host, vm.Policy)
	if vm.Policy.Pinned() {
		place += fmt.Sprintf(", host CPUs %s by %s", vm.CPUs, vm.PinWith)
	}
	if len(vm.Cells) > 0 {
		var nodes []int
		for _, c := range vm.Cells {
			nodes = append(nodes, c.HostNodes.List()...)
		}
		place += fmt.Sprintf(", NUMA nodes %s", topology.CPUs(nodes...))
	}
	if vm.HugePages != "" {
		place += fmt.Sprintf(", huge pages of %s", vm.HugePages)
	}
	for i, device := range vm.PCIDevices {
		if i == 0 {
			place += ", devices "
		} else {
			place += ", "
		}
		place += device.Mapping
	}
	if len(vm.L3) > 0 {
		place += fmt.Sprintf(", L3 groups %s", topology.CPUs(vm.L3...))
	}

	texts := []string{asked + ".", size, place + "."}
	if line := fleet.AddressesLine(vm.Networks); line != "" {
		texts = append(texts, line)
	}
	if vm.Reason != "" {
		texts = append(texts, "Reason: "+vm.Reason)
	}
	return texts
}
