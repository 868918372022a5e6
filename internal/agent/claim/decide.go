package claim

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Judge decides what each guest gets; the verdicts are sorted by VMID. A guest keeps its
// pins until its description declares other pins that it may have, or none; otherwise only
// the rules and the hardware revoke them. If two guests newly request the same CPU, neither
// gets it because either could be wrong; a guest that already has it keeps it.
func Judge(host Host, rules Rules, guests []Guest) []Verdict {
	j := judge{host: host, rules: rules, affinity: map[int]int{}}
	for _, guest := range guests {
		j.cases = append(j.cases, &hearing{Guest: guest})
		for _, cpu := range guest.Affinity.List() {
			j.affinity[cpu] = guest.VMID
		}
	}
	slices.SortFunc(j.cases, func(a, b *hearing) int { return cmp.Compare(a.VMID, b.VMID) })
	j.revoke()
	for _, c := range j.cases {
		c.wish, c.refused = j.wish(c)
	}
	for j.settle() {
		continue
	}
	verdicts := make([]Verdict, len(j.cases))
	for i, c := range j.cases {
		verdicts[i] = Verdict{VMID: c.VMID, Pins: c.chosen(), Refused: c.refused}
		if verdicts[i].Pins == nil {
			verdicts[i].Refused = cmp.Or(c.revoked, c.refused)
		}
	}
	return verdicts
}

type judge struct {
	host  Host
	rules Rules
	cases []*hearing
	// affinity maps a CPU to a guest that root gave it to.
	affinity map[int]int
}

// hearing is the state of the decision about one guest.
type hearing struct {
	Guest
	wish             *Pins
	refused, revoked *Refusal
}

// chosen returns what the guest gets as decided so far.
func (c *hearing) chosen() *Pins {
	if c.refused != nil {
		return c.Held
	}
	return c.wish
}

// keeps reports whether the guest keeps its current pins.
func (c *hearing) keeps() bool { return c.Held != nil && c.chosen().Equal(c.Held) }

// revoke removes pins that the rules or the hardware no longer allow.
func (j *judge) revoke() {
	total := topology.CPUSet{}
	for _, c := range j.cases {
		if c.Held == nil {
			continue
		}
		if c.revoked = j.allowed(c.Held); c.revoked == nil {
			c.revoked = j.ceiling(total.Union(c.Held.Set()))
		}
		if c.revoked != nil {
			c.Held = nil
			continue
		}
		total = total.Union(c.Held.Set())
	}
}

// allowed checks pins against the rules and the hardware alone.
func (j *judge) allowed(pins *Pins) *Refusal {
	if !slices.Contains(j.rules.Clusters, pins.ClusterID) {
		return refuse(ReasonForeign, "cluster %s may not pin here: add it to clusters in the agent's configuration", pins.ClusterID)
	}
	set := pins.Set()
	if gone := set.Difference(j.host.online); !gone.IsEmpty() {
		return refuse(ReasonNoCPU, "the host has no CPU %s, or it is offline; CPUs %s are online", gone, j.host.online)
	}
	if kept := set.Intersection(j.rules.Reserved); !kept.IsEmpty() {
		return refuse(ReasonReserved, "CPUs %s are reserved by the agent's configuration", kept)
	}
	return nil
}

// ceiling checks the total share of pinned CPUs.
func (j *judge) ceiling(pinned topology.CPUSet) *Refusal {
	whole, online := j.host.Whole(pinned).Size(), j.host.online.Size()
	if whole*100 > online*j.rules.MaxPercent || whole == online {
		return refuse(ReasonCeiling, "%d of %d CPUs would be pinned, siblings counted, and max_pinned_percent is %d: "+
			"raise it in the agent's configuration, or keep CPUs free in numaform's topology_file", whole, online, j.rules.MaxPercent)
	}
	return nil
}

