package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// linkedMiB is the minimum space that a linked clone needs.
const linkedMiB = 1024

// diskNeeds returns the space that the disks of a VM use on each storage, in MiB. A boot disk
// without a storage is on the template's storage, and a data disk without one on the boot
// disk's storage.
func diskNeeds(spec *fleet.Spec, ofTemplate string, bootGiB int64) map[string]int64 {
	boot := cmp.Or(spec.Storage, ofTemplate)
	needs := map[string]int64{boot: linkedMiB}
	if spec.Clone == fleet.CloneFull {
		needs[boot] = max(linkedMiB, 1024*bootGiB)
	}
	for _, d := range spec.DataDisks {
		needs[cmp.Or(d.Storage, boot)] += 1024 * d.SizeGiB
	}
	return needs
}

// fullProblem returns the message for a storage that is full, and the amounts in it.
func fullProblem(name string, free, need int64, beside string) (message string, values []topology.Value) {
	mib := func(n int64) topology.Value { return topology.Amount(n, "MiB") }
	return topology.Sentence("has %s free on storage %q%s, but a node's disks need %s, %s more", mib(free), name, beside, mib(need), mib(need-free))
}

// fullAdvice returns the hint for a storage that is full.
func fullAdvice(spec *fleet.Spec) string {
	if len(spec.DataDisks) > 0 {
		return "free space there, or change spec.bootDevice or spec.dataDisks"
	}
	return "free space there, or change spec.bootDevice"
}

// volume is a storage with its own free space: a host's storage or, without a host, a
// shared one. With addresses, it is a region's address pool, whose space is counted in
// addresses. With vmids, it is the range of the class with that name or, without a name, of the
// region, counted in VMIDs.
type volume struct {
	region    topology.RegionName
	host      topology.HostName
	name      string
	addresses bool
	vmids     fleet.VMIDRange
}

// inUse is what new VMs must not get, besides what guests and VMs of the fleet have.
type inUse struct {
	// nodes maps the addresses of Nodes to the Nodes' names, and vmids are the VMIDs of Nodes
	// and NodeClaims.
	nodes map[string]string
	vmids map[topology.RegionName][]fleet.VMID
	// classes are the ranges of VMIDs of classes, for VMs of classes without a range.
	classes []fleet.VMIDRange
}

// site places VMs where the planner finds CPUs and memory, the storage has room for their
// disks in addition to the disks of all VMs to be created, and the address pools and the
// ranges of VMIDs are not exhausted.
type site struct {
	*planner.Planner
	classes map[string]*class
	// free is the remaining space of storages with known size, in MiB, of address pools, and of
	// ranges of VMIDs.
	free     map[volume]int64
	vms      []fleet.VM
	used     inUse
	book     *ipam.Book
	snapshot *topology.Snapshot
}

// newSite returns the site of a snapshot with all our VMs, for VMs of the pools.
func newSite(snapshot *topology.Snapshot, vms []fleet.VM, used inUse, pools ...*pool) *site {
	s := &site{
		Planner: planner.New(snapshot, vms), classes: map[string]*class{}, free: map[volume]int64{}, vms: vms, used: used,
		book: ipam.New(snapshot, vms, used.nodes), snapshot: snapshot,
	}
	for i := range snapshot.Regions {
		region := &snapshot.Regions[i]
		for j := range region.AddressPools {
			pool := &region.AddressPools[j]
			s.free[volume{region: region.Name, name: pool.Name, addresses: true}] = int64(s.book.Free(pool))
		}
		s.countVMIDs(s.vmidRange(&fleet.Spec{}, region.Name))
	}
	for _, p := range pools {
		if p.class != nil {
			s.classes[p.class.name] = p.class
		}
	}
	for _, class := range s.classes {
		for i := range snapshot.Regions {
			s.countVMIDs(s.vmidRange(&class.base, snapshot.Regions[i].Name))
		}
	}
	exists := map[guestID]bool{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, storage := range host.Storages {
			if storage.TotalMiB == 0 {
				continue
			}
			v := volume{region: host.Region, host: host.Name, name: storage.Name}
			if storage.Shared {
				v.host = ""
			}
			if free, known := s.free[v]; !known || storage.FreeMiB < free {
				s.free[v] = storage.FreeMiB
			}
		}
		for _, guest := range host.Guests {
			if guest.Lock != "clone" && guest.Lock != "create" {
				exists[guestID{region: host.Region, vmid: fleet.VMID(guest.VMID)}] = true
			}
		}
	}
	for i := range vms {
		vm := &vms[i]
		if !exists[guestID{region: vm.Host.Region, vmid: vm.VMID}] {
			s.take(s.byVolume(vm.Host, diskNeeds(&vm.Spec, vm.Source.Storage, max(vm.DiskGiB, vm.Source.DiskGiB))), 1)
		}
	}
	return s
}

