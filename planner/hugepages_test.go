package planner_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// paged returns a host with two NUMA nodes of 32 GiB and 8 CPUs each, and reserved huge
// pages: small pages of 2 MiB on the first node, large pages of 1 GiB on the second.
func paged(small, large int64) topology.Host {
	h := twoNodes()
	h.NUMANodes[0].HugePages = map[int]int64{2048: small}
	h.NUMANodes[1].HugePages = map[int]int64{1 << 20: large}
	return h
}

// inPages adds huge pages to a spec.
func inPages(s fleet.Spec, pages fleet.HugePages) fleet.Spec {
	s.HugePages = pages
	return s
}

// TestGuestsInHugePages checks that guests on reserved huge pages take no ordinary memory,
// and guests on unreserved huge pages do.
func TestGuestsInHugePages(t *testing.T) {
	t.Parallel()
	on := func(node int, memory int64, kib int) topology.Guest {
		return topology.Guest{
			VMID: 900, Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: memory, HugePagesKiB: kib,
			NUMA: []topology.NUMACell{{GuestCPUs: topology.CPUs(0), HostNodes: topology.CPUs(node), MemoryMiB: memory, Policy: topology.NUMABind}},
		}
	}
	loose := on(0, 8*gib, 2048)
	loose.NUMA = nil
	asleep := on(0, 8*gib, 2048)
	asleep.Running = false
	tests := []struct {
		name  string
		guest topology.Guest
		// ordinary, small and large are the free memory in GiB, by NUMA node.
		ordinary, small, large [2]int64
	}{
		{"nobody", asleep, [2]int64{16, 16}, [2]int64{16, 0}, [2]int64{0, 16}},
		{"ordinary memory", on(0, 8*gib, 0), [2]int64{8, 16}, [2]int64{16, 0}, [2]int64{0, 16}},
		{"reserved pages", on(0, 16*gib, 2048), [2]int64{16, 16}, [2]int64{0, 0}, [2]int64{0, 16}},
		{"reserved pages on any node", loose, [2]int64{16, 16}, [2]int64{8, 0}, [2]int64{0, 16}},
		{"more than are reserved", on(0, 20*gib, 2048), [2]int64{12, 16}, [2]int64{0, 0}, [2]int64{0, 16}},
		{"pages of a size that the node lacks", on(0, 4*gib, 1<<20), [2]int64{12, 16}, [2]int64{16, 0}, [2]int64{0, 16}},
		{"any, of whole GiB", on(1, 4*gib, topology.Unknown), [2]int64{16, 16}, [2]int64{16, 0}, [2]int64{0, 12}},
		{"any, of parts of GiB", on(0, gib/2, topology.Unknown), [2]int64{16, 16}, [2]int64{16, 0}, [2]int64{0, 16}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := paged(8*gib, 16)
			h.Guests = []topology.Guest{tt.guest}
			p := planner.New(snapshot(h), nil)
			for pages, want := range map[fleet.HugePages][2]int64{"": tt.ordinary, fleet.HugePages2Mi: tt.small, fleet.HugePages1Gi: tt.large} {
				v := p.View(inPages(spec(fleet.PolicyNUMA, 1, gib), pages), h.ID())
				got := [2]int64{v.Nodes[0].FreeMiB / gib, v.Nodes[1].FreeMiB / gib}
				// Unbound memory is counted on all nodes, so only the sum is exact.
				if tt.name == "reserved pages on any node" && pages == "" {
					got, want = [2]int64{v.FreeMiB / gib}, [2]int64{32}
				}
				if tt.name == "any, of parts of GiB" && pages == fleet.HugePages2Mi {
					want[0]-- // half a GiB is in use
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("free GiB of pages %q (-want +got):\n%s", pages, diff)
				}
			}
		})
	}
}

