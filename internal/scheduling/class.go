package scheduling

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// class is a resolved NodeClass: where its VMs may be placed, and the part of their Spec
// that does not depend on size, pool or host.
type class struct {
	name string
	// hash is the hash of the fields that define the class's nodes.
	hash string
	// problem is the reason why the class is invalid, not ready, or matches no host or
	// instance type; or empty.
	problem string
	fields  *v1alpha1.ProxmoxNodeClassSpec
	// clusterID is the cluster ID of the class's numaform installation.
	clusterID string
	base      fleet.Spec
	prices    Prices
	// overlaid are the resources that NodeOverlays add to nodes of any size.
	overlaid map[corev1.ResourceName]bool
	// diskGiB is the class's disk size, leastGiB the size of its largest template, and
	// smallestGiB the disk size of the smallest node, whatever the template.
	diskGiB, leastGiB, smallestGiB int64
	// hosts are the hosts that can take VMs of the class; arch maps each to its
	// architecture, and templates to the template that it clones. templates also includes
	// hosts that lack only a working host agent.
	hosts     []topology.HostID
	arch      map[topology.HostID]string
	templates map[topology.HostID]template
	// excluded are hosts that the class allows but that cannot take its VMs, because of
	// the faults.
	excluded []Exclusion
	faults   []Fault
	findings []Finding
}

// template is the VM template that VMs on a host are cloned from.
type template struct {
	HostTemplate
	// namesakes is set if other templates on its host have the same name.
	namesakes bool
}

// newClass resolves a NodeClass against the hosts of a snapshot. offered are the instance
// types that the class offers.
func newClass(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, offered []InstanceType) *class {
	c := &class{
		name:      nc.Name,
		fields:    &nc.Spec,
		clusterID: clusterID,
		arch:      map[topology.HostID]string{},
		templates: map[topology.HostID]template{},
	}
	if err := crd.Validate(nc); err != nil {
		c.problem = err.Error()
		c.findings = []Finding{{Condition: v1alpha1.ConditionValid, Reason: v1alpha1.ReasonInvalid, Message: err.Error()}}
		return c
	}
	c.hash = ClassHash(nc)
	c.base = baseSpec(nc)
	// The CRD allows only sizes that parse.
	c.diskGiB, _ = nc.Spec.BootDevice.SizeGiB()
	c.smallestGiB = c.disk(&InstanceType{})
	for i := range offered {
		if gib := c.disk(&offered[i]); i == 0 || gib < c.smallestGiB {
			c.smallestGiB = gib
		}
	}
	c.findHosts(nc, snapshot)
	return c
}

// invalid reports whether the class violates the schema or the rules of its CRD. A valid
// class that is not ready still defines its nodes.
func (c *class) invalid() bool { return c.base.NodeClass == "" }

// baseSpec returns the common part of all VMs of a valid class.
func baseSpec(nc *v1alpha1.ProxmoxNodeClass) fleet.Spec {
	spec := &nc.Spec
	base := fleet.Spec{
		NodeClass:  nc.Name,
		Policy:     fleet.Policy(spec.Placement.EffectivePolicy()),
		PinWith:    fleet.PinWith(spec.Placement.PinWith),
		Clone:      cmp.Or(fleet.CloneKind(spec.Clone), fleet.CloneFull),
		CPUType:    string(cmp.Or(spec.CPUType, "host")),
		HugePages:  fleet.HugePages(spec.Placement.HugePages),
		WholeCores: spec.Placement.WholeCores == v1alpha1.WholeCoresRequire,
		DataDisks:  dataDisks(spec.DataDisks),
		Hardware:   hardwareOf(spec.Hardware),
		VMIDs:      vmidsOf(spec.VMIDRange),

		HostSelection: fleet.HostSelection(spec.Placement.HostSelection),
		MaxHostLoad:   spec.Placement.HostLoadLimit(),
	}
	base.Networks = Networks(nc)
	InPlace(nc, &base, "")
	if base.Policy == fleet.PolicyShared {
		base.Overcommit, _ = spec.Placement.OvercommitRatio()
		base.MemoryOvercommit = spec.Placement.MemoryOvercommitRatio()
	}
	if spec.Placement.Spread == v1alpha1.SpreadHosts {
		base.Spread = fleet.SpreadHosts
	}
	if spec.BootDevice != nil {
		base.Storage = spec.BootDevice.Storage
	}
	if nc.Seeded() {
		base.SeedStorage = cmp.Or(spec.Metadata.Storage, fleet.AnySeedStorage)
	}
	for _, d := range spec.PCIDevices {
		base.PCIDevices = append(base.PCIDevices, fleet.PCIDevice{Mapping: d.Mapping, MDev: d.MDev, PCIe: d.PCIe, XVGA: d.XVGA})
	}
	return base
}

