package scaler

import (
	"errors"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// outsideState returns the VMs that the change removes although the state lacks them, according
// to an error.
func (b *batch) outsideState(err error) []fleet.Key {
	var keys []fleet.Key
	outside := &OutsideStateError{}
	if errors.As(err, &outside) {
		for i := range b.change.Removed {
			if vm := &b.change.Removed[i]; slices.Contains(outside.Names, vm.Name) {
				keys = append(keys, vm.Key)
			}
		}
	}
	return keys
}

// importNext makes a later change import VMs to be removed, because their state lacks them.
func (w *Writer) importNext(keys []fleet.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		if m := w.members[key]; m != nil {
			m.importing = true
		}
	}
}

// addImports adds the free hosts whose states lack VMs to be removed, if the change does nothing
// else there: an import may need approval, and then other requests must not wait for it. A VM that
// was destroyed meanwhile is removed like any other.
func (w *Writer) addImports(b *batch) {
	c := b.change
	index, touched := c.index(), c.Hosts()
	for _, m := range w.sorted() {
		if _, exists := index.of(&m.VM); !exists {
			m.importing = false
		}
		host := m.VM.Host
		if m.importing && !c.from.busy[host] && !slices.Contains(slices.Concat(touched, c.importing), host) {
			c.importing = append(c.importing, host)
		}
	}
}

// endImports records that the imports on a host have been planned, and why they could not be
// applied if err is not nil. The next attempts to remove the VMs request them again. The caller
// holds w.mu.
func (w *Writer) endImports(host topology.HostID, err error) {
	for _, m := range w.members {
		if m.VM.Host == host && m.importing {
			m.importing = false
			if err != nil {
				m.Err = err
			}
		}
	}
}

// stillExist returns an error if a plan that imports a VM to be removed would create it: it was
// destroyed since the snapshot.
func (v *hostView) stillExist(creates []guard.Target) error {
	if !slices.Contains(v.change.importing, v.id) {
		return nil
	}
	for _, target := range creates {
		if v.change.leaving[target.Key] {
			return &VanishedError{VM: v.vms[target.Address].Name, VMID: target.VMID, Host: v.id}
		}
	}
	return nil
}
