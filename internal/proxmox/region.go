package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/topology"
)

const (
	resourcesPath   = "/cluster/resources"
	permissionsPath = "/access/permissions"
)

// regionRead is what the cluster-wide endpoints return.
type regionRead struct {
	topology.Region
	online   map[topology.HostName]bool
	nodes    map[topology.HostName]resource // the hosts' own entries
	guests   map[topology.HostName][]resource
	storages map[topology.HostName][]topology.Storage
	// maps is set if the credential may see resource mappings.
	maps bool
}

const membersPath = "/cluster/status"

// readRegion reads the cluster-wide endpoints with two requests, or three if there are
// several hosts. The version is not requested, because reports contain it.
func (c *Client) readRegion(ctx context.Context) (*regionRead, error) {
	var resources []resource
	// The credential's privileges by path, and whether each also applies below the path.
	var privileges map[string]map[string]number
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.get(groupCtx, resourcesPath, &resources) })
	group.Go(func() error { return c.get(groupCtx, permissionsPath, &privileges) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	region := newRegionRead(topology.Region{Name: c.cfg.Region, Quorate: true}, resources)
	region.setPrivileges(privileges)
	return region, c.readOnline(ctx, region)
}

// readListing is like readRegion, but reads the privileges only if guests were hidden
// before, if a host is new, or if a remembered guest is no longer listed: it was removed, or is
// hidden now.
func (c *Client) readListing(ctx context.Context, old *topology.Snapshot) (*regionRead, error) {
	var resources []resource
	if err := c.get(ctx, resourcesPath, &resources); err != nil {
		return nil, err
	}
	region := newRegionRead(topology.Region{Name: c.cfg.Region, Quorate: true}, resources)
	if err := c.readOnline(ctx, region); err != nil {
		return nil, err
	}
	hidden := slices.ContainsFunc(old.Regions, func(r topology.Region) bool { return r.Name == c.cfg.Region && r.HidesGuests })
	missing := c.guests.missing(resources)
	if len(missing) > 0 || hidden || len(region.joined(old)) > 0 {
		var privileges map[string]map[string]number
		if err := c.get(ctx, permissionsPath, &privileges); err != nil {
			return nil, err
		}
		region.setPrivileges(privileges)
		if !region.HidesGuests { // otherwise the next listing checks again
			for _, vmid := range missing {
				c.guests.forget(vmid)
			}
		}
	}
	return region, nil
}

// setPrivileges sets what the credential may see. Proxmox may have guests that it does not list
// if the credential lacks VM.Audit.
func (r *regionRead) setPrivileges(privileges map[string]map[string]number) {
	r.HidesGuests = privileges["/vms"]["VM.Audit"] == 0
	for path, granted := range privileges {
		for _, privilege := range []string{"Mapping.Audit", "Mapping.Use", "Mapping.Modify"} {
			below, ok := granted[privilege]
			above := path == "/" || path == "/mapping" || path == "/mapping/pci"
			if ok && (strings.HasPrefix(path, "/mapping/pci/") || below != 0 && above) {
				r.maps = true
			}
		}
	}
}

// joined returns the hosts that have joined the cluster since old was read.
func (r *regionRead) joined(old *topology.Snapshot) []topology.HostName {
	var joined []topology.HostName
	for name := range r.online {
		if known := old.Host(topology.HostID{Region: r.Name, Host: name}); known == nil || known.Absent {
			joined = append(joined, name)
		}
	}
	return joined
}

// readOnline reads which hosts the cluster can reach, and whether it is quorate.
func (c *Client) readOnline(ctx context.Context, region *regionRead) error {
	// A single host needs no /cluster/status. The host responded, so it is
	// online, even if its status is "unknown" because pvestatd is not running. No other host
	// has a vote, so there is no quorum to lose; if the host waits for an external vote,
	// Proxmox itself refuses writes.
	if len(region.nodes) == 1 {
		for name, node := range region.nodes {
			region.online[name] = node.Status != "offline"
		}
		return nil
	}
	if err := c.readMembers(ctx, region); err != nil {
		return err
	}
	if len(region.online) == 0 { // otherwise all VMs would look deleted
		return &Error{
			Region:   c.cfg.Region,
			Endpoint: c.transport.endpoint(),
			Path:     membersPath,
			Status:   http.StatusOK,
			Text:     "the response lists no hosts",
			Hint:     "check that url is the address of a Proxmox host",
		}
	}
	return nil
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
			region.Quorate, region.Clustered = m.Quorate != 0, true
		case "node":
			region.online[topology.HostName(m.Name)] = m.Online != 0
		}
	}
	return nil
}

// Online reports whether the cluster reaches a host, with one request. A host without
// quorum reports only the hosts that it reaches itself, which are also the only hosts that
// requests through it can reach.
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
			s := topology.Storage{
				Name:    res.Storage,
				Type:    res.PluginType,
				Shared:  res.Shared != 0,
				Active:  res.Status == "available",
				Content: list(res.Content),
			}
			if s.Active {
				s.TotalMiB = res.MaxDisk.mib()
				s.FreeMiB = (res.MaxDisk - res.Disk).mib()
			}
			r.storages[host] = append(r.storages[host], s)
		case "pool":
			r.Pools = append(r.Pools, res.Pool)
		}
	}
	slices.Sort(r.Pools)
	return r
}

