package scheduling

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// class is a NodeClass made ready: where its VMs may go, and all of their Spec
// that neither size nor pool decides.
type class struct {
	name string
	// problem says why no node can be made of the class at all, or is empty.
	problem string
	base    fleet.Spec
	// diskGiB is the size that the class asks for, leastGiB that of its templates.
	diskGiB, leastGiB int64
	// hosts may take VMs of the class; arch is the architecture of each.
	hosts []topology.HostID
	arch  map[topology.HostID]string
	// excluded are the hosts that the class allows but that cannot take its VMs.
	excluded []exclusion
}

// exclusion says why a host is not used.
type exclusion struct {
	host   topology.HostID
	reason string
}

// newClass resolves a NodeClass on the hosts of a snapshot.
func newClass(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) *class {
	c := &class{name: nc.Name, arch: map[topology.HostID]string{}}
	if err := nc.Validate(); err != nil {
		c.problem = err.Error()
		return c
	}
	spec := &nc.Spec
	// Validate has seen these, so they parse.
	c.diskGiB, _ = spec.BootDevice.SizeGiB()
	overcommit, _ := spec.Placement.OvercommitRatio()
	c.base = fleet.Spec{
		NodeClass:      nc.Name,
		Policy:         fleet.Policy(spec.Placement.EffectivePolicy()),
		PinWith:        fleet.PinWith(spec.Placement.PinWith),
		Template:       spec.Template.Name,
		Clone:          cmp.Or(fleet.CloneKind(spec.Clone), fleet.CloneFull),
		CPUType:        cmp.Or(spec.CPUType, "host"),
		Tags:           slices.Sorted(slices.Values(spec.Tags)),
		ResourcePool:   spec.Pool,
		SecurityGroups: slices.Clone(spec.SecurityGroups),
	}
	if c.base.Policy == fleet.PolicyShared {
		c.base.Overcommit = overcommit
	}
	if spec.BootDevice != nil {
		c.base.Storage = spec.BootDevice.Storage
	}
	for _, n := range spec.Networks {
		c.base.Networks = append(c.base.Networks, fleet.Network{
			Bridge: n.Bridge, Model: n.Model, VLAN: int(n.VLAN), MTU: int(n.MTU), Firewall: n.Firewall,
		})
	}
	c.findHosts(spec, snapshot)
	return c
}

func (c *class) findHosts(spec *v1alpha1.ProxmoxNodeClassSpec, snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !allows(spec, host.ID()) {
			continue
		}
		template, reason := usable(spec, host, snapshot)
		if reason != "" {
			c.excluded = append(c.excluded, exclusion{host.ID(), reason})
			continue
		}
		c.hosts = append(c.hosts, host.ID())
		c.arch[host.ID()] = cmp.Or(host.Arch, "amd64")
		c.leastGiB = max(c.leastGiB, template.DiskGiB)
	}
	if len(c.hosts) == 0 && len(c.excluded) == 0 {
		c.problem = fmt.Sprintf("%s %q: no host of Proxmox is in its spec.region and spec.hosts: correct them", v1alpha1.KindProxmoxNodeClass, c.name)
	}
}

func allows(spec *v1alpha1.ProxmoxNodeClassSpec, host topology.HostID) bool {
	if spec.Region != "" && spec.Region != string(host.Region) {
		return false
	}
	return len(spec.Hosts) == 0 || slices.Contains(spec.Hosts, string(host.Host)) || slices.Contains(spec.Hosts, host.String())
}

// usable returns the class' template on the host, or why the host is of no use.
func usable(spec *v1alpha1.ProxmoxNodeClassSpec, host *topology.Host, snapshot *topology.Snapshot) (topology.Template, string) {
	if !host.Online {
		return topology.Template{}, "is offline"
	}
	if host.Problem != "" {
		return topology.Template{}, host.Problem
	}
	if reason := regionProblem(spec, host.Region, snapshot); reason != "" {
		return topology.Template{}, reason
	}
	if spec.BootDevice != nil && spec.BootDevice.Storage != "" {
		if reason := storageProblem(host, spec.BootDevice.Storage); reason != "" {
			return topology.Template{}, reason
		}
	}
	i := slices.IndexFunc(host.Templates, func(t topology.Template) bool { return t.Name == spec.Template.Name })
	if i < 0 {
		return topology.Template{}, fmt.Sprintf("has no template %q", spec.Template.Name)
	}
	if problem := host.Templates[i].Problem; problem != "" {
		return topology.Template{}, fmt.Sprintf("has template %q, but %s", spec.Template.Name, problem)
	}
	return host.Templates[i], ""
}

func regionProblem(spec *v1alpha1.ProxmoxNodeClassSpec, name topology.RegionName, snapshot *topology.Snapshot) string {
	i := slices.IndexFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == name })
	switch {
	case i < 0:
		return ""
	case !snapshot.Regions[i].Quorate:
		return fmt.Sprintf("is in region %s, which has lost its quorum", name)
	case spec.Pool != "" && len(snapshot.Regions[i].Pools) > 0 && !slices.Contains(snapshot.Regions[i].Pools, spec.Pool):
		return fmt.Sprintf("is in region %s, which has no resource pool %q", name, spec.Pool)
	}
	return ""
}

func storageProblem(host *topology.Host, name string) string {
	i := slices.IndexFunc(host.Storages, func(s topology.Storage) bool { return s.Name == name })
	switch {
	case i < 0:
		return fmt.Sprintf("has no storage %q", name)
	case !host.Storages[i].Active:
		return fmt.Sprintf("has storage %q, but it is not active", name)
	case len(host.Storages[i].Content) > 0 && !slices.Contains(host.Storages[i].Content, "images"):
		return fmt.Sprintf("has storage %q, but it takes no disk images", name)
	}
	return ""
}

// disk returns the size of the boot disk of a VM of that type.
func (c *class) disk(t *InstanceType) int64 {
	return max(cmp.Or(max(c.diskGiB, t.DiskGiB), defaultDiskGiB), c.leastGiB)
}

// spec returns a VM of the class with that type, for that pool, on those hosts.
// It is the only place where a Spec is made.
func (c *class) spec(pool string, t *InstanceType, hosts []topology.HostID) fleet.Spec {
	spec := c.base
	spec.Pool = pool
	spec.InstanceType = t.Name
	spec.CapacityType = t.CapacityType
	spec.VCPUs = t.VCPUs
	spec.MemoryMiB = t.MemoryMiB
	spec.DiskGiB = c.disk(t)
	spec.Hosts = hosts
	return spec
}