// addressedMAC is the MAC prefix of Proxmox, for devices of nodes with static addresses: the
// guest recognizes its devices by their MAC addresses, so they must be known in advance.
const addressedMAC = "BC:24:11"

// Networks returns a class's network devices in the form of a Spec.
func Networks(nc *v1alpha1.ProxmoxNodeClass) []fleet.Network {
	addressed := nc.Addressed()
	var list []fleet.Network
	for _, n := range nc.Spec.Networks {
		network := fleet.Network{
			Bridge:       n.Bridge,
			Model:        n.Model,
			VLAN:         int(n.VLAN),
			MTU:          int(n.MTU),
			Firewall:     n.Firewall,
			Queues:       int(n.Queues),
			Disconnected: n.Disconnected,
			MAC:          strings.ToUpper(n.MACPrefix),
		}
		network.RateMBps, _ = strconv.ParseFloat(n.RateMBps, 64) // the CRD allows only rates that parse
		for _, vlan := range n.Trunks {
			network.Trunks = append(network.Trunks, int(vlan))
		}
		slices.Sort(network.Trunks)
		if addressed {
			network.MAC = cmp.Or(network.MAC, addressedMAC)
		}
		for _, pool := range sortedCopy(n.AddressPools) {
			network.Addresses = append(network.Addresses, fleet.Address{Pool: pool})
		}
		list = append(list, network)
	}
	return list
}

// InPlace sets the fields of a Spec that a class changes while VMs run: tags, pool,
// security groups, and the emulator setting of VMs that the host agent pins. None of them
// is in ClassHash. module is the hash of the modules that the VM's file calls; empty means the
// modules of new VMs. The VM gets only what these modules support, so an adopted VM keeps all
// fields.
func InPlace(nc *v1alpha1.ProxmoxNodeClass, spec *fleet.Spec, module string) {
	if module == modules.Adopted {
		return
	}
	spec.Tags = sortedCopy(nc.Spec.Tags)
	spec.ResourcePool = nc.Spec.Pool
	spec.SecurityGroups = securityGroups(nc, spec.Networks, module)
	spec.Emulator = ""
	if spec.Policy.Pinned() && spec.PinWith == fleet.PinWithHostAgent && guard.EmulatorSettings(module) {
		spec.Emulator = fleet.Emulator(nc.Spec.Placement.Emulator)
	}
}

// securityGroups returns the security groups of a class that have an effect on a VM with the
// devices and modules, groups of single devices first. A VM whose devices differ from the
// class is drifted, and until it is replaced, it has no groups of these devices.
func securityGroups(nc *v1alpha1.ProxmoxNodeClass, devices []fleet.Network, module string) []string {
	var groups []string
	for i, n := range nc.Spec.Networks {
		if i >= len(devices) || !devices[i].Firewall || devices[i].Bridge != n.Bridge || !guard.GroupsOfDevices(module) {
			continue
		}
		for _, name := range sortedCopy(n.SecurityGroups) {
			groups = append(groups, fleet.DeviceGroup(name, i))
		}
	}
	if len(devices) == 0 || slices.ContainsFunc(devices, func(n fleet.Network) bool { return n.Firewall }) {
		groups = append(groups, nc.Spec.SecurityGroups...)
	}
	return groups
}

