package placement_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

var updateHosts = flag.Bool("update-hosts", false, "write the table of host choices into docs/placement.md")

// The VMs of the comparison of host choices, and their hosts: 32 CPUs and 128 GiB each.
const (
	hostCPUs = 32
	hostGiB  = 128
	vmVCPUs  = 2
	vmGiB    = 4
)

// datacenter is hosts with unmanaged guests.
type datacenter struct {
	name string
	// vcpus and gib are the sizes of the unmanaged guests, and busy the measured CPU load in
	// percent, by host.
	vcpus, gib, busy []int
	vms              int
}

// datacenters returns three hosts of which one has a guest of ten vCPUs, and hosts with
// guests of random sizes and loads. The guests of most hosts use few of their CPUs; those
// of some hosts use all.
func datacenters() []datacenter {
	all := []datacenter{{name: "3 hosts, one guest of 10 vCPUs", vcpus: []int{10, 0, 0}, gib: []int{20, 0, 0}, busy: []int{5, 0, 0}, vms: 20}}
	for _, n := range []int{3, 24} {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		d := datacenter{name: fmt.Sprintf("%d hosts, random guests", n), vms: 6 * n}
		for range n {
			vcpus := r.IntN(17)
			d.vcpus = append(d.vcpus, vcpus)
			d.gib = append(d.gib, 2*vcpus+r.IntN(33))
			busy := vcpus * 100 / hostCPUs
			if r.IntN(4) > 0 {
				busy /= 8
			}
			d.busy = append(d.busy, busy)
		}
		all = append(all, d)
	}
	return all
}

func (d *datacenter) hostID(i int) topology.HostID {
	return topology.HostID{Region: "r1", Host: topology.HostName(fmt.Sprintf("pve-%02d", i))}
}

// snapshot returns the datacenter as Proxmox reports it. Order permutes the hosts.
func (d *datacenter) snapshot(order []int) *topology.Snapshot {
	s := &topology.Snapshot{Regions: []topology.Region{{Name: "r1", Quorate: true}}}
	for _, i := range order {
		h := topology.Host{Region: "r1", Name: d.hostID(i).Host, Online: true, Load: topology.NewLoad(float64(d.busy[i])/100, float64(d.gib[i])/hostGiB, nil)}
		for cpu := range hostCPUs {
			h.CPUs = append(h.CPUs, topology.CPU{ID: cpu, Online: true, Core: cpu})
		}
		h.NUMANodes = []topology.NUMANode{{MemoryMiB: hostGiB << 10}}
		h.MemoryMiB = hostGiB << 10
		if d.vcpus[i]+d.gib[i] > 0 {
			h.Guests = []topology.Guest{{VMID: 100 + i, Kind: topology.GuestVM, Running: true, VCPUs: d.vcpus[i], MemoryMiB: int64(d.gib[i]) << 10}}
		}
		s.Hosts = append(s.Hosts, h)
	}
	return s
}

// place returns the number of VMs that the planner places on each host.
func (d *datacenter) place(t *testing.T, how fleet.HostSelection, order []int) []int {
	t.Helper()
	spec := fleet.Spec{Pool: "p", Policy: fleet.PolicyShared, VCPUs: vmVCPUs, MemoryMiB: vmGiB << 10, HostSelection: how, MaxHostLoad: 95}
	for _, i := range order {
		spec.Hosts = append(spec.Hosts, d.hostID(i))
	}
	placed, unplaced := planner.New(d.snapshot(order), nil).Place(slices.Repeat([]fleet.Spec{spec}, d.vms))
	if len(unplaced) > 0 {
		t.Fatalf("%s, %s: %s", d.name, how, unplaced[0].Reason)
	}
	got := make([]int, len(d.vcpus))
	for _, p := range placed {
		for i := range got {
			if p.Host == d.hostID(i) {
				got[i]++
			}
		}
	}
	return got
}

// kpp returns the number of VMs that karpenter-provider-proxmox places on each host: the
// first host with room, by ascending CPU load in whole percent. It reads the loads once a
// minute, so all VMs of a burst see the same (pkg/providers/cloudcapacity/cloudcapacity.go,
// SortZonesByCPULoad and UpdateNodeLoad, at 373cfeb).
func (d *datacenter) kpp() []int {
	order := sequence(len(d.vcpus))
	slices.SortStableFunc(order, func(a, b int) int { return d.busy[a] - d.busy[b] })
	got := make([]int, len(d.vcpus))
	left := d.vms
	for _, i := range order {
		got[i] = min(left, (hostCPUs-d.vcpus[i])/vmVCPUs, (hostGiB-d.gib[i])/vmGiB)
		left -= got[i]
	}
	return got
}

func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// share returns the allocated share of a host with n VMs: of CPUs or of memory, whichever
// is larger.
func (d *datacenter) share(host, n int) float64 {
	return max(float64(d.vcpus[host]+n*vmVCPUs)/hostCPUs, float64(d.gib[host]+n*vmGiB)/hostGiB)
}

// balanced returns the mean of the share and of the measured load, in bands of 5 %.
func (d *datacenter) balanced(host, n int) float64 {
	load := max(d.busy[host]/5*5, d.gib[host]*100/hostGiB/5*5)
	return (d.share(host, n) + float64(load)/100) / 2
}

