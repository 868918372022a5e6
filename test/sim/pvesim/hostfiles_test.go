package pvesim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestExportHost checks the exported files of a host, and that Threads returns the CPUs
// that a program writes for threads and control groups.
func TestExportHost(t *testing.T) {
	t.Parallel()
	c, dir := start(t, cluster()), t.TempDir()
	if err := c.server.ExportHost("pve-9", dir); err == nil {
		t.Error("a host that does not exist was exported")
	}
	if err := c.server.ExportHost("pve-1", dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSuffix(string(text), "\n")
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
	want := func(step string, vmid int, cpus string) {
		t.Helper()
		threads, _ := c.server.Threads(vmid)
		if got := fmt.Sprint(threads.VCPUs, threads.Others); got != cpus {
			t.Errorf("%s: threads of %d on %s, want %s", step, vmid, got, cpus)
		}
	}
	put := func(host string) {
		t.Helper()
		config := map[string]string{"cores": "2", "memory": "1024", "description": "100 %: é\nsecond"}
		if err := c.server.PutGuest(pvesim.Foreign{VMID: 500, Host: host, Config: config, Running: true}); err != nil {
			t.Fatal(err)
		}
	}
	put("pve-1")
	if got := read("etc/pve/qemu-server/500.conf"); !strings.HasPrefix(got, "#100 %25%3A %C3%A9\n#second\ncores: 2\n") {
		t.Errorf("configuration %q", got)
	}
	pid := read("run/qemu-server/500.pid")
	if got := read("proc/" + pid + "/cmdline"); !strings.Contains(got, "\x00-pidfile\x00/var/run/qemu-server/500.pid\x00") {
		t.Errorf("command line %q", got)
	}
	want("at first", 500, "[0-15 0-15] 0-15")
	want("at first", 100, "[0-1 0-1 0-1 0-1] 0-1")
	comms, err := filepath.Glob(filepath.Join(dir, "proc", pid, "task/*/comm"))
	if err != nil || len(comms) != 4 {
		t.Fatalf("threads %v, %v", comms, err)
	}
	for _, comm := range comms {
		tid := filepath.Base(filepath.Dir(comm))
		if text, _ := os.ReadFile(comm); string(text) == "CPU 1/KVM\n" {
			write("proc/"+tid+"/status", "Cpus_allowed_list:\t7")
		}
	}
	want("moved", 500, "[0-15 7] 0-15")
	write("sys/fs/cgroup/qemu.slice/500.scope/cpuset.cpus", "2-4")
	want("confined", 500, "[2-4 2-4] 2-4")
	write("sys/fs/cgroup/lxc/cpuset.cpus", "5")
	want("containers confined", 200, "[5] 5")

	put("pve-2")
	want("on a host without export", 500, "[0-15 0-15] 0-15")
	for _, name := range []string{"etc/pve/qemu-server/500.conf", "run/qemu-server/500.pid", "proc/" + pid, "sys/fs/cgroup/qemu.slice/500.scope"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after the guest left: %v", name, err)
		}
	}
	if err := c.server.ExportHost("pve-1", ""); err != nil {
		t.Error(err)
	}
	c.server.RemoveGuest(100)
	read("etc/pve/qemu-server/100.conf") // still exists: the export has ended
}

// TestExportFails checks that the end of an export reports failed writes.
func TestExportFails(t *testing.T) {
	t.Parallel()
	c, dir := start(t, cluster()), t.TempDir()
	if err := c.server.ExportHost("pve-2", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "run"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := map[string]string{"cores": "1"}
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 500, Host: "pve-2", Kind: pvesim.GuestVM, Config: config, Running: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.server.ExportHost("pve-2", ""); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("error %v", err)
	}
}