// hardwareOf returns a class's hardware in the form of a Spec, or nil if it overrides nothing.
func hardwareOf(h *v1alpha1.Hardware) *fleet.Hardware {
	if h == nil {
		return nil
	}
	hardware := &fleet.Hardware{Machine: h.Machine, NoTablet: h.Tablet != nil && !*h.Tablet, CPUFlags: sortedCopy(h.CPUFlags)}
	if h.VGA != nil {
		hardware.Display, hardware.DisplayMiB = h.VGA.Type, int(h.VGA.MemoryMiB)
	}
	if h.Watchdog != nil {
		hardware.Watchdog = &fleet.Watchdog{Model: cmp.Or(h.Watchdog.Model, "i6300esb"), Action: cmp.Or(h.Watchdog.Action, "reset")}
	}
	if reflect.DeepEqual(*hardware, fleet.Hardware{}) {
		return nil
	}
	return hardware
}

// vmidsOf returns a class's range in the form of a Spec.
func vmidsOf(r *v1alpha1.VMIDRange) fleet.VMIDRange {
	if r == nil {
		return fleet.VMIDRange{}
	}
	return fleet.VMIDRange{Lower: fleet.VMID(r.Lower), Upper: fleet.VMID(r.Upper)}
}

// dataDisks returns a class's data disks in the form of a Spec. The result is meaningless
// for a class that Validate refuses.
func dataDisks(disks []v1alpha1.DataDisk) []fleet.DataDisk {
	var list []fleet.DataDisk
	for i := range disks {
		gib, _ := disks[i].SizeGiB()
		list = append(list, fleet.DataDisk{SizeGiB: gib, Storage: disks[i].Storage})
	}
	return list
}

func sortedCopy(list []string) []string { return slices.Sorted(slices.Values(list)) }

// findHosts finds which of the hosts that the class allows can take its VMs, and which
// cannot and why.
func (c *class) findHosts(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !Allows(nc, host.ID()) {
			continue
		}
		from, faults := c.checkHost(host, snapshot)
		if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Reason != v1alpha1.ReasonHostAgentNotReady }) {
			c.templates[host.ID()] = from
		}
		if len(faults) > 0 {
			var parts []string
			for _, f := range faults {
				part := f.Message
				if f.Fix != "" {
					part += " (" + f.Fix + ")"
				}
				parts = append(parts, part)
			}
			c.excluded = append(c.excluded, Exclusion{Host: host.ID(), Reason: strings.Join(slices.Compact(parts), " and ")})
			c.faults = append(c.faults, faults...)
			continue
		}
		c.hosts = append(c.hosts, host.ID())
		c.arch[host.ID()] = Arch(snapshot, host.ID())
		c.leastGiB = max(c.leastGiB, from.DiskGiB)
	}
	if len(c.hosts) == 0 && len(c.excluded) == 0 {
		reason, text := v1alpha1.ReasonHostUnknown, describeNoHosts(&nc.Spec, snapshot)
		if unread := unreadRegions(&nc.Spec, snapshot); len(unread) > 0 {
			// A host in these regions may match.
			reason = v1alpha1.ReasonProxmoxUnread
			text = fmt.Sprintf("the Proxmox hosts that match its spec.region and spec.hosts are unknown, because numaform cannot read %s: run numaform doctor to see why",
				regionsNamed(unread))
		}
		c.problem = fmt.Sprintf("%s %q: %s", v1alpha1.KindProxmoxNodeClass, c.name, text)
		c.findings = []Finding{{Condition: v1alpha1.ConditionPlacementReady, Reason: reason, Message: text}}
		return
	}
	c.findings = c.findProblems()
}

