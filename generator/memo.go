package generator

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/numaform/numaform/fleet"
)

// Memo remembers the files that Parse has accepted, with their VMs. Each change parses and
// renders the whole fleet, of which only a few files are new, and often none: without a memo,
// parsing alone takes about 1 ms of CPU time for each VM. A memo belongs to one release. The VMs that
// Parse returns share their slices, which must not be modified. The zero value is ready to
// use, and several goroutines may use it at once.
type Memo struct {
	// mu guards the fields below.
	mu sync.Mutex
	// files are the files of the last fleet, so that a memo never outgrows the fleet, and
	// fleet is what Parse read from them. Render writes the same files for it.
	files Files
	fleet fleet.Fleet
	// vms are the VMs of the fleet by the path of their file.
	vms map[string]*fleet.VM
}

// whole returns the last fleet, and false unless it was parsed from equal files.
func (m *Memo) whole(files Files) (fleet.Fleet, bool) {
	if m == nil {
		return fleet.Fleet{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil || !maps.EqualFunc(m.files, files, bytes.Equal) {
		return fleet.Fleet{}, false
	}
	return cloned(&m.fleet), true
}

// cloned returns a fleet whose lists of regions, hosts and VMs can be modified.
func cloned(f *fleet.Fleet) fleet.Fleet {
	clone := *f
	clone.Regions, clone.Hosts, clone.VMs = slices.Clone(f.Regions), slices.Clone(f.Hosts), slices.Clone(f.VMs)
	return clone
}

// parsed returns the VM of a file, and false unless the file was accepted with the same
// content.
func (m *Memo) parsed(clusterID, name string, content []byte) (fleet.VM, bool) {
	vm, known := m.find(clusterID, name)
	if vm == nil || !bytes.Equal(known, content) {
		return fleet.VM{}, false
	}
	return *vm, true
}

// rendered returns the remembered content of a VM's file, or nil unless that content was
// parsed to an equal VM.
func (m *Memo) rendered(clusterID, name string, vm *fleet.VM) []byte {
	known, content := m.find(clusterID, name)
	if known == nil || !reflect.DeepEqual(known, vm) {
		return nil
	}
	return content
}

// find returns the remembered VM and content of a file, or nil.
func (m *Memo) find(clusterID, name string) (*fleet.VM, []byte) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fleet.ClusterID != clusterID {
		return nil, nil
	}
	return m.vms[name], m.files[name]
}

// replace remembers the files of a fleet that Parse has accepted, and forgets others.
func (m *Memo) replace(f *fleet.Fleet, files Files) {
	if m == nil {
		return
	}
	remembered := cloned(f)
	vms := make(map[string]*fleet.VM, len(f.VMs))
	for i := range remembered.VMs {
		vm := &remembered.VMs[i]
		vms[NodeFile(vm)] = vm
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files, m.fleet, m.vms = maps.Clone(files), remembered, vms
}