// TestKeptInHugePages checks that the pages of an existing VM count once, whether or not it
// runs, and that a host without reported pages counts them as ordinary memory.
func TestKeptInHugePages(t *testing.T) {
	t.Parallel()
	h := paged(8*gib, 16)
	s := inPages(spec(fleet.PolicyDedicated, 2, 8*gib), fleet.HugePages1Gi)
	placed, _ := place(t, snapshot(h), nil, s)
	existing := asExisting(2000, []fleet.Spec{s}, placed)
	probe := inPages(spec(fleet.PolicyNUMA, 1, gib), fleet.HugePages1Gi)
	for _, running := range []bool{false, true} {
		if running {
			h.Guests = []topology.Guest{guestOf(existing[0])}
		}
		p := planner.New(snapshot(h), existing)
		if v := p.View(probe, h.ID()); v.FreeMiB != 8*gib || v.MemoryMiB != 16*gib {
			t.Errorf("running %v: %d of %d MiB are free, want 8 of 16 GiB", running, v.FreeMiB, v.MemoryMiB)
		}
		if v := p.View(spec(fleet.PolicyShared, 1, gib), h.ID()); v.FreeMiB != 32*gib {
			t.Errorf("running %v: %d MiB of ordinary memory are free, want 32 GiB", running, v.FreeMiB)
		}
	}
	h.NUMANodes[1].HugePages = nil
	if v := planner.New(snapshot(h), existing).View(spec(fleet.PolicyShared, 1, gib), h.ID()); v.FreeMiB != 40*gib {
		t.Errorf("with unreported pages, %d MiB of ordinary memory are free, want 40 GiB", v.FreeMiB)
	}
}

// TestPlaceInHugePages checks the NUMA nodes and memory of the cells of VMs in huge pages.
func TestPlaceInHugePages(t *testing.T) {
	t.Parallel()
	even := twoNodes()
	for i := range even.NUMANodes {
		even.NUMANodes[i].HugePages = map[int]int64{1 << 20: 4}
	}
	uneven := twoNodes()
	uneven.NUMANodes[0].HugePages = map[int]int64{1 << 20: 1}
	uneven.NUMANodes[1].HugePages = map[int]int64{1 << 20: 7}
	flat := host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 32 * gib}))
	flat.NUMANodes[0].HugePages = map[int]int64{2048: 1024}
	whole := host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 32 * gib}))
	whole.NUMANodes[0].HugePages = map[int]int64{1 << 20: 32}
	assumed := twoNodes()
	assumed.NUMANodes[0].MemoryMiB = topology.Unknown
	assumed.NUMANodes[0].HugePages = map[int]int64{1 << 20: 4}
	tests := []struct {
		name string
		host topology.Host
		spec fleet.Spec
		want string // cells as node:MiB
	}{
		{"small pages", paged(8*gib, 16), inPages(spec(fleet.PolicyDedicated, 4, 8*gib), fleet.HugePages2Mi), "0:8192"},
		{"large pages", paged(8*gib, 16), inPages(spec(fleet.PolicyDedicated, 4, 8*gib), fleet.HugePages1Gi), "1:8192"},
		{"isolated", paged(8*gib, 16), inPages(spec(fleet.PolicyIsolated, 2, 8*gib), fleet.HugePages1Gi), "1:8192"},
		{"floating", paged(8*gib, 16), inPages(spec(fleet.PolicyNUMA, 4, 16*gib), fleet.HugePages1Gi), "1:16384"},
		{"over two nodes, page by page", even, inPages(spec(fleet.PolicyDedicated, 4, 5*gib), fleet.HugePages1Gi), "0:3072 1:2048"},
		{"over two nodes, not in the ratio of the CPUs", uneven, inPages(spec(fleet.PolicyDedicated, 12, 8*gib), fleet.HugePages1Gi), "0:1024 1:7168"},
		{"floating over two nodes", even, inPages(spec(fleet.PolicyNUMA, 2, 8*gib), fleet.HugePages1Gi), "0:4096 1:4096"},
		{"the only node is named", flat, inPages(spec(fleet.PolicyDedicated, 2, 2*gib), fleet.HugePages2Mi), "0:2048"},
		{"the only node of a floating VM, too", flat, inPages(spec(fleet.PolicyNUMA, 2, 2*gib), fleet.HugePages2Mi), "0:2048"},
		{"all memory is huge pages", whole, inPages(spec(fleet.PolicyDedicated, 2, 32*gib), fleet.HugePages1Gi), "0:32768"},
		{"pages are unreported where memory is assumed", assumed, inPages(spec(fleet.PolicyDedicated, 2, 4*gib), fleet.HugePages1Gi), "0:4096"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := placeOne(t, snapshot(tt.host), nil, tt.spec)
			if diff := cmp.Diff(tt.want, cellsOf(got)); diff != "" {
				t.Errorf("cells (-want +got):\n%s\n%s", diff, got.Reason)
			}
			if !strings.Contains(got.Reason, "in huge pages of ") {
				t.Errorf("the reason does not mention huge pages: %s", got.Reason)
			}
		})
	}
}

