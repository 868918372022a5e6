package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// claim lists the resources that one existing or planned guest takes from a host. A claim
// is immutable once a state contains it.
type claim struct {
	pins []int // CPU ids
	// isolated guests also take the siblings of their pins.
	isolated bool
	// agent is set if the host agent applies the pins.
	agent    bool
	floating int
	// ratio is the overcommit promised to a floating VM of ours, or 0.
	ratio float64
	// memoryRatio is the memory overcommit that our VM tolerates, or 0 if it uses no ordinary
	// memory.
	memoryRatio float64

	memory [backings]int64
	bound  [backings][]int64 // MiB by node; nil for the kinds that the guest does not use
	homed  []int             // floating vCPUs whose memory is bound to the node, by node
	// group is the pool of our VM, or empty for an unmanaged guest.
	group string
	// devices are the PCI devices that the guest uses exclusively.
	devices []topology.PassedDevice
	// owner identifies the VM if it was passed to New or Start; live is the claim of that
	// VM's guest in the snapshot, or nil.
	owner guestKey
	live  *claim
	// unmanaged is set for the claim of a guest that is not one of the existing VMs.
	unmanaged bool
}

// claimOf returns the claim of a placed VM.
func (x *index) claimOf(spec *fleet.Spec, place *fleet.Placement) *claim {
	c := &claim{
		pins:     union(place.CPUs.List(), place.VCPUPins),
		isolated: spec.Policy == fleet.PolicyIsolated,
		agent:    spec.PinWith == fleet.PinWithHostAgent,
		group:    spec.Pool,
		homed:    make([]int, len(x.nodes)),
	}
	if !spec.Policy.Pinned() {
		c.floating = spec.VCPUs
		c.ratio = ratioOf(spec)
	}
	if backingOf(spec) == ordinary {
		c.memoryRatio = memoryRatioOf(spec)
	}
	var devices []topology.PassedDevice
	for _, d := range spec.PCIDevices {
		devices = append(devices, topology.PassedDevice{Mapping: d.Mapping, MDev: d.MDev})
	}
	c.devices = ownDevices(devices)
	x.claimMemory(c, max(ordinary, backingOf(spec)), spec.MemoryMiB, place.Cells)
	return c
}

// claimOfGuest returns the claim of an existing guest, or false if it takes nothing. A
// guest takes all of its resources if it runs, has a key or pins, or is being created or
// migrated. Any other stopped guest takes only its PCI devices. Templates take nothing, nor
// does a stopped guest named node-capacity: the daemon of karpenter-provider-proxmox
// creates it only to describe its host, with an affinity to the whole machine.
func (x *index) claimOfGuest(g *topology.Guest) (*claim, bool) {
	if g.Template || !g.Running && g.Name == "node-capacity" {
		return nil, false
	}
	c := &claim{unmanaged: true, devices: ownDevices(g.PCIDevices), homed: make([]int, len(x.nodes))}
	alive := g.Running || g.Key != "" || slices.Contains([]string{"clone", "create", "migrate"}, g.Lock)
	if !alive && g.Pins.IsEmpty() {
		return c, c.devices != nil
	}
	c.pins = g.Pins.List()
	c.agent = g.Key != "" // another cluster's VM, or one whose file was deleted
	if g.Pins.IsEmpty() {
		c.floating = g.VCPUs
		if g.Kind == topology.GuestContainer {
			c.floating = max(1, g.VCPUs)
		}
	}
	x.claimMemory(c, x.backingOfGuest(g), g.MemoryMiB, g.NUMA)
	return c, true
}

// claimMemory sets the memory of a claim and divides the memory of cells among the NUMA
// nodes that back them; memory without such a node is unbound. If the vCPUs float, a cell's
// vCPUs are homed on the NUMA nodes that back it.
func (x *index) claimMemory(c *claim, of backing, mib int64, cells []topology.NUMACell) {
	bound := make([]int64, len(x.nodes))
	c.memory[of], c.bound[of] = mib, bound
	for _, cell := range cells {
		var at []int
		for _, id := range cell.HostNodes.List() {
			if i, ok := x.nodeAt[id]; ok {
				at = append(at, i)
			}
		}
		for i, n := range at {
			bound[n] += part64(cell.MemoryMiB, i, len(at))
			if c.floating > 0 {
				c.homed[n] += int(part64(int64(cell.GuestCPUs.Size()), i, len(at)))
			}
		}
	}
}

