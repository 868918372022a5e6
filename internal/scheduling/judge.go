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

// ClassReport is the result of evaluating a class on the hosts of a snapshot.
type ClassReport struct {
	// Hosts can take nodes of the class, sorted.
	Hosts []topology.HostID
	// Excluded are the hosts that the class allows but that cannot take its nodes,
	// sorted.
	Excluded []Exclusion
	// Templates are the templates on each of Hosts, and on hosts that lack only a working
	// host agent, which makes no difference to the VMs on them.
	Templates map[topology.HostID]topology.Template
	// Findings are the problems, at most one for each condition. A condition without a
	// finding is met, to the extent that hosts determine it.
	Findings []Finding
}

// Exclusion explains why a host is not used.
type Exclusion struct {
	Host topology.HostID
	// Reason completes a sentence that begins with the host's name: "is offline".
	Reason string
}

// Finding explains why a condition of a class is not met: Reason and Message are the
// condition's.
type Finding struct{ Condition, Reason, Message string }

// Judge returns which hosts can take nodes of a class and what is wrong with it. It
// checks only what a snapshot shows: neither Secrets nor the permissions of numaform's
// login. clusterID identifies the class's numaform installation, because host agents pin
// for certain clusters. types are the existing instance types; if there are none, any
// type is accepted.
func Judge(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, types []InstanceType) ClassReport {
	c := newClass(nc, snapshot, clusterID, OfferedBy(nc, types))
	report := ClassReport{
		Hosts: c.hosts, Excluded: c.excluded, Findings: c.findings,
		Templates: map[topology.HostID]topology.Template{},
	}
	for host, from := range c.templates {
		report.Templates[host] = from.Template
	}
	return report
}

// Allows reports whether the class's spec.region and spec.hosts allow the host, whether
// or not it has room.
func Allows(nc *v1alpha1.ProxmoxNodeClass, host topology.HostID) bool {
	spec := &nc.Spec
	if spec.Region != "" && spec.Region != string(host.Region) {
		return false
	}
	return len(spec.Hosts) == 0 || slices.Contains(spec.Hosts, string(host.Host)) || slices.Contains(spec.Hosts, host.String())
}

// fault is what a host lacks for a condition of a class.
type fault struct {
	Finding
	host topology.HostID
	// mend says how to fix it if that differs between hosts, or is empty.
	mend string
}

func (f *fault) advice() string { return cmp.Or(f.mend, mend(f.Reason)) }

func describeFaults(faults []fault) string {
	var parts []string
	for _, f := range faults {
		part := f.Message
		if f.mend != "" {
			part += " (" + f.mend + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(slices.Compact(parts), " and ")
}

// faultsOf returns the class's template on the host, and why the host is not usable.
func (c *class) faultsOf(host *topology.Host, snapshot *topology.Snapshot) (template, []fault) {
	var faults []fault
	add := func(condition, reason, message string) {
		if message != "" {
			faults = append(faults, fault{Finding: Finding{condition, reason, message}, host: host.ID()})
		}
	}
	if text := unavailable(host, snapshot); text != "" {
		for _, condition := range c.judged() {
			add(condition, v1alpha1.ReasonHostUnavailable, text)
		}
		return template{}, faults
	}
	from, reason, message := c.findTemplate(host)
	add(v1alpha1.ConditionTemplateReady, reason, message)
	add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPoolNotFound, c.poolProblem(host.Region, snapshot))
	add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound, storageProblem(host, c.base.Storage, "images", "disk images"))
	faults = append(faults, c.diskFaults(host, &from)...)
	add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPlacementImpossible, c.policyProblem(host))
	add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHugePagesMissing, c.pagesProblem(host))
	add(v1alpha1.ConditionMetadataReady, v1alpha1.ReasonSeedStorageNotFound, c.seedProblem(host))
	faults = append(faults, c.deviceFaults(host, snapshot, &from)...)
	return from, append(faults, c.agentFaults(host)...)
}

// judged returns the conditions that depend on hosts.
func (c *class) judged() []string {
	conditions := []string{v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady}
	if c.base.SeedStorage != "" {
		conditions = append(conditions, v1alpha1.ConditionMetadataReady)
	}
	return conditions
}

