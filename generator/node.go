package generator

import (
	"encoding/json"
	"fmt"
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
// in order. The module's own arguments come first; the record holds what only numaform
// needs.
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
	Clone         clone             `json:"clone"`
	CPU           cpu               `json:"cpu"`
	MemoryMiB     int64             `json:"memory_mib"`
	HugePages     string            `json:"hugepages,omitempty"`
	NUMA          []cell            `json:"numa,omitempty"`
	Disk          *disk             `json:"disk,omitempty"`
	DataDisks     []disk            `json:"data_disks,omitempty"`
	Networks      []device          `json:"network_devices,omitempty"`
	PCIDevices    []fleet.PCIDevice `json:"pci_devices,omitempty"`
	Seed          string            `json:"seed,omitempty"`
	Timeouts      fleet.Timeouts    `json:"timeouts,omitzero"`
	Hardware      hardware          `json:"hardware"`
	Record        record            `json:"record"`
}

type clone struct {
	VMID        fleet.VMID `json:"vm_id"`
	Full        bool       `json:"full"`
	DatastoreID string     `json:"datastore_id,omitempty"`
}

type cpu struct {
	Type     string `json:"type"`
	Sockets  int    `json:"sockets"`
	Cores    int    `json:"cores"`
	Affinity string `json:"affinity,omitempty"`
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
}

// record is what the module's arguments do not say about a VM.
type record struct {
	Key          fleet.Key      `json:"key"`
	Pool         string         `json:"pool"`
	NodeClass    string         `json:"node_class"`
	CapacityType string         `json:"capacity_type"`
	Policy       fleet.Policy   `json:"policy"`
	PinWith      fleet.PinWith  `json:"pin_with,omitempty"`
	Emulator     fleet.Emulator `json:"emulator,omitempty"`
	Overcommit   float64        `json:"overcommit,omitempty"`
	Spread       fleet.Spread   `json:"spread,omitempty"`
	WholeCores   bool           `json:"whole_cores,omitempty"`
	VCPUPins     []int          `json:"vcpu_pins,omitempty"`
	L3           []int          `json:"l3,omitempty"`
	Labels       []string       `json:"labels,omitempty"`
	Demand       fleet.Demand   `json:"demand"`
	Reason       string         `json:"reason"`
	Template     string         `json:"template"`
	TemplateVMID fleet.VMID     `json:"template_vmid,omitempty"`
	Storage      string         `json:"storage,omitempty"`
	SeedStorage  string         `json:"seed_storage,omitempty"`
	DiskGiB      int64          `json:"disk_gib,omitempty"`
	Source       source         `json:"source"`
}

// source is fleet.Source without the VMID, which is in clone.
type source struct {
	DiskInterface string            `json:"disk_interface"`
	DiskGiB       int64             `json:"disk_gib"`
	Storage       string            `json:"storage"`
	Options       map[string]string `json:"options,omitempty"`
}

// Inputs returns the arguments that Render passes to a VM's modules, as JSON keyed by
// variable name. It leaves out the record, which configures nothing.
func Inputs(clusterID string, vm *fleet.VM) ([]byte, error) {
	content, err := callOf(clusterID, vm)
	if err != nil {
		return nil, fmt.Errorf("listing the arguments of vm %s: %w", vm.Name, err)
	}
	return json.Marshal(struct {
		*call
		groupsCall
		Record *struct{} `json:"record,omitempty"`
	}{call: content, groupsCall: groupsCall{vm.SecurityGroups}})
}

// maxDescription is Proxmox' limit for a VM's description, in bytes.
const maxDescription = 8192

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
	module := body.AppendNewBlock("module", []string{label(vm.Name)}).Body()
	setText(module, "source", moduleSource(modules.NodeModule, vm.Module))
	module.AppendNewline()
	for _, arg := range list {
		module.SetAttributeRaw(arg.name, arg.value)
	}
	if err := appendGroups(body, vm); err != nil {
		return nil, err
	}
	return file.Bytes(), nil
}

