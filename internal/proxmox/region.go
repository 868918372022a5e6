package proxmox

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/topology"
)

const resourcesPath = "/cluster/resources"

// regionRead is what the cluster-wide endpoints return.
type regionRead struct {
	topology.Region
	online   map[topology.HostName]bool
	nodes    map[topology.HostName]resource // the hosts' own entries
	guests   map[topology.HostName][]resource
	storages map[topology.HostName][]topology.Storage
	// warning is about guests that the credential may not see.
	warning string
	// maps is set if the credential may see resource mappings.
	maps bool
}

// rights are a credential's privileges by path, and whether each also applies below the
// path.
type rights map[string]map[string]number

// mappings reports whether any resource mapping of PCI devices is visible.
func (r rights) mappings() bool {
	for path, privileges := range r {
		for _, privilege := range []string{"Mapping.Audit", "Mapping.Use", "Mapping.Modify"} {
			below, ok := privileges[privilege]
			if ok && (strings.HasPrefix(path, "/mapping/pci/") || below != 0 && (path == "/" || path == "/mapping" || path == "/mapping/pci")) {
				return true
			}
		}
	}
	return false
}

// readRegion makes two requests, and a third if there are several hosts. The version is
// not requested, because reports contain it.
func (c *Client) readRegion(ctx context.Context) (*regionRead, error) {
	var (
		resources []resource
		may       rights
	)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.get(groupCtx, resourcesPath, &resources) })
	group.Go(func() error { return c.get(groupCtx, "/access/permissions", &may) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	region := newRegionRead(topology.Region{Name: c.cfg.Region, Quorate: true}, resources)
	region.warning, region.maps = c.hiddenGuests(may), may.mappings()
	region.HidesGuests = region.warning != ""
	if len(region.nodes) == 1 {
		region.setLoneHost()
		return region, nil
	}
	if err := c.readMembers(ctx, region); err != nil {
		return nil, err
	}
	if len(region.online) == 0 { // otherwise all VMs would look deleted
		return nil, &Error{
			Region: c.cfg.Region, Endpoint: c.endpoints.host(), Path: membersPath, Status: http.StatusOK,
			Text: "the answer names no host", Mend: "check that url is a Proxmox host",
		}
	}
	return region, nil
}

const membersPath = "/cluster/status"

// setLoneHost replaces /cluster/status for a single host. The host responded, so it is
// online, even if its status is "unknown" because pvestatd is not running. No other host
// has a vote, so there is no quorum to lose; if the host waits for an external vote,
// Proxmox itself refuses writes.
func (r *regionRead) setLoneHost() {
	for name, node := range r.nodes {
		r.online[name] = node.Status != "offline"
	}
}

// readMembers reads which hosts the cluster has and reaches, and whether it is quorate.
func (c *Client) readMembers(ctx context.Context, region *regionRead) error {
	var members []member
	if err := c.get(ctx, membersPath, &members); err != nil {
		return err
	}
	for _, m := range members {
		switch m.Type {
		case "cluster":
			region.Quorate = m.Quorate != 0
		case "node":
			region.online[topology.HostName(m.Name)] = m.Online != 0
		}
	}
	return nil
}

// Online reports whether the cluster reaches a host, with one request. A host without
// quorum reports what it reaches itself, and requests get no farther than that.
func (c *Client) Online(ctx context.Context, host topology.HostName) (bool, error) {
	region := newRegionRead(topology.Region{}, nil)
	if err := c.readMembers(ctx, region); err != nil {
		return false, err
	}
	online, known := region.online[host]
	if !known {
		return false, fmt.Errorf("region %s has no host %s", c.cfg.Region, host)
	}
	return online, nil
}

// newRegionRead groups resources by host.
func newRegionRead(region topology.Region, resources []resource) *regionRead {
	r := &regionRead{
		Region:   region,
		online:   map[topology.HostName]bool{},
		nodes:    map[topology.HostName]resource{},
		guests:   map[topology.HostName][]resource{},
		storages: map[topology.HostName][]topology.Storage{},
	}
	for _, res := range resources {
		host := topology.HostName(res.Node)
		switch res.Type {
		case "node":
			r.nodes[host] = res
		case string(topology.GuestVM), string(topology.GuestContainer):
			r.guests[host] = append(r.guests[host], res)
		case "storage":
			r.storages[host] = append(r.storages[host], storage(res))
		case "pool":
			r.Pools = append(r.Pools, res.Pool)
		}
	}
	slices.Sort(r.Pools)
	return r
}

func storage(res resource) topology.Storage {
	s := topology.Storage{
		Name:    res.Storage,
		Type:    res.PluginType,
		Shared:  res.Shared != 0,
		Active:  res.Status == "available",
		Content: list(res.Content),
	}
	if s.Active {
		s.TotalMiB, s.FreeMiB = res.MaxDisk.mib(), (res.MaxDisk - res.Disk).mib()
	}
	return s
}

// hiddenGuests returns a warning if guests may exist that Proxmox does not list, because
// it omits guests for which the credential lacks VM.Audit.
func (c *Client) hiddenGuests(may rights) string {
	if may["/vms"]["VM.Audit"] != 0 {
		return ""
	}
	return "guests that this credential may not see are not counted, so their CPUs and memory look free: " +
		c.grant("/vms", "VM.Audit")
}

// hosts returns the region's hosts with everything that is known without querying them.
// It adds wanted hosts that are not in the region, with a Problem.
func (c *Client) hosts(region *regionRead, wanted []topology.HostName) []topology.Host {
	var hosts []topology.Host
	for _, name := range slices.Sorted(maps.Keys(region.online)) {
		host := topology.Host{Region: c.cfg.Region, Name: name, Online: region.online[name]}
		// Newer versions of Proxmox report this for hosts; on older ones, no host is in
		// maintenance.
		host.Maintenance = region.nodes[name].HAState == "maintenance"
		host.Storages = region.storages[host.Name]
		if region.warning != "" {
			host.Warnings = []string{region.warning}
		}
		switch {
		case !c.cfg.allows(host.Name):
			addProblem(&host, "is not among the hosts of numaform.yaml: add it there to use it")
		case !host.Online:
			addProblem(&host, "is offline: start it, or look at its cluster network (pvecm status)")
		}
		hosts = append(hosts, host)
	}
	return append(hosts, c.absent(region, slices.Concat(c.cfg.Hosts, wanted))...)
}

// absent returns the configured hosts that the cluster does not have, so that a
// misspelled name is noticed.
func (c *Client) absent(region *regionRead, wanted []topology.HostName) []topology.Host {
	known := slices.Sorted(maps.Keys(region.online))
	var hosts []topology.Host
	named := append(slices.Sorted(maps.Keys(c.cfg.Machines)), wanted...)
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		if slices.Contains(known, name) {
			continue
		}
		key := "hosts"
		if _, ok := c.cfg.Machines[name]; ok && !slices.Contains(c.cfg.Hosts, name) {
			key = "machines"
		}
		hosts = append(hosts, topology.Host{Region: c.cfg.Region, Name: name, Problem: fmt.Sprintf(
			"is not in the cluster, whose hosts are %v: correct %s in numaform.yaml", known, key,
		)})
	}
	return hosts
}

// addProblem adds a reason why a host cannot be used.
func addProblem(host *topology.Host, problem string) {
	if host.Problem != "" {
		problem = host.Problem + "; " + problem
	}
	host.Problem = problem
}
