package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// ClassReport is the result of evaluating a class on the hosts of a snapshot.
type ClassReport struct {
	// Hosts are the hosts that can take nodes of the class, sorted.
	Hosts []topology.HostID
	// Excluded are the hosts that the class allows but that cannot take its nodes,
	// sorted.
	Excluded []Exclusion
	// Faults lists what the excluded hosts lack, sorted by host.
	Faults []Fault
	// Templates maps hosts to the template that their VMs are cloned from: Hosts, and hosts
	// that lack only a working host agent, which existing VMs do not need.
	Templates map[topology.HostID]HostTemplate
	// Findings are the problems, at most one for each condition. A condition without a
	// finding is met, to the extent that hosts determine it.
	Findings []Finding
}

// HostTemplate is a template and its host, which can be another host of the Proxmox cluster
// than the host of the VMs that are cloned from it.
type HostTemplate struct {
	topology.Template
	On topology.HostID
}

// Exclusion explains why a host is not used.
type Exclusion struct {
	Host topology.HostID
	// Reason completes a sentence that begins with the host's name, such as "is offline".
	Reason string
}

// Finding explains why a condition of a class is not met, with the condition's Reason and
// Message.
type Finding struct{ Condition, Reason, Message string }

// Fault is what one host lacks for a condition of a class: Message completes a sentence
// that begins with the host's name, and Fix is a hint. Commands are the command lines in
// Message and Fix that fix the fault, for root on the host.
type Fault struct {
	Finding
	Host topology.HostID
	// Values are the values in the message.
	Values   []topology.Value
	Fix      string
	Commands []string
}

// EvaluateClass returns which hosts can take nodes of a class and what is wrong with it. It
// checks only what a snapshot shows: neither Secrets nor the permissions of numaform's
// login. clusterID identifies the class's numaform installation, because a host agent pins
// VMs only for the clusters in its configuration. types are the existing instance types; if
// there are none, any type is accepted.
func EvaluateClass(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, types []InstanceType) ClassReport {
	c := newClass(nc, snapshot, clusterID, OfferedBy(nc, types))
	report := ClassReport{
		Hosts:     c.hosts,
		Excluded:  c.excluded,
		Findings:  c.findings,
		Templates: map[topology.HostID]HostTemplate{},
	}
	for host, from := range c.templates {
		report.Templates[host] = from.HostTemplate
	}
	for _, f := range c.faults {
		f.Fix = cmp.Or(f.Fix, fixFor(f.Reason))
		report.Faults = append(report.Faults, f)
	}
	return report
}

// Allows reports whether the class's spec.region and spec.hosts allow the host, whether
// or not it has room.
func Allows(nc *v1alpha1.ProxmoxNodeClass, host topology.HostID) bool {
	return Selects(nc.Spec.Region, nc.Spec.Hosts, host)
}

// Selects reports whether spec.region and spec.hosts of a class or a template select a host.
// Empty means all; a host is given by its name, or as REGION/HOST.
func Selects(region string, hosts []string, host topology.HostID) bool {
	return (region == "" || region == string(host.Region)) &&
		(len(hosts) == 0 || slices.Contains(hosts, string(host.Host)) || slices.Contains(hosts, host.String()))
}

// Needs lists what the VMs of a class use on a suitable host, for checks that a snapshot
// does not cover.
type Needs struct {
	// Disks are the storages of the VMs' disks, sorted.
	Disks []string
	// Seed is the storage of the VMs' seeds, or fleet.AnySeedStorage, or empty.
	Seed string
	// Template is the template that the VMs are cloned from.
	Template topology.Template
}

// NeedsOf returns what VMs of a class need on a host, and false if the host cannot take
// any for a reason other than its host agent.
func NeedsOf(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, host topology.HostID) (Needs, bool) {
	c := newClass(nc, snapshot, "", nil)
	from, ok := c.templates[host]
	if !ok {
		return Needs{}, false
	}
	return Needs{Disks: slices.Sorted(maps.Keys(diskNeeds(&c.base, from.Storage, 0))), Seed: c.base.SeedStorage, Template: from.Template}, true
}

