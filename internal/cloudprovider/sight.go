package cloudprovider

import (
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// sight is what a snapshot shows about an installation's guests, and what it cannot show.
type sight struct {
	// own are the guests with the installation's marker, by key: two with the same key
	// while a guest is migrated.
	own map[fleet.Key][]seen
	// dark are guests of hosts that could not be read: their owner is unknown.
	dark map[number]bool
	// plain are the names of guests that could be read and have no marker.
	plain map[number]string
	// quorate are the regions whose guest list is reliable; for regions in hidden, the
	// list contains only guests that the credential may see.
	quorate, hidden map[topology.RegionName]bool
	// runs are the hosts that could be read.
	runs map[topology.HostID]bool
}

// number is a guest's VMID with its region.
type number struct {
	region topology.RegionName
	vmid   fleet.VMID
}

// seen is a guest with the host where it was seen.
type seen struct {
	number
	host topology.HostID
	name string
	// moving is set while the guest is migrated to another host.
	moving bool
}

func look(snapshot *topology.Snapshot, clusterID string) *sight {
	s := &sight{
		own: map[fleet.Key][]seen{}, dark: map[number]bool{}, plain: map[number]string{},
		quorate: map[topology.RegionName]bool{}, hidden: map[topology.RegionName]bool{}, runs: map[topology.HostID]bool{},
	}
	for i := range snapshot.Regions {
		region := &snapshot.Regions[i]
		s.quorate[region.Name], s.hidden[region.Name] = region.Quorate, region.HidesGuests
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		runs := host.Online && host.Problem == ""
		s.runs[host.ID()] = runs
		for j := range host.Guests {
			s.add(&host.Guests[j], host.ID(), runs, clusterID)
		}
	}
	return s
}

func (s *sight) add(guest *topology.Guest, host topology.HostID, runs bool, clusterID string) {
	at := number{host.Region, fleet.VMID(guest.VMID)}
	switch {
	case guest.Key != "" && guest.ClusterID == clusterID:
		key := fleet.Key(guest.Key)
		s.own[key] = append(s.own[key], seen{number: at, host: host, name: guest.Name, moving: guest.Lock == "migrate"})
	case guest.Key != "":
	case runs:
		s.plain[at] = guest.Name
	default:
		s.dark[at] = true
	}
}

// gone reports whether a VM that was created certainly no longer exists. A guest that
// looks like the VM but has lost its marker counts as the VM.
func (s *sight) gone(vm *fleet.VM) bool {
	region := vm.Host.Region
	at := number{region, vm.VMID}
	return len(s.own[vm.Key]) == 0 && s.doubt(at) == "" && s.plain[at] != vm.Name && !s.hidden[region] && s.runs[vm.Host]
}

// doubt returns why a guest with that VMID may exist although it is not visible, or "".
func (s *sight) doubt(at number) string {
	quorate, known := s.quorate[at.region]
	switch {
	case !known:
		return fmt.Sprintf("Proxmox' region %s was not read: add it under clusters in numaform.yaml, or remove what is left by hand", at.region)
	case !quorate:
		return fmt.Sprintf("region %s has lost its quorum: bring its hosts back", at.region)
	case s.dark[at]:
		return fmt.Sprintf("the host of guest %d cannot be read: start the host, or take it out of Proxmox' cluster", at.vmid)
	}
	return ""
}

// left reports whether a VM was seen on another host than its own and is not being
// migrated.
func (s *sight) left(key fleet.Key, home topology.HostID) bool {
	places := s.own[key]
	return len(places) > 0 && !slices.ContainsFunc(places, func(p seen) bool { return p.host == home || p.moving })
}
