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
	// mostGuests is the number of guests that a line names.
	mostGuests = 5
	// karpenterTag is a tag on all guests of karpenter-provider-proxmox' host daemon.
	karpenterTag = "karpenter"
)

// vmids checks who uses the range of VMIDs, and the markers of guests: other numaform
// clusters on the same Proxmox, VMs with our marker that are not in the fleet, and guests
// of karpenter-provider-proxmox.
func (e *examination) vmids(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	where := string(r.Name)
	desired, err := e.config.Fleet(ctx)
	if err != nil {
		e.failed("fleet", "", err)
		e.skip(where, "fleet", "vmid", "marker")
		return
	}
	known := map[fleet.Key]bool{}
	var used []fleet.VMID
	for _, vm := range desired.VMs {
		known[vm.Key] = true
		if vm.Host.Region == r.Name {
			used = append(used, vm.VMID)
		}
	}

	inRange := 0
	var unmanaged, strays, karpenter []string
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
			case !known[fleet.Key(guest.Key)]:
				strays = append(strays, name)
			}
		}
	}

	// Allocate a VMID as for a new VM.
	size := int(r.VMIDs.Upper-r.VMIDs.Lower) + 1
	usage := fmt.Sprintf("vmid_range %d to %d: %d of %d are used", r.VMIDs.Lower, r.VMIDs.Upper, inRange, size)
	if _, err := fleet.NewAllocator(r.Name, r.VMIDs, fleet.Rotation{}, used).Next(); err != nil {
		e.failed("vmid", where, err)
	} else if inRange*10 >= size*9 {
		e.add("vmid", Warn, where, usage, "widen vmid_range before it is exhausted")
	} else {
		e.ok("vmid", where, usage)
	}
	if len(unmanaged) > 0 {
		e.add("vmid", Warn, where,
			fmt.Sprintf("vmid_range %d to %d holds %s that numaform did not make and leaves alone: %s", r.VMIDs.Lower, r.VMIDs.Upper, count(len(unmanaged), "guest"), some(unmanaged)),
			"give numaform a range that nothing else uses")
	}
	e.markers(where, strays, karpenter, others)
}

// markers reports guests with markers: VMs of this cluster that are not in the fleet, and
// guests of other autoscalers, by clusterID if they are numaform's.
func (e *examination) markers(where string, strays, karpenter []string, others map[string][]string) {
	if len(strays) > 0 {
		e.add("marker", Warn, where,
			fmt.Sprintf("%s with the marker of clusterID %s, but not in this fleet: %s", count(len(strays), "guest"), e.config.ClusterID, some(strays)),
			"if another numaform made them, give each a clusterID of its own; else look at the fleet in numaform.yaml, which may be the wrong one")
	}
	for _, id := range slices.Sorted(maps.Keys(others)) {
		e.ok("marker", where, fmt.Sprintf("another numaform, clusterID %s, has %s here, whose CPUs count as taken: %s", id, count(len(others[id]), "guest"), some(others[id])))
	}
	if len(karpenter) > 0 {
		e.ok("marker", where, fmt.Sprintf("%s with the tag %s, so karpenter-provider-proxmox may be at work here; what its VMs are pinned to counts as taken: %s",
			count(len(karpenter), "guest"), karpenterTag, some(karpenter)))
	}
	if len(strays)+len(others)+len(karpenter) == 0 {
		e.ok("marker", where, "no other autoscaler uses this Proxmox")
	}
}

// some names the first guests of a list.
func some(guests []string) string {
	if len(guests) <= mostGuests {
		return list(guests)
	}
	return fmt.Sprintf("%s and %d more", list(guests[:mostGuests]), len(guests)-mostGuests)
}
