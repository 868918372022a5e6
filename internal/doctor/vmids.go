package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

const (
	// mostGuests is the maximum number of guests that a line names.
	mostGuests = 5
	// karpenterTag is the tag of guests that the host daemon of karpenter-provider-proxmox
	// manages.
	karpenterTag = "karpenter"
)

// vmids checks the use of the VMID range and the markers of guests. It reports other
// numaform installations on the same Proxmox, VMs with this installation's marker that are
// not in the fleet or are clones of its VMs, and guests of karpenter-provider-proxmox.
func (e *examination) vmids(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	where := string(r.Name)
	desired, err := e.config.Fleet(ctx)
	if err != nil {
		e.failed("fleet", "", err)
		e.skip(where, "fleet", "vmid", "marker")
		return
	}
	known := map[fleet.Key]fleet.VMID{}
	var used []fleet.VMID
	for _, vm := range desired.VMs {
		known[vm.Key] = vm.VMID
		if vm.Host.Region == r.Name {
			used = append(used, vm.VMID)
		}
	}

	inRange := 0
	var unmanaged, strays, clones, karpenter []string
	others := map[string][]string{}
	for i := range snapshot.Hosts {
		for _, guest := range snapshot.Hosts[i].Guests {
			id := fleet.VMID(guest.VMID)
			used = append(used, id)
			name := fmt.Sprint(id)
			if guest.Name != "" {
				name += fmt.Sprintf(" (%s)", guest.Name)
			}
			if r.VMIDs.Contains(id) {
				inRange++
				if guest.ClusterID != e.config.ClusterID {
					unmanaged = append(unmanaged, name)
				}
			}
			switch {
			case guest.ClusterID == "" && slices.Contains(guest.Tags, karpenterTag):
				karpenter = append(karpenter, name)
			case guest.ClusterID == "":
			case guest.ClusterID != e.config.ClusterID:
				others[guest.ClusterID] = append(others[guest.ClusterID], name)
			case known[fleet.Key(guest.Key)] == 0:
				strays = append(strays, name)
			case known[fleet.Key(guest.Key)] != id:
				clones = append(clones, name)
			}
		}
	}

	// Allocate a VMID as for a new VM.
	size := int(r.VMIDs.Upper-r.VMIDs.Lower) + 1
	usage := fmt.Sprintf("vmid_range %d to %d: %d of %d in use", r.VMIDs.Lower, r.VMIDs.Upper, inRange, size)
	if _, err := fleet.NewAllocator(r.Name, r.VMIDs, fleet.Rotation{}, used).Next(); err != nil {
		e.failed("vmid", where, err)
	} else if inRange*10 >= size*9 {
		e.add("vmid", Warn, where, usage, "widen vmid_range before it is exhausted")
	} else {
		e.ok("vmid", where, usage)
	}
	if len(unmanaged) > 0 {
		e.add("vmid", Warn, where,
			fmt.Sprintf("vmid_range %d to %d contains %s that this installation does not manage: %s", r.VMIDs.Lower, r.VMIDs.Upper, topology.Count(len(unmanaged), "guest"), some(unmanaged)),
			"set vmid_range to an unused range")
	}
	e.markers(where, strays, clones, karpenter, others)
}

// markers reports VMs with this installation's marker that are not in the fleet, and guests
// of other autoscalers. It groups guests of other numaform installations by clusterID.
func (e *examination) markers(where string, strays, clones, karpenter []string, others map[string][]string) {
	if len(strays) > 0 {
		e.add("marker", Warn, where,
			fmt.Sprintf("found %s with the marker of clusterID %s, but not in this fleet: %s", topology.Count(len(strays), "guest"), e.config.ClusterID, some(strays)),
			"if another numaform created them, set a different clusterID for each installation; otherwise correct fleet in numaform.yaml, or run numaform drift for advice")
	}
	if len(clones) > 0 {
		e.add("marker", Warn, where,
			fmt.Sprintf("found %s of VMs in this fleet, with their markers: %s", topology.Count(len(clones), "clone"), some(clones)),
			"remove the line that begins with numaform/ from the description of each clone")
	}
	for _, id := range slices.Sorted(maps.Keys(others)) {
		e.ok("marker", where, fmt.Sprintf("another numaform installation (clusterID %s) has %s here, whose CPUs are considered in use: %s", id, topology.Count(len(others[id]), "guest"), some(others[id])))
	}
	if len(karpenter) > 0 {
		e.ok("marker", where, fmt.Sprintf("found %s with the tag %s (probably of karpenter-provider-proxmox), whose pinned CPUs are considered in use: %s",
			topology.Count(len(karpenter), "guest"), karpenterTag, some(karpenter)))
	}
	if len(strays)+len(clones)+len(others)+len(karpenter) == 0 {
		e.ok("marker", where, "no other autoscaler uses this Proxmox cluster")
	}
}

// some names the first guests of a list.
func some(guests []string) string {
	if len(guests) <= mostGuests {
		return list(guests)
	}
	return fmt.Sprintf("%s and %d more", list(guests[:mostGuests]), len(guests)-mostGuests)
}