// unreadRegions returns the regions of a class that were never read, and so have no hosts
// in the snapshot.
func unreadRegions(spec *v1alpha1.ProxmoxNodeClassSpec, snapshot *topology.Snapshot) []string {
	var names []string
	for _, region := range snapshot.Regions {
		read := slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool { return host.Region == region.Name })
		if !read && (spec.Region == "" || spec.Region == string(region.Name)) {
			names = append(names, string(region.Name))
		}
	}
	return names
}

// regionsNamed returns "region a", or "regions a, b".
func regionsNamed(names []string) string {
	noun := "region "
	if len(names) > 1 {
		noun = "regions "
	}
	return noun + strings.Join(names, ", ")
}

// describeNoHosts returns why no host matches a class.
func describeNoHosts(spec *v1alpha1.ProxmoxNodeClassSpec, snapshot *topology.Snapshot) string {
	regions := map[string]bool{}
	for _, region := range snapshot.Regions {
		regions[string(region.Name)] = true
	}
	var hosts []string
	for i := range snapshot.Hosts {
		if id := snapshot.Hosts[i].ID(); spec.Region == "" || spec.Region == string(id.Region) {
			hosts = append(hosts, id.String())
		}
		regions[string(snapshot.Hosts[i].Region)] = true
	}
	text := "no Proxmox host matches its spec.region and spec.hosts: "
	if spec.Region != "" && !regions[spec.Region] {
		return text + fmt.Sprintf("spec.region %q must be one of %s", spec.Region, strings.Join(slices.Sorted(maps.Keys(regions)), ", "))
	}
	if more := len(hosts) - mostHosts; more > 0 {
		hosts = append(hosts[:mostHosts], fmt.Sprintf("%d more", more))
	}
	return text + fmt.Sprintf("spec.hosts (%s) must contain at least one of %s", strings.Join(spec.Hosts, ", "), strings.Join(hosts, ", "))
}

// mostHosts is the maximum number of hosts named in a message.
const mostHosts = 8

// disk returns the boot disk size of a VM with that type, in GiB.
func (c *class) disk(t *InstanceType) int64 {
	return max(cmp.Or(max(c.diskGiB, t.DiskGiB), defaultDiskGiB), c.leastGiB)
}

// spec returns the Spec of a VM of the class with the given type, pool and allowed hosts.
// Its template is the first host's.
func (c *class) spec(pool string, t *InstanceType, hosts []topology.HostID) fleet.Spec {
	spec := c.base
	spec.Pool = pool
	spec.InstanceType = t.Name
	spec.CapacityType = t.CapacityType
	spec.VCPUs = t.VCPUs
	spec.MemoryMiB = t.MemoryMiB
	spec.DiskGiB = c.disk(t)
	spec.Hosts = hosts
	if len(hosts) > 0 {
		c.setTemplate(&spec, hosts[0])
	}
	return spec
}

// setTemplate sets the template from which a VM is cloned on its host.
func (c *class) setTemplate(spec *fleet.Spec, host topology.HostID) {
	from, known := c.templates[host]
	if !known {
		return
	}
	spec.Template, spec.TemplateVMID = from.Name, 0
	if from.namesakes || from.On != host {
		spec.TemplateVMID = fleet.VMID(from.VMID)
	}
}

// split returns one copy of the spec for each template on its hosts, in the order of the
// hosts, because a Spec without a placement names only one template.
func (c *class) split(spec fleet.Spec) []fleet.Spec {
	var specs []fleet.Spec
	for _, host := range spec.Hosts {
		one := spec
		c.setTemplate(&one, host)
		i := slices.IndexFunc(specs, func(s fleet.Spec) bool {
			return s.Template == one.Template && s.TemplateVMID == one.TemplateVMID
		})
		if i < 0 {
			one.Hosts = nil
			i, specs = len(specs), append(specs, one)
		}
		specs[i].Hosts = append(specs[i].Hosts, host)
	}
	return specs
}

