package scheduling

import (
	"context"
	"slices"

	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// shape shrinks the new VMs of Flexible classes to what their pods need, but keeps their
// order, so that each pod goes to the same VM as before. If Karpenter's scheduler does
// not confirm that, all VMs stay as they are.
func (s *session) shape(ctx context.Context, sol *solution) (*solution, error) {
	before, plan := slices.Clone(s.added), s.plan.Clone()
	large, specs := s.shapes(sol)
	if len(large) == 0 {
		return sol, nil
	}
	s.drop(large)
	if placed, unplaced := s.plan.Place(specs); len(unplaced) == 0 {
		for _, p := range placed {
			s.added = append(s.added, s.reshaped(large[p.Index], specs[p.Index], p.Placement))
		}
		shaped, err := s.solve(ctx)
		if err != nil {
			return nil, err
		}
		if len(shaped.claims) == 0 && shaped.unmet <= sol.unmet && len(s.idle(shaped)) == 0 {
			return shaped, nil
		}
	}
	s.added, s.plan = before, plan
	return sol, nil
}

// shapes returns the VMs that can shrink, and their new specs.
func (s *session) shapes(sol *solution) (large []*inflight, specs []fleet.Spec) {
	added := slices.Clone(s.added)
	slices.SortFunc(added, func(a, b *inflight) int { return compareInflight(b, a) })
	var next InstanceType // the size of the next VM in filling order
	for _, vm := range added {
		i := slices.IndexFunc(s.pools, func(p *pool) bool { return p.Name == vm.Pool })
		if i < 0 || !isFlexible(vm.InstanceType) {
			continue
		}
		p := s.pools[i]
		pods := resources.RequestsForPods(sol.landed[providerID(&vm.VM)]...)
		t, ok := p.class.shape(resources.Merge(pods, requestsOn(vm.claim, s.daemons)))
		if ok {
			t = p.class.notAfter(t, next, vm)
		}
		if !ok || !p.allows(t.Name) || t.VCPUs > vm.VCPUs || t.MemoryMiB > vm.MemoryMiB || t.Name == vm.InstanceType {
			next = InstanceType{VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB}
			continue
		}
		next = t
		spec := vm.Spec
		spec.InstanceType, spec.VCPUs, spec.MemoryMiB = t.Name, t.VCPUs, t.MemoryMiB
		spec.Hosts = []topology.HostID{vm.Host}
		large, specs = append(large, vm), append(specs, spec)
	}
	return large, specs
}

// notAfter returns the size, or a larger one if otherwise the VM would no longer be
// filled before one of size next.
func (c *class) notAfter(t, next InstanceType, vm *inflight) InstanceType {
	b, _ := c.fields.Flexible()
	vcpus, memory := max(t.VCPUs, (next.VCPUs+b.StepVCPUs-1)/b.StepVCPUs*b.StepVCPUs), t.MemoryMiB
	if vcpus == next.VCPUs && memory < next.MemoryMiB {
		if memory = (next.MemoryMiB + b.StepMemoryMiB - 1) / b.StepMemoryMiB * b.StepMemoryMiB; memory > vm.MemoryMiB {
			vcpus, memory = vcpus+b.StepVCPUs, t.MemoryMiB
		}
	}
	return flexibleType(vcpus, memory).forClass(c.fields)
}

// reshaped returns a new VM with a smaller size, which may still be on the same hosts.
func (s *session) reshaped(vm *inflight, spec fleet.Spec, placement fleet.Placement) *inflight {
	spec.Hosts = vm.Hosts
	made := newInflight(fleet.VM{Key: vm.Key, VMID: vm.VMID, Name: vm.Name, Spec: spec, Placement: placement}, s.pools, s.sizes)
	made.phase = vm.phase
	return made
}
