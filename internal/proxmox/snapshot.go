package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Snapshot reads the region with at most Config.MaxInFlight concurrent requests: one for
// the report of each host and one for its notes, one per guest, including templates, and
// two for the region, or three if it has several hosts. A login that may use resource
// mappings adds one request, and a login with a password adds one an hour. Only failures
// add more: Snapshot then reads the status of a host whose report is unreadable, retries
// some requests, and looks for guests that moved. A host that cannot be read has a Problem;
// Snapshot returns an error only if the region itself cannot be read, its version is too
// old, or ctx ends.
func (c *Client) Snapshot(ctx context.Context) (*topology.Snapshot, error) {
	region, err := c.readRegion(ctx)
	if err != nil {
		return nil, err
	}
	hosts := c.hosts(region, nil)
	c.readMappings(ctx, region, hosts)
	if err := c.readHosts(ctx, region, hosts, c.readHost); err != nil {
		return nil, err
	}
	if err := c.checkVersion(region.Version); err != nil {
		return nil, err
	}
	locate(hosts)
	snapshot := &topology.Snapshot{Regions: []topology.Region{region.Region}, Hosts: hosts}
	sortSnapshot(snapshot)
	return snapshot, nil
}

// Refresh queries the named hosts of the region again, before a decision or an apply; without
// names, it queries all hosts, including new ones. It reads the guests whose CPUs, memory or
// devices can differ from before: new, changed, stopped and restarted guests, and the guests in
// vmids. With Config.Addresses, it also reads new and changed guests of the other hosts. It
// reads storages, and the data of the hosts' agents once a minute, but hardware only if the host
// is new, has restarted, or is listed with other CPUs or memory. It does not notice a new
// description of a running guest: Snapshot does. It returns a new snapshot.
func (c *Client) Refresh(ctx context.Context, old *topology.Snapshot, names []topology.HostName, vmids ...fleet.VMID) (*topology.Snapshot, error) {
	region, err := c.readRegion(ctx)
	if err != nil {
		return nil, err
	}
	return c.rereadHosts(ctx, old, region, names, func(ctx context.Context, host, known *topology.Host, listing hostListing) (gone []resource) {
		guests, err := c.listGuests(ctx, host.Name, listing.guests)
		if err != nil {
			failHost(host, err)
		}
		now := c.cfg.Now()
		return c.regainGuests(ctx, host, known, guests, notesAge, func(r resource) (rememberedGuest, bool) {
			if r.Status != statusRunning || slices.Contains(vmids, fleet.VMID(r.VMID)) {
				return rememberedGuest{}, false
			}
			return c.guests.recall(r, now)
		})
	})
}

// Update reads the whole region again from the cluster's list, which can be half a minute
// old: it queries only hosts that had a Problem or are listed with one, and reads only guests
// whose list entry has changed. It reads hardware as Refresh does, and the data of the hosts'
// agents every five minutes. While nothing happens, it makes one request, or two if there are
// several hosts.
func (c *Client) Update(ctx context.Context, old *topology.Snapshot) (*topology.Snapshot, error) {
	region, err := c.readListing(ctx, old)
	if err != nil {
		return nil, err
	}
	return c.rereadHosts(ctx, old, region, nil, func(ctx context.Context, host, known *topology.Host, listing hostListing) (gone []resource) {
		if known.Problem != "" || listing.node.Status != nodeOnline {
			if _, err := c.readStatus(ctx, host.Name); err != nil {
				failHost(host, err)
			}
		}
		now := c.cfg.Now()
		return c.regainGuests(ctx, host, known, listing.guests, listedNotesAge, func(r resource) (rememberedGuest, bool) {
			return c.guests.recall(r, now)
		})
	})
}

// rereader reads a host without a Problem whose hardware is known. It returns the guests
// that are no longer on the host.
type rereader func(ctx context.Context, host, known *topology.Host, listing hostListing) (gone []resource)

