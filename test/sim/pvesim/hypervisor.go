package pvesim

import (
	"context"
	"encoding/json"
	"maps"
	"strings"

	"github.com/numaform/numaform/test/sim/qemu"
)

// Hypervisor runs VMs; see package qemu.
type Hypervisor interface {
	// Start starts a VM. It calls exited when the VM's process ends.
	Start(vm qemu.VM, exited func()) (pid int, err error)
	// Shutdown requests the shutdown of a guest, by its agent if it has one, and waits until
	// its process ends.
	Shutdown(ctx context.Context, vmid int, agent bool) error
	// Agent runs a command of the guest's agent. It returns a qemu.AgentError if the agent
	// rejects the command.
	Agent(ctx context.Context, vmid int, command string, arguments map[string]any) (json.RawMessage, error)
	// Stop ends a VM's process and waits for it.
	Stop(vmid int)
	// Remove stops a VM and deletes its files.
	Remove(vmid int) error
}

// virtualMachine describes a guest for the hypervisor, with its configuration for the next
// start.
func (r *request) virtualMachine() (qemu.VM, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return qemu.VM{}, e
	}
	vm := qemu.VM{VMID: g.id, Options: maps.Clone(g.conf), Drives: map[string]qemu.Drive{}}
	for _, key := range sortedKeys(g.conf) {
		if !driveName.MatchString(key) {
			continue
		}
		d, e := r.s.parseDrive(key, g.conf[key])
		if e != nil || d.volume() == "" { // an empty CD drive
			continue
		}
		_, v := c.findVolume(g.host, d.volume())
		if v == nil || strings.HasPrefix(key, "efidisk") || strings.HasPrefix(key, "tpmstate") {
			continue
		}
		vm.Drives[key] = qemu.Drive{
			Volume: v.id, Size: v.size, Image: !v.blank, Linked: v.parent != "",
			CD: d.cdrom() && !d.cloudinit(), Content: v.data,
		}
	}
	return vm, nil
}

// startVirtualMachine starts the guest's process. Without a hypervisor, it does nothing and
// returns 0.
func (r *request) startVirtualMachine() (pid int, err error) {
	h := r.s.cfg.Hypervisor
	if h == nil {
		return 0, nil
	}
	vm, err := r.virtualMachine()
	if err != nil {
		return 0, err
	}
	ready := make(chan int, 1)
	pid, err = h.Start(vm, func() { r.s.processEnded(vm.VMID, <-ready) })
	ready <- pid
	return pid, err
}

// processEnded records the end of a process that no task ended: the guest shut down by
// itself, or QEMU was killed.
func (s *Server) processEnded(vmid, pid int) {
	s.state.mu.Lock()
	var event *PowerEvent
	if g := s.state.guests[vmid]; g != nil && g.running && g.pid == pid {
		s.state.halt(g)
		event = s.event(PoweredOff, g)
	}
	s.state.mu.Unlock()
	s.powered(event)
}
