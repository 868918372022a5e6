package scaler

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// ErrFleetChanged is returned by Apply if the fleet's files or history have changed since
// the change was proposed.
var ErrFleetChanged = errors.New("the fleet's files or history have changed since this change was planned: plan again")

// ErrNotRead is returned until the fleet's files have been read.
var ErrNotRead = errors.New("the fleet's files have not been read yet: numaform retries until they are")

// DeniedError reports that the guard refused a host's plan.
type DeniedError struct {
	Host    topology.HostID
	Verdict guard.Verdict
}

func (e *DeniedError) Error() string { return fmt.Sprintf("host %s: %s", e.Host, e.Verdict) }

// PendingApprovalError reports that a change needs approval before it can be applied.
type PendingApprovalError struct {
	Host    topology.HostID
	Verdict guard.Verdict
}

func (e *PendingApprovalError) Error() string {
	return fmt.Sprintf("host %s: pending approval: %s", e.Host, e.Verdict)
}

// VMIDTakenError reports that a guest without the VM's key has its VMID.
type VMIDTakenError struct {
	VM    string
	VMID  fleet.VMID
	Guest string
	Host  topology.HostID
	// Copy is another guest with the VM's key, such as a clone of the VM, on CopyHost; 0
	// means none. While it exists, numaform does not give the VM another VMID.
	Copy     fleet.VMID
	CopyHost topology.HostID
}

func (e *VMIDTakenError) Error() string {
	fix := "plan again to give the VM another VMID"
	if e.Copy != 0 {
		fix = fmt.Sprintf("this VM's key is in the description of guest %d on %s: remove the marker line there, or remove that guest, "+
			"then plan again to give the VM another VMID", e.Copy, e.CopyHost)
	}
	return fmt.Sprintf("vm %s: VMID %d belongs to guest %q on %s, but that guest lacks this VM's key: it is not changed; %s",
		e.VM, e.VMID, e.Guest, e.Host, fix)
}

// NotStandbyError reports that a VM cannot be woken: the fleet does not contain it, it is
// not a standby VM, it has not been created, or it is being changed or removed.
type NotStandbyError struct {
	Key fleet.Key
	// VM is the VM's name, or "" if no VM has the key, and Phase its phase.
	VM    string
	Phase Phase
}

func (e *NotStandbyError) Error() string {
	if e.VM == "" {
		return fmt.Sprintf("no VM of the fleet has key %s: choose another standby VM, or create a new VM", e.Key)
	}
	return fmt.Sprintf("vm %s is not a standby VM that is ready to start (its phase is %s): choose another standby VM, or create a new VM", e.VM, e.Phase)
}

// GuestGoneError reports that the VMID of a VM that a plan would delete now belongs to
// another guest.
type GuestGoneError struct {
	Address string
	VMID    fleet.VMID
	Guest   string
}

func (e *GuestGoneError) Error() string {
	return fmt.Sprintf("%s: the state has VMID %d, which now belongs to guest %q without this VM's key: that guest is not deleted; "+
		"run `numaform apply` again, which removes the address from the state", e.Address, e.VMID, e.Guest)
}

// MarkerLostError reports that a guest looks like a VM of the fleet but has lost its
// marker: it is neither changed nor replaced.
type MarkerLostError struct {
	VM     string
	VMID   fleet.VMID
	Host   topology.HostID
	Marker string
	// Adopted is set if the VM's file describes a VM of another tool: then the guest may
	// never have had the marker.
	Adopted bool
}

func (e *MarkerLostError) Error() string {
	if e.Adopted {
		return fmt.Sprintf("vm %s: guest %d on %s looks like this VM, but its description lacks the marker line: if its adoption was interrupted, run numaform adopt again; "+
			"if no user adopted this VM, delete the VM's file; if numaform managed it before and its description was overwritten, add this line: %s", e.VM, e.VMID, e.Host, e.Marker)
	}
	return fmt.Sprintf("vm %s: guest %d on %s looks like this VM, but its description lacks the marker line: add this line to the description: %s",
		e.VM, e.VMID, e.Host, e.Marker)
}

