package topology

import (
	"net/netip"
	"slices"
)

// AddressPool is a pool of static addresses for the VMs of a region, from numaform.yaml.
type AddressPool struct {
	Name   string       `json:"name"`
	Subnet netip.Prefix `json:"subnet"`
	// Ranges are the addresses for VMs, ascending and without overlaps. They contain neither
	// excluded addresses nor those of the gateway, the DNS servers and the network itself.
	Ranges        []AddressRange `json:"ranges"`
	Gateway       netip.Addr     `json:"gateway,omitzero"`
	DNSServers    []netip.Addr   `json:"dns_servers,omitempty"`
	SearchDomains []string       `json:"search_domains,omitempty"`
}

// AddressRange is the addresses from First to Last, which are of the same family.
type AddressRange struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// HasAddressPools reports whether a region has address pools.
func (s *Snapshot) HasAddressPools() bool {
	return slices.ContainsFunc(s.Regions, func(r Region) bool { return len(r.AddressPools) > 0 })
}

// AddressPool returns the region's address pool with that name, or nil.
func (s *Snapshot) AddressPool(region RegionName, name string) *AddressPool {
	for i := range s.Regions {
		if s.Regions[i].Name != region {
			continue
		}
		for j := range s.Regions[i].AddressPools {
			if s.Regions[i].AddressPools[j].Name == name {
				return &s.Regions[i].AddressPools[j]
			}
		}
	}
	return nil
}
