package topology

import (
	"cmp"
	"fmt"
	"slices"
)

// snapshotFormat is the format version of a recorded snapshot.
const snapshotFormat = 1

// snapshotFile is the JSON form of a recorded snapshot.
type snapshotFile struct {
	Format int `json:"format"`
	Snapshot
}

// ParseSnapshot parses the output of Print. Unknown keys, hosts without a region,
// duplicate IDs and impossible machines are errors.
func ParseSnapshot(data []byte) (*Snapshot, error) {
	var file snapshotFile
	if err := strictJSON(data, &file); err != nil {
		return nil, fmt.Errorf("parsing snapshot: %w", err)
	}
	if file.Format != snapshotFormat {
		return nil, fmt.Errorf("parsing snapshot: it has format %d, but this numaform reads only format %d", file.Format, snapshotFormat)
	}
	file.sort()
	if err := file.Validate(); err != nil {
		return nil, fmt.Errorf("parsing snapshot: %w", err)
	}
	return &file.Snapshot, nil
}

// Print returns the snapshot as JSON. Equal snapshots yield identical bytes.
func (s *Snapshot) Print() ([]byte, error) {
	sorted := Snapshot{Regions: append([]Region{}, s.Regions...), Hosts: append([]Host{}, s.Hosts...)}
	for i := range sorted.Hosts { // clone the slices that sort reorders
		h := &sorted.Hosts[i]
		h.CPUs, h.NUMANodes = slices.Clone(h.CPUs), slices.Clone(h.NUMANodes)
		h.Guests, h.Storages, h.Templates = slices.Clone(h.Guests), slices.Clone(h.Storages), slices.Clone(h.Templates)
		h.PCIDevices = slices.Clone(h.PCIDevices)
	}
	sorted.sort()
	text, err := printJSON(snapshotFile{Format: snapshotFormat, Snapshot: sorted})
	if err != nil {
		return nil, fmt.Errorf("printing snapshot: %w", err)
	}
	return text, nil
}

func (s *Snapshot) sort() {
	slices.SortStableFunc(s.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(s.Hosts, func(a, b Host) int { return a.ID().Compare(b.ID()) })
	for i := range s.Hosts {
		h := &s.Hosts[i]
		h.Machine.sort()
		slices.SortStableFunc(h.PCIDevices, func(a, b PCIDevice) int { return cmp.Compare(a.Mapping, b.Mapping) })
		slices.SortStableFunc(h.Guests, func(a, b Guest) int { return cmp.Compare(a.VMID, b.VMID) })
		slices.SortStableFunc(h.Storages, func(a, b Storage) int { return cmp.Compare(a.Name, b.Name) })
		slices.SortStableFunc(h.Templates, func(a, b Template) int { return cmp.Compare(a.VMID, b.VMID) })
	}
}

// Validate returns an error that lists the faults of the snapshot, up to a limit, or nil.
func (s *Snapshot) Validate() error {
	var faults []error
	regions := map[RegionName]bool{}
	for _, region := range s.Regions {
		if region.Name == "" || regions[region.Name] {
			faults = append(faults, fmt.Errorf("region %q: each region must have a unique name", region.Name))
		}
		regions[region.Name] = true
	}
	hosts := map[HostID]bool{}
	guests := map[RegionName]map[int]HostName{}
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if !regions[h.Region] || h.Name == "" || hosts[h.ID()] {
			faults = append(faults, fmt.Errorf("host %s: each host must have a unique name and a region that is listed in regions", h.ID()))
		}
		hosts[h.ID()] = true
		if guests[h.Region] == nil {
			guests[h.Region] = map[int]HostName{}
		}
		faults = append(faults, h.check(guests[h.Region])...)
	}
	return joinFaults(faults)
}

// check returns the faults of the host and adds its guests to guests, which maps the VMIDs
// of the region to their hosts.
func (h *Host) check(guests map[int]HostName) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("host %s: %w", h.ID(), fmt.Errorf(format, args...)))
	}
	if err := h.Machine.Validate(); err != nil {
		fault("%w", err)
	}
	if absent := h.ReservedCPUs.Difference(h.cpuIDs()); len(h.CPUs) > 0 && !absent.IsEmpty() {
		fault("reserved_cpus names CPUs %s, which do not exist: remove them", absent)
	}
	if h.Agent != nil && h.ReadAt.IsZero() {
		fault("agent is set, but read_at is not: record the snapshot again with `numaform topology -o json`")
	} else if h.Agent != nil {
		if err := h.Agent.check(); err != nil {
			fault("%w", err)
		}
	}
	if err := h.Load.check(); err != nil {
		fault("%w", err)
	}
	if h.ReservedMemoryMiB < 0 {
		fault("reserved_memory_mib is %d: must not be negative", h.ReservedMemoryMiB)
	}
	for i := range h.PCIDevices {
		if err := h.PCIDevices[i].check(); err != nil {
			fault("%w", err)
		}
	}
	for _, guest := range h.Guests {
		if other, taken := guests[guest.VMID]; taken {
			fault("guest %d also exists on host %s: a VMID is unique in its region; remove one", guest.VMID, other)
		}
		guests[guest.VMID] = h.Name
		switch {
		case guest.VMID <= 0 || guest.VCPUs < 0 || guest.MemoryMiB < 0:
			fault("guest %d: vmid must be positive, and vcpus and memory_mib must not be negative", guest.VMID)
		case guest.Kind != GuestVM && guest.Kind != GuestContainer:
			fault("guest %d: kind is %s: must be %s or %s", guest.VMID, quote(string(guest.Kind)), GuestVM, GuestContainer)
		}
	}
	return faults
}