func unavailable(host *topology.Host, snapshot *topology.Snapshot) string {
	i := slices.IndexFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == host.Region })
	switch {
	case !host.Online:
		return "is offline"
	case host.Problem != "":
		return host.Problem
	case host.Maintenance:
		return fmt.Sprintf("is in HA maintenance, which ends with ha-manager crm-command node-maintenance disable %s", host.Name)
	case i >= 0 && !snapshot.Regions[i].Quorate:
		return fmt.Sprintf("is in region %s, which has lost its quorum", host.Region)
	}
	return ""
}

// findTemplate returns the only template on the host that matches the reference, or why
// there is none.
func (c *class) findTemplate(host *topology.Host) (found template, reason, message string) {
	ref := &c.fields.Template
	var fit []template
	for _, t := range host.Templates {
		if ref.Name != "" && ref.Name != t.Name || ref.VMID != 0 && int(ref.VMID) != t.VMID ||
			slices.ContainsFunc(ref.Tags, func(tag string) bool { return !slices.Contains(t.Tags, tag) }) {
			continue
		}
		fit = append(fit, template{t, slices.ContainsFunc(host.Templates, func(other topology.Template) bool {
			return other.Name == t.Name && other.VMID != t.VMID
		})})
	}
	switch {
	case len(fit) == 0:
		return template{}, v1alpha1.ReasonTemplateNotFound, "has no template " + describeTemplate(ref) + notYet(host, ref)
	case len(fit) > 1:
		return template{}, v1alpha1.ReasonTemplateAmbiguous, fmt.Sprintf("has %d templates %s, %d and %d among them",
			len(fit), describeTemplate(ref), fit[0].VMID, fit[1].VMID)
	case fit[0].Problem != "":
		return template{}, v1alpha1.ReasonTemplateUnusable, fmt.Sprintf("has template %s, but %s", describeTemplate(ref), fit[0].Problem)
	}
	return fit[0], "", ""
}

// notYet returns a VM that would match the reference if it were a template.
func notYet(host *topology.Host, ref *v1alpha1.TemplateReference) string {
	i := slices.IndexFunc(host.Guests, func(g topology.Guest) bool {
		return g.Kind == topology.GuestVM && !g.Template && (ref.VMID != 0 && int(ref.VMID) == g.VMID || ref.VMID == 0 && ref.Name != "" && ref.Name == g.Name)
	})
	if i < 0 {
		return ""
	}
	return fmt.Sprintf(", but VM %d of that name is no template yet: qm template %d", host.Guests[i].VMID, host.Guests[i].VMID)
}

func describeTemplate(ref *v1alpha1.TemplateReference) string {
	var parts []string
	if ref.Name != "" {
		parts = append(parts, fmt.Sprintf("%q", ref.Name))
	}
	if len(ref.Tags) > 0 {
		parts = append(parts, "with tags "+strings.Join(ref.Tags, ", "))
	}
	if ref.VMID != 0 {
		parts = append(parts, fmt.Sprintf("of VMID %d", ref.VMID))
	}
	return strings.Join(parts, " ")
}

func (c *class) poolProblem(name topology.RegionName, snapshot *topology.Snapshot) string {
	i := slices.IndexFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == name })
	pool := c.base.ResourcePool
	if i < 0 || pool == "" || len(snapshot.Regions[i].Pools) == 0 || slices.Contains(snapshot.Regions[i].Pools, pool) {
		return ""
	}
	return fmt.Sprintf("is in region %s, which has no resource pool %q", name, pool)
}

// storageProblem returns why a storage of the host does not accept the content, which
// described names for people. An empty name is no problem.
func storageProblem(host *topology.Host, name, content, described string) string {
	i := slices.IndexFunc(host.Storages, func(s topology.Storage) bool { return s.Name == name })
	switch {
	case name == "":
		return ""
	case i < 0:
		return fmt.Sprintf("has no storage %q", name)
	case !host.Storages[i].Active:
		return fmt.Sprintf("has storage %q, but it is not active", name)
	case !takes(host.Storages[i], content):
		return fmt.Sprintf("has storage %q, but it takes no %s", name, described)
	}
	return ""
}