// optimum returns the numbers of VMs by host for which the most loaded host that gets a VM
// is as little loaded as possible: it fills all hosts to the lowest level at which all VMs
// have room, and takes the VMs that are too many from hosts at this level.
func (d *datacenter) optimum(level func(host, n int) float64) []int {
	fill := func(at float64) (counts []int, sum int) {
		counts = make([]int, len(d.vcpus))
		for i := range counts {
			for d.share(i, counts[i]+1) <= 1 && level(i, counts[i]+1) <= at {
				counts[i]++
			}
			sum += counts[i]
		}
		return counts, sum
	}
	low, high := 0.0, 2.0
	for range 60 {
		if _, sum := fill((low + high) / 2); sum >= d.vms {
			high = (low + high) / 2
		} else {
			low = (low + high) / 2
		}
	}
	counts, sum := fill(high)
	for i := len(counts) - 1; i >= 0; i-- {
		if sum > d.vms && counts[i] > 0 && level(i, counts[i]) > low {
			counts[i]--
			sum--
		}
	}
	return counts
}

// bruteForce returns the lowest level of the most loaded host that gets a VM, over all ways
// to place the VMs on three hosts.
func (d *datacenter) bruteForce(level func(host, n int) float64) float64 {
	best := 2.0
	for a := range d.vms + 1 {
		for b := range d.vms - a + 1 {
			best = min(best, d.highest(level, []int{a, b, d.vms - a - b}))
		}
	}
	return best
}

// highest returns the level of the most loaded host that gets a VM.
func (d *datacenter) highest(level func(host, n int) float64, counts []int) float64 {
	most := 0.0
	for i, n := range counts {
		if n > 0 {
			most = max(most, level(i, n))
		}
	}
	return most
}

// row describes a choice for docs/placement.md.
func (d *datacenter) row(name string, counts []int) string {
	highest, lowest, used := 0.0, 2.0, 0
	var off int
	for i, n := range d.optimum(d.share) {
		highest, lowest = max(highest, d.share(i, counts[i])), min(lowest, d.share(i, counts[i]))
		off = max(off, counts[i]-n, n-counts[i])
		if counts[i] > 0 {
			used++
		}
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %.0f %% | %.0f %% | %d |\n", d.name, name, used, slices.Max(counts), highest*100, lowest*100, off)
}

// TestHostSelection checks on hosts with unmanaged guests that LeastAllocated and Balanced
// place at most one VM more or less on each host than the optimum, that MostAllocated fills
// hosts one after another, and that docs/placement.md has the resulting table. The order of
// hosts changes nothing.
func TestHostSelection(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| datacenter and VMs | selection | hosts with VMs | most VMs on a host | highest share | lowest share | VMs off the optimum |\n|---|---|---|---|---|---|---|\n")
	for _, d := range datacenters() {
		order := sequence(len(d.vcpus))
		shuffled := rand.New(rand.NewPCG(7, 7)).Perm(len(order))
		counts := map[fleet.HostSelection][]int{}
		for _, how := range []fleet.HostSelection{fleet.LeastAllocated, fleet.Balanced, fleet.MostAllocated} {
			counts[how] = d.place(t, how, order)
			if again := d.place(t, how, shuffled); !slices.Equal(counts[how], again) {
				t.Errorf("%s, %s: %v, with hosts in another order %v", d.name, how, counts[how], again)
			}
		}
		for how, level := range map[fleet.HostSelection]func(host, n int) float64{fleet.LeastAllocated: d.share, fleet.Balanced: d.balanced} {
			best := d.optimum(level)
			if len(order) == 3 {
				if brute, filled := d.bruteForce(level), d.highest(level, best); filled > brute+1e-9 {
					t.Fatalf("%s: the optimum %v has level %.3f, brute force finds %.3f", d.name, best, filled, brute)
				}
			}
			for i, n := range best {
				if off := counts[how][i] - n; off < -1 || off > 1 {
					t.Errorf("%s, %s: %v, optimum %v", d.name, how, counts[how], best)
					break
				}
			}
		}
		if packed := counts[fleet.MostAllocated]; !d.isPacked(packed) {
			t.Errorf("%s: MostAllocated starts a host while a fuller one has room: %v", d.name, packed)
		}
		d.name += fmt.Sprintf(", %d VMs", d.vms)
		table.WriteString(d.row("LeastAllocated", counts[fleet.LeastAllocated]) + d.row("Balanced", counts[fleet.Balanced]) +
			d.row("MostAllocated", counts[fleet.MostAllocated]) + d.row("karpenter-provider-proxmox, Balanced", d.kpp()))
	}

	const file = "../../docs/placement.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const start, end = "<!-- hosts -->\n", "<!-- end of hosts -->\n"
	before, rest, ok := strings.Cut(string(data), start)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no lines %q and %q", file, start, end)
	}
	if *updateHosts {
		if err := os.WriteFile(file, []byte(before+start+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if old != table.String() {
		t.Errorf("%s is outdated: run go test ./test/placement -run TestHostSelection -update-hosts; the table is now\n%s", file, table.String())
	}
}

// isPacked reports whether no host with VMs has a fuller host next to it that still has
// room for another VM, except for the last host that was started.
func (d *datacenter) isPacked(counts []int) bool {
	open := 0
	for i, n := range counts {
		if n > 0 && d.share(i, n+1) <= 1 {
			open++
		}
	}
	return open <= 1
}