// hostCheck collects what one host lacks for a class.
type hostCheck struct {
	*class
	host   *topology.Host
	region *topology.Region // nil if the snapshot does not have it
	from   template
	faults []Fault
}

// add adds a fault, unless the message is empty. An empty fix means fixFor(reason).
func (h *hostCheck) add(condition, reason, message, fix string, commands ...string) {
	if message != "" {
		h.faults = append(h.faults, Fault{
			Finding:  Finding{Condition: condition, Reason: reason, Message: message},
			Host:     h.host.ID(),
			Fix:      fix,
			Commands: commands,
		})
	}
}

// checkHost returns the class's template on the host, and why the host is not usable.
func (c *class) checkHost(host *topology.Host, snapshot *topology.Snapshot) (template, []Fault) {
	h := &hostCheck{class: c, host: host}
	if i := slices.IndexFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == host.Region }); i >= 0 {
		h.region = &snapshot.Regions[i]
	}
	if problem := h.unavailable(); problem != "" {
		for _, condition := range c.hostConditions() {
			h.add(condition, v1alpha1.ReasonHostUnavailable, problem, "")
		}
		return template{}, h.faults
	}

	h.checkTemplate(snapshot)
	pool := c.base.ResourcePool
	if h.region != nil && pool != "" && len(h.region.Pools) > 0 && !slices.Contains(h.region.Pools, pool) {
		h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPoolNotFound,
			fmt.Sprintf("is in region %s, which has no resource pool %q", h.region.Name, pool), "")
	}
	if own := h.base.VMIDs; own != (fleet.VMIDRange{}) && h.region != nil && h.region.VMIDs != (topology.VMIDRange{}) &&
		(!h.region.VMIDs.Contains(int(own.Lower)) || !h.region.VMIDs.Contains(int(own.Upper))) {
		h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonVMIDsOutside,
			fmt.Sprintf("is in region %s, whose vmid_range %d to %d does not contain spec.vmidRange %d to %d",
				h.region.Name, h.region.VMIDs.Lower, h.region.VMIDs.Upper, own.Lower, own.Upper), "")
	}
	h.checkAddresses(snapshot)
	h.checkDisks()
	h.checkTopology()
	seed := storageProblem(host, c.base.SeedStorage, "iso", "ISO images")
	if c.base.SeedStorage == fleet.AnySeedStorage {
		seed = "has no active storage that accepts ISO images"
		if slices.ContainsFunc(host.Storages, func(s topology.Storage) bool { return s.Active && slices.Contains(s.Content, "iso") }) {
			seed = ""
		}
	}
	h.add(v1alpha1.ConditionMetadataReady, v1alpha1.ReasonSeedStorageNotFound, seed, "")
	h.checkDevices(snapshot)

	// A missing host agent does not affect existing VMs, because their pins remain.
	if c.base.Policy.Pinned() && c.base.PinWith == fleet.PinWithHostAgent {
		faults := host.AgentFaults(c.clusterID, host.ReadAt)
		if i := slices.IndexFunc(faults, func(f topology.AgentFault) bool { return f.Blocks }); i >= 0 {
			h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHostAgentNotReady, faults[i].What, faults[i].Fix)
		}
	}
	return h.from, h.faults
}

// hostConditions returns the conditions that depend on hosts.
func (c *class) hostConditions() []string {
	conditions := []string{v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady}
	if c.base.SeedStorage != "" {
		conditions = append(conditions, v1alpha1.ConditionMetadataReady)
	}
	return conditions
}

// unavailable returns why the host cannot take any VM now, or "".
func (h *hostCheck) unavailable() string {
	switch {
	case !h.host.Online:
		return "is offline"
	case h.host.Problem != "":
		return h.host.Problem
	case h.host.Maintenance:
		return fmt.Sprintf("is in HA maintenance: to end it, run ha-manager crm-command node-maintenance disable %s", h.host.Name)
	case h.region != nil && !h.region.Quorate:
		return fmt.Sprintf("is in region %s, which has lost its quorum", h.host.Region)
	}
	return ""
}