// vmidRange returns the range of VMIDs for a VM: the one of its class or, if the class has none,
// of the region. It returns the zero volume if the region's range is unknown.
func (s *site) vmidRange(spec *fleet.Spec, region topology.RegionName) volume {
	if spec.VMIDs != (fleet.VMIDRange{}) {
		return volume{region: region, name: spec.NodeClass, vmids: spec.VMIDs}
	}
	i := slices.IndexFunc(s.snapshot.Regions, func(r topology.Region) bool { return r.Name == region })
	if i < 0 || s.snapshot.Regions[i].VMIDs == (topology.VMIDRange{}) {
		return volume{}
	}
	bounds := s.snapshot.Regions[i].VMIDs
	return volume{region: region, vmids: fleet.VMIDRange{Lower: fleet.VMID(bounds.Lower), Upper: fleet.VMID(bounds.Upper)}}
}

// reserved returns the ranges from which the VMs of a range get no VMIDs.
func (s *site) reserved(v volume) []fleet.VMIDRange {
	if v.name != "" {
		return nil
	}
	return s.used.classes
}

// countVMIDs sets the number of free VMIDs of a range.
func (s *site) countVMIDs(v volume) {
	if v == (volume{}) {
		return
	}
	fleets, others := s.usersOf(v)
	s.free[v] = int64(v.vmids.SizeWithout(s.reserved(v)...) - fleets - len(others))
}