// groupsCall holds the arguments that numaform reads back from the second module call of
// a node file, which sets the VM's security groups.
type groupsCall struct {
	SecurityGroups []string `json:"security_groups"`
}

// appendGroups appends the call for a VM's security groups, if it has any. The call
// refers to the VM's own call for host and VMID, so that the VM is created first and
// deleted last.
func appendGroups(body *hclwrite.Body, vm *fleet.VM) error {
	if len(vm.SecurityGroups) == 0 {
		return nil
	}
	list, err := arguments(groupsCall{vm.SecurityGroups})
	if err != nil {
		return err
	}
	body.AppendNewline()
	module := body.AppendNewBlock("module", []string{groupsLabel(vm.Name)}).Body()
	setText(module, "source", moduleSource(modules.GroupsModule, vm.Module))
	module.AppendNewline()
	for _, output := range []string{"node_name", "vm_id"} {
		module.SetAttributeTraversal(output, hcl.Traversal{
			hcl.TraverseRoot{Name: "module"}, hcl.TraverseAttr{Name: label(vm.Name)}, hcl.TraverseAttr{Name: output},
		})
	}
	for _, arg := range list {
		module.SetAttributeRaw(arg.name, arg.value)
	}
	return nil
}

// moduleSource returns the path of a module relative to a root's directory.
func moduleSource(module, hash string) string { return path.Join("../..", modulesDir, module, hash) }

func callOf(clusterID string, vm *fleet.VM) (*call, error) {
	fromTemplate, err := readHardware(vm)
	if err != nil {
		return nil, err
	}
	content := &call{
		FormatVersion: FormatVersion, ClusterID: clusterID, Name: vm.Name, VMID: vm.VMID, Host: vm.Host.Host,
		Description: describe(clusterID, vm), Tags: vm.Tags, ResourcePool: vm.ResourcePool, InstanceType: vm.InstanceType,
		Clone: clone{VMID: vm.Source.VMID, Full: vm.Clone == fleet.CloneFull}, CPU: guestCPU(vm), MemoryMiB: vm.MemoryMiB, HugePages: hugePages(vm),
		Disk: diskOf(vm), DataDisks: dataDisks(vm), PCIDevices: vm.PCIDevices, Seed: vm.Seed, Timeouts: vm.Timeouts, Hardware: fromTemplate, Record: recordOf(vm),
	}
	if content.Clone.Full {
		content.Clone.DatastoreID = vm.Storage
	}
	for _, c := range vm.Cells {
		content.NUMA = append(content.NUMA, cell{semicolons(c.GuestCPUs), semicolons(c.HostNodes), c.MemoryMiB, c.Policy})
	}
	for _, n := range vm.Networks {
		content.Networks = append(content.Networks, device{n.Bridge, n.Model, n.Firewall, n.MTU, n.VLAN, n.MAC})
	}
	if size := len(strings.Join(content.Description, "\n")); size > maxDescription {
		return nil, refusef("description", "%d bytes, of which Proxmox takes %d: "+
			"shorten the names of class and type", size, maxDescription)
	}
	return content, nil
}

func recordOf(vm *fleet.VM) record {
	return record{
		Key: vm.Key, Pool: vm.Pool, NodeClass: vm.NodeClass, CapacityType: vm.CapacityType,
		Policy: vm.Policy, PinWith: vm.PinWith, Emulator: vm.Emulator, Overcommit: vm.Overcommit, Spread: vm.Spread, WholeCores: vm.WholeCores,
		VCPUPins: vm.VCPUPins, L3: vm.L3, Labels: labelList(vm.Labels),
		Demand: vm.Demand, Reason: vm.Reason, Template: vm.Template, TemplateVMID: vm.TemplateVMID, Storage: vm.Storage, SeedStorage: vm.SeedStorage, DiskGiB: vm.DiskGiB,
		Source: source{vm.Source.DiskInterface, vm.Source.DiskGiB, vm.Source.Storage, vm.Source.Options},
	}
}

