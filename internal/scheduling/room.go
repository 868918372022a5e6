package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// linkedMiB is the minimum space that a linked clone needs.
const linkedMiB = 1024

// diskNeeds returns what the disks of a VM use on each storage, in MiB. Disks without a
// storage are on the template's.
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

// fullProblem returns the message that a storage is full, with the amounts.
func fullProblem(name string, free, need int64, beside string) string {
	return fmt.Sprintf("has %d MiB free on storage %q%s, and a node's disk needs %d: %d are missing", free, name, beside, need, need-free)
}

// fullAdvice returns the hint for a storage that is full.
func fullAdvice(spec *fleet.Spec) string {
	if len(spec.DataDisks) > 0 {
		return "make room there, or change spec.bootDevice or spec.dataDisks"
	}
	return "make room there, or change spec.bootDevice"
}

// volume is a storage with its own free space: a host's or, without a host, a shared one.
type volume struct {
	region topology.RegionName
	host   topology.HostName
	name   string
}

// site places VMs where the planner finds CPUs and memory, and the storage has room for
// their disks in addition to the disks of all VMs to be created.
type site struct {
	*planner.Planner
	hosts   []topology.HostID
	classes map[string]*class
	// free is the remaining space of storages with known size, in MiB.
	free map[volume]int64
}

// newSite returns the site of a snapshot with all our VMs, for NodePools.
func newSite(snapshot *topology.Snapshot, kept []fleet.VM, pools ...*pool) *site {
	s := &site{Planner: planner.New(snapshot, kept), classes: map[string]*class{}, free: map[volume]int64{}}
	for _, p := range pools {
		if p.class != nil {
			s.classes[p.class.name] = p.class
		}
	}
	made := map[guestID]bool{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		s.hosts = append(s.hosts, host.ID())
		for j := range host.Storages {
			s.count(host, &host.Storages[j])
		}
		for _, guest := range host.Guests {
			if guest.Lock != "clone" && guest.Lock != "create" {
				made[guestID{region: host.Region, vmid: fleet.VMID(guest.VMID)}] = true
			}
		}
	}
	for i := range kept {
		vm := &kept[i]
		if !made[guestID{region: vm.Host.Region, vmid: vm.VMID}] {
			s.take(s.known(vm.Host, diskNeeds(&vm.Spec, vm.Source.Storage, max(vm.DiskGiB, vm.Source.DiskGiB))), 1)
		}
	}
	return s
}

func (s *site) count(host *topology.Host, storage *topology.Storage) {
	if storage.TotalMiB == 0 {
		return
	}
	v := volume{host.Region, host.Name, storage.Name}
	if storage.Shared {
		v.host = ""
	}
	if free, known := s.free[v]; !known || storage.FreeMiB < free {
		s.free[v] = storage.FreeMiB
	}
}

// volume finds a storage of a host, and reports whether its free space is known.
func (s *site) volume(host topology.HostID, name string) (volume, bool) {
	for _, v := range []volume{{host.Region, host.Host, name}, {host.Region, "", name}} {
		if _, known := s.free[v]; known {
			return v, true
		}
	}
	return volume{}, false
}

// disks returns the space that a VM's disks would use on each volume of a host. It omits
// storages of unknown size.
func (s *site) disks(spec *fleet.Spec, host topology.HostID) map[volume]int64 {
	ofTemplate := ""
	if class := s.classes[spec.NodeClass]; class != nil {
		ofTemplate = class.templates[host].Storage
	}
	return s.known(host, diskNeeds(spec, ofTemplate, spec.DiskGiB))
}

