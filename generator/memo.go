package generator

import (
	"bytes"
	"reflect"
	"sync"

	"github.com/numaform/numaform/fleet"
)

// Memo remembers the node files that Parse has accepted, with their VMs. Each change parses
// and renders the whole fleet, of which only a few files are new: without a memo, parsing
// alone takes about 1 ms of CPU time for each VM. A memo belongs to one release. The VMs that
// Parse returns share their slices, which must not be modified. The zero value is ready to
// use, and several goroutines may use it at once.
type Memo struct {
	// mu guards the fields below.
	mu        sync.Mutex
	clusterID string
	// nodes are the files of the last fleet by path, so a memo never outgrows the fleet.
	nodes map[string]remembered
}

// remembered is a node file and its VM: Render writes this content for the VM, and Parse
// reads the VM from it.
type remembered struct {
	content []byte
	vm      fleet.VM
}

// parsed returns the VM of a file, and false unless the file was accepted with the same
// content.
func (m *Memo) parsed(clusterID, name string, content []byte) (fleet.VM, bool) {
	known, ok := m.find(clusterID, name)
	if !ok || !bytes.Equal(known.content, content) {
		return fleet.VM{}, false
	}
	return known.vm, true
}

// rendered returns the remembered content of a VM's file, and false unless that content was
// parsed to an equal VM.
func (m *Memo) rendered(clusterID, name string, vm *fleet.VM) ([]byte, bool) {
	known, ok := m.find(clusterID, name)
	if !ok || !reflect.DeepEqual(&known.vm, vm) {
		return nil, false
	}
	return known.content, true
}

func (m *Memo) find(clusterID, name string) (remembered, bool) {
	if m == nil {
		return remembered{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.nodes[name]
	return known, ok && m.clusterID == clusterID
}

// replace remembers the files of a fleet that Parse has accepted, and forgets others.
func (m *Memo) replace(f *fleet.Fleet, files Files) {
	if m == nil {
		return
	}
	nodes := make(map[string]remembered, len(f.VMs))
	for i := range f.VMs {
		vm := &f.VMs[i]
		name := NodeFile(vm)
		nodes[name] = remembered{content: files[name], vm: *vm}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clusterID = f.ClusterID
	m.nodes = nodes
}
