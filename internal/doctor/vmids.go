package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// shown is the number of guests that a line names.
const shown = 5

// vmids checks who uses the range of VMIDs, and other clusters' markers.
func (e *examination) vmids(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	where := string(r.Name)
	wanted, err := e.config.Fleet(ctx)
	if err != nil {
		e.failed("fleet", "", err)
		e.skipAt(where, "fleet", "vmid", "marker")
		return
	}
	guests := guestsOf(snapshot)
	used := make([]fleet.VMID, 0, len(guests))
	var foreign []string
	inRange := 0
	for _, guest := range guests {
		id := fleet.VMID(guest.VMID)
		used = append(used, id)
		if id < r.VMIDs.Lower || id > r.VMIDs.Upper {
			continue
		}
		inRange++
		if guest.ClusterID != e.config.ClusterID {
			foreign = append(foreign, describe(guest))
		}
	}
	for _, vm := range wanted.VMs {
		if vm.Host.Region == r.Name {
			used = append(used, vm.VMID)
		}
	}
	e.exhausted(r, used, inRange)
	if len(foreign) > 0 {
		e.add(Finding{
			Check: "vmid", Status: Warn, Where: where,
			What: fmt.Sprintf("vmid_range %d to %d holds %s that %s: %s", r.VMIDs.Lower, r.VMIDs.Upper, count(len(foreign), "guest"),
				"numaform did not make and leaves alone", some(foreign)),
			Mend: "give numaform a range that nobody else uses",
		})
	}
	e.markers(r, guests, wanted)
}

// exhausted allocates a VMID as for a new VM.
func (e *examination) exhausted(r *Region, used []fleet.VMID, inRange int) {
	where := string(r.Name)
	if _, err := fleet.NewAllocator(r.Name, r.VMIDs, fleet.Rotation{}, used).Next(); err != nil {
		e.failed("vmid", where, err)
		return
	}
	size := int(r.VMIDs.Upper-r.VMIDs.Lower) + 1
	finding := Finding{Check: "vmid", Status: OK, Where: where}
	finding.What = fmt.Sprintf("vmid_range %d to %d: %d of %d are used", r.VMIDs.Lower, r.VMIDs.Upper, inRange, size)
	if inRange*10 >= size*9 {
		finding.Status, finding.Mend = Warn, "widen vmid_range before it is exhausted"
	}
	e.add(finding)
}

// markers reports other numaform clusters on the same Proxmox, and VMs with our marker that
// are not in the fleet.
func (e *examination) markers(r *Region, guests []topology.Guest, wanted fleet.Fleet) {
	known := map[fleet.Key]bool{}
	for _, vm := range wanted.VMs {
		known[vm.Key] = true
	}
	others, strays, karpenter := e.sort(guests, known)
	where := string(r.Name)
	if len(strays) > 0 {
		e.add(Finding{
			Check: "marker", Status: Warn, Where: where,
			What: fmt.Sprintf("%s with the marker of clusterID %s, but not in this fleet: %s", count(len(strays), "guest"), e.config.ClusterID, some(strays)),
			Mend: "if another numaform made them, give each a clusterID of its own; else look at the fleet in numaform.yaml, which may be the wrong one",
		})
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

// sort groups the guests: by clusterIDs of other numaform clusters, guests with our marker
// that are unknown, and karpenter-provider-proxmox' own.
func (e *examination) sort(guests []topology.Guest, known map[fleet.Key]bool) (others map[string][]string, strays, karpenter []string) {
	others = map[string][]string{}
	for _, guest := range guests {
		switch {
		case guest.ClusterID == "":
			if slices.Contains(guest.Tags, karpenterTag) {
				karpenter = append(karpenter, describe(guest))
			}
		case guest.ClusterID != e.config.ClusterID:
			others[guest.ClusterID] = append(others[guest.ClusterID], describe(guest))
		case !known[fleet.Key(guest.Key)]:
			strays = append(strays, describe(guest))
		}
	}
	return others, strays, karpenter
}

// karpenterTag is a tag on all guests of karpenter-provider-proxmox' host daemon.
const karpenterTag = "karpenter"

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func guestsOf(snapshot *topology.Snapshot) []topology.Guest {
	var guests []topology.Guest
	for i := range snapshot.Hosts {
		guests = append(guests, snapshot.Hosts[i].Guests...)
	}
	return guests
}

func describe(guest topology.Guest) string {
	if guest.Name == "" {
		return fmt.Sprint(guest.VMID)
	}
	return fmt.Sprintf("%d (%s)", guest.VMID, guest.Name)
}

// some names the first elements of a list.
func some(list []string) string {
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

// locks reports who holds the locks of fleet and states.
func (e *examination) locks(ctx context.Context) {
	locks, err := e.config.Locks(ctx)
	if err != nil {
		e.failed("lock", "", err)
	}
	for _, lock := range locks {
		if lock.Err != nil {
			e.failed("lock", lock.Where, lock.Err)
			continue
		}
		e.ok("lock", lock.Where, lock.What)
	}
}
