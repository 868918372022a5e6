package placement_test

import (
	"slices"
	"testing"

	"github.com/numaform/numaform/test/placement"
)

// The tests check known properties of the baselines on small machines. For most properties
// that are mistakes, they also check that numaform does not make the same mistake.

// hasFault reports whether the faults include one of the kind.
func hasFault(faults []placement.Fault, kind placement.FaultKind) bool {
	return slices.ContainsFunc(faults, func(f placement.Fault) bool { return f.Kind == kind })
}

// mustBeSound fails on any fault, and on a VM that spans more than one NUMA node.
func mustBeSound(t *testing.T, h *host, place placement.Place, faults []placement.Fault) {
	t.Helper()
	node := h.machine.CPU(place.CPUs[0]).Node
	one := !slices.ContainsFunc(place.CPUs, func(id int) bool { return h.machine.CPU(id).Node != node })
	if len(faults) > 0 || !one || len(place.Cells) > 1 {
		t.Errorf("numaform places on %v with cells %v: %v", place.CPUs, place.Cells, faults)
	}
}

// TestKPPCutsVMs checks that karpenter-provider-proxmox packs over all nodes with enough
// memory, starting with the node with the fewest free CPUs: a VM spans two nodes, with its
// whole memory bound on each, so that it cannot start.
func TestKPPCutsVMs(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 8, smt: 1, perCache: 2})
	kpp, ours := start(t, placement.KPP(false), m), start(t, placement.Numaform(false), m)
	kpp.place(1, 1)
	place, faults := kpp.place(2, 7)
	if len(place.Cells) != 2 || !hasFault(faults, placement.FaultCannotStart) {
		t.Errorf("cells %v, faults %v: want two cells of the whole memory each", place.Cells, faults)
	}
	ours.place(1, 1)
	place, faults = ours.place(2, 7)
	mustBeSound(t, ours, place, faults)
}

// TestKPPRefusesLargerThanANode checks that karpenter-provider-proxmox never places a VM
// that is larger than the memory of a node.
func TestKPPRefusesLargerThanANode(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 1})
	if !start(t, placement.KPP(false), m).refuses(2, 20*gib) {
		t.Error("karpenter-provider-proxmox places 20 GiB on nodes of 19")
	}
	if start(t, placement.Numaform(false), m).refuses(2, 20*gib) {
		t.Error("numaform refuses 20 GiB on two nodes of 19")
	}
}

// TestCPUGivenTwice checks that, if cores differ, the kubelet's allocation treats a core
// with one free CPU of two as free, and assigns both CPUs. karpenter-provider-proxmox later
// frees both, although another VM still uses one.
func TestCPUGivenTwice(t *testing.T) {
	t.Parallel()
	play := func(k placement.Kind) (*host, []placement.Fault) {
		h := start(t, k, hybrid())
		for id := range 5 { // the last VM gets CPU 2
			if _, faults := h.place(id+1, 1); len(faults) > 0 {
				t.Fatalf("%s: VM %d: %v", k.Name, id+1, faults)
			}
		}
		_, faults := h.place(6, 2)
		return h, faults
	}
	for _, k := range []placement.Kind{placement.KPP(false), placement.Kubelet(false), placement.Kubelet(true)} {
		if h, faults := play(k); !hasFault(faults, placement.FaultTwice) {
			t.Errorf("%s: %+v, want a CPU given twice", k.Name, h.guests)
		}
	}
	kpp, _ := play(placement.KPP(false))
	kpp.remove(6)
	if place, faults := kpp.place(7, 1); !hasFault(faults, placement.FaultTwice) {
		t.Errorf("karpenter-provider-proxmox gives CPUs %v, want one that was freed while in use", place.CPUs)
	}
	if h, faults := play(placement.Numaform(false)); len(faults) > 0 {
		t.Errorf("numaform: %+v: %v", h.guests, faults)
	}
}

// TestKPPSharesCores checks that two VMs of three vCPUs share a core, although each could
// have two whole cores.
func TestKPPSharesCores(t *testing.T) {
	t.Parallel()
	shared := func(k placement.Kind) bool {
		m := build(shape{nodes: 1, cores: 6, smt: 2})
		h := start(t, k, m)
		a, _ := h.place(1, 3)
		b, _ := h.place(2, 3)
		return slices.ContainsFunc(a.CPUs, func(x int) bool {
			return slices.ContainsFunc(b.CPUs, func(y int) bool { return m.CPU(x).Core == m.CPU(y).Core })
		})
	}
	if !shared(placement.KPP(false)) {
		t.Error("karpenter-provider-proxmox gives each VM whole cores")
	}
}