// AddressTakenError reports that another guest has a VM's static address since the VM was
// placed.
type AddressTakenError struct {
	VM, Address string
	Guest       string
	VMID        int
	Host        topology.HostID
}

func (e *AddressTakenError) Error() string {
	return fmt.Sprintf("vm %s: its address %s belongs to guest %d (%s) on %s: plan again, so that it gets another one; "+
		"if that guest is to keep its address, add it to exclude in address_pools in numaform.yaml", e.VM, e.Address, e.VMID, e.Guest, e.Host)
}

// CPUsTakenError reports that another guest was pinned to a VM's CPUs since the VM was
// placed.
type CPUsTakenError struct {
	VM    string
	CPUs  topology.CPUSet
	Guest string
	VMID  int
	Host  topology.HostID
}

func (e *CPUsTakenError) Error() string {
	return fmt.Sprintf("vm %s: CPUs %s of %s were assigned to guest %d (%s) after this VM was placed: plan again", e.VM, e.CPUs, e.Host, e.VMID, e.Guest)
}

// OutsideStateError reports that VMs to be removed exist but are not in the state.
type OutsideStateError struct{ Names []string }

func (e *OutsideStateError) Error() string {
	return fmt.Sprintf("no plan can remove %s, which Proxmox has but the state does not: run `numaform apply`, which imports what exists, then repeat the removal",
		strings.Join(e.Names, ", "))
}

// HostDownError reports that a host is currently unusable.
type HostDownError struct {
	Host    topology.HostID
	Problem string
	// Left is set if the host left its Proxmox cluster. Problem then says what to do.
	Left bool
}

func (e *HostDownError) Error() string {
	if e.Left {
		return fmt.Sprintf("host %s cannot be used: %s", e.Host, e.Problem)
	}
	return fmt.Sprintf("host %s cannot be used: %s: try again when it is back", e.Host, e.Problem)
}

// StaleStateError reports that the state contains stale entries, which a dry run does not
// correct.
type StaleStateError struct{ Addresses []string }

func (e *StaleStateError) Error() string {
	return fmt.Sprintf("the state contains stale entries (%s): their creation did not finish, or their VM no longer exists or has another owner: "+
		"run `numaform apply`, which first removes these entries from the state; this changes nothing in Proxmox", strings.Join(e.Addresses, ", "))
}

// RootOnlyError reports that the credential may not set an option that a VM requires.
type RootOnlyError struct {
	VM string
	// Field is the field of the ProxmoxNodeClass with its value, and Reason explains why the
	// credential may not set it and how to fix that.
	Field, Reason string
}

func (e *RootOnlyError) Error() string {
	return fmt.Sprintf("vm %s: its ProxmoxNodeClass sets %s, but %s", e.VM, e.Field, e.Reason)
}

// NotDrainedError reports that a Node must not lose its VM yet.
type NotDrainedError struct{ VM, Reason string }

func (e *NotDrainedError) Error() string {
	return fmt.Sprintf("vm %s was not deleted: %s; apply again when its Node is drained", e.VM, e.Reason)
}

// PlanError reports that a host could not be planned. It does not imply a problem with
// the VMs to be created there.
type PlanError struct {
	Host topology.HostID
	Err  error
}

func (e *PlanError) Error() string { return fmt.Sprintf("planning %s: %v", e.Host, e.Err) }

// Unwrap returns the cause.
func (e *PlanError) Unwrap() error { return e.Err }

// MovedError reports that a VM cannot be imported or changed because it is not on the
// host in its file.
type MovedError struct {
	VM        string
	Host, Now topology.HostID
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("vm %s: its file names host %s, but the VM is on %s: move it back in Proxmox, then apply again", e.VM, e.Host, e.Now)
}

// HiddenError reports that the state has a VM that Proxmox does not list. This proves
// nothing, because the credential may lack access to some guests.
type HiddenError struct {
	VM     string
	VMID   fleet.VMID
	Region topology.RegionName
}