// checkTemplate sets from to the only template that matches the reference, or adds a fault.
// The host uses the template of another host only if it has none, or, of a ProxmoxTemplate,
// if the other one is newer.
func (h *hostCheck) checkTemplate(snapshot *topology.Snapshot) {
	ref := &h.fields.Template
	matching := h.matchingTemplates(h.host)
	others, problem := h.othersTemplates(snapshot, ref)
	switch {
	case len(matching) == 0 && len(others) > 1:
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateAmbiguous, fmt.Sprintf("has no template %s, and could use %d of other hosts, including VMIDs %d on %s and %d on %s",
			describeTemplate(ref), len(others), others[0].VMID, others[0].On.Host, others[1].VMID, others[1].On.Host), "")
	case len(others) == 1 && (len(matching) == 0 || ref.Ref != "" && others[0].MadeFor.Serial > matching[0].MadeFor.Serial):
		if others[0].Problem != "" {
			h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
				fmt.Sprintf("could use template %s of %s, but %s", describeTemplate(ref), others[0].On.Host, others[0].Problem), "", others[0].Commands...)
			return
		}
		h.from.HostTemplate = others[0]
	case len(matching) == 0:
		message := "has no template " + describeTemplate(ref)
		if problem != "" {
			message += ", and " + problem
		}
		var commands []string
		i := slices.IndexFunc(h.host.Guests, func(g topology.Guest) bool {
			return g.Kind == topology.GuestVM && !g.Template && (ref.VMID != 0 && int(ref.VMID) == g.VMID || ref.VMID == 0 && ref.Name != "" && ref.Name == g.Name)
		})
		if i >= 0 {
			vmid := h.host.Guests[i].VMID
			commands = []string{fmt.Sprintf("qm template %d", vmid)}
			message += fmt.Sprintf(", but VM %d is not a template yet: run %s", vmid, commands[0])
		}
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateNotFound, message, "", commands...)
	case len(matching) > 1:
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateAmbiguous, fmt.Sprintf("has %d templates %s, including VMIDs %d and %d",
			len(matching), describeTemplate(ref), matching[0].VMID, matching[1].VMID), "")
	case matching[0].Problem != "":
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, but %s", describeTemplate(ref), matching[0].Problem), "", matching[0].Commands...)
	default:
		h.from.HostTemplate = HostTemplate{Template: matching[0], On: h.host.ID()}
		h.from.namesakes = slices.ContainsFunc(h.host.Templates, func(other topology.Template) bool {
			return other.Name == matching[0].Name && other.VMID != matching[0].VMID
		})
	}
}

// othersTemplates returns the matching templates on other hosts that VMs on the host can be
// cloned from: of a ProxmoxTemplate, only the newest. problem is why another matching
// template cannot be used although its boot disk is on shared storage, or "".
func (h *hostCheck) othersTemplates(snapshot *topology.Snapshot, ref *v1alpha1.TemplateReference) (others []HostTemplate, problem string) {
	full := ""
	if h.base.Clone == fleet.CloneFull {
		full = h.base.Storage
	}
	for i := range snapshot.Hosts {
		from := &snapshot.Hosts[i]
		if from.Region != h.host.Region || from.Name == h.host.Name {
			continue
		}
		for _, t := range h.matchingTemplates(from) {
			if why := h.host.CloneProblem(&t, from, full); why != "" {
				if s := from.Storage(t.Storage); s != nil && s.Shared {
					problem = cmp.Or(problem, why)
				}
				continue
			}
			one := HostTemplate{Template: t, On: from.ID()}
			switch {
			case ref.Ref == "" || len(others) == 0:
				others = append(others, one)
			case t.MadeFor.Serial > others[0].MadeFor.Serial:
				others[0] = one
			}
		}
	}
	return others, problem
}

// matchingTemplates returns the templates on a host that the class selects. Of a
// ProxmoxTemplate, that is the newest: several exist while nodes of an earlier image are
// replaced.
func (h *hostCheck) matchingTemplates(host *topology.Host) []topology.Template {
	var matching []topology.Template
	for _, t := range host.Templates {
		switch {
		case !h.selects(&t):
		case h.fields.Template.Ref == "" || len(matching) == 0:
			matching = append(matching, t)
		case t.MadeFor.Serial > matching[0].MadeFor.Serial:
			matching[0] = t
		}
	}
	return matching
}

