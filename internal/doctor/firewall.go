package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// firewalls checks for classes with security groups whether the groups have an effect:
// Proxmox requires the firewall to be enabled for the datacenter, for the VM and for a
// network device. A clone has its template's settings.
func (e *examination) firewalls(ctx context.Context) {
	for i := range e.config.Regions {
		r := &e.config.Regions[i]
		grouped := slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
			return len(c.Spec.SecurityGroups) > 0 && (c.Spec.Region == "" || c.Spec.Region == string(r.Name))
		})
		if !grouped || !slices.ContainsFunc(e.seen.Hosts, func(h topology.Host) bool { return h.Region == r.Name }) {
			continue
		}
		e.datacenterFirewall(ctx, r)
		for j := range e.config.Classes {
			e.classFirewall(ctx, r, &e.config.Classes[j])
		}
	}
}

func (e *examination) datacenterFirewall(ctx context.Context, r *Region) {
	where := string(r.Name)
	switch on, err := r.Client.FirewallOn(ctx); {
	case err != nil:
		e.failed("firewall", where, err)
	case !on:
		e.add(Finding{
			Check: "firewall", Status: Warn, Where: where, What: "the firewall of the datacenter is off, so security groups filter nothing",
			Mend: "allow yourself in by a rule there, then set Datacenter > Firewall > Options > Firewall to Yes",
		})
	default:
		e.ok("firewall", where, "the firewall of the datacenter is on")
	}
}

// classFirewall checks the templates of a class with security groups.
func (e *examination) classFirewall(ctx context.Context, r *Region, class *v1alpha1.ProxmoxNodeClass) {
	if len(class.Spec.SecurityGroups) == 0 {
		return
	}
	report := scheduling.EvaluateClass(class, &e.seen, e.config.ClusterID, e.config.Types)
	for _, host := range report.Hosts {
		if host.Region != r.Name {
			continue
		}
		template := report.Templates[host]
		where := fmt.Sprintf("class %s on %s", class.Name, host)
		if what, mend, err := templateFirewall(ctx, r, host.Host, template.VMID, class.Spec.Networks); err != nil {
			e.failed("firewall", where, err)
		} else if what != "" {
			e.add(Finding{Check: "firewall", Status: Warn, Where: where, What: fmt.Sprintf("template %s (VMID %d) %s", template.Name, template.VMID, what), Mend: mend})
		} else {
			e.ok("firewall", where, fmt.Sprintf("template %s (VMID %d) has its firewall on", template.Name, template.VMID))
		}
	}
}

// templateFirewall returns the settings of a template that disable the security groups of
// its clones, or "".
func templateFirewall(ctx context.Context, r *Region, host topology.HostName, vmid int, networks []v1alpha1.Network) (what, mend string, err error) {
	firewall, err := r.Client.FirewallOf(ctx, host, vmid)
	if err != nil {
		return "", "", err
	}
	var whats, mends []string
	add := func(what, mend string) { whats, mends = append(whats, what), append(mends, mend) }
	path := fmt.Sprintf("/nodes/%s/qemu/%d/firewall", host, vmid)
	if !firewall.On {
		add("has its firewall off, and so have its clones: security groups of the class filter nothing", fmt.Sprintf(
			"`pvesh set %s/options --enable 1 --dhcp 1 --policy_in DROP`, or ACCEPT to let in what no group drops", path,
		))
	}
	if len(networks) == 0 && !firewall.Device {
		add("has no network device that goes through the firewall", fmt.Sprintf("add firewall=1 to what `qm config %d` says of net0: `qm set %d --net0 …,firewall=1`", vmid, vmid))
	}
	if firewall.Rules > 0 {
		add(fmt.Sprintf("has %s of its own, beside which the provider sets no groups", count(firewall.Rules, "firewall rule")),
			fmt.Sprintf("put them into a security group, and delete them: `pvesh delete %s/rules/0`", path))
	}
	return strings.Join(whats, "; it "), strings.Join(mends, "; "), nil
}
