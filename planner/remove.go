package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// Remove releases what VMs take that were passed to New or placed since. The planner is
// then the same as if New had never received them: a guest of the snapshot that was one of
// them counts as unmanaged. Unknown VMs are ignored. Like Place, Remove requires exclusive
// access.
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

// publish replaces the state of a host. The new state must not change afterwards.
func (p *Planner) publish(host int, s *state) {
	p.hosts[host] = s
	p.versions[host]++
}

// claimBy returns the position of a VM's claim, or none. A claim that Place made has no
// owner yet: any equal claim will do.
func (s *state) claimBy(vm *fleet.VM) int {
	owner := ownerOf(vm)
	if i := slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == owner }); i >= 0 {
		return i
	}
	same := s.claimOf(&vm.Spec, &vm.Placement)
	return slices.IndexFunc(s.claims, func(c *claim) bool { return c.owner == guestKey{} && !c.foreign && c.equal(same) })
}

// equal reports whether two claims take the same.
func (c *claim) equal(o *claim) bool {
	for b := range c.bound {
		if !slices.Equal(c.bound[b], o.bound[b]) {
			return false
		}
	}
	return c.isolated == o.isolated && c.floating == o.floating && c.ratio == o.ratio && c.memory == o.memory &&
		c.group == o.group && slices.Equal(c.devices, o.devices) && slices.Equal(c.pins, o.pins) && slices.Equal(c.homed, o.homed)
}