// TestKPPGuess checks that the topology that karpenter-provider-proxmox derives from the
// model's name is correct for some machines. On others, pins are outside the claimed nodes,
// or no VM can be placed.
func TestKPPGuess(t *testing.T) {
	t.Parallel()
	if _, faults := start(t, placement.KPP(true), known(t, "epyc-7451-2s-8node")).place(1, 4); len(faults) > 0 {
		t.Errorf("EPYC 7451: %v, want none: its nodes are guessed right", faults)
	}
	for _, m := range []*placement.Machine{
		known(t, "xeon-e7-4870-4s-pci"), build(shape{nodes: 2, cores: 8, smt: 1, alternate: true, model: "Intel"}),
	} {
		if place, faults := start(t, placement.KPP(true), m).place(1, 4); !hasFault(faults, placement.FaultRule) {
			t.Errorf("%s: CPUs %v, %v: want pins outside their nodes, which alternate", m.Name, place.CPUs, faults)
		}
		ours := start(t, placement.Numaform(false), m)
		place, faults := ours.place(1, 4)
		mustBeSound(t, ours, place, faults)
	}
	if !start(t, placement.KPP(true), known(t, "kunpeng920-2s-4node")).refuses(1, gib) {
		t.Error("a VM is placed on a Kunpeng, whose topology is not guessed")
	}
}

// TestNovaNeverSplits checks that Nova never splits a VM that fits an empty node.
func TestNovaNeverSplits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind    placement.Kind
		refuses bool
	}{{placement.Nova(true), true}, {placement.Nova(false), true}, {placement.Numaform(false), false}} {
		h := start(t, tt.kind, build(shape{nodes: 2, cores: 8, smt: 1})) // 7 and 8 CPUs
		h.place(1, 4)
		h.place(2, 5)
		if got := h.refuses(6, 6*gib); got != tt.refuses {
			t.Errorf("%s: 6 vCPUs on 6 CPUs of two nodes: refused %v, want %v", tt.kind.Name, got, tt.refuses)
		}
	}
}

// TestNovaOrder checks that Nova packs into the fullest node, or spreads to the emptiest.
func TestNovaOrder(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 1})
	for _, tt := range []struct {
		kind placement.Kind
		want int
	}{{placement.Nova(false), 0}, {placement.Nova(true), 1}} {
		if place, _ := start(t, tt.kind, m).place(1, 2); m.CPU(place.CPUs[0]).Node != tt.want {
			t.Errorf("%s: CPUs %v, want node %d", tt.kind.Name, place.CPUs, tt.want)
		}
	}
}

// TestKubeletAligns checks that the kubelet takes cores in order, from two caches; with
// prefer-uncore-cache, it takes them from one.
func TestKubeletAligns(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 1, cores: 8, smt: 1, perCache: 4})
	for _, tt := range []struct {
		align bool
		want  []int
	}{{false, []int{1, 2, 3, 4}}, {true, []int{4, 5, 6, 7}}} {
		if place, _ := start(t, placement.Kubelet(tt.align), m).place(1, 4); !slices.Equal(place.CPUs, tt.want) {
			t.Errorf("aligned %v: CPUs %v, want %v", tt.align, place.CPUs, tt.want)
		}
	}
}

// TestKubeletNarrowestMask checks that the kubelet uses the narrowest set of nodes if one
// node is not enough.
func TestKubeletNarrowestMask(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 4, cores: 4, smt: 1})
	h := start(t, placement.Kubelet(false), m)
	place, faults := h.place(1, 4)
	if len(place.Cells) != 1 || place.Cells[0].Nodes[0] != 1 || len(faults) > 0 {
		t.Errorf("4 vCPUs: %+v %v, want node 1", place, faults)
	}
	if place, faults = h.place(2, 6); len(place.Cells) != 1 || len(place.Cells[0].Nodes) != 2 || len(faults) > 0 {
		t.Errorf("6 vCPUs: %+v %v, want two nodes", place, faults)
	}
}

// TestSequentialCutsVMs checks that scripts that allocate CPUs in order split a VM if CPU
// IDs alternate between nodes.
func TestSequentialCutsVMs(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 1, alternate: true})
	if place, _ := start(t, placement.Sequential(), m).place(1, 2); !slices.Equal(place.CPUs, []int{1, 2}) {
		t.Errorf("CPUs %v, want 1 and 2, of both nodes", place.CPUs)
	}
}

// TestMostFreeMemory checks that the baseline ignores the number of free CPUs of a node.
func TestMostFreeMemory(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 1})
	h := start(t, placement.MostFreeMemory(), m)
	h.place(1, 2)
	if place, _ := h.place(2, 2); m.CPU(place.CPUs[0]).Node != 1 {
		t.Errorf("CPUs %v, want those of the node with more memory", place.CPUs)
	}
}

// TestUnpinned checks that floating VMs have no faults, and count as running on as many
// NUMA nodes as they have vCPUs.
func TestUnpinned(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 1})
	h := start(t, placement.Unpinned(), m)
	if place, faults := h.place(1, 6); place.CPUs != nil || len(faults) > 0 {
		t.Errorf("%+v %v", place, faults)
	}
	if !h.refuses(2, gib) {
		t.Error("a VM of 2 vCPUs was placed with one free CPU")
	}
	list := []placement.VM{{ID: 1, VCPUs: 1, MemoryMiB: gib}, {ID: 2, VCPUs: 2, MemoryMiB: gib}}
	if fill := placement.RunFill(placement.Unpinned(), m, list); fill.Placed != 2 || fill.Prefix != 1 {
		t.Errorf("%+v, want the second VM on two nodes", fill)
	}
}