// rereadHosts returns a snapshot with some of a region's hosts read again: the named ones, or
// without names, all hosts.
func (c *Client) rereadHosts(
	ctx context.Context, old *topology.Snapshot, region *regionRead, names []topology.HostName, again rereader,
) (*topology.Snapshot, error) {
	var joined []topology.HostName
	if len(names) == 0 {
		joined = region.joined(old)
		names = slices.Clone(joined)
		for i := range old.Hosts {
			if old.Hosts[i].Region == region.Name {
				names = append(names, old.Hosts[i].Name)
			}
		}
	}
	hosts := slices.DeleteFunc(c.hosts(region, names), func(h topology.Host) bool {
		leftGuests := h.Absent && len(region.guests[h.Name]) > 0 && old.Host(h.ID()) == nil
		return !slices.Contains(names, h.Name) && !leftGuests
	})
	if len(joined) > 0 {
		c.readMappings(ctx, region, hosts)
	}
	read := func(ctx context.Context, host *topology.Host, listing hostListing) hostRead {
		return c.rereadHost(ctx, host, old.Host(host.ID()), listing, again)
	}
	if err := c.readHosts(ctx, region, hosts, read); err != nil {
		return nil, err
	}
	locate(hosts)

	fresh := &topology.Snapshot{Regions: []topology.Region{region.Region}, Hosts: hosts}
	for _, r := range old.Regions {
		if r.Name != region.Name {
			fresh.Regions = append(fresh.Regions, r)
			continue
		}
		fresh.Regions[0].Version = cmp.Or(region.Version, r.Version)
		fresh.Regions[0].MappingsProblem = r.MappingsProblem
		fresh.Regions[0].AddressPools, fresh.Regions[0].VMIDs = r.AddressPools, r.VMIDs
	}
	for _, h := range old.Hosts {
		if h.Region == region.Name && slices.Contains(names, h.Name) {
			continue
		}
		if h.Region == region.Name {
			c.listAgain(ctx, &h, region)
		}
		fresh.Hosts = append(fresh.Hosts, h)
	}
	sortSnapshot(fresh)
	return fresh, nil
}

// rereadHost reads a host again, with its hardware if that is unknown or may have changed. known
// is the host as it was read before, or nil.
func (c *Client) rereadHost(ctx context.Context, host, known *topology.Host, listing hostListing, again rereader) hostRead {
	if known == nil || known.Absent {
		return c.readHost(ctx, host, listing)
	}
	entry := entryOf(listing.node)
	host.PCIDevices = known.PCIDevices
	host.ReservedCPUs = known.ReservedCPUs
	host.ReservedMemoryMiB = known.ReservedMemoryMiB
	if len(known.CPUs) == 0 || host.Problem == "" && c.hardwareChanged(known, entry) {
		result := c.readHost(ctx, host, listing)
		// If only the report cannot be read, as while many guests start, the hardware is
		// probably the same.
		same := entry.CPUs == known.Entry.CPUs && entry.MemoryMiB == known.Entry.MemoryMiB
		if same && host.Problem == "" && host.Sources[topology.FactNUMA] == topology.SourceAssumed {
			host.Machine, host.Entry = known.Machine, entry
		}
		return result
	}
	host.Machine = known.Machine
	host.Entry = cmp.Or(entry, known.Entry)
	host.MachineWarnings = known.MachineWarnings
	host.Addresses = known.Addresses

	var result hostRead
	if host.Problem == "" {
		result.gone = again(ctx, host, known, listing)
	} else {
		c.regainGuests(ctx, host, known, listing.guests, 0, nil)
	}
	host.Warnings = append(host.Warnings, host.MachineWarnings...)
	return result
}

// listAgain sets the guests of a host that is not read again: only their list is new.
func (c *Client) listAgain(ctx context.Context, host *topology.Host, region *regionRead) {
	guests := listed(region.guests[host.Name])
	for i := range guests {
		known := func(g topology.Guest) bool { return g.VMID == guests[i].VMID }
		if at := slices.IndexFunc(host.Guests, known); at >= 0 {
			guests[i] = host.Guests[at]
		}
	}
	host.Guests = guests
	if c.cfg.Addresses {
		c.rereadAddresses(ctx, host, region.guests[host.Name])
	}
}

// rereadAddresses reads the guests of a host again that are new or changed, because static
// addresses must be unique on all hosts. It changes nothing if some cannot be read.
func (c *Client) rereadAddresses(ctx context.Context, host *topology.Host, guests []resource) {
	if host.Problem != "" {
		return
	}
	now := c.cfg.Now()
	again := topology.Host{Name: host.Name}
	c.readGuests(ctx, &again, guests, func(r resource) (rememberedGuest, bool) { return c.guests.recall(r, now) })
	if again.Problem == "" {
		host.Guests = again.Guests
	}
}

// regainGuests sets a host's guests, of which some may be known, and its agent's data. It
// returns the guests that are no longer on the host. It does not query a host with a
// Problem.
func (c *Client) regainGuests(
	ctx context.Context, host, known *topology.Host, guests []resource, age time.Duration, recall recallFunc,
) (gone []resource) {
	if host.Problem != "" {
		host.Guests = listed(guests)
	} else {
		host.ReadAt = c.now()
		gone = c.readGuests(ctx, host, guests, recall).gone
	}
	c.keepAgent(ctx, host, known, age)
	return gone
}

