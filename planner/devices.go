package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// pciIndex is the constant part of the mapped PCI devices of a host. Devices and mappings
// are identified by position. A device named by two mappings appears twice.
type pciIndex struct {
	all   []topology.PCIDevice
	names []string
	// of lists the devices of each mapping, in the order in which Proxmox assigns them.
	of [][]int
	// same reports which devices overlap, by the positions of both.
	same [][]bool
	// node is the NUMA node of each device; none if unknown.
	node []int
}

// pciUse counts the used PCI devices of a host.
type pciUse struct {
	// blocked counts, by device, the guests that use it by address.
	blocked []int
	// uses counts, by mapping, the devices used by guests. Proxmox assigns the actual
	// device when the guest starts.
	uses []int
}

// newPCIIndex indexes the mapped PCI devices of a host. It returns nil if there are none.
func newPCIIndex(x *index, host *topology.Host) *pciIndex {
	if len(host.PCIDevices) == 0 {
		return nil
	}
	p := &pciIndex{all: host.PCIDevices}
	for i := range p.all {
		d := &p.all[i]
		m := p.mapping(d.Mapping)
		if m == none {
			m = len(p.names)
			p.names, p.of = append(p.names, d.Mapping), append(p.of, nil)
		}
		p.of[m] = append(p.of[m], i)
		node, known := x.nodeAt[d.NUMANode]
		if !known {
			node = none
		}
		p.node = append(p.node, node)
		same := make([]bool, len(p.all))
		for j := range p.all {
			same[j] = d.Overlaps(p.all[j].Path)
		}
		p.same = append(p.same, same)
	}
	return p
}

// mapping returns the position of a mapping, or none.
func (p *pciIndex) mapping(name string) int {
	if p == nil {
		return none
	}
	return slices.Index(p.names, name)
}

func (u *pciUse) clone() pciUse { return pciUse{slices.Clone(u.blocked), slices.Clone(u.uses)} }

// takeDevices marks the devices that a guest uses exclusively as used.
func (s *state) takeDevices(devices []topology.PassedDevice) {
	if s.pci == nil {
		return
	}
	for _, passed := range devices {
		if m := s.pci.mapping(passed.Mapping); m != none {
			s.passed.uses[m]++
		}
		for i := range s.pci.all {
			if passed.Address != "" && s.pci.all[i].Overlaps(passed.Address) {
				s.passed.blocked[i]++
			}
		}
	}
}

// deviceSeparator separates the mappings in request.devices; mediated is the suffix of
// mappings requested as mediated devices, which other guests may share.
const (
	deviceSeparator = ","
	mediated        = "*"
)

// devicesOf returns the devices of a spec in the form of request.devices: comparable, and
// empty if there are none.
func devicesOf(spec *fleet.Spec) string {
	if len(spec.PCIDevices) == 0 {
		return ""
	}
	names := make([]string, len(spec.PCIDevices))
	for i, d := range spec.PCIDevices {
		names[i] = d.Mapping
		if d.MDev != "" {
			names[i] += mediated
		}
	}
	return strings.Join(names, deviceSeparator)
}

// ownDevices returns the devices that are not mediated, sorted.
func ownDevices(devices []topology.PassedDevice) []topology.PassedDevice {
	var own []topology.PassedDevice
	for _, d := range devices {
		if d.MDev == "" {
			own = append(own, d)
		}
	}
	slices.SortFunc(own, comparePassed)
	return own
}

func comparePassed(a, b topology.PassedDevice) int {
	return strings.Compare(a.Mapping+" "+a.Address, b.Mapping+" "+b.Address)
}

// allDevices returns the union of both lists as multisets: the larger count of each device.
func allDevices(a, b []topology.PassedDevice) []topology.PassedDevice {
	all := slices.Clone(a)
	rest := slices.Clone(a)
	for _, d := range b {
		if i := slices.Index(rest, d); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
			continue
		}
		all = append(all, d)
	}
	slices.SortFunc(all, comparePassed)
	return all
}

// deviceNeed is one device of a request: its mapping, and whether other guests may share
// it.
type deviceNeed struct {
	mapping string
	shared  bool
}

// deviceNeeds parses request.devices.
func (w *request) deviceNeeds() []deviceNeed {
	var needs []deviceNeed
	for name := range strings.SplitSeq(w.devices, deviceSeparator) {
		mapping, shared := strings.CutSuffix(name, mediated)
		needs = append(needs, deviceNeed{mapping, shared})
	}
	return needs
}

// lentDevice is the device that a request would get: the next one of the mapping, assuming
// that guests take devices in order.
type lentDevice struct {
	mapping string
	// node is none if unknown; sure is set if all usable devices of the mapping are on node,
	// so that it does not matter which one the guest gets.
	node int
	sure bool
}

