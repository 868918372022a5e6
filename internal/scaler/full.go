package scaler

import (
	"errors"
	"regexp"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/state"
)

var (
	// answer matches Proxmox' response in a diagnostic of the provider: the exit status
	// of a task with the task's log, whose lines are indented, or the reason for a
	// refused request. The provider has no other form for them:
	// proxmox/nodes/tasks/tasks.go and proxmox/api/errors.go of
	// bpg/terraform-provider-proxmox v0.111.1.
	answer = regexp.MustCompile(`(?m)\btask "UPID:[^"\n]*" failed to complete with exit code: .*(?:\n[ \t]*task log:(?:\n[ \t]+.*)*)?` +
		`|\breceived an HTTP 5[0-9]{2} response - Reason: .*`)

	// noRoom matches the end of a line in which Proxmox or its storage reports that it is
	// full. Proxmox has no error code for that, only these sentences, in this order: from
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
// looks only at Proxmox' responses, because the engine's own disk may be full, too.
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