// selects reports whether a template matches the class's reference.
func (c *class) selects(t *topology.Template) bool {
	ref := &c.fields.Template
	if ref.Ref != "" {
		return t.MadeFor.Template == ref.Ref && t.MadeFor.ClusterID == c.clusterID
	}
	hasTags := !slices.ContainsFunc(ref.Tags, func(tag string) bool { return !slices.Contains(t.Tags, tag) })
	return (ref.Name == "" || ref.Name == t.Name) && (ref.VMID == 0 || int(ref.VMID) == t.VMID) && hasTags
}

func describeTemplate(ref *v1alpha1.TemplateReference) string {
	if ref.Ref != "" {
		return fmt.Sprintf("of %s %q", v1alpha1.KindProxmoxTemplate, ref.Ref)
	}
	var parts []string
	if ref.Name != "" {
		parts = append(parts, fmt.Sprintf("%q", ref.Name))
	}
	if len(ref.Tags) > 0 {
		parts = append(parts, "with tags "+strings.Join(ref.Tags, ", "))
	}
	if ref.VMID != 0 {
		parts = append(parts, fmt.Sprintf("with VMID %d", ref.VMID))
	}
	return strings.Join(parts, " ")
}

// storageProblem returns why a storage of the host does not accept the content, or "".
// described is the content's name in messages.
func storageProblem(host *topology.Host, name, content, described string) string {
	i := slices.IndexFunc(host.Storages, func(s topology.Storage) bool { return s.Name == name })
	switch {
	case name == "":
		return ""
	case i < 0:
		return fmt.Sprintf("has no storage %q", name)
	case !host.Storages[i].Active:
		return fmt.Sprintf("has storage %q, but it is not active", name)
	case len(host.Storages[i].Content) > 0 && !slices.Contains(host.Storages[i].Content, content):
		return fmt.Sprintf("has storage %q, but it does not accept %s", name, described)
	}
	return ""
}

// checkDisks checks that the host has the storages of the nodes' disks, with room for at
// least the smallest node, and slots for the data disks.
func (h *hostCheck) checkDisks() {
	h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound, storageProblem(h.host, h.base.Storage, "images", "disk images"), "")
	checked := []string{h.base.Storage}
	for _, d := range h.base.DataDisks {
		if !slices.Contains(checked, d.Storage) {
			checked = append(checked, d.Storage)
			h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound, storageProblem(h.host, d.Storage, "images", "disk images"),
				"correct spec.dataDisks, or Datacenter > Storage in Proxmox")
		}
	}
	if h.from.Name == "" {
		return
	}

	needs := diskNeeds(&h.base, h.from.Storage, max(h.smallestGiB, h.from.DiskGiB))
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		i := slices.IndexFunc(h.host.Storages, func(s topology.Storage) bool { return s.Name == name })
		if i < 0 || h.host.Storages[i].TotalMiB == 0 { // unknown storage or size
			continue
		}
		if free := h.host.Storages[i].FreeMiB; free < needs[name] {
			message, values := fullProblem(name, free, needs[name], "")
			h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageFull, message, fullAdvice(&h.base))
			h.faults[len(h.faults)-1].Values = values
			break
		}
	}

	if hardware := h.base.Hardware; hardware != nil && strings.HasPrefix(hardware.Display, "serial") && h.from.Options[hardware.Display] == "" {
		display := hardware.Display
		command := fmt.Sprintf("qm set %d", h.from.VMID)
		for _, port := range []string{"serial0", "serial1", "serial2", "serial3"} { // without gaps
			if port <= display && h.from.Options[port] == "" {
				command += " --" + port + " socket"
			}
		}
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, which lacks the serial port of spec.hardware.vga.type %s", describeTemplate(&h.fields.Template), display),
			command+", or set another type", command)
	}

	needed := len(h.base.DataDisks)
	if free := len(fleet.FreeSlots(append(slices.Clone(h.from.Drives), h.from.DiskInterface), needed)); free < needed {
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, which has free SCSI slots for %d of %d data disks", describeTemplate(&h.fields.Template), free, needed),
			"remove drives from the template, or disks from spec.dataDisks")
	}
}

