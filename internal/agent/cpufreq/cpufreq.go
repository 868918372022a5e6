// Package cpufreq reads and writes the governors that scale the frequencies of a host's
// CPUs. It decides nothing and remembers nothing: start at Tree.Policies.
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
	// Dir is /sys/devices/system/cpu/cpufreq but in tests.
	Dir string
}

// Policy is CPUs that have one governor together.
type Policy struct {
	ID int
	// CPUs are those that are online.
	CPUs topology.CPUSet
	// Available are the governors that it can have; none where the kernel does not say.
	Available []string
}

var name = regexp.MustCompile(`^[a-z][a-z0-9_]{0,14}$`)

// CheckName returns an error that says what can be written, unless the text can be the
// name of a governor.
func CheckName(text string) error {
	if !name.MatchString(text) {
		return fmt.Errorf("%q is no governor: write one of those in /sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors", text)
	}
	return nil
}

// Policies returns all policies, sorted; none on a host whose frequencies are not the
// kernel's, such as a VM.
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
		// A policy whose CPUs are all offline can be listed and not be read.
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

// SetGovernor gives a policy a governor, and reads it back.
func (t Tree) SetGovernor(id int, governor string) error {
	err := CheckName(governor)
	if err == nil {
		err = t.write(id, governor)
	}
	if err != nil {
		return fmt.Errorf("giving frequency policy %d the governor %s: %w", id, governor, err)
	}
	got, err := t.Governor(id)
	if err == nil && got != governor {
		err = fmt.Errorf("giving frequency policy %d the governor %s: the kernel gives it %s", id, governor, got)
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

// write writes a file of the kernel, which is there or cannot be made.
func (t Tree) write(id int, governor string) error {
	out, err := os.OpenFile(t.file(id, governorFile), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = out.WriteString(governor + "\n")
	return errors.Join(err, out.Close())
}