// takes reports whether a storage accepts the content, or its content types are unknown.
func takes(s topology.Storage, content string) bool {
	return len(s.Content) == 0 || slices.Contains(s.Content, content)
}

func (c *class) seedProblem(host *topology.Host) string {
	if c.base.SeedStorage != fleet.AnySeedStorage {
		return storageProblem(host, c.base.SeedStorage, "iso", "ISO images")
	}
	if slices.ContainsFunc(host.Storages, func(s topology.Storage) bool { return s.Active && slices.Contains(s.Content, "iso") }) {
		return ""
	}
	return "has no active storage that takes ISO images"
}

// policyProblem returns the facts about the host that the policy needs and that are
// unknown.
func (c *class) policyProblem(host *topology.Host) string {
	if c.base.Policy != fleet.PolicyIsolated || len(host.CPUs) == 0 {
		return ""
	}
	if slices.ContainsFunc(host.CPUs, func(cpu topology.CPU) bool { return cpu.Core != topology.Unknown }) {
		return ""
	}
	return "does not tell which CPUs share a core"
}

// judge returns a finding for every condition that no host meets, and one more if each is
// met somewhere but no host meets all of them.
func (c *class) judge(faults []fault) []Finding {
	if len(c.hosts) > 0 {
		return nil
	}
	var findings []Finding
	for _, condition := range c.judged() {
		var found []fault
		hosts := map[topology.HostID]bool{}
		for _, f := range faults {
			if f.Condition == condition {
				found, hosts[f.host] = append(found, f), true
			}
		}
		if len(hosts) == len(c.excluded) {
			findings = append(findings, Finding{condition, commonReason(found), describeAll(found)})
		}
	}
	if len(findings) == 0 {
		findings = []Finding{{v1alpha1.ConditionPlacementReady, v1alpha1.ReasonNoHost, "no host has all that is needed: " + describeAll(faults)}}
	}
	return findings
}

// commonReason returns the most common reason; hosts that are merely unavailable count
// last.
func commonReason(faults []fault) string {
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

// describeAll lists what each host lacks, and how to fix the most common fault.
func describeAll(faults []fault) string {
	var parts []string
	for _, f := range faults {
		parts = append(parts, fmt.Sprintf("%s %s", f.host, f.Message))
	}
	reason := commonReason(faults)
	advice := mend(reason)
	if i := slices.IndexFunc(faults, func(f fault) bool { return f.Reason == reason }); i >= 0 {
		advice = faults[i].advice()
	}
	return cmp.Or(strings.Join(parts, ", "), "no host is left") + ": " + advice
}

func mend(reason string) string {
	switch reason {
	case v1alpha1.ReasonTemplateNotFound:
		return "make the template there, or correct spec.template"
	case v1alpha1.ReasonTemplateAmbiguous:
		return "tell them apart by spec.template's name, tags and vmid"
	case v1alpha1.ReasonTemplateUnusable:
		return "take that out of the template, or name another in spec.template"
	case v1alpha1.ReasonStorageNotFound:
		return "correct spec.bootDevice.storage, or Datacenter > Storage in Proxmox"
	case v1alpha1.ReasonPoolNotFound:
		return "make the resource pool in Proxmox, or correct spec.pool"
	case v1alpha1.ReasonPlacementImpossible:
		return "run numaform-agent there or give its collected topology (numaform topology collect), or choose another spec.placement.policy"
	case v1alpha1.ReasonHugePagesMissing:
		return "reserve them when the host boots and let numaform-agent or numaform topology collect tell them, or remove spec.placement.hugePages"
	case v1alpha1.ReasonPCIDeviceMissing:
		return "add the hosts' devices to the mappings of spec.pciDevices, or correct it"
	case v1alpha1.ReasonSeedStorageNotFound:
		return "allow the content ISO image on a storage of the hosts, or correct spec.metadata.storage"
	}
	return "bring a host back, or allow others in spec.hosts"
}
