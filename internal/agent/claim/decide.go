package claim

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Decide decides the pins of each guest. The decisions are sorted by VMID. A guest keeps
// its pins until its description declares other valid pins, or none. Apart from that,
// only the rules and the hardware revoke pins. If two guests newly request the same CPU,
// neither gets it because either could be wrong; a guest that already has it keeps it.
func Decide(host Host, rules Rules, guests []Guest) []Decision {
	d := decider{host: host, rules: rules, affinity: map[int]int{}}
	for _, guest := range guests {
		d.requests = append(d.requests, &request{Guest: guest})
		for _, cpu := range guest.Affinity.List() {
			d.affinity[cpu] = guest.VMID
		}
	}
	slices.SortFunc(d.requests, func(a, b *request) int { return cmp.Compare(a.VMID, b.VMID) })

	// Revoke current pins that the rules or the hardware no longer allow.
	total := topology.CPUSet{}
	for _, r := range d.requests {
		if r.Current == nil {
			continue
		}
		if r.revoked = d.allowed(r.Current); r.revoked == nil {
			r.revoked = d.ceiling(total.Union(r.Current.Set()))
		}
		if r.revoked != nil {
			r.Current = nil
			continue
		}
		total = total.Union(r.Current.Set())
	}

	for _, r := range d.requests {
		r.pins, r.refused = d.read(r)
	}
	// A refused guest keeps its current pins, which may conflict with other requests.
	for d.refuseConflicts() {
		continue
	}

	decisions := make([]Decision, len(d.requests))
	for i, r := range d.requests {
		decisions[i] = Decision{VMID: r.VMID, Pins: r.chosen(), Refused: r.refused}
		if decisions[i].Pins == nil {
			decisions[i].Refused = cmp.Or(r.revoked, r.refused)
		}
	}
	return decisions
}

type decider struct {
	host     Host
	rules    Rules
	requests []*request
	// affinity maps each CPU to the guest whose affinity, set by root, contains it.
	affinity map[int]int
}

// request is the pins that a guest requests, and the decision so far.
type request struct {
	Guest
	pins             *Pins
	refused, revoked *Refusal
}

// chosen returns the pins that the guest gets according to the decision so far.
func (r *request) chosen() *Pins {
	if r.refused != nil {
		return r.Current
	}
	return r.pins
}

// allowed checks pins against the rules and the hardware alone.
func (d *decider) allowed(pins *Pins) *Refusal {
	if !slices.Contains(d.rules.Clusters, pins.ClusterID) {
		return refuse(ReasonForeign, "cluster %s may not pin VMs on this host: add it to clusters in the agent's configuration", pins.ClusterID)
	}
	set := pins.Set()
	if missing := set.Difference(d.host.online); !missing.IsEmpty() {
		return refuse(ReasonNoCPU, "CPU %s does not exist or is offline: declare CPUs among the online ones, %s", missing, d.host.online)
	}
	if reserved := set.Intersection(d.rules.Reserved); !reserved.IsEmpty() {
		return refuse(ReasonReserved, "CPUs %s are reserved in the agent's configuration: declare other CPUs", reserved)
	}
	return nil
}

// ceiling checks the total share of pinned CPUs.
func (d *decider) ceiling(pinned topology.CPUSet) *Refusal {
	whole := d.host.Whole(pinned).Size()
	online := d.host.online.Size()
	switch {
	case whole == online:
		return refuse(ReasonCeiling, "all %d CPUs, including thread siblings, would be pinned, but one core must remain free: "+
			"reserve CPUs for the host in numaform's topology_file", online)
	case whole*100 > online*d.rules.MaxPercent:
		return refuse(ReasonCeiling, "%d of %d CPUs, including thread siblings, would be pinned, but max_pinned_percent is %d: "+
			"raise it in the agent's configuration, or reserve CPUs for the host in numaform's topology_file", whole, online, d.rules.MaxPercent)
	}
	return nil
}

