package planner_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// TestNeverWorseThanFirstFit checks that the planner places each VM that a first-fit placer
// places, on no more NUMA nodes. First fit takes the first NUMA node with enough memory and
// free CPUs, in whole cores for pinned VMs.
func TestNeverWorseThanFirstFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, false)
		policies := []fleet.Policy{fleet.PolicyDedicated, fleet.PolicyIsolated, fleet.PolicyNUMA}
		specs := drawSpecs(t, snap, policies...)
		placed, _ := place(t, snap, nil, specs...)
		existing := asExisting(2000, specs, placed)
		s := drawSpec(t, snap, policies...)
		s.Overcommit, s.HugePages, s.Spread, s.PinWith, s.PCIDevices = 1, "", "", "", nil // first fit does not support these
		s.MemoryOvercommit = 0
		nodes := firstFit(snap, existing, s)
		got, unplaced := place(t, snap, existing, s)
		if nodes == 0 {
			return
		}
		if len(got) == 0 {
			t.Fatalf("first fit finds %d nodes, planner refuses: %s", nodes, unplaced[0].Reason)
		}
		if len(got[0].Cells) > nodes {
			t.Fatalf("first fit needs %d nodes, planner %d: %s", nodes, len(got[0].Cells), got[0].Reason)
		}
	})
}

// firstFit returns 1 if a first-fit placer finds a NUMA node for the VM, and otherwise 0.
func firstFit(snap *topology.Snapshot, existing []fleet.VM, s fleet.Spec) int {
	for _, id := range s.Hosts {
		h := snap.Host(id)
		r := roomOf(h, existing)
		if s.VCPUs > r.afloat(h) || s.MemoryMiB > r.memory {
			continue
		}
		if len(realNodes(h)) <= 1 {
			if r.cpus(h, s, nil) >= s.VCPUs {
				return 1
			}
			continue
		}
		for _, n := range h.NUMANodes {
			if r.node[n.ID] >= s.MemoryMiB && r.cpus(h, s, &n.ID) >= s.VCPUs {
				return 1
			}
		}
	}
	return 0
}

// room is the capacity that the existing VMs leave on a host.
type room struct {
	used, blocked topology.CPUSet
	floating      int
	promise       float64
	memory        int64
	node          map[int]int64
}

// roomOf computes the remaining capacity with plain sets. It excludes the reserved memory and the
// nodes that do not report their memory: first fit does not use such nodes.
func roomOf(h *topology.Host, existing []fleet.VM) room {
	r := room{used: h.ReservedCPUs, promise: 1, memory: h.MemoryMiB - h.ReservedMemoryMiB, node: map[int]int64{}}
	for _, n := range h.NUMANodes {
		pages := n.HugePages[2048]*2 + n.HugePages[1<<20]*gib
		r.memory -= pages
		r.node[n.ID] = max(0, n.MemoryMiB-pages-h.ReservedMemoryMiB)
	}
	for _, vm := range existing {
		if vm.Host != h.ID() {
			continue
		}
		r.takeMemory(&vm)
		r.used = r.used.Union(vm.CPUs)
		if vm.Policy == fleet.PolicyNUMA {
			r.floating += vm.VCPUs
			if vm.Overcommit > 0 {
				r.promise = min(r.promise, vm.Overcommit)
			}
		}
		for _, cpus := range siblings(h) {
			if set := topology.CPUs(cpus...); vm.Policy == fleet.PolicyIsolated && !set.Intersection(vm.CPUs).IsEmpty() {
				r.blocked = r.blocked.Union(set)
			}
		}
	}
	return r
}

// takeMemory takes a VM's memory, unless it uses huge pages.
func (r *room) takeMemory(vm *fleet.VM) {
	if vm.HugePages != "" {
		return
	}
	r.memory -= vm.MemoryMiB
	for _, c := range vm.Cells {
		nodes := c.HostNodes.List() // each gives an equal part
		for _, id := range nodes {
			r.node[id] -= (c.MemoryMiB + int64(len(nodes)) - 1) / int64(len(nodes))
		}
	}
	for id := range r.node {
		if len(vm.Cells) == 0 { // it may be on any node
			r.node[id] -= vm.MemoryMiB
		}
	}
}

// afloat returns how many more vCPUs the host takes, pinned or not, at ratio 1.
func (r *room) afloat(h *topology.Host) int {
	return h.OnlineCPUs().Difference(r.used).Difference(r.blocked).Size() - r.floating
}

// cpus returns how many vCPUs of a VM fit on a NUMA node, or on the host if node is nil:
// pinned ones on one kind of core, because the planner mixes kinds only as a last resort.
func (r *room) cpus(h *topology.Host, s fleet.Spec, node *int) int {
	free := h.OnlineCPUs().Difference(r.used).Difference(r.blocked)
	kind := map[int]topology.Kind{}
	threads := 0
	for _, c := range h.CPUs {
		if free.Contains(c.ID) && (node == nil || c.NUMANode == *node) {
			kind[c.ID] = c.Kind
			threads++
		}
	}
	if s.Policy == fleet.PolicyNUMA {
		return threads
	}
	total := map[topology.Kind]int{}
	widest := 1
	for _, cpus := range siblings(h) {
		k, in := kind[cpus[0]]
		if !in || !topology.CPUs(cpus...).IsSubsetOf(free) {
			continue
		}
		widest = max(widest, len(cpus))
		if s.Policy == fleet.PolicyIsolated {
			cpus = cpus[:1]
		}
		total[k] += len(cpus)
	}
	best := max(total[""], total[topology.KindPerformance], total[topology.KindEfficiency], total[topology.KindLowPower])
	if s.Policy == fleet.PolicyIsolated {
		return min(best, r.afloat(h)/widest) // idle siblings reduce the CPUs of floating guests
	}
	return best
}
