package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// class is a resolved NodeClass: where its VMs may be placed, and the part of their Spec
// that does not depend on size, pool or host.
type class struct {
	name string
	// hash is the hash of the fields that define the class's nodes.
	hash string
	// problem says why no node can be created from the class, or is empty.
	problem string
	fields  *v1alpha1.ProxmoxNodeClassSpec
	// clusterID is the cluster ID of the class's numaform installation.
	clusterID string
	base      fleet.Spec
	// overlaid are the resources that NodeOverlays add to nodes of any size.
	overlaid map[corev1.ResourceName]bool
	// diskGiB is the class's disk size, leastGiB the templates' smallest one, and
	// smallestGiB the smallest node's, whatever the template.
	diskGiB, leastGiB, smallestGiB int64
	// hosts can take VMs of the class; arch maps each to its architecture, and templates
	// to the template that it clones, or would clone if it had a working host agent.
	hosts     []topology.HostID
	arch      map[topology.HostID]string
	templates map[topology.HostID]template
	// excluded are hosts that the class allows but that cannot take its VMs.
	excluded []Exclusion
	findings []Finding
}

// template is a VM template on a host.
type template struct {
	topology.Template
	// namesakes is set if other templates on the host have the same name.
	namesakes bool
}

// newClass resolves a NodeClass of the cluster with that ID, with the types that it
// offers, against the hosts of a snapshot.
func newClass(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, offered []InstanceType) *class {
	c := &class{
		name: nc.Name, fields: &nc.Spec, clusterID: clusterID,
		arch: map[topology.HostID]string{}, templates: map[topology.HostID]template{},
	}
	if err := nc.Validate(); err != nil {
		c.problem = err.Error()
		c.findings = []Finding{{v1alpha1.ConditionValid, v1alpha1.ReasonInvalid, err.Error()}}
		return c
	}
	c.hash = ClassHash(nc)
	c.base = baseSpec(nc)
	// Validate has checked that it parses.
	c.diskGiB, _ = nc.Spec.BootDevice.SizeGiB()
	c.smallestGiB = c.smallest(offered)
	c.findHosts(nc, snapshot)
	return c
}

// invalid reports whether the class cannot be parsed. A class that is only not ready
// still defines its nodes.
func (c *class) invalid() bool { return c.base.NodeClass == "" }

// baseSpec returns the common part of all VMs of a valid class.
func baseSpec(nc *v1alpha1.ProxmoxNodeClass) fleet.Spec {
	spec := &nc.Spec
	base := fleet.Spec{
		NodeClass: nc.Name,
		Policy:    fleet.Policy(spec.Placement.EffectivePolicy()),
		PinWith:   fleet.PinWith(spec.Placement.PinWith),
		Clone:     cmp.Or(fleet.CloneKind(spec.Clone), fleet.CloneFull),
		CPUType:   cmp.Or(spec.CPUType, "host"),
	}
	InPlace(nc, &base)
	if base.Policy == fleet.PolicyShared {
		base.Overcommit, _ = spec.Placement.OvercommitRatio()
	}
	base.HugePages = fleet.HugePages(spec.Placement.HugePages)
	base.WholeCores = spec.Placement.WholeCores == v1alpha1.WholeCoresRequire
	if spec.Placement.Spread == v1alpha1.SpreadHosts {
		base.Spread = fleet.SpreadHosts
	}
	if spec.BootDevice != nil {
		base.Storage = spec.BootDevice.Storage
	}
	if nc.Seeded() {
		base.SeedStorage = cmp.Or(spec.Metadata.Storage, fleet.AnySeedStorage)
	}
	for _, n := range spec.Networks {
		base.Networks = append(base.Networks, fleet.Network{
			Bridge: n.Bridge, Model: n.Model, VLAN: int(n.VLAN), MTU: int(n.MTU), Firewall: n.Firewall, MAC: strings.ToUpper(n.MACPrefix),
		})
	}
	base.DataDisks = dataDisks(spec.DataDisks)
	for _, d := range spec.PCIDevices {
		base.PCIDevices = append(base.PCIDevices, fleet.PCIDevice{Mapping: d.Mapping, MDev: d.MDev, PCIe: d.PCIe, XVGA: d.XVGA})
	}
	return base
}