// read returns the pins that a guest's description declares, or nil if it declares none.
// It refuses pins that the guest may not have, regardless of the pins of other guests.
func (d *decider) read(r *request) (*Pins, *Refusal) {
	if r.Unread != "" {
		return nil, refuse(ReasonUnread, "%s", r.Unread)
	}
	marker, found, err := fleet.FindMarker(r.Description)
	if err != nil {
		return nil, refuse(ReasonMalformed, "%v", err)
	}
	if !found || len(marker.Pins) == 0 {
		return nil, nil
	}
	pins := &Pins{
		ClusterID: marker.ClusterID,
		Key:       marker.Key,
		CPUs:      marker.Pins,
		Emulator:  cmp.Or(marker.Emulator, d.rules.Emulator, fleet.EmulatorGuest),
	}
	if refusal := d.allowed(pins); refusal != nil {
		return nil, refusal
	}
	if r.VCPUs == 0 {
		return nil, refuse(ReasonVCPUs, "the number of running vCPUs is unknown, but %d pins are declared: "+
			"wait until all vCPUs run; if this does not help, restart the guest", len(pins.CPUs))
	}
	if r.VCPUs != len(pins.CPUs) {
		return nil, refuse(ReasonVCPUs, "%d vCPUs are running, but %d pins are declared: restart the guest if its size was changed", r.VCPUs, len(pins.CPUs))
	}

	// Affinities set by root take precedence, but another guest's affinity does not revoke
	// pins that this guest already has.
	if !r.Affinity.IsEmpty() && !pins.Set().IsSubsetOf(r.Affinity) {
		return pins, refuse(ReasonAffinity, "the guest's own affinity is %s: remove it, or declare pins within it", r.Affinity)
	}
	if pins.Equal(r.Current) {
		return pins, nil
	}
	for _, cpu := range pins.CPUs {
		if owner, ok := d.affinity[cpu]; ok && owner != r.VMID {
			return pins, refuse(ReasonAffinity, "CPU %d is in the affinity that root set for guest %d: declare other CPUs", cpu, owner)
		}
	}
	return pins, nil
}

// refuseConflicts refuses new pins that conflict with pins that other guests keep; without
// such a conflict, new pins that conflict with each other; and otherwise the first new pins
// that exceed the ceiling. It reports whether it refused any.
//
// Guests may be pinned to different threads of one core, because numaform places Dedicated VMs
// with an odd number of vCPUs this way (docs/adr/0008-odd-vms-share-cores.md), and a
// declaration does not contain the policy of its VM.
func (d *decider) refuseConflicts() bool {
	owners := map[int]*request{}
	keys := map[fleet.Key]*request{}
	var requesting []*request
	total := topology.CPUSet{}
	for _, r := range d.requests {
		pins := r.chosen()
		if pins == nil {
			continue
		}
		if !pins.Equal(r.Current) {
			requesting = append(requesting, r)
			continue
		}
		total = total.Union(pins.Set())
		keys[pins.Key] = r
		for _, cpu := range pins.CPUs {
			owners[cpu] = r
		}
	}

	for _, r := range requesting {
		for _, cpu := range r.pins.CPUs {
			if owner := owners[cpu]; owner != nil && r.refused == nil {
				r.refused = refuse(ReasonOverlap, "CPU %d is already assigned to guest %d: declare other CPUs, or change guest %d first", cpu, owner.VMID, owner.VMID)
			}
		}
		if owner := keys[r.pins.Key]; owner != nil && r.refused == nil {
			r.refused = refuse(ReasonKey, "guest %d has the same marker, because a clone keeps the description: remove the marker from one of them", owner.VMID)
		}
	}
	if slices.ContainsFunc(requesting, isRefused) {
		return true
	}
	refuseBoth(requesting)
	if slices.ContainsFunc(requesting, isRefused) {
		return true
	}
	for _, r := range requesting {
		if r.refused = d.ceiling(total.Union(r.pins.Set())); r.refused != nil {
			return true
		}
		total = total.Union(r.pins.Set())
	}
	return false
}

func isRefused(r *request) bool { return r.refused != nil }

// refuseBoth refuses requests for the same CPU or with the same key.
func refuseBoth(requests []*request) {
	sameCPU := map[int][]*request{}
	sameKey := map[fleet.Key][]*request{}
	for _, r := range requests {
		sameKey[r.pins.Key] = append(sameKey[r.pins.Key], r)
		for _, cpu := range r.pins.CPUs {
			sameCPU[cpu] = append(sameCPU[cpu], r)
		}
	}
	for _, r := range requests {
		for _, cpu := range r.pins.CPUs {
			if other := another(sameCPU[cpu], r); other != nil && r.refused == nil {
				r.refused = refuse(ReasonOverlap, "guest %d also requests CPU %d: neither guest gets it until one of them is changed", other.VMID, cpu)
			}
		}
		if other := another(sameKey[r.pins.Key], r); other != nil && r.refused == nil {
			r.refused = refuse(ReasonKey, "guest %d has the same marker, because a clone keeps the description: remove the marker from one of them", other.VMID)
		}
	}
}

func another(list []*request, than *request) *request {
	for _, r := range list {
		if r != than {
			return r
		}
	}
	return nil
}
