package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/numaform/numaform/topology"
)

// VMIDRange is the range of VMIDs that a Proxmox cluster reserves for numaform.
type VMIDRange struct {
	Lower VMID `json:"lower" yaml:"lower"`
	Upper VMID `json:"upper" yaml:"upper"`
}

// Check returns an error if the range is invalid.
func (r VMIDRange) Check() error {
	if r.Lower < MinVMID || r.Upper > MaxVMID || r.Lower > r.Upper {
		return fmt.Errorf("vmid_range %d to %d: must be %d <= lower <= upper <= %d", r.Lower, r.Upper, MinVMID, MaxVMID)
	}
	return nil
}

// Contains reports whether a VMID is in the range.
func (r VMIDRange) Contains(id VMID) bool { return r.Lower <= id && id <= r.Upper }

// SizeWithout returns how many VMIDs of the range are in none of the others.
func (r VMIDRange) SizeWithout(others ...VMIDRange) int {
	size := int(r.Upper-r.Lower) + 1
	next := r.Lower // the first VMID that no earlier range contains
	for _, other := range slices.SortedFunc(slices.Values(others), func(a, b VMIDRange) int { return cmp.Compare(a.Lower, b.Lower) }) {
		lower, upper := max(other.Lower, next), min(other.Upper, r.Upper)
		if lower <= upper {
			size -= int(upper-lower) + 1
			next = upper + 1
		}
	}
	return size
}

// Rotation returns the name under which the rotation of the range is stored: the region's
// name for the range of a region, which has no class, and otherwise a name that no region has.
func (r VMIDRange) Rotation(region topology.RegionName) topology.RegionName {
	if r == (VMIDRange{}) {
		return region
	}
	return topology.RegionName(fmt.Sprintf("%s/%d-%d", region, r.Lower, r.Upper))
}

// RangeExhaustedError reports that a region, or the range of a class, has no free VMID left.
type RangeExhaustedError struct {
	Region topology.RegionName
	Range  VMIDRange
	// Class is the class with the range, or empty for the range of the region.
	Class string
	// Reserved is the number of VMIDs in the ranges of classes, which are not allocated.
	Reserved int
}

func (e *RangeExhaustedError) Error() string {
	if e.Class != "" {
		return fmt.Sprintf("region %s: all VMIDs from %d to %d are in use: widen spec.vmidRange of ProxmoxNodeClass %q, or remove VMs",
			e.Region, e.Range.Lower, e.Range.Upper, e.Class)
	}
	if e.Reserved > 0 {
		return fmt.Sprintf("region %s: of the VMIDs from %d to %d, the spec.vmidRange of ProxmoxNodeClasses reserve %d, and the others are in use: widen vmid_range in numaform.yaml, or remove VMs",
			e.Region, e.Range.Lower, e.Range.Upper, e.Reserved)
	}
	return fmt.Sprintf("region %s: all VMIDs from %d to %d are in use: widen vmid_range in numaform.yaml, or remove VMs",
		e.Region, e.Range.Lower, e.Range.Upper)
}

// Rotation is the last VMID allocated in a region and the round it belongs to. VMIDs are
// allocated upwards through the range and wrap around into the next round. A Rotation
// only advances, even when VMs are removed, so it is stored with the fleet's history and
// not in its files.
type Rotation struct {
	Last  VMID `json:"last"`
	Round int  `json:"round"`
}

// Compare orders rotations: it returns a negative number if r is behind other, 0 if they
// are equal, and a positive number if r is ahead.
func (r Rotation) Compare(other Rotation) int {
	return cmp.Or(cmp.Compare(r.Round, other.Round), cmp.Compare(r.Last, other.Last))
}

// Past returns the rotation advanced past ids, which must belong to r's round.
func (r Rotation) Past(ids ...VMID) Rotation {
	for _, id := range ids {
		r.Last = max(r.Last, id)
	}
	return r
}

// RangeOutsideError reports that the range of a class is not within the range of a region.
type RangeOutsideError struct {
	Region        topology.RegionName
	Class         string
	Range, Bounds VMIDRange
}

