package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// hosts checks which hosts are usable, and reports the sources of their facts and the unknown
// facts.
func (e *examination) hosts(r *Region, snapshot *topology.Snapshot) {
	// Classes that share all CPUs need no topology.
	pins := slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
		return fleet.Policy(c.Spec.Placement.EffectivePolicy()) != fleet.PolicyShared
	})
	warned := set{}
	usable := 0
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		where := host.ID().String()
		if host.Problem != "" {
			e.add("host", Warn, where, host.Problem, "")
		} else {
			usable++
			var sources []topology.Source // in the order of facts
			for _, fact := range []topology.Fact{topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory} {
				if source, ok := host.Sources[fact]; ok && !slices.Contains(sources, source) {
					sources = append(sources, source)
				}
			}
			what, values := topology.Sentence("%s: %s, %s, by %s", host.Confidence(),
				topology.Counted(host.OnlineCPUs().Size(), "CPU"), topology.Counted(len(host.NUMANodes), "NUMA node"), list(sources))
			finding := Finding{Check: "topology", Status: OK, Where: where, What: what, Values: values}
			if missing := host.Missing(); len(missing) > 0 {
				finding.What += "; unknown: " + list(missing)
				if pins {
					finding.Status = Warn
					finding.Fix = "run `numaform topology collect --script | ssh root@HOST sh >HOST.json` for each host, and add HOST: HOST.json to machines in numaform.yaml"
				}
			}
			e.report = append(e.report, finding)
		}
		for _, warning := range host.Warnings {
			if !warned[warning] {
				e.add("topology", Warn, where, warning, "")
			}
			warned[warning] = true
		}
	}

	for _, region := range snapshot.Regions {
		if region.Name == r.Name && !region.Quorate {
			e.add("host", Fail, string(r.Name), "the cluster has lost quorum, so Proxmox refuses changes", "start the missing hosts: pvecm status lists the ones that respond")
		}
	}
	if usable == 0 {
		e.add("host", Fail, string(r.Name), "no host is usable", "fix one of the problems above")
		return
	}
	e.ok("host", string(r.Name), fmt.Sprintf("%d of %s usable", usable, topology.Count(len(snapshot.Hosts), "host")))
}

// classes reports the usable hosts of each class, the reasons against other hosts, and whether
// the credentials allow the pins and huge pages of the classes.
func (e *examination) classes() {
	slices.SortFunc(e.seen.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		name := "class " + class.Name
		if len(e.seen.Hosts) == 0 {
			e.skip(name, "reading hosts", "template", "storage", "pin")
			continue
		}
		e.classOnHosts(class, name)

		placement := &class.Spec.Placement
		switch {
		case !fleet.Policy(placement.EffectivePolicy()).Pinned():
		case fleet.PinWith(placement.PinWith) == fleet.PinWithAffinity:
			e.rootOnly(class, "pin", "pinWith is Affinity", "pins by affinity", (*proxmox.Client).CanSetAffinity)
		default:
			e.ok("pin", name, "pins by numaform-agent on the hosts")
		}
		if size := placement.HugePages; size != "" {
			e.rootOnly(class, "hugepages", fmt.Sprintf("hugePages is %s", size), fmt.Sprintf("uses huge pages of %s", size), (*proxmox.Client).CanSetHugePages)
		}
	}
}

// nodePools reports mistakes in NodePools, and annotations that numaform does not read.
func (e *examination) nodePools() {
	for i := range e.config.Classes {
		if mistake := scheduling.AnnotationMistake(&e.config.Classes[i], v1alpha1.NodeClassAnnotations()); mistake != "" {
			e.add("class", Warn, "class "+e.config.Classes[i].Name, mistake, "")
		}
	}
	for _, mistake := range e.config.PoolMistakes {
		status := Warn
		if mistake.Blocks {
			status = Fail
		}
		e.add("nodepool", status, "NodePool "+mistake.NodePool, mistake.Message, "")
	}
}

