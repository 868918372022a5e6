package scaler

import (
	"errors"
	"regexp"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/state"
)

var (
	// answer finds what Proxmox answered in a diagnostic of the provider: the exit status
	// of a task with the task's log, whose lines are indented, or the reason of a refused request.
	// The provider has no other form of them: proxmox/nodes/tasks/tasks.go and
	// proxmox/api/errors.go of bpg/terraform-provider-proxmox v0.111.1.
	answer = regexp.MustCompile(`(?m)\btask "UPID:[^"\n]*" failed to complete with exit code: .*(?:\n[ \t]*task log:(?:\n[ \t]+.*)*)?` +
		`|\breceived an HTTP 5[0-9]{2} response - Reason: .*`)

	// noRoom matches the end of a line in which Proxmox or its storage says that there is
	// no room. Proxmox has no code for that, only these sentences: in order those of the C
	// library (directories, NFS, Ceph; Go's own, of a disk of this machine, begin with small
	// letters), of Proxmox (pve-storage 9.1.7, LVMPlugin.pm:713), of ZFS, of LVM's lvcreate and lvextend, and of its thin pools.
	noRoom = regexp.MustCompile(`(?m)(?:\bNo space left on device` +
		`|\bDisk quota exceeded` +
		`|\bnot enough free space \([0-9]+ < [0-9]+\)` +
		`|\bcannot (?:create|receive|set property for|extend) [^\n]*: out of space` +
		`|\bVolume group "[^"\n]*" has insufficient free space \([0-9]+ extents\): [0-9]+ required` +
		`|\bInsufficient free space: [0-9]+ extents needed, but only [0-9]+ available` +
		`|\bfree space in thin pool \S+ reached threshold)\.?$`)
)

// StorageFull reports whether an apply failed as a storage of Proxmox has no room left.
// What is no answer of Proxmox is not looked at: the engine's own disk may be full, too.
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