func (e *HiddenError) Error() string {
	return fmt.Sprintf("vm %s: the state has VMID %d, but it is unknown whether that guest exists: the credential cannot see all guests of region %s: "+
		"grant it VM.Audit on /vms", e.VM, e.VMID, e.Region)
}

// DisagreeError reports that a guest in Proxmox differs from the state of the VM that a
// plan writes to. It prevents no wake of other VMs.
type DisagreeError struct {
	VM   string
	Key  fleet.Key
	VMID fleet.VMID
	Host topology.HostID
	// Attribute is the attribute that differs, with its values in State and Live.
	Attribute, State, Live string
}

func (e *DisagreeError) Error() string {
	return fmt.Sprintf("vm %s: guest %d has %s %.80q in Proxmox, but %.80q in the state of %s: nothing was changed; "+
		"restore the value in Proxmox, or remove the VM from the state with the engine's `state rm`, then apply again", e.VM, e.VMID, e.Attribute, e.Live, e.State, e.Host)
}

// Concerns implements PartialError.
func (e *DisagreeError) Concerns(key fleet.Key) bool { return key == e.Key }

// VanishedError reports that another client removed a VM after it was created, so that its
// guest does not exist or is another one.
type VanishedError struct {
	VM   string
	VMID fleet.VMID
	Host topology.HostID
}

func (e *VanishedError) Error() string {
	return fmt.Sprintf("vm %s: guest %d no longer exists in Proxmox, because another client removed it from %s: the controller removes its file, "+
		"and its pods get another node; without the controller, run `numaform remove %s`", e.VM, e.VMID, e.Host, e.VM)
}

var (
	// answer matches the Proxmox response in a diagnostic of the provider: the exit
	// status of a task with the task's log, whose lines are indented, or the reason for a
	// refused request. The provider has no other form for them:
	// proxmox/nodes/tasks/tasks.go and proxmox/api/errors.go of
	// bpg/terraform-provider-proxmox v0.111.1.
	answer = regexp.MustCompile(`(?m)\btask "UPID:[^"\n]*" failed to complete with exit code: .*(?:\n[ \t]*task log:(?:\n[ \t]+.*)*)?` +
		`|\breceived an HTTP 5[0-9]{2} response - Reason: .*`)

	// noRoom matches the end of a line in which Proxmox or its storage reports that it is
	// full. Proxmox has no error code for that, only these messages, in this order: from
	// the C library (directories, NFS, Ceph; Go's own, about a disk of this machine,
	// begin with lower case), from Proxmox (pve-storage 9.1.7, LVMPlugin.pm:713), from
	// ZFS, from LVM's lvcreate and lvextend, and from its thin pools.
	noRoom = regexp.MustCompile(`(?m)(?:\bNo space left on device` +
		`|\bDisk quota exceeded` +
		`|\bnot enough free space \([0-9]+ < [0-9]+\)` +
		`|\bcannot (?:create|receive|set property for|extend) [^\n]*: out of space` +
		`|\bVolume group "[^"\n]*" has insufficient free space \([0-9]+ extents\): [0-9]+ required` +
		`|\bInsufficient free space: [0-9]+ extents needed, but only [0-9]+ available` +
		`|\bfree space in thin pool \S+ reached threshold)\.?$`)
)

// StorageFull reports whether an apply failed because a storage of Proxmox is full. It
// examines only responses from Proxmox, because the disk of this machine may be full, too.
func StorageFull(err error) bool {
	if task := new(proxmox.TaskError); errors.As(err, &task) && noRoom.MatchString(task.Exit) {
		return true
	}
	failure := new(state.CommandError)
	if !errors.As(err, &failure) || failure.Operation != "applying" {
		return false
	}
	for _, said := range answer.FindAllString(failure.Text, -1) {
		if noRoom.MatchString(strings.ReplaceAll(said, "\r", "")) {
			return true
		}
	}
	return false
}
