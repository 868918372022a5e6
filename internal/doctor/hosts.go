package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// hosts checks which hosts are usable and how complete their facts are.
func (e *examination) hosts(r *Region, snapshot *topology.Snapshot) {
	said := map[string]bool{}
	usable := 0
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Problem == "" {
			usable++
			e.topology(host)
		} else {
			e.add(Finding{Check: "host", Status: Warn, Where: host.ID().String(), What: host.Problem})
		}
		for _, warning := range host.Warnings {
			if !said[warning] {
				e.add(Finding{Check: "topology", Status: Warn, Where: host.ID().String(), What: warning})
			}
			said[warning] = true
		}
	}
	for _, region := range snapshot.Regions {
		if region.Name == r.Name && !region.Quorate {
			e.add(Finding{Check: "host", Status: Fail, Where: string(r.Name), What: "the cluster has lost its quorum: nothing can be written", Mend: "bring hosts back: pvecm status"})
		}
	}
	if usable == 0 {
		e.add(Finding{Check: "host", Status: Fail, Where: string(r.Name), What: "no host can be used", Mend: "mend one of those above"})
		return
	}
	e.ok("host", string(r.Name), fmt.Sprintf("%d of %d hosts can be used", usable, len(snapshot.Hosts)))
}

// topology reports the sources of a host's facts, and what is unknown.
func (e *examination) topology(host *topology.Host) {
	confidence, missing := host.Confidence(), host.Missing()
	finding := Finding{Check: "topology", Status: OK, Where: host.ID().String()}
	finding.What = fmt.Sprintf("%s: %s, %s, by %s", confidence, count(host.OnlineCPUs().Size(), "CPU"), count(len(host.NUMANodes), "NUMA node"), sources(&host.Machine))
	if len(missing) == 0 {
		e.add(finding)
		return
	}
	finding.What += "; unknown: " + join(missing)
	if e.pins() {
		finding.Status = Warn
		finding.Mend = "run `numaform topology collect` on the host and name the file under machines in numaform.yaml"
	}
	e.add(finding)
}

// pins reports whether a class places VMs by the hosts' topology, or may.
func (e *examination) pins() bool {
	return len(e.config.Classes) == 0 || slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
		return fleet.Policy(c.Spec.Placement.EffectivePolicy()) != fleet.PolicyShared
	})
}

// sources lists the machine's sources in the order of facts, without duplicates.
func sources(m *topology.Machine) string {
	var list []topology.Source
	for _, fact := range []topology.Fact{topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory} {
		if source, ok := m.Sources[fact]; ok && !slices.Contains(list, source) {
			list = append(list, source)
		}
	}
	return join(list)
}

func join[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i, text := range list {
		texts[i] = string(text)
	}
	return strings.Join(texts, ", ")
}

// classes reports on which hosts each class is usable, and why not on others.
func (e *examination) classes() {
	slices.SortFunc(e.seen.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if len(e.seen.Hosts) == 0 {
			e.skipAt("class "+class.Name, "reading hosts", "template", "storage", "pin")
			continue
		}
		e.class(class, &e.seen)
	}
}

func (e *examination) class(class *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) {
	name := "class " + class.Name
	report := scheduling.EvaluateClass(class, snapshot, e.config.ClusterID, e.config.Types)
	faults := report.Faults
	status := Warn
	if len(report.Hosts) == 0 {
		status = Fail
	}
	if len(faults) == 0 && len(report.Hosts) == 0 { // the fault is not a host's
		for _, finding := range report.Findings {
			e.add(Finding{Check: "class", Status: Fail, Where: name, What: finding.Message})
		}
	}
	for i, fault := range faults {
		if fault.Reason == v1alpha1.ReasonHostAgentNotReady { // hostAgents reports it for each host
			e.lacking[fault.Host] = e.lacking[fault.Host] || len(report.Hosts) == 0
			continue
		}
		if slices.ContainsFunc(faults[:i], func(f scheduling.Fault) bool { return f.Host == fault.Host && f.Message == fault.Message }) {
			continue
		}
		e.add(Finding{
			Check: checkOf(fault.Reason), Status: status, Where: fmt.Sprintf("%s on %s", name, fault.Host), What: fault.Message, Mend: fault.Fix,
		})
	}
	for _, host := range report.Hosts {
		template := report.Templates[host]
		e.ok("template", fmt.Sprintf("%s on %s", name, host), fmt.Sprintf("%s (VMID %d, %d GiB on %s)", template.Name, template.VMID, template.DiskGiB, template.Storage))
	}
	e.pinWith(class, name)
	e.hugePages(class, name)
}

// checkOf returns the check that a reason belongs to.
func checkOf(reason string) string {
	switch reason {
	case v1alpha1.ReasonTemplateNotFound, v1alpha1.ReasonTemplateAmbiguous, v1alpha1.ReasonTemplateUnusable:
		return "template"
	case v1alpha1.ReasonStorageNotFound, v1alpha1.ReasonStorageFull, v1alpha1.ReasonSeedStorageNotFound:
		return "storage"
	case v1alpha1.ReasonPoolNotFound:
		return "pool"
	case v1alpha1.ReasonHostUnavailable:
		return "host"
	}
	return "class"
}

// pinWith checks whether the credentials allow pinning as the class requests.
func (e *examination) pinWith(class *v1alpha1.ProxmoxNodeClass, name string) {
	placement := &class.Spec.Placement
	if !fleet.Policy(placement.EffectivePolicy()).Pinned() {
		return
	}
	if fleet.PinWith(placement.PinWith) != fleet.PinWithAffinity {
		e.ok("pin", name, "pins by numaform-agent on the hosts")
		return
	}
	e.rootOnly(class, Finding{Check: "pin", Where: name, What: "pinWith is Affinity"}, "pins by affinity", (*proxmox.Client).CanSetAffinity)
}

// hugePages checks whether the credentials allow huge pages as the class requests.
func (e *examination) hugePages(class *v1alpha1.ProxmoxNodeClass, name string) {
	if size := class.Spec.Placement.HugePages; size != "" {
		e.rootOnly(class, Finding{Check: "hugepages", Where: name, What: fmt.Sprintf("hugePages is %s", size)},
			fmt.Sprintf("takes huge pages of %s", size), (*proxmox.Client).CanSetHugePages)
	}
}

// rootOnly checks for each region of the class whether its credential may do what only root
// may. refused is the finding for regions where it may not.
func (e *examination) rootOnly(class *v1alpha1.ProxmoxNodeClass, refused Finding, done string, may func(*proxmox.Client) (bool, string)) {
	for _, r := range e.config.Regions {
		if r.Client == nil || (class.Spec.Region != "" && class.Spec.Region != string(r.Name)) {
			continue
		}
		if ok, reason := may(r.Client); !ok {
			what, mend, _ := strings.Cut(reason, ": set ")
			e.add(Finding{Check: refused.Check, Status: Fail, Where: refused.Where, What: refused.What + ", but " + what, Mend: "set " + mend})
			continue
		}
		e.ok(refused.Check, refused.Where, fmt.Sprintf("%s, as %s of region %s", done, r.Client.User(), r.Name))
	}
}
