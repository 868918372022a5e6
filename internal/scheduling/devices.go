package scheduling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// deviceFaults returns why the host cannot pass the class's PCI devices through.
func (c *class) deviceFaults(host *topology.Host, snapshot *topology.Snapshot, from *template) []fault {
	var faults []fault
	add := func(condition, reason, message, mend string) {
		faults = append(faults, fault{Finding: Finding{condition, reason, message}, host: host.ID(), mend: mend})
	}
	for _, mapping := range c.mappings() {
		if has(host, mapping) {
			continue
		}
		what, mend := missing(mapping, host, snapshot)
		add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPCIDeviceMissing, what, mend)
	}
	pcie := slices.ContainsFunc(c.base.PCIDevices, func(d fleet.PCIDevice) bool { return d.PCIe })
	if pcie && from.VMID != 0 && !strings.Contains(from.Options["machine"], "q35") {
		add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, whose machine is not q35, as pcie needs", describeTemplate(&c.fields.Template)),
			fmt.Sprintf("qm set %d --machine q35, or remove pcie from spec.pciDevices", from.VMID))
	}
	return faults
}

// mappings returns the names of the class's device mappings, without duplicates.
func (c *class) mappings() []string {
	var names []string
	for _, d := range c.base.PCIDevices {
		if !slices.Contains(names, d.Mapping) {
			names = append(names, d.Mapping)
		}
	}
	return names
}

// has reports whether a mapping contains a device of the host.
func has(host *topology.Host, mapping string) bool {
	return slices.ContainsFunc(host.PCIDevices, func(d topology.PCIDevice) bool { return d.Mapping == mapping })
}

// missing returns why the host has no device of a mapping, and how to fix it.
func missing(mapping string, host *topology.Host, snapshot *topology.Snapshot) (what, mend string) {
	for i := range snapshot.Hosts {
		other := &snapshot.Hosts[i]
		if other.Region == host.Region && has(other, mapping) {
			return "has no device of PCI mapping " + mapping, "add one of its devices to the mapping (Datacenter > Resource Mappings in Proxmox), or allow other hosts in spec.hosts"
		}
	}
	i := slices.IndexFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == host.Region })
	problem := ""
	if i >= 0 {
		problem = snapshot.Regions[i].MappingsProblem
	}
	return fmt.Sprintf("is in region %s, where no PCI mapping %s is seen", host.Region, mapping),
		cmp.Or(problem, "make the mapping (Datacenter > Resource Mappings in Proxmox) and give numaform's user Mapping.Use on "+
			"/mapping/pci/"+mapping+", as numaform doctor says, or correct spec.pciDevices")
}