// cellsOf prints the host nodes and memory of cells.
func cellsOf(p planner.Placed) string {
	var texts []string
	for _, cell := range p.Cells {
		texts = append(texts, cell.HostNodes.String()+":"+strconv.FormatInt(cell.MemoryMiB, 10))
	}
	return strings.Join(texts, " ")
}

// TestRefusalsOfHugePages checks the message for a VM that lacks huge pages.
func TestRefusalsOfHugePages(t *testing.T) {
	t.Parallel()
	none := twoNodes()
	none.Sources = map[topology.Fact]topology.Source{topology.FactMemory: topology.SourceAgent}
	unreported := twoNodes()
	unreported.Sources = map[topology.Fact]topology.Source{topology.FactMemory: topology.SourceReport}
	two := paged(512, 16)
	two.NUMANodes[1].ID = 10
	for i := range two.CPUs {
		two.CPUs[i].NUMANode *= 10
	}
	tests := []struct {
		name string
		host topology.Host
		spec fleet.Spec
		want string
	}{
		{"on a node of two digits", two, inPages(spec(fleet.PolicyNUMA, 2, 2*gib), fleet.HugePages1Gi), "2 NUMA vCPUs, 2 GiB in huge pages of 1 GiB: r1/pve-1 has 0 MiB free in huge pages of 1 GiB: reserve more of these huge pages at boot (Proxmox uses only those on NUMA nodes 0 to 9), or lower the memory requests of the pods"},
		{"unknown", unreported, inPages(spec(fleet.PolicyDedicated, 2, gib), fleet.HugePages1Gi), "2 dedicated CPUs, 1 GiB in huge pages of 1 GiB: r1/pve-1 does not report its huge pages: install numaform-agent on the host, or run numaform topology collect there and add the file to machines"},
		{"none reserved", none, inPages(spec(fleet.PolicyDedicated, 2, gib), fleet.HugePages1Gi), "2 dedicated CPUs, 1 GiB in huge pages of 1 GiB: r1/pve-1 has 0 MiB free in huge pages of 1 GiB: reserve more of these huge pages at boot (Proxmox uses only those on NUMA nodes 0 to 9), or lower the memory requests of the pods"},
		{"too few", paged(512, 16), inPages(spec(fleet.PolicyNUMA, 2, 2*gib), fleet.HugePages2Mi), "2 NUMA vCPUs, 2 GiB in huge pages of 2 MiB: r1/pve-1 has 1 GiB free in huge pages of 2 MiB: reserve more of these huge pages at boot (Proxmox uses only those on NUMA nodes 0 to 9), or lower the memory requests of the pods"},
		{"not beside the CPUs", paged(512, 16), inPages(spec(fleet.PolicyDedicated, 10, gib), fleet.HugePages1Gi), "10 dedicated CPUs, 1 GiB in huge pages of 1 GiB: r1/pve-1 has room for 8 vCPUs and 16 GiB in huge pages of 1 GiB on NUMA node 1: add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool"},
		{"no multiple", paged(512, 16), inPages(spec(fleet.PolicyDedicated, 2, gib+512), fleet.HugePages1Gi), "the VM's memory of 1536 MiB is not a multiple of 1024 MiB, the size of its huge pages: allow other instance types in the NodePool, or set another huge page size in the ProxmoxNodeClass"},
		{"shared", paged(512, 16), inPages(spec(fleet.PolicyShared, 2, gib), fleet.HugePages1Gi), "the policy Shared does not support huge pages: use NUMA, Dedicated or Isolated in the ProxmoxNodeClass"},
		{"unknown size", paged(512, 16), inPages(spec(fleet.PolicyDedicated, 2, gib), "4Mi"), "the VM's huge page size is unknown: use 2Mi or 1Gi in the ProxmoxNodeClass"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, unplaced := place(t, snapshot(tt.host), nil, tt.spec)
			if len(unplaced) != 1 || unplaced[0].Reason != tt.want {
				t.Errorf("got  %+v\nwant %s", unplaced, tt.want)
			}
		})
	}
}