// lend returns the devices that the request would get, or the first mapping that has none
// left.
func (s *state) lend(w *request) (lent []lentDevice, lacking string) {
	if w.devices == "" {
		return nil, ""
	}
	use := s.passed.clone()
	for _, need := range w.deviceNeeds() {
		m := s.pci.mapping(need.mapping)
		if m == none || !s.pci.fits(&use, m, need.shared) {
			return nil, need.mapping
		}
		lent = append(lent, s.pci.next(&use, m))
		if !need.shared {
			use.uses[m]++
		}
	}
	return lent, ""
}

// fits reports whether a mapping has one more device, in whatever order the guests start.
// Guests that use another mapping of the same devices must still get theirs.
func (p *pciIndex) fits(use *pciUse, m int, shared bool) bool {
	use.uses[m]++
	defer func() { use.uses[m]-- }()
	if p.spare(use, m) < 0 {
		return false
	}
	for other, uses := range use.uses {
		if other != m && uses > 0 && !shared && p.mayTake(use, other, m) > 0 && p.spare(use, other) < 0 {
			return false
		}
	}
	return true
}

// spare returns how many devices of a mapping remain unused, however Proxmox assigns
// them. It is negative if devices can run short.
func (p *pciIndex) spare(use *pciUse, m int) int {
	left := len(p.available(use, m)) - use.uses[m]
	for other := range use.uses {
		if other != m {
			left -= p.mayTake(use, m, other)
		}
	}
	return left
}

// mayTake returns the maximum number of devices of mapping m that users of another mapping
// can take.
func (p *pciIndex) mayTake(use *pciUse, m, other int) int {
	if use.uses[other] == 0 {
		return 0
	}
	available, most := p.available(use, m), 0
	for _, d := range p.available(use, other) {
		most = max(most, p.common(available, []int{d}))
	}
	return min(use.uses[other]*most, p.common(available, p.available(use, other)))
}

// available lists the devices of a mapping that no guest uses by address.
func (p *pciIndex) available(use *pciUse, m int) []int {
	var available []int
	for _, d := range p.of[m] {
		if use.blocked[d] == 0 {
			available = append(available, d)
		}
	}
	return available
}

// common returns how many devices overlap with one of the others.
func (p *pciIndex) common(devices, others []int) int {
	count := 0
	for _, d := range devices {
		count += b2i(slices.ContainsFunc(others, func(o int) bool { return p.same[d][o] }))
	}
	return count
}

// next returns the device of a mapping that follows the used ones.
func (p *pciIndex) next(use *pciUse, m int) lentDevice {
	available := p.available(use, m)
	at := available[min(use.uses[m], len(available)-1)]
	lent := lentDevice{mapping: p.names[m], node: p.node[at], sure: true}
	for _, d := range available {
		lent.sure = lent.sure && p.node[d] == lent.node
	}
	return lent
}

// hasDevices reports whether all devices of the request are free on the host.
func (s *state) hasDevices(w *request) bool {
	_, lacking := s.lend(w)
	return lacking == ""
}

// reach returns the sum of the distances from nodes to the request's devices, beyond the
// distance within the devices' own NUMA nodes. A device whose NUMA node is unknown counts
// as close to all nodes.
func (s *state) reach(w *request, nodes []int) int64 {
	var sum int64
	lent, _ := s.lend(w)
	for _, device := range lent {
		for _, n := range nodes {
			if device.node != none {
				sum += max(0, s.distance[n][device.node]-s.distance[device.node][device.node])
			}
		}
	}
	return sum
}

// deviceText describes the devices that a VM gets on the host, with their NUMA nodes.
func (s *state) deviceText(w *request) string {
	var text strings.Builder
	lent, _ := s.lend(w)
	for _, device := range lent {
		text.WriteString("; device " + device.mapping)
		switch {
		case s.flat:
		case device.node == none:
			text.WriteString(" on an unknown NUMA node")
		case device.sure:
			fmt.Fprintf(&text, " on NUMA node %d", s.nodes[device.node].id)
		default:
			fmt.Fprintf(&text, ", probably on NUMA node %d", s.nodes[device.node].id)
		}
	}
	return text.String()
}

// deviceGap describes which mapping has too few free devices for the request, and a fix.
func (s *state) deviceGap(w *request) gap {
	_, lacking := s.lend(w)
	requested := 0
	for _, need := range w.deviceNeeds() {
		requested += b2i(need.mapping == lacking)
	}
	m := s.pci.mapping(lacking)
	if m == none {
		return gap{
			has: "has no device of PCI mapping " + lacking,
			fix: "add a device of the host to the mapping (Datacenter, Resource Mappings in Proxmox), or add a host that has one",
		}
	}
	free := max(0, s.pci.spare(&s.passed, m))
	return gap{
		has: fmt.Sprintf("has %d of %s of PCI mapping %s free, %d requested", free, topology.Count(len(s.pci.of[m]), "device"), lacking, requested),
		fix: "add a device to the mapping (Datacenter, Resource Mappings in Proxmox), add a host, or remove the device from another guest: stopped guests count, and so do guests that use the same devices through another mapping",
	}
}