// classOnHosts reports the usable hosts of a class, and the reasons against other hosts.
func (e *examination) classOnHosts(class *v1alpha1.ProxmoxNodeClass, name string) {
	report := scheduling.EvaluateClass(class, &e.seen, e.config.ClusterID, e.config.Types)
	faults := report.Faults
	status := Warn
	if len(report.Hosts) == 0 {
		status = Fail
	}
	if len(faults) == 0 && len(report.Hosts) == 0 { // the fault does not depend on a host
		for _, finding := range report.Findings {
			e.add("class", Fail, name, finding.Message, "")
		}
	}
	for i, fault := range faults {
		check := "class"
		switch fault.Reason {
		case v1alpha1.ReasonTemplateNotFound, v1alpha1.ReasonTemplateAmbiguous, v1alpha1.ReasonTemplateUnusable:
			check = "template"
		case v1alpha1.ReasonStorageNotFound, v1alpha1.ReasonStorageFull, v1alpha1.ReasonSeedStorageNotFound:
			check = "storage"
		case v1alpha1.ReasonPoolNotFound:
			check = "pool"
		case v1alpha1.ReasonHostUnavailable:
			check = "host"
		case v1alpha1.ReasonHostAgentNotReady: // hostAgents reports it for each host
			e.lacking[fault.Host] = e.lacking[fault.Host] || len(report.Hosts) == 0
			continue
		}
		if !slices.ContainsFunc(faults[:i], func(f scheduling.Fault) bool { return f.Host == fault.Host && f.Message == fault.Message }) {
			e.report = append(e.report, Finding{
				Check: check, Status: status, Where: fmt.Sprintf("%s on %s", name, fault.Host),
				What: fault.Message, Values: fault.Values, Fix: fault.Fix, Commands: onHost(fault.Commands...),
			})
		}
	}
	for _, host := range report.Hosts {
		template := report.Templates[host]
		e.template(fmt.Sprintf("%s on %s", name, host), host, &template)
	}
}

// rootOnly checks in each region of the class whether the credential permits a setting that
// only root can change. requested is the setting of the class, and effect describes it.
func (e *examination) rootOnly(class *v1alpha1.ProxmoxNodeClass, check, requested, effect string, permitted func(*proxmox.Client) (bool, string)) {
	for _, r := range e.config.Regions {
		if r.Client == nil || (class.Spec.Region != "" && class.Spec.Region != string(r.Name)) {
			continue
		}
		where := "class " + class.Name
		if ok, reason := permitted(r.Client); !ok {
			what, fix, _ := strings.Cut(reason, ": ")
			e.add(check, Fail, where, requested+", but "+what, fix)
			continue
		}
		e.ok(check, where, fmt.Sprintf("%s, as %s of region %s", effect, r.Client.User(), r.Name))
	}
}

// cpuModels checks that the CPU models of classes exist. Otherwise Proxmox clones a VM and
// then refuses its configuration.
func (e *examination) cpuModels(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	first := slices.IndexFunc(snapshot.Hosts, func(h topology.Host) bool { return h.Online })
	if first < 0 {
		return
	}
	mixed := slices.ContainsFunc(snapshot.Hosts, func(h topology.Host) bool { return h.Arch != snapshot.Hosts[first].Arch })
	var known []string
	for _, class := range e.usedIn(r) {
		model := string(class.Spec.CPUType)
		if model == "" {
			continue
		}
		if known == nil {
			var err error
			if known, err = r.Client.CPUModels(ctx, snapshot.Hosts[first].Name); err != nil {
				e.failed("cpu", string(r.Name), err)
				return
			}
		}
		where := fmt.Sprintf("class %s in %s", class.Name, r.Name)
		fix := "correct spec.cpuType; a custom model has the prefix custom-"
		custom := strings.HasPrefix(model, "custom-")
		if custom {
			fix = "add it to /etc/pve/virtual-guest/cpu-models.conf (since 9.2: Datacenter > Custom CPU Models), or correct spec.cpuType"
		}
		if slices.Contains(known, model) {
			e.ok("cpu", where, model+" exists")
		} else if custom || !mixed { // a host lists only the models of its own architecture
			e.add("cpu", Fail, where, "CPU model "+model+" does not exist", fix)
		}
	}
}