// checkAddresses checks that the host's region has the address pools of the class, and that no
// device has several of one family.
func (h *hostCheck) checkAddresses(snapshot *topology.Snapshot) {
	for i := range h.base.Networks {
		var first *topology.AddressPool
		for _, name := range h.base.Networks[i].AddressPools() {
			pool := snapshot.AddressPool(h.host.Region, name)
			switch {
			case pool == nil:
				h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonAddressPoolNotFound,
					fmt.Sprintf("is in region %s, which has no address pool %q", h.host.Region, name), "")
			case first != nil && first.Subnet.Addr().BitLen() == pool.Subnet.Addr().BitLen():
				h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonAddressPoolNotFound,
					fmt.Sprintf("is in region %s, where the address pools %q and %q of spec.networks[%d] have the same address family", h.host.Region, first.Name, name, i),
					"remove one of the two: a device has at most one IPv4 and one IPv6 address")
			}
			first = cmp.Or(first, pool)
		}
	}
}

// checkTopology checks that the host reports the topology that the class's policy needs,
// and has huge pages of the class's size.
func (h *hostCheck) checkTopology() {
	cpus := h.host.CPUs
	if len(cpus) == 0 {
		return
	}
	if h.base.Policy == fleet.PolicyIsolated &&
		!slices.ContainsFunc(cpus, func(cpu topology.CPU) bool { return cpu.Core != topology.Unknown }) {
		h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPlacementImpossible, "does not report which CPUs share a core", "")
	}

	size := h.base.HugePages
	reserved := slices.ContainsFunc(h.host.NUMANodes, func(n topology.NUMANode) bool { return n.HugePages[int(size.MiB())<<10] > 0 })
	if size != "" && !reserved {
		message := fmt.Sprintf("has no huge pages of %s reserved", size)
		if !h.host.HugePagesKnown() {
			message = "does not report its huge pages"
		}
		h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHugePagesMissing, message, "")
	}
}

// checkDevices checks that the host can pass the class's PCI devices through.
func (h *hostCheck) checkDevices(snapshot *topology.Snapshot) {
	var mappings []string
	pcie := false
	for _, d := range h.base.PCIDevices {
		pcie = pcie || d.PCIe
		if !slices.Contains(mappings, d.Mapping) {
			mappings = append(mappings, d.Mapping)
		}
	}

	for _, mapping := range mappings {
		hasDevice := func(host *topology.Host) bool {
			return slices.ContainsFunc(host.PCIDevices, func(d topology.PCIDevice) bool { return d.Mapping == mapping })
		}
		elsewhere := slices.ContainsFunc(snapshot.Hosts, func(other topology.Host) bool { return other.Region == h.host.Region && hasDevice(&other) })
		switch {
		case hasDevice(h.host):
		case elsewhere:
			h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPCIDeviceMissing, "has no device in PCI mapping "+mapping,
				"add one of its devices to the mapping (Datacenter > Resource Mappings in Proxmox), or allow other hosts in spec.hosts")
		default:
			fix := ""
			if h.region != nil {
				fix = h.region.MappingsProblem
			}
			h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPCIDeviceMissing,
				fmt.Sprintf("is in region %s, where no PCI mapping %s is visible", h.host.Region, mapping),
				cmp.Or(fix, "create the mapping (Datacenter > Resource Mappings in Proxmox) and grant numaform's user Mapping.Use on "+
					"/mapping/pci/"+mapping+", as numaform doctor shows, or correct spec.pciDevices"))
		}
	}

	machine := h.from.Options["machine"]
	if h.base.Hardware != nil {
		machine = cmp.Or(h.base.Hardware.Machine, machine)
	}
	if pcie && h.from.VMID != 0 && !strings.Contains(machine, "q35") && machine != h.from.Options["machine"] {
		h.add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPlacementImpossible,
			"cannot pass devices through with pcie, because spec.hardware.machine is not q35", "set spec.hardware.machine to q35, or remove pcie from spec.pciDevices")
	} else if pcie && h.from.VMID != 0 && !strings.Contains(machine, "q35") {
		command := fmt.Sprintf("qm set %d --machine q35", h.from.VMID)
		h.add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, whose machine type is not q35, which pcie requires", describeTemplate(&h.fields.Template)),
			command+", or remove pcie from spec.pciDevices", command)
	}
}