// guestCPU chooses the CPU topology that the guest sees. Contiguous cells of equal size
// become its sockets, so that no socket spans two NUMA nodes.
func guestCPU(vm *fleet.VM) cpu {
	shape := cpu{Type: vm.CPUType, Sockets: 1, Cores: vm.VCPUs, Affinity: affinity(vm)}
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
	shape.Sockets, shape.Cores = cells, size
	return shape
}

// affinity returns the host CPUs that Proxmox itself pins a VM to. It is empty if the
// host agent pins the VM.
func affinity(vm *fleet.VM) string {
	if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithAffinity {
		return vm.CPUs.String()
	}
	return ""
}

// hugePages returns the size of a VM's huge pages in MiB, as in Proxmox' hugepages
// option.
func hugePages(vm *fleet.VM) string {
	if vm.HugePages == "" {
		return ""
	}
	return strconv.FormatInt(vm.HugePages.MiB(), 10)
}

// hugePagesOf is the inverse of hugePages. It returns other text unchanged, so that the
// check refuses it.
func hugePagesOf(text string) fleet.HugePages {
	for _, size := range []fleet.HugePages{fleet.HugePages2Mi, fleet.HugePages1Gi} {
		if text == strconv.FormatInt(size.MiB(), 10) {
			return size
		}
	}
	return fleet.HugePages(text)
}

// semicolons formats a set for numaN, where commas separate fields.
func semicolons(set topology.CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }

// describe returns the lines of a VM's Proxmox description.
func describe(clusterID string, vm *fleet.VM) []string {
	marker := fleet.Marker{ClusterID: clusterID, Key: vm.Key}
	if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithHostAgent {
		marker.Pins, marker.Emulator = vm.VCPUPins, vm.Emulator
	}
	return append([]string{marker.String()}, explain(vm)...)
}

// explain says in a few lines why a VM exists and why it has this placement.
func explain(vm *fleet.VM) []string {
	asked := fmt.Sprintf("Asked: pool %s", vm.Pool)
	if vm.Demand != (fleet.Demand{}) {
		asked += fmt.Sprintf(", pods %d, together %dm CPU and %d MiB",
			vm.Demand.Pods, vm.Demand.CPUMilli, vm.Demand.MemoryMiB)
	}
	size := fmt.Sprintf("Size: type %s (%s), class %s: %d vCPUs, %d MiB, template %s.",
		vm.InstanceType, vm.CapacityType, vm.NodeClass, vm.VCPUs, vm.MemoryMiB, vm.Template)
	texts := []string{asked + ".", size, "Place: " + placeText(vm)}
	if vm.Reason != "" {
		texts = append(texts, "Reason: "+vm.Reason)
	}
	return texts
}

func placeText(vm *fleet.VM) string {
	var text strings.Builder
	fmt.Fprintf(&text, "host %s, policy %s", vm.Host, vm.Policy)
	if vm.Policy.Pinned() {
		fmt.Fprintf(&text, ", host CPUs %s by %s", vm.CPUs, vm.PinWith)
	}
	if len(vm.Cells) > 0 {
		var nodes []int
		for _, c := range vm.Cells {
			nodes = append(nodes, c.HostNodes.List()...)
		}
		slices.Sort(nodes)
		fmt.Fprintf(&text, ", NUMA nodes %s", topology.CPUs(nodes...))
	}
	if vm.HugePages != "" {
		fmt.Fprintf(&text, ", huge pages of %s", vm.HugePages)
	}
	if len(vm.PCIDevices) > 0 {
		fmt.Fprintf(&text, ", devices %s", mappings(vm.PCIDevices))
	}
	if len(vm.L3) > 0 {
		fmt.Fprintf(&text, ", L3 groups %s", topology.CPUs(vm.L3...))
	}
	return text.String() + "."
}