// ClassHashVersion is the version of ClassHash's algorithm. Hashes of different versions
// cannot be compared.
const ClassHashVersion = "v1"

// hashed are the fields of a class whose change replaces nodes, with defaults applied.
// Fields added later must be omitted when empty, so that hashes of classes without them
// do not change.
type hashed struct {
	Clone       v1alpha1.CloneKind             `json:"clone"`
	DiskGiB     int64                          `json:"disk_gib,omitempty"`
	Storage     string                         `json:"storage,omitempty"`
	CPUType     string                         `json:"cpu_type"`
	Policy      v1alpha1.PlacementPolicy       `json:"policy"`
	PinWith     v1alpha1.PinWith               `json:"pin_with,omitempty"`
	Overcommit  string                         `json:"overcommit"`
	Networks    []v1alpha1.Network             `json:"networks,omitempty"`
	Kubelet     *v1alpha1.KubeletConfiguration `json:"kubelet,omitempty"`
	SeedByCDROM bool                           `json:"seed_by_cdrom,omitempty"`
	HugePages   v1alpha1.HugePages             `json:"huge_pages,omitempty"`
	PCIDevices  []v1alpha1.PCIDevice           `json:"pci_devices,omitempty"`
	DataDisks   []fleet.DataDisk               `json:"data_disks,omitempty"`
	Hardware    *fleet.Hardware                `json:"hardware,omitempty"`

	MemoryOvercommit float64 `json:"memory_overcommit,omitempty"`
}

// ClassHash returns the hash of the class's fields whose change replaces its nodes. It
// excludes fields that only concern new nodes or change in place: region, hosts, spread,
// hostSelection, maxHostLoad, wholeCores, emulator, sizing, tags, pool, VMID range, security groups, token
// lifetime, memory overhead, and metadata except whether nodes have a seed. It also excludes the template: a
// node is compared with the template that its host would clone now, however the class
// selects it.
func ClassHash(nc *v1alpha1.ProxmoxNodeClass) string {
	spec := nc.Spec.DeepCopy()
	h := hashed{
		Clone: cmp.Or(spec.Clone, v1alpha1.CloneFull), CPUType: string(cmp.Or(spec.CPUType, "host")),
		Policy: spec.Placement.EffectivePolicy(), PinWith: spec.Placement.PinWith,
		Networks: spec.Networks, Kubelet: spec.Kubelet,
		SeedByCDROM: nc.Seeded(), HugePages: spec.Placement.HugePages, PCIDevices: spec.PCIDevices,
	}
	// A class that Validate refuses has no VMs, so its hash is not used.
	h.DiskGiB, _ = spec.BootDevice.SizeGiB()
	if spec.BootDevice != nil {
		h.Storage = spec.BootDevice.Storage
	}
	h.DataDisks = dataDisks(spec.DataDisks)
	h.Hardware = hardwareOf(spec.Hardware)
	overcommit, _ := spec.Placement.OvercommitRatio()
	h.Overcommit = strconv.FormatFloat(overcommit, 'g', -1, 64)
	h.MemoryOvercommit = spec.Placement.MemoryOvercommitRatio()
	for i := range h.Networks {
		h.Networks[i].Model = cmp.Or(h.Networks[i].Model, "virtio")
		slices.Sort(h.Networks[i].Trunks)
		h.Networks[i].MACPrefix = strings.ToUpper(h.Networks[i].MACPrefix)
		h.Networks[i].AddressPools = sortedCopy(h.Networks[i].AddressPools)
		h.Networks[i].SecurityGroups = nil // they change in place
	}
	if k := h.Kubelet; k != nil {
		k.AllowedUnsafeSysctls = sortedCopy(k.AllowedUnsafeSysctls)
		if text, err := json.Marshal(k); err == nil && string(text) == "{}" {
			h.Kubelet = nil
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return "" // unreachable: strings, numbers and maps of them always marshal
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