// listGuests returns a host's guests as the host lists them now, and the known guests that
// it does not list, without a status. If the host cannot be queried, it returns the known
// guests unchanged, and the error. The cluster's list entry of a running guest can be half
// a minute old.
func (c *Client) listGuests(ctx context.Context, host topology.HostName, known []resource) ([]resource, error) {
	kinds := []topology.GuestKind{topology.GuestVM}
	if slices.ContainsFunc(known, func(r resource) bool { return r.Type == string(topology.GuestContainer) }) {
		kinds = append(kinds, topology.GuestContainer)
	}
	current := map[number]resource{}
	for _, kind := range kinds {
		var guests []resource
		if err := c.get(ctx, fmt.Sprintf("/nodes/%s/%s", host, kind), &guests); err != nil {
			return known, err
		}
		for _, r := range guests {
			r.Type = string(kind)
			r.Node = string(host)
			r.MaxCPU = r.CPUs
			current[r.VMID] = r
		}
	}
	for _, r := range known {
		if _, listed := current[r.VMID]; !listed {
			r.Status = "" // so that it is read, to check whether it still exists
			current[r.VMID] = r
		}
	}
	return slices.Collect(maps.Values(current)), nil
}

// locate sets the NUMA nodes of the hosts' devices, if agents report them.
func locate(hosts []topology.Host) {
	for i := range hosts {
		hosts[i].PCIDevices = hosts[i].LocatedDevices()
	}
}

func sortSnapshot(s *topology.Snapshot) {
	slices.SortFunc(s.Regions, func(a, b topology.Region) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	for i := range s.Hosts {
		h := &s.Hosts[i]
		slices.SortFunc(h.Guests, func(a, b topology.Guest) int { return cmp.Compare(a.VMID, b.VMID) })
		slices.SortFunc(h.Storages, func(a, b topology.Storage) int { return cmp.Compare(a.Name, b.Name) })
		slices.SortFunc(h.Templates, func(a, b topology.Template) int { return cmp.Compare(a.VMID, b.VMID) })
	}
}

// hostListing is what /cluster/resources contains about a host.
type hostListing struct {
	node   resource // without counts if the host is down
	guests []resource
}

// hostRead is the result of reading a host, except for the host itself.
type hostRead struct {
	// gone are guests that are no longer on the host.
	gone []resource
	// version is the version of Proxmox VE, or empty.
	version string
}

// hostReader reads one host and stores errors in it.
type hostReader func(ctx context.Context, host *topology.Host, listing hostListing) hostRead

// readHosts reads all hosts concurrently, and then the guests that moved meanwhile. It
// sets the region's version to the first one that a host reports.
func (c *Client) readHosts(ctx context.Context, region *regionRead, hosts []topology.Host, read hostReader) error {
	reads := make([]hostRead, len(hosts))
	var wg sync.WaitGroup
	for i := range hosts {
		name := hosts[i].Name
		wg.Go(func() {
			reads[i] = read(ctx, &hosts[i], hostListing{node: region.nodes[name], guests: region.guests[name]})
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("reading hosts of region %s: %w", c.cfg.Region, err)
	}
	var gone []resource
	for _, r := range reads {
		gone = append(gone, r.gone...)
		region.Version = cmp.Or(region.Version, r.version)
	}
	return c.readMoved(ctx, hosts, gone)
}

// readMoved looks for guests that were no longer on their listed host: they were removed,
// or they run on another host, where their pins count.
func (c *Client) readMoved(ctx context.Context, hosts []topology.Host, gone []resource) error {
	if len(gone) == 0 {
		return nil
	}
	var resources []resource
	if err := c.get(ctx, resourcesPath, &resources); err != nil {
		return err
	}
	region := newRegionRead(topology.Region{}, resources)
	for i := range hosts {
		host := &hosts[i]
		moved := slices.DeleteFunc(slices.Clone(region.guests[host.Name]), func(r resource) bool {
			return !slices.ContainsFunc(gone, func(g resource) bool { return g.VMID == r.VMID })
		})
		if host.Problem != "" {
			host.Guests = append(host.Guests, listed(moved)...)
			continue
		}
		for _, still := range c.readGuests(ctx, host, moved, nil).gone {
			addProblem(host, fmt.Sprintf("guest %d appears and disappears, so its CPUs are unknown: wait until it stays on one host", int(still.VMID)))
		}
	}
	return nil
}
