// Package cpufreq reads and writes the frequency scaling governors of a host's CPUs. It
// makes no decisions and keeps no state: start at Tree.Policies.
package cpufreq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Tree is the kernel's directory of policies.
type Tree struct {
	// Dir is /sys/devices/system/cpu/cpufreq except in tests.
	Dir string
}

// Policy is a set of CPUs that share a governor.
type Policy struct {
	ID int
	// CPUs are the online CPUs of the policy.
	CPUs topology.CPUSet
	// Available are the supported governors; empty if the kernel does not list them.
	Available []string
}

var name = regexp.MustCompile(`^[a-z][a-z0-9_]{0,14}$`)

// CheckName returns an error unless the text is a valid governor name. The error names the
// file that lists the valid names.
func CheckName(text string) error {
	if !name.MatchString(text) {
		return fmt.Errorf("%q is not a governor: set one that /sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors lists", text)
	}
	return nil
}

// Policies returns all policies, sorted. A host whose frequencies the kernel does not
// control, such as a VM, has none.
func (t Tree) Policies() ([]Policy, error) {
	entries, err := os.ReadDir(t.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing frequency policies: %w", err)
	}
	var policies []Policy
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry.Name(), "policy")
		id, err := strconv.Atoi(number)
		if !ok || err != nil || strconv.Itoa(id) != number {
			continue
		}
		policy := Policy{ID: id}
		// The kernel lists policies whose CPUs are all offline, but they cannot be read.
		if text, err := t.read(id, "affected_cpus"); err == nil {
			if policy.CPUs, err = topology.ParseCPUSet(strings.Join(strings.Fields(text), ",")); err != nil {
				return nil, fmt.Errorf("reading the CPUs of frequency policy %d: %w", id, err)
			}
		}
		if text, err := t.read(id, "scaling_available_governors"); err == nil {
			policy.Available = strings.Fields(text)
		}
		policies = append(policies, policy)
	}
	slices.SortFunc(policies, func(a, b Policy) int { return a.ID - b.ID })
	return policies, nil
}

// Governor returns the governor of a policy.
func (t Tree) Governor(id int) (string, error) {
	text, err := t.read(id, governorFile)
	if err == nil {
		err = CheckName(text)
	}
	if err != nil {
		return "", fmt.Errorf("reading the governor of frequency policy %d: %w", id, err)
	}
	return text, nil
}

// SetGovernor sets the governor of a policy, and verifies it.
func (t Tree) SetGovernor(id int, governor string) error {
	err := CheckName(governor)
	if err == nil {
		// The kernel provides the file, so never create it.
		var out *os.File
		if out, err = os.OpenFile(t.file(id, governorFile), os.O_WRONLY|os.O_TRUNC, 0); err == nil {
			_, err = out.WriteString(governor + "\n")
			err = errors.Join(err, out.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("setting the governor of frequency policy %d to %s: %w", id, governor, err)
	}
	got, err := t.Governor(id)
	if err == nil && got != governor {
		err = fmt.Errorf("setting the governor of frequency policy %d to %s: the kernel set %s", id, governor, got)
	}
	return err
}

const governorFile = "scaling_governor"

func (t Tree) file(id int, file string) string {
	return filepath.Join(t.Dir, "policy"+strconv.Itoa(id), file)
}

func (t Tree) read(id int, file string) (string, error) {
	data, err := os.ReadFile(t.file(id, file))
	return strings.TrimSpace(string(data)), err
}
