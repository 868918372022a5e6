package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// Remove gives back what VMs take that New was told of or Place placed since. The
// planner then stands as if New had never been told of them: a guest of the
// snapshot that was one of them counts as foreign. VMs that it does not know are
// ignored. Remove needs the Planner for itself, as Place does.
func (p *Planner) Remove(vms ...fleet.VM) {
	for i := range vms {
		host, ok := p.at[vms[i].Host]
		if !ok {
			continue
		}
		s := p.hosts[host]
		if claim := s.claimBy(&vms[i]); claim != none {
			p.publish(host, s.without(claim))
		}
	}
}

// publish gives a host another state, which must not change from then on.
func (p *Planner) publish(host int, s *state) {
	p.hosts[host] = s
	p.versions[host]++
}

// claimBy returns the position of a VM's claim, or none. A claim that Place made has no
// owner yet: any that takes the same will do.
func (s *state) claimBy(vm *fleet.VM) int {
	owner := ownerOf(vm)
	if i := slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == owner }); i >= 0 {
		return i
	}
	same := s.claimOf(&vm.Spec, &vm.Placement)
	return slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == guestKey{} && !c.foreign && c.equal(same) })
}

// equal compares what two claims take.
func (c *claim) equal(o *claim) bool {
	for b := range c.bound {
		if !slices.Equal(c.bound[b], o.bound[b]) {
			return false
		}
	}
	return c.isolated == o.isolated && c.floating == o.floating && c.ratio == o.ratio && c.memory == o.memory &&
		c.group == o.group && slices.Equal(c.devices, o.devices) && slices.Equal(c.pins, o.pins) && slices.Equal(c.homed, o.homed)
}
