package scaler

import (
	"fmt"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// VMIDTakenError reports that a guest without the VM's key has its VMID.
type VMIDTakenError struct {
	VM    string
	VMID  fleet.VMID
	Guest string
	Host  topology.HostID
}

func (e *VMIDTakenError) Error() string {
	return fmt.Sprintf("vm %s: VMID %d belongs to guest %q on %s, which is not numaform's: it is left alone; "+
		"plan again, and the VM gets another number", e.VM, e.VMID, e.Guest, e.Host)
}

// GuestGoneError reports that the VM that a plan would delete now belongs to someone
// else.
type GuestGoneError struct {
	Address string
	VMID    fleet.VMID
	Guest   string
}

func (e *GuestGoneError) Error() string {
	return fmt.Sprintf("%s: the state says VMID %d, which is now guest %q without this VM's key: it is not deleted; "+
		"run `numaform apply` again, which takes the address out of the state", e.Address, e.VMID, e.Guest)
}

// MarkerLostError reports that a guest looks like a VM of the fleet but has lost its
// marker: it is neither changed nor replaced.
type MarkerLostError struct {
	VM     string
	VMID   fleet.VMID
	Host   topology.HostID
	Marker string
}

func (e *MarkerLostError) Error() string {
	return fmt.Sprintf("vm %s: guest %d on %s looks like it, but its description lacks the line by which it is known: put it back: %s",
		e.VM, e.VMID, e.Host, e.Marker)
}

// CPUsTakenError reports that another guest was pinned to a VM's CPUs since it was
// placed.
type CPUsTakenError struct {
	VM    string
	CPUs  topology.CPUSet
	Guest string
	VMID  int
	Host  topology.HostID
}

func (e *CPUsTakenError) Error() string {
	return fmt.Sprintf("vm %s: CPUs %s of %s were given to guest %d (%s) since it was placed: plan again", e.VM, e.CPUs, e.Host, e.VMID, e.Guest)
}

// OutsideStateError reports that VMs to be removed exist but are not in the state.
type OutsideStateError struct{ Names []string }

func (e *OutsideStateError) Error() string {
	return fmt.Sprintf("%s: the VM exists and is not in the state, so no plan can remove it: run `numaform apply`, which takes it in, then remove it again",
		strings.Join(e.Names, ", "))
}

// HostDownError reports that a host is currently unusable.
type HostDownError struct {
	Host    topology.HostID
	Problem string
}

func (e *HostDownError) Error() string {
	return fmt.Sprintf("host %s cannot be used: %s: nothing of it was changed; run again when it is back", e.Host, e.Problem)
}

// StaleStateError reports that the state contains VMs that do not exist, which a dry run
// does not correct.
type StaleStateError struct{ Addresses []string }

func (e *StaleStateError) Error() string {
	return fmt.Sprintf("the state holds %s from a create that did not end, or whose VM is gone or someone else's by now: "+
		"apply takes such entries out of the state first; nothing in Proxmox is touched by that", strings.Join(e.Addresses, ", "))
}

// RootOnlyError reports that the credential may not set what a VM needs.
type RootOnlyError struct {
	VM string
	// Field is the field of the ProxmoxNodeClass with its value, and Instead an
	// alternative that does not need root.
	Field, Instead string
	Reason         string
}

func (e *RootOnlyError) Error() string {
	return fmt.Sprintf("vm %s: its ProxmoxNodeClass says %s, but %s: "+
		"log in as root@pam with a password, or %s", e.VM, e.Field, e.Reason, e.Instead)
}

// NotDrainedError reports that a Node must not lose its VM yet.
type NotDrainedError struct{ VM, Reason string }

func (e *NotDrainedError) Error() string {
	return fmt.Sprintf("vm %s is not deleted: %s; then apply again", e.VM, e.Reason)
}

// PlanError reports that a host could not be planned. It says nothing about the VMs to be
// created there.
type PlanError struct {
	Shard fleet.Shard
	Err   error
}

func (e *PlanError) Error() string { return fmt.Sprintf("planning %s: %v", e.Shard, e.Err) }

// Unwrap returns the cause.
func (e *PlanError) Unwrap() error { return e.Err }