// firewalls checks that the security groups of classes have an effect. Proxmox requires an
// enabled firewall for the datacenter, the VM and a network device. A clone inherits the
// settings of its template.
func (e *examination) firewalls(ctx context.Context) {
	for i := range e.config.Regions {
		r := &e.config.Regions[i]
		classes := slices.DeleteFunc(e.usedIn(r), func(c *v1alpha1.ProxmoxNodeClass) bool { return !c.HasSecurityGroups() })
		if len(classes) == 0 || !slices.ContainsFunc(e.seen.Hosts, func(h topology.Host) bool { return h.Region == r.Name }) {
			continue
		}
		switch on, err := r.Client.FirewallOn(ctx); {
		case err != nil:
			e.failed("firewall", string(r.Name), err)
		case !on:
			e.add("firewall", Warn, string(r.Name), "the firewall of the datacenter is off, so security groups filter nothing",
				"add a rule that allows your own access, then set Datacenter > Firewall > Options > Firewall to Yes")
		default:
			e.ok("firewall", string(r.Name), "the firewall of the datacenter is on")
		}

		for _, class := range classes {
			report := scheduling.EvaluateClass(class, &e.seen, e.config.ClusterID, e.config.Types)
			for _, host := range report.Hosts {
				if host.Region != r.Name {
					continue
				}
				template := report.Templates[host]
				where := fmt.Sprintf("class %s on %s", class.Name, host)
				subject, values := topology.Sentence("template %s (%s) ", template.Name, topology.VMIDValue(template.VMID))
				finding := Finding{Check: "firewall", Status: OK, Where: where, What: subject + "has an enabled firewall", Values: values}
				what, fix, commands, err := templateFirewall(ctx, r, template.On.Host, template.VMID, class.Spec.Networks)
				if err != nil {
					e.failed("firewall", where, err)
					continue
				}
				if what != "" {
					finding.Status, finding.What, finding.Fix, finding.Commands = Warn, subject+what, fix, commands
				}
				e.report = append(e.report, finding)
			}
		}
	}
}

// templateFirewall describes the settings of a template that disable the security groups of
// its clones, or returns "".
func templateFirewall(ctx context.Context, r *Region, host topology.HostName, vmid int, networks []v1alpha1.Network) (what, fix string, commands []Command, err error) {
	firewall, err := r.Client.FirewallOf(ctx, host, vmid)
	if err != nil {
		return "", "", nil, err
	}
	var whats, fixes []string
	path := fmt.Sprintf("/nodes/%s/qemu/%d/firewall", host, vmid)
	if !firewall.On {
		whats = append(whats, "has a disabled firewall, which its clones inherit, so the security groups of the class filter nothing")
		enable := onHost(fmt.Sprintf("pvesh set %s/options --enable 1 --dhcp 1 --policy_in DROP", path))
		commands = append(commands, enable...)
		fixes = append(fixes, fmt.Sprintf("run `%s`, or use ACCEPT to allow traffic that no group drops", joined(enable)))
	}
	if len(networks) == 0 && !firewall.Device {
		whats = append(whats, "has no network device with firewall=1")
		fixes = append(fixes, fmt.Sprintf("append firewall=1 to the net0 that `qm config %d` shows: `qm set %d --net0 …,firewall=1`", vmid, vmid))
	}
	if firewall.Rules > 0 {
		whats = append(whats, fmt.Sprintf("has %s, so the provider cannot set security groups", topology.Count(firewall.Rules, "firewall rule")))
		remove := Command{Line: fmt.Sprintf("pvesh delete %s/rules/0", path), OnHost: true}
		commands = append(commands, remove)
		fixes = append(fixes, fmt.Sprintf("move its rules to a security group, and delete them one at a time with `%s`", remove.Line))
	}
	return strings.Join(whats, "; it "), strings.Join(fixes, "; "), commands, nil
}