// usersOf returns how many VMIDs of a range belong to the fleet's VMs, and the other users of
// VMIDs of the range, by VMID.
func (s *site) usersOf(v volume) (fleets int, others []string) {
	reserved := s.reserved(v)
	contains := func(id fleet.VMID) bool {
		return v.vmids.Contains(id) && !slices.ContainsFunc(reserved, func(r fleet.VMIDRange) bool { return r.Contains(id) })
	}
	ours := map[fleet.VMID]bool{}
	for i := range s.vms {
		if s.vms[i].Host.Region == v.region && contains(s.vms[i].VMID) {
			ours[s.vms[i].VMID] = true
		}
	}
	users := map[fleet.VMID]string{}
	for _, id := range s.used.vmids[v.region] {
		if contains(id) && !ours[id] {
			users[id] = fmt.Sprintf("VMID %d of a Node or NodeClaim", id)
		}
	}
	for i := range s.snapshot.Hosts {
		host := &s.snapshot.Hosts[i]
		for _, guest := range host.Guests {
			id := fleet.VMID(guest.VMID)
			if host.Region == v.region && contains(id) && !ours[id] {
				users[id] = fmt.Sprintf("guest %d (%s)", id, guest.Name)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(users)) {
		others = append(others, users[id])
	}
	return len(ours), others
}

// withoutVMID returns why a range has no VMID for a VM.
func (s *site) withoutVMID(v volume) string {
	_, others := s.usersOf(v)
	size := v.vmids.SizeWithout(s.reserved(v)...)
	used := fmt.Sprintf("%d belong to VMs of this fleet", size-len(others)-int(s.free[v])) // includes the VMs of this decision
	if n := len(others); n > 0 {
		if n > mostGuests {
			others = append(others[:mostGuests], fmt.Sprintf("%d more", n-mostGuests))
		}
		used += fmt.Sprintf(" and %d to others (%s)", n, strings.Join(others, ", "))
	}
	if v.name != "" {
		return fmt.Sprintf("spec.vmidRange of ProxmoxNodeClass %q has no free VMID in region %s: of %d to %d, %s: widen the range, or remove nodes",
			v.name, v.region, v.vmids.Lower, v.vmids.Upper, used)
	}
	if n := v.vmids.SizeWithout() - size; n > 0 {
		used += fmt.Sprintf(", and %d are reserved by spec.vmidRange of ProxmoxNodeClasses", n)
	}
	return fmt.Sprintf("vmid_range of region %s has no free VMID: of %d to %d, %s: widen it in numaform.yaml, or remove nodes",
		v.region, v.vmids.Lower, v.vmids.Upper, used)
}

// mostGuests is the maximum number of users of VMIDs named in a message.
const mostGuests = 5

// needs returns the space that a VM's disks would use on each volume of a host, and the
// addresses and the VMID. It omits storages of unknown size.
func (s *site) needs(spec *fleet.Spec, host topology.HostID) map[volume]int64 {
	ofTemplate := ""
	if class := s.classes[spec.NodeClass]; class != nil {
		ofTemplate = class.templates[host].Storage
	}
	needs := s.byVolume(host, diskNeeds(spec, ofTemplate, spec.DiskGiB))
	for i := range spec.Networks {
		for _, address := range spec.Networks[i].Addresses {
			needs[volume{region: host.Region, name: address.Pool, addresses: true}]++
		}
	}
	v := s.vmidRange(spec, host.Region)
	if _, known := s.free[v]; known {
		needs[v] = 1
	}
	return needs
}

// byVolume returns the needs by volume, without storages of unknown size.
func (s *site) byVolume(host topology.HostID, needs map[string]int64) map[volume]int64 {
	found := map[volume]int64{}
	for name, need := range needs {
		for _, v := range []volume{{region: host.Region, host: host.Host, name: name}, {region: host.Region, name: name}} {
			if _, known := s.free[v]; known {
				found[v] = need
				break
			}
		}
	}
	return found
}

// lacking returns the first volume, by name, without room for the needs.
func (s *site) lacking(needs map[volume]int64) (volume, bool) {
	var lacking []volume
	for v, need := range needs {
		if s.free[v] < need {
			lacking = append(lacking, v)
		}
	}
	if len(lacking) == 0 {
		return volume{}, false
	}
	return slices.MinFunc(lacking, func(a, b volume) int { return cmp.Compare(a.name, b.name) }), true
}

// withoutAddress returns why a pool has no address for a VM.
func (s *site) withoutAddress(v volume, need int64) string {
	pool := s.snapshot.AddressPool(v.region, v.name)
	if pool == nil {
		return (&ipam.NoPoolError{Region: v.region, Pool: v.name}).Error()
	}
	exhausted := s.book.Exhausted(v.region, pool)
	exhausted.VMs = exhausted.Size - exhausted.Foreign() - int(s.free[v]) // includes the VMs of this decision
	exhausted.Wanted = int(need)
	return exhausted.Error()
}

// full returns why a host's storage has no room for the disks of a VM, a pool no address, or a
// range no VMID; or "".
func (s *site) full(spec *fleet.Spec, host topology.HostID) string {
	needs := s.needs(spec, host)
	v, lacks := s.lacking(needs)
	if !lacks {
		return ""
	}
	switch {
	case v.addresses:
		return s.withoutAddress(v, needs[v])
	case v.vmids != (fleet.VMIDRange{}):
		return s.withoutVMID(v)
	}
	message, _ := fullProblem(v.name, max(s.free[v], 0), needs[v], " after the disks still to be created")
	return fmt.Sprintf("%s %s: %s", host, message, fullAdvice(spec))
}

// Fits reports whether the host has room for the VM now.
func (s *site) Fits(spec fleet.Spec, host topology.HostID) bool {
	return s.full(&spec, host) == "" && s.Planner.Fits(spec, host)
}

// Clone returns an independent copy of the site.
func (s *site) Clone() *site {
	c := *s
	c.Planner = s.Planner.Clone()
	c.free = maps.Clone(s.free)
	return &c
}

// Remove releases the resources of VMs that Place placed.
func (s *site) Remove(vms ...fleet.VM) {
	s.Planner.Remove(vms...)
	for i := range vms {
		s.take(s.needs(&vms[i].Spec, vms[i].Host), -1)
	}
}

// take subtracts the needs, multiplied by times, from the volumes.
func (s *site) take(needs map[volume]int64, times int64) {
	for v, need := range needs {
		s.free[v] -= times * need
	}
}

// Place places every spec, like the planner, on hosts whose storage is not full and for which
// there are addresses and VMIDs. If other placements have taken the room for a VM's disks, its
// address or its VMID, Place places its spec again.
func (s *site) Place(specs []fleet.Spec) ([]planner.Placed, []planner.Unplaced) {
	var placed []planner.Placed
	var unplaced []planner.Unplaced
	open := make([]int, len(specs)) // the positions of the specs without a result
	for i := range specs {
		open[i] = i
	}
	for again := true; again; {
		var batch []fleet.Spec
		var at []int // the position of each spec of the batch
		for _, i := range open {
			spec := specs[i]
			spec.Hosts = slices.DeleteFunc(slices.Clone(spec.Hosts), func(host topology.HostID) bool {
				_, full := s.lacking(s.needs(&spec, host))
				return full
			})
			if len(spec.Hosts) == 0 && len(specs[i].Hosts) > 0 {
				unplaced = append(unplaced, planner.Unplaced{Index: i, Reason: strings.Join(s.allFull(&specs[i]), "; ")})
				continue
			}
			batch = append(batch, spec)
			at = append(at, i)
		}

		fit, refused := s.Planner.Place(batch)
		open = nil
		again = false
		for _, p := range fit {
			i := at[p.Index]
			needs := s.needs(&specs[i], p.Host)
			if _, lacks := s.lacking(needs); lacks {
				s.Planner.Remove(fleet.VM{Spec: batch[p.Index], Placement: p.Placement})
				open = append(open, i)
				again = true
				continue
			}
			s.take(needs, 1)
			p.Index = i
			placed = append(placed, p)
		}
		for _, u := range refused {
			u.Index = at[u.Index]
			if again { // a removed placement may have used its room
				open = append(open, u.Index)
				continue
			}
			u.Reason = strings.Join(append([]string{u.Reason}, s.allFull(&specs[u.Index])...), "; ")
			unplaced = append(unplaced, u)
		}
		slices.Sort(open)
	}
	slices.SortFunc(placed, func(a, b planner.Placed) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(unplaced, func(a, b planner.Unplaced) int { return cmp.Compare(a.Index, b.Index) })
	return placed, unplaced
}

// allFull returns messages about the first hosts whose storage is full, and about exhausted
// address pools and ranges of VMIDs.
func (s *site) allFull(spec *fleet.Spec) []string {
	var texts []string
	for _, host := range spec.Hosts {
		if text := s.full(spec, host); text != "" && len(texts) < mostHosts && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return texts
}
