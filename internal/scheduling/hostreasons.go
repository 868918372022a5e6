package scheduling

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// hosts returns for every host why it cannot take a VM of those types, the smallest
// first; wants are the combined requirements of pool and pod. If there are none, it
// returns the hosts that the class does not use.
func (e *explainer) hosts(p *pool, d demand, fit []*InstanceType) []HostReason {
	if p.class == nil {
		return nil
	}
	var reasons []HostReason
	for i := range e.request.Snapshot.Hosts {
		id := e.request.Snapshot.Hosts[i].ID()
		excluded := slices.IndexFunc(p.class.excluded, func(x Exclusion) bool { return x.Host == id })
		r := HostReason{Host: id}
		switch {
		case excluded >= 0:
			r.Reason = p.class.excluded[excluded].Reason
			r.suited = d.pod == nil || d.pod.Get(corev1.LabelTopologyZone).Has(string(id.Host))
		case !slices.Contains(p.class.hosts, id):
			r.Reason = fmt.Sprintf("is not in spec.region and spec.hosts of %s %q", v1alpha1.KindProxmoxNodeClass, p.class.name)
		case d.pod == nil:
			continue // no requirement concerns it
		default:
			r = e.host(p, d, fit, id)
		}
		reasons = append(reasons, r)
	}
	slices.SortFunc(reasons, func(a, b HostReason) int { return a.Host.Compare(b.Host) })
	return reasons
}

// host returns why a host that the class uses cannot take any of the types.
func (e *explainer) host(p *pool, d demand, fit []*InstanceType, id topology.HostID) HostReason {
	r := HostReason{Host: id}
	for _, t := range fit {
		if !e.offered(p, t, id).Offerings.HasCompatible(d.pod) {
			continue
		}
		said := e.ask(p, t, id)
		if !r.suited {
			r.suited, r.InstanceType, r.Reason = true, t.Name, said
			if e.views {
				view := e.site.View(p.class.spec(p.Name, t, []topology.HostID{id}), id)
				r.View = &view
			}
		}
		if said == "" {
			r.Reason = ""
			break
		}
	}
	if !r.suited {
		r.Reason = unsuited(p, d, id)
	}
	return r
}

// unsuited returns which requirement a host does not meet.
func unsuited(p *pool, d demand, id topology.HostID) string {
	for _, is := range [][2]string{
		{corev1.LabelTopologyRegion, string(id.Region)}, {corev1.LabelTopologyZone, string(id.Host)}, {corev1.LabelArchStable, p.class.arch[id]},
	} {
		key, value := is[0], is[1]
		switch {
		case d.volumes.Has(key) && !d.volumes.Get(key).Has(value):
			return fmt.Sprintf("is not where the pod's volumes are: %s", d.volumes.Get(key))
		case d.pod.Has(key) && !d.pod.Get(key).Has(value):
			return fmt.Sprintf("is not what pool and pod want: %s", d.pod.Get(key))
		}
	}
	return "has none of the instance types that pool and pod want"
}

// noHost summarizes what the hosts lack, or returns "" if one has room.
func noHost(hosts []HostReason) string {
	var parts []string
	for _, h := range hosts {
		switch {
		case !h.suited:
		case h.Reason == "":
			return ""
		case h.InstanceType == "":
			parts = append(parts, fmt.Sprintf("%s %s", h.Host, h.Reason))
		default:
			parts = append(parts, h.InstanceType+": "+h.Reason)
		}
	}
	return "no host has room: " + strings.Join(slices.Compact(parts), "; ")
}

func describeHosts(excluded []Exclusion) string {
	var parts []string
	for _, x := range excluded {
		parts = append(parts, fmt.Sprintf("%s %s", x.Host, x.Reason))
	}
	return strings.Join(parts, ", ")
}

// ask returns why the planner refuses the type on the host, or "".
func (e *explainer) ask(p *pool, t *InstanceType, host topology.HostID) string {
	key := offering{p.Name, t.Name, host}
	if said, known := e.full[key]; known {
		return said
	}
	spec := p.class.spec(p.Name, t, []topology.HostID{host})
	said := ""
	switch {
	case e.closed.byRequest(key):
		said = fmt.Sprintf("%s is not offered for now: VMs could not be made there, or it is evacuated", host)
	case !e.site.Fits(spec, host):
		if _, unplaced := e.site.Clone().Place([]fleet.Spec{spec}); len(unplaced) > 0 {
			said = unplaced[0].Reason
		}
	case e.closed.has(key):
		said = "VMs made for such pods did not take them: its requirements promise labels that its nodes do not have"
	}
	e.full[key] = said
	return said
}