func sortedCopy(list []string) []string { return slices.Sorted(slices.Values(list)) }

// findHosts divides the hosts that the class allows into the ones that can take its VMs
// and the ones that cannot.
func (c *class) findHosts(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) {
	var faults []fault
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !Allows(nc, host.ID()) {
			continue
		}
		from, found := c.faultsOf(host, snapshot)
		if lacksAgentOnly(found) {
			c.templates[host.ID()] = from
		}
		if len(found) > 0 {
			c.excluded = append(c.excluded, Exclusion{host.ID(), describeFaults(found)})
			faults = append(faults, found...)
			continue
		}
		c.hosts = append(c.hosts, host.ID())
		c.arch[host.ID()] = cmp.Or(host.Arch, "amd64")
		c.templates[host.ID()] = from
		c.leastGiB = max(c.leastGiB, from.DiskGiB)
	}
	if len(c.hosts) == 0 && len(c.excluded) == 0 {
		text := nowhere(&nc.Spec, snapshot)
		c.problem = fmt.Sprintf("%s %q: %s", v1alpha1.KindProxmoxNodeClass, c.name, text)
		c.findings = []Finding{{v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHostUnknown, text}}
		return
	}
	c.findings = c.judge(faults)
}

// nowhere returns why a class allows no host at all.
func nowhere(spec *v1alpha1.ProxmoxNodeClassSpec, snapshot *topology.Snapshot) string {
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
	text := "no host of Proxmox is in its spec.region and spec.hosts: "
	switch {
	case spec.Region != "" && !regions[spec.Region]:
		return text + fmt.Sprintf("spec.region is %q: want one of %s", spec.Region, strings.Join(slices.Sorted(maps.Keys(regions)), ", "))
	case len(hosts) == 0:
		return text + "none can be read now: numaform doctor says why"
	}
	if more := len(hosts) - mostHosts; more > 0 {
		hosts = append(hosts[:mostHosts], fmt.Sprintf("%d more", more))
	}
	return text + fmt.Sprintf("spec.hosts is %s: want some of %s", strings.Join(spec.Hosts, ", "), strings.Join(hosts, ", "))
}

// mostHosts is the maximum number of hosts named in a message.
const mostHosts = 8

// disk returns the boot disk size of a VM with that type, in GiB.
func (c *class) disk(t *InstanceType) int64 {
	return max(cmp.Or(max(c.diskGiB, t.DiskGiB), defaultDiskGiB), c.leastGiB)
}

// smallest returns the smallest boot disk size of a VM with one of the types, in GiB.
func (c *class) smallest(offered []InstanceType) int64 {
	if len(offered) == 0 {
		return c.disk(&InstanceType{})
	}
	sizes := make([]int64, len(offered))
	for i := range offered {
		sizes[i] = c.disk(&offered[i])
	}
	return slices.Min(sizes)
}

// spec returns a VM of the class with that type, for that pool, on those hosts. This is
// the only place that creates a Spec. Its template is the first host's.
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
		c.settle(&spec, hosts[0])
	}
	return spec
}

// settle sets the template from which a VM is cloned on its host.
func (c *class) settle(spec *fleet.Spec, host topology.HostID) {
	from, known := c.templates[host]
	if !known {
		return
	}
	spec.Template, spec.TemplateVMID = from.Name, 0
	if from.namesakes {
		spec.TemplateVMID = fleet.VMID(from.VMID)
	}
}

// split returns one copy of the spec for each template that its hosts have, in the order
// of the hosts, because a Spec without a placement names only one template.
func (c *class) split(spec fleet.Spec) []fleet.Spec {
	var specs []fleet.Spec
	for _, host := range spec.Hosts {
		one := spec
		c.settle(&one, host)
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
