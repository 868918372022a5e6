package placement_test

import (
	"testing"

	"github.com/numaform/numaform/test/placement"
)

// TestCheck checks that each planted fault is found first, and that sound VMs have no
// faults.
func TestCheck(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 2, cores: 4, smt: 2}) // node 0: CPUs 0-3 and 8-11, node 1: 4-7 and 12-15
	cell := func(node int, memory int64, cpus ...int) placement.Cell {
		return placement.Cell{GuestCPUs: cpus, Nodes: []int{node}, MemoryMiB: memory}
	}
	sound := placement.Guest{
		VM:    placement.VM{ID: 1, VCPUs: 4, MemoryMiB: 8 * gib},
		Place: placement.Place{CPUs: []int{1, 9, 4, 12}, Cells: []placement.Cell{cell(0, 4*gib, 0, 1), cell(1, 4*gib, 2, 3)}},
	}
	small := placement.VM{ID: 2, VCPUs: 2, MemoryMiB: 2 * gib}
	at := func(cpus ...int) placement.Place { return placement.Place{CPUs: cpus} }
	in := func(cells ...placement.Cell) placement.Place {
		return placement.Place{CPUs: []int{2, 10}, Cells: cells}
	}
	none := placement.FaultKind(-1)
	tests := []struct {
		name  string
		vm    placement.VM
		place placement.Place
		want  placement.FaultKind
	}{
		{"sound", small, in(cell(0, 2*gib, 0, 1)), none},
		{"sound over both nodes", small, in(placement.Cell{GuestCPUs: []int{0, 1}, Nodes: []int{0, 1}, MemoryMiB: 2 * gib}), none},
		{"sound, floating", small, placement.Place{}, none},
		{"another's CPU", small, at(2, 9), placement.FaultTwice},
		{"a CPU twice", small, at(2, 2), placement.FaultTwice},
		{"too few CPUs", small, at(2), placement.FaultTwice},
		{"too many CPUs", small, at(2, 3, 10), placement.FaultRule},
		{"reserved", small, at(0, 8), placement.FaultRule},
		{"not online", small, at(2, 99), placement.FaultCannotStart},
		{"CPU outside its cell's node", small, in(cell(1, 2*gib, 0, 1)), placement.FaultRule},
		{"memory of cells too small", small, in(cell(0, gib, 0, 1)), placement.FaultCannotStart},
		{"whole memory in each cell", small, in(cell(0, 2*gib, 0), cell(0, 2*gib, 1)), placement.FaultCannotStart},
		{"vCPU in no cell", small, in(cell(0, 2*gib, 0)), placement.FaultCannotStart},
		{"vCPU in two cells", small, in(cell(0, gib, 0, 1), cell(0, gib, 1)), placement.FaultCannotStart},
		{"no such node", small, in(cell(7, 2*gib, 0, 1)), placement.FaultCannotStart},
		{"cell without CPUs", small, in(cell(0, gib, 0, 1), cell(1, gib)), placement.FaultCannotStart},
		{"more than the node has", placement.VM{ID: 2, VCPUs: 2, MemoryMiB: 16 * gib}, in(cell(0, 16*gib, 0, 1)), placement.FaultCannotStart},
		{"more than the host has", placement.VM{ID: 2, VCPUs: 2, MemoryMiB: 31 * gib}, at(2, 10), placement.FaultCannotStart},
		{"floating on no CPU", placement.VM{ID: 2, VCPUs: 11, MemoryMiB: gib}, placement.Place{}, placement.FaultTwice},
	}
	for _, tt := range tests {
		faults := placement.Check(m, []placement.Guest{sound, {VM: tt.vm, Place: tt.place}})
		switch {
		case tt.want == none && len(faults) > 0:
			t.Errorf("%s: found %v", tt.name, faults)
		case tt.want != none && (len(faults) == 0 || faults[0].Kind != tt.want || faults[0].VM == 1):
			t.Errorf("%s: found %v, want kind %d of VM 2", tt.name, faults, tt.want)
		}
	}
}

// TestCheckMemoryOnly checks that memory can be bound on a node without CPUs, but not on a
// node without memory.
func TestCheckMemoryOnly(t *testing.T) {
	t.Parallel()
	m := known(t, "constructed/xeon-2s-memory-only") // nodes 2 and 3 have no CPUs
	g := placement.Guest{VM: placement.VM{ID: 1, VCPUs: 2, MemoryMiB: 160 * gib}, Place: placement.Place{
		CPUs: []int{1, 33}, Cells: []placement.Cell{{GuestCPUs: []int{0, 1}, Nodes: []int{0, 2}, MemoryMiB: 160 * gib}},
	}}
	if faults := placement.Check(m, []placement.Guest{g}); len(faults) > 0 {
		t.Errorf("found %v", faults)
	}
	m.Nodes[2].MemoryMiB = 0
	if faults := placement.Check(m, []placement.Guest{g}); len(faults) == 0 || faults[0].Kind != placement.FaultCannotStart {
		t.Errorf("on a node without memory, found %v", faults)
	}
}

// TestCheckDedicated checks that a Dedicated VM may have a part of one core, but not of
// two.
func TestCheckDedicated(t *testing.T) {
	t.Parallel()
	m := build(shape{nodes: 1, cores: 4, smt: 2})
	for text, tt := range map[string]struct {
		cpus []int
		want int
	}{"whole": {[]int{1, 5}, 0}, "odd": {[]int{1, 5, 2}, 0}, "two halves": {[]int{1, 2}, 1}} {
		g := placement.Guest{VM: placement.VM{ID: 1, VCPUs: len(tt.cpus)}, Place: placement.Place{CPUs: tt.cpus}}
		if got := placement.CheckDedicated(m, &g); len(got) != tt.want {
			t.Errorf("%s: found %v", text, got)
		}
	}
}
