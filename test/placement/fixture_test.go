package placement_test

import (
	"testing"

	"github.com/numaform/numaform/test/placement"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

const gib = 1024

// shape describes a small machine; its core 0 and a twentieth of its memory are reserved.
type shape struct {
	nodes, cores int // cores of each node
	smt          int
	perCache     int // cores; 0: one cache per node
	// alternate numbers the cores round-robin over the nodes.
	alternate bool
	model     string
}

// build returns a machine with 20 GiB on each node, of which VMs may use 19. The second
// threads are numbered after all first threads.
func build(s shape) *placement.Machine {
	raw := topology.Machine{Model: s.model}
	total := s.nodes * s.cores
	perCache := s.perCache
	if perCache == 0 {
		perCache = s.cores
	}
	for thread := range s.smt {
		for core := range total {
			node, within := core/s.cores, core%s.cores
			if s.alternate {
				node, within = core%s.nodes, core/s.nodes
			}
			raw.CPUs = append(raw.CPUs, topology.CPU{
				ID: thread*total + core, Online: true, NUMANode: node, Socket: node, Core: core,
				L3: node*s.cores + within/perCache,
			})
		}
	}
	for n := range s.nodes {
		raw.NUMANodes = append(raw.NUMANodes, topology.NUMANode{ID: n, MemoryMiB: 20 * gib})
	}
	return placement.NewMachine("small", raw)
}

// hybrid returns a machine with three cores of two threads, one of them reserved (the
// others have CPUs 2 and 3, and 4 and 5), and four cores of one thread (CPUs 6 to 9).
func hybrid() *placement.Machine {
	raw := topology.Machine{NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: 20 * gib}}}
	for id, core := range []int{0, 0, 1, 1, 2, 2, 3, 4, 5, 6} {
		kind := topology.KindPerformance
		if core > 2 {
			kind = topology.KindEfficiency
		}
		raw.CPUs = append(raw.CPUs, topology.CPU{ID: id, Online: true, Core: core, Kind: kind})
	}
	return placement.NewMachine("hybrid", raw)
}

// known loads a machine from the catalog.
func known(t *testing.T, name string) *placement.Machine {
	t.Helper()
	raw, err := machines.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return placement.NewMachine(name, raw)
}

// host is a placer and the guests that it placed.
type host struct {
	t       *testing.T
	machine *placement.Machine
	placer  placement.Placer
	guests  []placement.Guest
}

func start(t *testing.T, k placement.Kind, m *placement.Machine) *host {
	t.Helper()
	return &host{t: t, machine: m, placer: k.New(m)}
}

// place places a VM of 1 GiB per vCPU, and returns its place and its faults.
func (h *host) place(id, vcpus int) (placement.Place, []placement.Fault) {
	h.t.Helper()
	vm := placement.VM{ID: id, VCPUs: vcpus, MemoryMiB: int64(vcpus) * gib}
	place, ok := h.placer.Place(vm)
	if !ok {
		h.t.Fatalf("VM %d with %d vCPUs is refused", id, vcpus)
	}
	h.guests = append(h.guests, placement.Guest{VM: vm, Place: place})
	return place, placement.Check(h.machine, h.guests)
}

// refuses reports whether the placer refuses a VM.
func (h *host) refuses(vcpus int, memory int64) bool {
	_, ok := h.placer.Place(placement.VM{ID: 1000, VCPUs: vcpus, MemoryMiB: memory})
	return !ok
}

// remove removes the VM with that ID.
func (h *host) remove(id int) {
	for i, g := range h.guests {
		if g.ID == id {
			h.placer.Remove(g.VM)
			h.guests = append(h.guests[:i:i], h.guests[i+1:]...)
			return
		}
	}
}
