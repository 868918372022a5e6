package scaler

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// render renders a change. VMs that cannot be rendered fail, or stay unchanged, and the
// others continue without them.
func (w *Writer) render(m *move) error {
	err := w.scaler.render(m.change)
	if err == nil {
		return nil
	}
	now, refused := w.scaler.config.Clock.Now(), false
	for _, vm := range slices.Concat(m.change.Added, m.change.Updated) {
		why := w.scaler.renderable(m.change, vm)
		if why == nil {
			continue
		}
		refused = true
		if e := w.members[vm.Key]; slices.Contains(m.changing, vm.Key) {
			e.ChangeErr, e.retry = why, e.retry.grown(now)
		} else {
			w.set(e, PhaseFailed, why)
		}
		m.drop(vm.Key)
	}
	if !refused {
		return err
	}
	return w.scaler.render(m.change)
}

// renderable returns why a VM cannot be rendered, independent of the fleet's other VMs.
func (s *Scaler) renderable(change *Change, vm fleet.VM) error {
	alone := change.After
	alone.VMs, alone.Hosts = []fleet.VM{vm}, []fleet.Shard{vm.Host}
	_, err := s.config.Release.Render(alone)
	return err
}

// drop removes a VM from the requests of a change, so that the VM stays unchanged.
func (m *move) drop(key fleet.Key) {
	c := m.change
	is := func(vm fleet.VM) bool { return vm.Key == key }
	c.Added, c.Updated = slices.DeleteFunc(c.Added, is), slices.DeleteFunc(c.Updated, is)
	c.After.VMs = slices.DeleteFunc(c.After.VMs, is)
	if at := slices.IndexFunc(c.Before.VMs, is); at >= 0 {
		c.After.VMs = append(c.After.VMs, c.Before.VMs[at])
	}
	same := func(k fleet.Key) bool { return k == key }
	m.coming, m.changing = slices.DeleteFunc(m.coming, same), slices.DeleteFunc(m.changing, same)
}