func (e *RangeOutsideError) Error() string {
	return fmt.Sprintf("ProxmoxNodeClass %q: spec.vmidRange %d to %d is not within vmid_range %d to %d of region %s: "+
		"correct it, or widen vmid_range in numaform.yaml", e.Class, e.Range.Lower, e.Range.Upper, e.Bounds.Lower, e.Bounds.Upper, e.Region)
}

// Allocator allocates the VMIDs of one region, upwards through the range and then from
// its start again, so that a VMID is reused as late as possible.
type Allocator struct {
	region topology.RegionName
	class  string
	bounds VMIDRange
	used   map[VMID]bool
	// reserved are the ranges of classes.
	reserved []VMIDRange
	now      Rotation
}

// NewAllocator returns an allocator for region that continues after last. It never
// allocates a VMID in used: the VMIDs of all guests of the Proxmox cluster, of the fleet's
// VMs, and of Nodes and NodeClaims that still refer to one.
func NewAllocator(region topology.RegionName, bounds VMIDRange, last Rotation, used []VMID) *Allocator {
	a := &Allocator{region: region, bounds: bounds, now: last, used: make(map[VMID]bool, len(used))}
	for _, id := range used {
		a.used[id] = true
	}
	// If the range was lowered below last, begin the next round at the range's start. Never
	// return to an earlier round.
	if a.now.Last > bounds.Upper {
		a.now = Rotation{Last: bounds.Lower - 1, Round: a.now.Round + 1}
	}
	a.now.Last = max(a.now.Last, bounds.Lower-1)
	return a
}

// Reserve makes the allocator of a region allocate no VMID in the ranges of classes.
func (a *Allocator) Reserve(ranges []VMIDRange) { a.reserved = ranges }

// isReserved reports whether a VMID is in the range of a class.
func (a *Allocator) isReserved(id VMID) bool {
	return slices.ContainsFunc(a.reserved, func(r VMIDRange) bool { return r.Contains(id) })
}

// Within returns an allocator for the range of a class, which continues after last. The two
// allocators never allocate the same VMID. It returns a *RangeOutsideError if the range is not
// within the one of a.
func (a *Allocator) Within(class string, bounds VMIDRange, last Rotation) (*Allocator, error) {
	if !a.bounds.Contains(bounds.Lower) || !a.bounds.Contains(bounds.Upper) {
		return nil, &RangeOutsideError{Region: a.region, Class: class, Range: bounds, Bounds: a.bounds}
	}
	within := NewAllocator(a.region, bounds, last, nil)
	within.class, within.used = class, a.used
	return within, nil
}

// Next reserves the next free VMID, or returns a *RangeExhaustedError.
func (a *Allocator) Next() (VMID, error) {
	id, round := a.now.Last, a.now.Round
	reserved := 0
	for range a.bounds.Upper - a.bounds.Lower + 1 {
		id++
		if id > a.bounds.Upper {
			id, round = a.bounds.Lower, round+1
		}
		if a.isReserved(id) {
			reserved++
			continue
		}
		if !a.used[id] {
			a.used[id] = true
			a.now = Rotation{Last: id, Round: round}
			return id, nil
		}
	}
	return 0, &RangeExhaustedError{Region: a.region, Range: a.bounds, Class: a.class, Reserved: reserved}
}

// Rotation returns the allocator's current rotation, to be stored with the fleet's
// history.
func (a *Allocator) Rotation() Rotation { return a.now }

// Name converts a placed spec to a VM: it reserves a VMID and derives the name and the key.
// The key is a hash of the cluster ID, the VM and the rotation, so the same decision always
// has the same key, and two decisions never share a key.
func (a *Allocator) Name(clusterID string, spec Spec, placement Placement, source Source) (VM, error) {
	id, err := a.Next()
	if err != nil {
		return VM{}, err
	}
	spec.Hosts = nil
	vm := VM{VMID: id, Name: NodeName(spec.Pool, id), Spec: spec, Placement: placement, Source: source}
	content, err := json.Marshal(struct {
		ClusterID string
		Rotation  Rotation
		VM        VM
	}{clusterID, a.now, vm})
	if err != nil {
		return VM{}, fmt.Errorf("deriving the key of vm %s: %w", vm.Name, err)
	}
	sum := sha256.Sum256(content)
	vm.Key = Key(hex.EncodeToString(sum[:16]))
	return vm, nil
}