// known returns the needs by volume, without storages of unknown size.
func (s *site) known(host topology.HostID, needs map[string]int64) map[volume]int64 {
	found := map[volume]int64{}
	for name, need := range needs {
		if v, known := s.volume(host, name); known {
			found[v] = need
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

// full returns why a host's storage has no room for the disks of a VM, or "".
func (s *site) full(spec *fleet.Spec, host topology.HostID) string {
	needs := s.disks(spec, host)
	v, lacks := s.lacking(needs)
	if !lacks {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", host, fullProblem(v.name, max(s.free[v], 0), needs[v], " beside the disks that are yet to be made"), fullAdvice(spec))
}

// Fits reports whether the host has room for the VM now.
func (s *site) Fits(spec fleet.Spec, host topology.HostID) bool {
	return s.full(&spec, host) == "" && s.Planner.Fits(spec, host)
}

// Clone returns an independent copy of the site.
func (s *site) Clone() *site {
	c := *s
	c.Planner, c.free = s.Planner.Clone(), maps.Clone(s.free)
	return &c
}

// Remove releases the resources of VMs that Place placed.
func (s *site) Remove(vms ...fleet.VM) {
	s.Planner.Remove(vms...)
	for i := range vms {
		s.take(s.disks(&vms[i].Spec, vms[i].Host), -1)
	}
}

// take subtracts the needs, multiplied by times, from the volumes.
func (s *site) take(needs map[volume]int64, times int64) {
	for v, need := range needs {
		s.free[v] -= times * need
	}
}

// Place places every spec, like the planner. If a placement turns out to have no room for
// its disks because of others, the spec is placed again elsewhere.
func (s *site) Place(specs []fleet.Spec) ([]planner.Placed, []planner.Unplaced) {
	var placed []planner.Placed
	var unplaced []planner.Unplaced
	open := make([]int, len(specs))
	for i := range specs {
		open[i] = i
	}
	for again := true; again; {
		batch, at, refused := s.narrow(specs, open)
		unplaced = append(unplaced, refused...)
		found, none := s.Planner.Place(batch)
		open, again = nil, false
		for _, p := range found {
			spec := &specs[at[p.Index]]
			needs := s.disks(spec, p.Host)
			if _, lacks := s.lacking(needs); lacks {
				s.Planner.Remove(fleet.VM{Spec: batch[p.Index], Placement: p.Placement})
				open, again = append(open, at[p.Index]), true
				continue
			}
			s.take(needs, 1)
			p.Index = at[p.Index]
			placed = append(placed, p)
		}
		for _, u := range none {
			if u.Index = at[u.Index]; again { // a removed placement may have used its room
				open = append(open, u.Index)
				continue
			}
			u.Reason = strings.Join(append([]string{u.Reason}, s.allFull(&specs[u.Index])...), "; ")
			unplaced = append(unplaced, u)
		}
	}
	slices.SortFunc(placed, func(a, b planner.Placed) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(unplaced, func(a, b planner.Unplaced) int { return cmp.Compare(a.Index, b.Index) })
	return placed, unplaced
}

// narrow returns the open specs without hosts whose storage is full, the position of
// each, and the specs that have no host left.
func (s *site) narrow(specs []fleet.Spec, open []int) (batch []fleet.Spec, at []int, refused []planner.Unplaced) {
	slices.Sort(open)
	known := map[clone]map[topology.HostID]bool{}
	for _, i := range open {
		spec := specs[i]
		like := clone{spec.NodeClass, spec.Storage, fmt.Sprint(spec.DataDisks), spec.Clone, spec.DiskGiB}
		full, asked := known[like]
		if !asked {
			full = s.fullHosts(&spec)
			known[like] = full
		}
		isFull := func(host topology.HostID) bool { return full[host] }
		if len(full) > 0 && slices.ContainsFunc(spec.Hosts, isFull) {
			spec.Hosts = slices.DeleteFunc(slices.Clone(spec.Hosts), isFull)
			if len(spec.Hosts) == 0 {
				refused = append(refused, planner.Unplaced{Index: i, Reason: strings.Join(s.allFull(&specs[i]), "; ")})
				continue
			}
		}
		batch, at = append(batch, spec), append(at, i)
	}
	return batch, at, refused
}

// clone is the part of a Spec that determines what its disks use, and where.
type clone struct {
	class, storage, data string
	kind                 fleet.CloneKind
	diskGiB              int64
}

func (s *site) fullHosts(spec *fleet.Spec) map[topology.HostID]bool {
	full := map[topology.HostID]bool{}
	for _, host := range s.hosts {
		if _, lacks := s.lacking(s.disks(spec, host)); lacks {
			full[host] = true
		}
	}
	return full
}

// allFull returns messages about the first hosts whose storage is full.
func (s *site) allFull(spec *fleet.Spec) []string {
	var texts []string
	for _, host := range spec.Hosts {
		if text := s.full(spec, host); text != "" && len(texts) < mostHosts {
			texts = append(texts, text)
		}
	}
	return texts
}
