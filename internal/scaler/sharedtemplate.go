package scaler

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// On shared storage, one host of a region has the template of a ProxmoxTemplate for all hosts.

// elsewhere reports whether another host has, or will have, the desired template for a host. An
// existing template stays desired, so that its nodes are not replaced. Without one, a host
// that can create it is selected, if possible one with an earlier template, so that this
// template stays until the new one is ready.
func (r *templateReading) elsewhere(request *TemplateRequest, host topology.HostID) bool {
	if !request.Shared[host.Region] {
		return false
	}
	const existing, blocked, without = 0, 2, 1
	best, least := host, blocked+without+1
	for i := range request.Templates {
		want := &request.Templates[i]
		if want.Host.Region != host.Region {
			continue
		}
		cost := existing
		if !slices.ContainsFunc(r.filed[want.Host], func(t fleet.Template) bool { return t.Of == want.Of && t.Name == want.Name }) {
			cost = without
			if !slices.ContainsFunc(r.filed[want.Host], func(t fleet.Template) bool { return t.Of == want.Of }) {
				cost++
			}
			if request.Blocked[want.Host] != "" {
				cost += blocked
			}
		} else if want.Host == host {
			return false
		}
		if cost < least {
			best, least = want.Host, cost
		}
	}
	return best != host
}

// waitsForOther reports whether another host is to have the desired template for the host, and
// none of its region has it yet.
func (c *templateChange) waitsForOther(of, clusterID string) bool {
	request := c.requests[of]
	i := slices.IndexFunc(request.Templates, func(t fleet.Template) bool { return t.Host == c.host })
	return i >= 0 && request.Shared[c.host.Region] && !slices.ContainsFunc(c.snapshot.Hosts, func(host topology.Host) bool {
		return host.Region == c.host.Region && hasReady(&host, &request.Templates[i], clusterID)
	})
}

// hasReady reports whether a host has a desired template, whatever its VMID.
func hasReady(host *topology.Host, want *fleet.Template, clusterID string) bool {
	return host != nil && slices.ContainsFunc(host.Guests, func(g topology.Guest) bool {
		one := *want
		one.VMID = fleet.VMID(g.VMID)
		return g.Name == want.Name && liveTemplate(host, &one, clusterID)
	})
}

// newestSerial returns the highest serial of the other templates of a ProxmoxTemplate, or 0:
// on all hosts of the region, because a template on shared storage serves them.
func (c *templateChange) newestSerial(than *fleet.Template) int {
	newest := 0
	for host, templates := range c.filed {
		for i := range templates {
			if t := &templates[i]; host.Region == c.host.Region && t.Of == than.Of && t.Name != than.Name {
				newest = max(newest, t.Serial)
			}
		}
	}
	return newest
}
