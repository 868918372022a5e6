// Package cgroup confines guests to CPUs with the cpuset controller of control groups
// version 2. A Proxmox host has one group for each VM, and one that contains all
// containers. The package makes no decisions and keeps no state: start at Tree.Confine.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/numaform/numaform/topology"
)

// Containers is the group that contains all containers. They are confined together, so that
// a new container is confined from its start, and because Proxmox itself rewrites the
// groups of single containers every ten seconds.
const Containers = "lxc"

// VM returns the group of a VM.
func VM(vmid int) string { return fmt.Sprintf("qemu.slice/%d.scope", vmid) }

var known = regexp.MustCompile(`^(?:lxc|qemu\.slice/[1-9][0-9]{2,8}\.scope)$`)

// Known reports whether a name is a group of a VM or Containers. The agent writes no other
// group.
func Known(group string) bool { return known.MatchString(group) }

// Errors of a host that cannot confine guests.
var (
	// ErrNoGroup means that the group or its file does not exist: the guest stopped, it runs
	// elsewhere, or the controller is off for the group.
	ErrNoGroup = errors.New("the control group or its file does not exist")
	// ErrNoController means that the host has no cpuset controller in version 2.
	ErrNoController = errors.New("the kernel has no cpuset controller in cgroup v2: boot without systemd.unified_cgroup_hierarchy=0")
)

// Tree is the control groups of a host.
type Tree struct {
	// Dir is their mount point, /sys/fs/cgroup except in tests.
	Dir string
}

const (
	configuredFile = "cpuset.cpus"
	effectiveFile  = "cpuset.cpus.effective"
)

// Exists reports whether the group exists.
func (t Tree) Exists(group string) bool {
	info, err := os.Stat(filepath.Join(t.Dir, group))
	return err == nil && info.IsDir()
}

// Configured returns the CPUs configured for a group, as the kernel prints them; empty means
// the CPUs of the parent group.
func (t Tree) Configured(group string) (string, error) { return t.read(group, configuredFile) }

// Effective returns the CPUs that a group may use. If the controller is off for the group,
// it uses the CPUs of the nearest ancestor.
func (t Tree) Effective(group string) (topology.CPUSet, error) {
	for ; ; group = path.Dir(group) {
		text, err := t.read(group, effectiveFile)
		if errors.Is(err, ErrNoGroup) && group != "." && t.Exists(group) {
			continue
		}
		if err != nil {
			return topology.CPUSet{}, err
		}
		set, err := topology.ParseCPUSet(text)
		if err != nil {
			return topology.CPUSet{}, fmt.Errorf("reading the CPUs of control group %s: %w", group, err)
		}
		return set, nil
	}
}

// Confine sets the CPUs of a group, and enables the controller for it if necessary. It
// returns an error if the group may then still use other CPUs.
func (t Tree) Confine(group string, cpus topology.CPUSet) error {
	if cpus.IsEmpty() {
		return fmt.Errorf("confining control group %s: no CPUs are left", group)
	}
	if !t.Exists(group) {
		return fmt.Errorf("confining control group %s: %w", group, ErrNoGroup)
	}
	controllers, err := t.read(".", "cgroup.controllers")
	if err != nil || !slices.Contains(strings.Fields(controllers), "cpuset") {
		return fmt.Errorf("confining control group %s: %w", group, ErrNoController)
	}
	if _, err := t.Configured(group); err != nil {
		// Enable the controller in each ancestor group.
		above := "."
		for part := range strings.SplitSeq(group, "/") {
			if err := t.write(above, "cgroup.subtree_control", "+cpuset"); err != nil {
				return err
			}
			above = path.Join(above, part)
		}
	}

	if err := t.write(group, configuredFile, cpus.String()); err != nil {
		return err
	}
	got, err := t.Effective(group)
	if err != nil {
		return err
	}
	if !got.IsSubsetOf(cpus) {
		return fmt.Errorf("confining control group %s to CPUs %s: the kernel still allows CPUs %s", group, cpus, got)
	}
	return nil
}

// Restore sets a group to an earlier result of Configured. Kernels before 6.12 reject an empty
// value while there are processes in the group. If the kernel rejects it, Restore sets all
// possible CPUs of the host, which is equivalent.
func (t Tree) Restore(group, configured string, possible topology.CPUSet) error {
	err := t.write(group, configuredFile, configured)
	if errors.Is(err, syscall.ENOSPC) && configured == "" {
		return t.write(group, configuredFile, possible.String())
	}
	return err
}

func (t Tree) read(group, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(t.Dir, group, file))
	if err != nil {
		return "", t.failed("reading", group, file, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// write writes text to an existing control file. It never creates one, because the kernel
// does not allow it.
func (t Tree) write(group, file, text string) error {
	out, err := os.OpenFile(filepath.Join(t.Dir, group, file), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return t.failed("writing", group, file, err)
	}
	_, err = out.WriteString(text + "\n")
	if err = errors.Join(err, out.Close()); err != nil {
		return t.failed("writing", group, file, err)
	}
	return nil
}

func (t Tree) failed(what, group, file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNoGroup
	}
	return fmt.Errorf("%s %s of control group %s: %w", what, file, group, err)
}