// wish reads what a guest's description declares, or nil if nothing. It refuses what the
// guest could not have whatever the other guests have.
func (j *judge) wish(c *hearing) (*Pins, *Refusal) {
	if c.Unread != "" {
		return nil, refuse(ReasonUnread, "%s", c.Unread)
	}
	marker, found, err := fleet.FindMarker(c.Description)
	if err != nil {
		return nil, refuse(ReasonMalformed, "%v", err)
	}
	if !found || len(marker.Pins) == 0 {
		return nil, nil
	}
	wish := &Pins{
		ClusterID: marker.ClusterID, Key: marker.Key, CPUs: marker.Pins,
		Emulator: cmp.Or(marker.Emulator, j.rules.Emulator, fleet.EmulatorGuest),
	}
	if refusal := j.allowed(wish); refusal != nil {
		return nil, refusal
	}
	if c.VCPUs != len(wish.CPUs) {
		return nil, refuse(ReasonVCPUs, "%d vCPUs run and %d pins are declared: restart the guest if its size was changed", c.VCPUs, len(wish.CPUs))
	}
	return wish, j.root(c, wish)
}

// root checks a wish against the affinities set by root.
func (j *judge) root(c *hearing, wish *Pins) *Refusal {
	if !c.Affinity.IsEmpty() && !wish.Set().IsSubsetOf(c.Affinity) {
		return refuse(ReasonAffinity, "the guest's own affinity is %s: remove it, or declare pins within it", c.Affinity)
	}
	if wish.Equal(c.Held) {
		return nil
	}
	for _, cpu := range wish.CPUs {
		if owner, taken := j.affinity[cpu]; taken && owner != c.VMID {
			return refuse(ReasonAffinity, "CPU %d is in the affinity of guest %d, which root gave it", cpu, owner)
		}
	}
	return nil
}

// settle refuses conflicting wishes, and reports whether it did. A refused guest keeps its
// current pins, which may conflict with others: call it until it returns false.
func (j *judge) settle() bool {
	kept, keys := map[int]*hearing{}, map[fleet.Key]*hearing{}
	var asking []*hearing
	total := topology.CPUSet{}
	for _, c := range j.cases {
		switch pins := c.chosen(); {
		case pins == nil:
		case c.keeps():
			total = total.Union(pins.Set())
			keys[pins.Key] = c
			for _, cpu := range pins.CPUs {
				kept[cpu] = c
			}
		default:
			asking = append(asking, c)
		}
	}
	if againstKept(asking, kept, keys) || amongThemselves(asking) {
		return true
	}
	for _, c := range asking {
		if c.refused = j.ceiling(total.Union(c.wish.Set())); c.refused != nil {
			return true
		}
		total = total.Union(c.wish.Set())
	}
	return false
}

// againstKept refuses wishes for CPUs and keys that other guests keep.
func againstKept(asking []*hearing, kept map[int]*hearing, keys map[fleet.Key]*hearing) bool {
	refused := false
	for _, c := range asking {
		for _, cpu := range c.wish.CPUs {
			if owner := kept[cpu]; owner != nil && c.refused == nil {
				c.refused = refuse(ReasonOverlap, "CPU %d belongs to guest %d: declare others, or change that one first", cpu, owner.VMID)
			}
		}
		if owner := keys[c.wish.Key]; owner != nil && c.refused == nil {
			c.refused = refuse(ReasonKey, "the marker is that of guest %d: a clone keeps the description; remove it from one of the two", owner.VMID)
		}
		refused = refused || c.refused != nil
	}
	return refused
}

// amongThemselves refuses wishes that conflict with each other.
func amongThemselves(asking []*hearing) bool {
	cpus, keys := map[int][]*hearing{}, map[fleet.Key][]*hearing{}
	for _, c := range asking {
		keys[c.wish.Key] = append(keys[c.wish.Key], c)
		for _, cpu := range c.wish.CPUs {
			cpus[cpu] = append(cpus[cpu], c)
		}
	}
	refused := false
	for _, c := range asking {
		for _, cpu := range c.wish.CPUs {
			if other := another(cpus[cpu], c); other != nil && c.refused == nil {
				c.refused = refuse(ReasonOverlap, "CPU %d is asked for by guest %d as well: neither gets it until one of the two changes", cpu, other.VMID)
			}
		}
		if other := another(keys[c.wish.Key], c); other != nil && c.refused == nil {
			c.refused = refuse(ReasonKey, "the marker is that of guest %d as well: a clone keeps the description; remove it from one of the two", other.VMID)
		}
		refused = refused || c.refused != nil
	}
	return refused
}

func another(list []*hearing, than *hearing) *hearing {
	for _, c := range list {
		if c != than {
			return c
		}
	}
	return nil
}
