package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/topology"
)

// tree writes files of control groups. No kernel interprets them here; the tests of
// cmd/numaform-agent use real ones.
func tree(t *testing.T, files map[string]string) cgroup.Tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return cgroup.Tree{Dir: dir}
}

const scope = "qemu.slice/101.scope/"

func TestConfine(t *testing.T) {
	t.Parallel()
	on := map[string]string{
		"cgroup.controllers": "cpu cpuset memory", "cgroup.subtree_control": "cpu", "qemu.slice/cgroup.subtree_control": "cpu",
		scope + "cpuset.cpus": "", scope + "cpuset.cpus.effective": "0-1",
	}
	groups := tree(t, on)
	if err := groups.Confine(cgroup.VM(101), topology.CPUs(0, 1)); err != nil {
		t.Fatal(err)
	}
	if got, err := groups.Configured(cgroup.VM(101)); err != nil || got != "0-1" {
		t.Errorf("configured %q, %v", got, err)
	}
	if err := groups.Restore(cgroup.VM(101), "", topology.CPUs(0, 1)); err != nil {
		t.Fatal(err)
	}
	if got, err := groups.Configured(cgroup.VM(101)); err != nil || got != "" {
		t.Errorf("restored to %q, %v", got, err)
	}
	if err := groups.Confine(cgroup.VM(101), topology.CPUs(1)); err == nil || !strings.Contains(err.Error(), "the kernel still allows CPUs 0-1") {
		t.Errorf("error %v, want one about the CPUs that the kernel allows", err)
	}
	if err := groups.Confine(cgroup.VM(101), topology.CPUSet{}); err == nil {
		t.Error("a guest was confined to no CPUs")
	}
	if err := groups.Confine(cgroup.VM(102), topology.CPUs(0)); !errors.Is(err, cgroup.ErrNoGroup) {
		t.Errorf("error %v, want %v", err, cgroup.ErrNoGroup)
	}
}

// TestController checks that Confine enables the controller in each ancestor group, and
// reports a missing controller.
func TestController(t *testing.T) {
	t.Parallel()
	groups := tree(t, map[string]string{
		"cgroup.controllers": "cpuset", "cgroup.subtree_control": "", "qemu.slice/cgroup.subtree_control": "", scope + "cgroup.procs": "",
		"cpuset.cpus.effective": "0-7",
	})
	// No kernel creates the file, so Confine fails at the end.
	if err := groups.Confine(cgroup.VM(101), topology.CPUs(0)); !errors.Is(err, cgroup.ErrNoGroup) {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"cgroup.subtree_control", "qemu.slice/cgroup.subtree_control"} {
		if data, err := os.ReadFile(filepath.Join(groups.Dir, name)); err != nil || string(data) != "+cpuset\n" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if _, err := os.Stat(filepath.Join(groups.Dir, scope, "cpuset.cpus")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was created in a control group: %v", err)
	}
	if got, err := groups.Effective(cgroup.VM(101)); err != nil || !got.Equal(topology.CPUs(0, 1, 2, 3, 4, 5, 6, 7)) {
		t.Errorf("effective %s, %v, want the CPUs of the root group", got, err)
	}
	old := tree(t, map[string]string{scope + "x": ""})
	if err := old.Confine(cgroup.VM(101), topology.CPUs(0)); !errors.Is(err, cgroup.ErrNoController) {
		t.Errorf("error %v, want %v", err, cgroup.ErrNoController)
	}
	if _, err := old.Effective(cgroup.VM(101)); !errors.Is(err, cgroup.ErrNoGroup) {
		t.Errorf("error %v, want %v", err, cgroup.ErrNoGroup)
	}
}

func TestKnown(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]bool{
		cgroup.Containers: true, cgroup.VM(101): true, "": false, ".": false, "lxc/200": false, "system.slice": false,
		"qemu.slice/101.scope/..": false, "qemu.slice/../101.scope": false, "/lxc": false, "qemu.slice/101.scope\n": false,
	} {
		if got := cgroup.Known(group); got != want {
			t.Errorf("Known(%q) = %t", group, got)
		}
	}
}