// findProblems returns a finding for every condition that no host meets, or a single one if
// each is met somewhere but no host meets all of them. If a host meets all, it returns none.
func (c *class) findProblems() []Finding {
	if len(c.hosts) > 0 {
		return nil
	}
	var findings []Finding
	for _, condition := range c.hostConditions() {
		var found []Fault
		hosts := map[topology.HostID]bool{}
		for _, f := range c.faults {
			if f.Condition == condition {
				found = append(found, f)
				hosts[f.Host] = true
			}
		}
		if len(hosts) == len(c.excluded) {
			findings = append(findings, Finding{Condition: condition, Reason: commonReason(found), Message: describeFaults(found)})
		}
	}
	if len(findings) == 0 {
		findings = []Finding{{
			Condition: v1alpha1.ConditionPlacementReady,
			Reason:    v1alpha1.ReasonNoHost,
			Message:   "no host meets all conditions: " + describeFaults(c.faults),
		}}
	}
	return findings
}

// commonReason returns the most common reason; hosts that are merely unavailable count
// last.
func commonReason(faults []Fault) string {
	count := map[string]int{}
	for _, f := range faults {
		count[f.Reason]++
	}
	delete(count, v1alpha1.ReasonHostUnavailable)
	best := v1alpha1.ReasonHostUnavailable
	for _, f := range faults {
		if count[f.Reason] > count[best] {
			best = f.Reason
		}
	}
	return best
}

// describeFaults lists what each host lacks, and how to fix the most common fault.
func describeFaults(faults []Fault) string {
	var parts []string
	for _, f := range faults {
		parts = append(parts, fmt.Sprintf("%s %s", f.Host, f.Message))
	}
	reason := commonReason(faults)
	fix := fixFor(reason)
	if i := slices.IndexFunc(faults, func(f Fault) bool { return f.Reason == reason }); i >= 0 {
		fix = cmp.Or(faults[i].Fix, fix)
	}
	return cmp.Or(strings.Join(parts, ", "), "no host matches") + ": " + fix
}

// fixFor returns how to fix faults with that reason.
func fixFor(reason string) string {
	switch reason {
	case v1alpha1.ReasonTemplateNotFound:
		return "create the template there, or correct spec.template"
	case v1alpha1.ReasonTemplateAmbiguous:
		return "select one with spec.template.name, tags or vmid"
	case v1alpha1.ReasonTemplateUnusable:
		return "correct the template, or set another in spec.template"
	case v1alpha1.ReasonStorageNotFound:
		return "correct spec.bootDevice.storage, or Datacenter > Storage in Proxmox"
	case v1alpha1.ReasonPoolNotFound:
		return "create the resource pool in Proxmox, or correct spec.pool"
	case v1alpha1.ReasonAddressPoolNotFound:
		return "add the pool to address_pools of the cluster in numaform.yaml, or correct spec.networks"
	case v1alpha1.ReasonVMIDsOutside:
		return "correct spec.vmidRange, or widen vmid_range of the cluster in numaform.yaml"
	case v1alpha1.ReasonPlacementImpossible:
		return "run numaform-agent there, provide its topology (numaform topology collect), or choose another spec.placement.policy"
	case v1alpha1.ReasonHugePagesMissing:
		return "reserve them at host boot and report them with numaform-agent or numaform topology collect, or remove spec.placement.hugePages"
	case v1alpha1.ReasonPCIDeviceMissing:
		return "add the hosts' devices to the mappings of spec.pciDevices, or correct spec.pciDevices"
	case v1alpha1.ReasonSeedStorageNotFound:
		return "allow content type ISO image on a storage of the hosts, or correct spec.metadata.storage"
	}
	return "make a host available again, or allow other hosts in spec.hosts"
}