// part64 returns the i-th of n nearly equal parts of whole.
func part64(whole int64, i, n int) int64 {
	return whole*int64(i+1)/int64(n) - whole*int64(i)/int64(n)
}

// merge returns the planned claim c of a VM combined with its live claim: the pins and
// devices of both, and the larger amount of memory and, unless the VM is pinned, of
// floating vCPUs.
func (c claim) merge(live *claim) *claim {
	c.pins = union(c.pins, live.pins)
	if c.ratio > 0 { // a pinned VM does not float, even before its pins are in effect
		c.floating = max(c.floating, live.floating)
	}
	c.live, c.devices = live, allDevices(c.devices, live.devices)
	for b := range c.memory {
		c.memory[b] = max(c.memory[b], live.memory[b])
		c.bound[b] = larger(c.bound[b], live.bound[b])
	}
	c.homed = larger(c.homed, live.homed)
	return &c
}

// larger returns, for each node, the larger of the two amounts. Either slice may be nil.
func larger[N int | int64](a, b []N) []N {
	if len(a) < len(b) {
		a, b = b, a
	}
	a = slices.Clone(a)
	for i := range b {
		a[i] = max(a[i], b[i])
	}
	return a
}

// union returns the ids of both lists, ascending and without duplicates.
func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// ratioOf returns the spec's overcommit; unset means 1.
func ratioOf(spec *fleet.Spec) float64 {
	if spec.Overcommit == 0 {
		return 1
	}
	return spec.Overcommit
}

// memoryRatioOf returns the spec's memory overcommit: 1 unless it is a Shared VM that
// tolerates more.
func memoryRatioOf(spec *fleet.Spec) float64 {
	if spec.Policy != fleet.PolicyShared || spec.MemoryOvercommit == 0 {
		return 1
	}
	return spec.MemoryOvercommit
}

// guestKey identifies a guest and its VM. Proxmox reuses VMIDs, but the keys of our VMs are
// unique.
type guestKey struct {
	region topology.RegionName
	vmid   int
	key    string
}

// ownerOf returns the identity of the VM's guest.
func ownerOf(vm *fleet.VM) guestKey {
	return guestKey{vm.Host.Region, int(vm.VMID), string(vm.Key)}
}

// occupants lists the claims of all guests of a host: first the existing VMs, then all
// other guests. Stopped standby VMs that reserve nothing have no claim.
func occupants(x *index, host *topology.Host, existing []*fleet.VM) []*claim {
	var claims []*claim
	at := map[guestKey]int{}
	idle := map[guestKey]bool{} // standby VMs that reserve nothing
	for _, vm := range existing {
		if !vm.Reserves() {
			idle[ownerOf(vm)] = true
			continue
		}
		c := x.claimOf(&vm.Spec, &vm.Placement)
		c.owner = ownerOf(vm)
		at[c.owner] = len(claims)
		claims = append(claims, c)
	}
	for i := range host.Guests {
		g := &host.Guests[i]
		id := guestKey{host.Region, g.VMID, g.Key}
		live, ok := x.claimOfGuest(g)
		if !ok || idle[id] && !g.Running {
			continue
		}
		if own, ours := at[id]; ours {
			claims[own] = claims[own].merge(live)
			continue
		}
		claims = append(claims, live)
	}
	return claims
}

// equal reports whether two claims take the same resources.
func (c *claim) equal(o *claim) bool {
	for b := range c.bound {
		if !slices.Equal(c.bound[b], o.bound[b]) {
			return false
		}
	}
	return c.isolated == o.isolated && c.agent == o.agent && c.floating == o.floating && c.ratio == o.ratio && c.memoryRatio == o.memoryRatio && c.memory == o.memory &&
		c.group == o.group && slices.Equal(c.devices, o.devices) && slices.Equal(c.pins, o.pins) && slices.Equal(c.homed, o.homed)
}