// hosts returns the region's hosts with all data that is available without querying
// them. It adds configured and requested hosts that the cluster does not have, with a
// Problem, so that a misspelled name is noticed, and the hosts of guests whose configuration
// remained when their host left the cluster: their VMIDs are in use.
func (c *Client) hosts(region *regionRead, requested []topology.HostName) []topology.Host {
	var hosts []topology.Host
	members := slices.Sorted(maps.Keys(region.online))
	for _, name := range members {
		host := topology.Host{Region: c.cfg.Region, Name: name, Online: region.online[name]}
		// Older versions of Proxmox do not report this for hosts, so none of their hosts
		// counts as in maintenance.
		host.Maintenance = region.nodes[name].HAState == "maintenance"
		host.Storages = region.storages[name]
		host.Load = c.loadOf(region.nodes[name])
		host.Backup = c.backupOn(name, region.guests[name])
		if region.HidesGuests {
			hint, _ := c.grant("/vms", "VM.Audit", auditor)
			host.Warnings = []string{"guests that this credential may not see are not counted, so their CPUs and memory look free: " + hint}
		}
		switch {
		case len(c.cfg.Hosts) > 0 && !slices.Contains(c.cfg.Hosts, name):
			addProblem(&host, "is not among the hosts of numaform.yaml: add it there to use it")
		case !host.Online:
			addProblem(&host, "is offline: start it, or check its cluster network (pvecm status)")
		}
		hosts = append(hosts, host)
	}

	named := slices.Concat(slices.Collect(maps.Keys(c.cfg.Machines)), c.cfg.Hosts, requested, slices.Collect(maps.Keys(region.guests)))
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		if slices.Contains(members, name) {
			continue
		}
		key := "hosts"
		if _, ok := c.cfg.Machines[name]; ok && !slices.Contains(c.cfg.Hosts, name) {
			key = "machines"
		}
		problem := fmt.Sprintf("is not in the cluster, whose hosts are %v: correct %s in numaform.yaml", members, key)
		if guests := len(region.guests[name]); guests > 0 {
			problem = fmt.Sprintf("is not in the cluster, whose hosts are %v, but the cluster has the configuration of %s on it: "+
				"if the host is lost for good, delete /etc/pve/nodes/%s on a host of the cluster", members, topology.Count(guests, "guest"), name)
		}
		hosts = append(hosts, topology.Host{Region: c.cfg.Region, Name: name, Absent: true, Problem: problem})
	}
	return hosts
}

// loadOf returns the load in a host's list entry, whose figures are up to half a minute
// old, or nil if it has none: the credential lacks Sys.Audit on the host, or the host is
// offline. The bands of its previous load are kept until it has one again.
func (c *Client) loadOf(node resource) *topology.Load {
	if node.CPU == nil || node.Mem == nil || node.MaxCPU <= 0 || node.MaxMem <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := topology.HostName(node.Node)
	load := topology.NewLoad(float64(*node.CPU), float64(*node.Mem/node.MaxMem), c.loads[name])
	c.loads[name] = load
	return load
}

// backupPause is the time for which a host without a locked guest counts as being backed up:
// vzdump locks one guest after another.
const backupPause = 2 * time.Minute

// backupOn reports whether guests of a host are being backed up. vzdump gives each of them
// the lock backup (qemu-server 9.2.6, src/PVE/VZDump/QemuServer.pm, lock_vm; pve-container,
// src/PVE/VZDump/LXC.pm, lock_vm), and the cluster's list contains locks.
func (c *Client) backupOn(name topology.HostName, guests []resource) bool {
	now := c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(guests, func(r resource) bool { return r.Lock == "backup" }) {
		c.backups[name] = now
	}
	last, known := c.backups[name]
	return known && now.Sub(last) < backupPause
}

// pciMapping is a resource mapping of PCI devices.
type pciMapping struct {
	ID  string   `json:"id"`
	Map []string `json:"map"`
}

// readMappings sets the hosts' devices from the resource mappings, of which Proxmox lists
// only the mappings that the credential may see. If they cannot be read, readMappings sets
// the region's MappingsProblem, and no class can use devices.
func (c *Client) readMappings(ctx context.Context, region *regionRead, hosts []topology.Host) {
	if !region.maps {
		return
	}
	var mappings []pciMapping
	if err := c.get(ctx, "/cluster/mapping/pci", &mappings); err != nil {
		region.MappingsProblem = "its resource mappings cannot be read: " + short(err)
		return
	}
	var problems []string
	slices.SortFunc(mappings, func(a, b pciMapping) int { return cmp.Compare(a.ID, b.ID) })
	for _, mapping := range mappings {
		for _, text := range mapping.Map {
			name, device, err := topology.ParsePCIMap(mapping.ID, text)
			if err != nil {
				problems = append(problems, fmt.Sprintf("its resource mapping %s is invalid: %s", mapping.ID, err))
				continue
			}
			i := slices.IndexFunc(hosts, func(h topology.Host) bool { return h.Name == name })
			if i >= 0 {
				hosts[i].PCIDevices = append(hosts[i].PCIDevices, device)
			}
		}
	}
	region.MappingsProblem = strings.Join(problems, "; ")
}

// addProblem adds a reason why a host cannot be used.
func addProblem(host *topology.Host, problem string) {
	if host.Problem != "" {
		problem = host.Problem + "; " + problem
	}
	host.Problem = problem
}
