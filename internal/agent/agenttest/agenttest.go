//go:build linux

// Package agenttest provides fixtures for tests of the host agent: a directory that looks
// like the file system of a Proxmox host, and processes that act as VMs: QEMU, or a test
// binary whose threads have QEMU's names. Start at New.
package agenttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// vcpusVariable is the environment variable that makes a test binary act as a VM; its value
// is the number of vCPUs.
const vcpusVariable = "NUMAFORM_TEST_VCPUS"

// Play acts as a VM if the process was started as one, and reports whether it was; the
// process must then exit. TestMain calls it first.
func Play() bool {
	vcpus, err := strconv.Atoi(os.Getenv(vcpusVariable))
	if err != nil {
		return false
	}
	for i := range vcpus {
		go func() {
			runtime.LockOSThread()
			comm := fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid())
			if err := os.WriteFile(comm, []byte(fmt.Sprintf("CPU %d/KVM", i)), 0o600); err != nil {
				panic(err)
			}
			select {}
		}()
	}
	// The parent process has the other end.
	_, _ = os.Stdin.Read(make([]byte, 1))
	return true
}

// Host is a directory that looks like a Proxmox host.
type Host struct {
	Root string
	t    testing.TB
	vms  map[int]*exec.Cmd
}

// New creates a host with these CPUs, each a core of its own. Its /proc is the real one.
func New(t testing.TB, cpus topology.CPUSet) *Host {
	t.Helper()
	h := &Host{Root: t.TempDir(), t: t, vms: map[int]*exec.Cmd{}}
	if err := os.Symlink("/proc", filepath.Join(h.Root, "proc")); err != nil {
		t.Fatal(err)
	}
	h.Write("sys/devices/system/cpu/online", cpus.String()+"\n")
	h.Write("run/qemu-server/.keep", "")
	h.Write("etc/pve/lxc/.keep", "")
	h.Settings("clusters: [prod]\n")
	return h
}

// Write writes a file atomically.
func (h *Host) Write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.Root, name)
	err := errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path),
	)
	if err != nil {
		h.t.Fatal(err)
	}
}

// Settings writes the agent's configuration.
func (h *Host) Settings(text string) { h.Write("etc/numaform-agent.yaml", text) }

// Marker returns the marker of a VM with these pins.
func Marker(vmid int, pins ...int) fleet.Marker {
	return fleet.Marker{ClusterID: "prod", Key: fleet.Key(fmt.Sprintf("%032x", vmid)), Pins: pins}
}

// Declare writes a VM's configuration; more are additional lines.
func (h *Host) Declare(vmid int, description string, more ...string) {
	h.t.Helper()
	var text strings.Builder
	for line := range strings.Lines(description) {
		text.WriteString("#" + strings.TrimRight(line, "\n") + "\n")
	}
	text.WriteString("cores: 2\nname: workers-" + strconv.Itoa(vmid) + "\n")
	for _, line := range more {
		text.WriteString(line + "\n")
	}
	h.Write(fmt.Sprintf("etc/pve/qemu-server/%d.conf", vmid), text.String())
}

// pidFile returns the path where Proxmox makes QEMU write its process id.
func (h *Host) pidFile(vmid int) string {
	return filepath.Join(h.Root, "run/qemu-server", strconv.Itoa(vmid)+".pid")
}

// Start starts a process that acts as a VM, with additional QEMU arguments, and returns its
// process ID.
func (h *Host) Start(vmid, vcpus int, args ...string) int {
	h.t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-pidfile", h.pidFile(vmid)}, args...)...) //nolint:gosec,noctx // the test itself
	cmd.Env = append(os.Environ(), vcpusVariable+"="+strconv.Itoa(vcpus))
	if _, err := cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	h.begin(vmid, cmd)
	h.Write(fmt.Sprintf("run/qemu-server/%d.pid", vmid), strconv.Itoa(cmd.Process.Pid)+"\n")
	return cmd.Process.Pid
}

// NeedsQEMU skips the test under go test -short, and in make test WITHOUT=qemu.
func NeedsQEMU(t testing.TB) {
	t.Helper()
	if testing.Short() || slices.Contains(strings.Fields(os.Getenv("NUMAFORM_WITHOUT")), "qemu") {
		t.Skip("needs QEMU, which go test -short and NUMAFORM_WITHOUT leave out") //nolint:forbidigo // only if the user says so
	}
}

// StartQEMU starts a real VM without a disk, stopped before its first instruction, and returns
// its process ID.
func (h *Host) StartQEMU(vmid, vcpus int) int {
	h.t.Helper()
	NeedsQEMU(h.t)
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		h.t.Fatal("no QEMU: run make qemu, or install qemu-system-x86")
	}
	cmd := exec.Command(path, "-name", fmt.Sprintf("workers-%d,debug-threads=on", vmid), "-pidfile", h.pidFile(vmid), //nolint:gosec,noctx // the test's own
		"-accel", "tcg,thread=multi", "-smp", strconv.Itoa(vcpus), "-m", "16", "-S", "-nodefaults", "-display", "none",
		"-object", "iothread,id=io0")
	cmd.Stderr = os.Stderr
	h.begin(vmid, cmd)
	return cmd.Process.Pid
}

func (h *Host) begin(vmid int, cmd *exec.Cmd) {
	h.t.Helper()
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.vms[vmid] = cmd
	h.t.Cleanup(func() {
		if h.vms[vmid] == cmd {
			h.Stop(vmid)
		}
	})
}

// Stop ends a VM; its pid file remains, as after a crash.
func (h *Host) Stop(vmid int) {
	cmd := h.vms[vmid]
	delete(h.vms, vmid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Threads returns the CPUs of each vCPU thread, and of all other threads of a VM. Both are
// nil if the VM is not running.
func (h *Host) Threads(vmid int) (vcpus, others []topology.CPUSet) {
	cmd := h.vms[vmid]
	if cmd == nil {
		return nil, nil
	}
	threads, err := qemu.Reader{Root: "/"}.Threads(qemu.Run{PID: cmd.Process.Pid})
	if err != nil {
		return nil, nil
	}
	for _, thread := range threads {
		set, err := qemu.Kernel{}.Affinity(thread.TID)
		switch {
		case err != nil:
		case thread.VCPU == qemu.Other:
			others = append(others, set)
		default:
			vcpus = append(vcpus, set)
		}
	}
	return vcpus, others
}

// Pinned returns an error unless the vCPUs of a VM are pinned to cpus, in order, and all other
// threads of the VM may run exactly on others.
func (h *Host) Pinned(vmid int, others topology.CPUSet, cpus ...int) error {
	vcpus, rest := h.Threads(vmid)
	if len(vcpus) != len(cpus) {
		return fmt.Errorf("VM %d has %d vCPUs instead of %d", vmid, len(vcpus), len(cpus))
	}
	for i, cpu := range cpus {
		if !vcpus[i].Equal(topology.CPUs(cpu)) {
			return fmt.Errorf("vCPU %d of VM %d is on CPUs %s instead of CPU %d", i, vmid, vcpus[i], cpu)
		}
	}
	return all(vmid, rest, others)
}

// On returns an error unless each thread of a VM may run on exactly these CPUs.
func (h *Host) On(vmid int, cpus topology.CPUSet) error {
	vcpus, others := h.Threads(vmid)
	return all(vmid, append(vcpus, others...), cpus)
}

func all(vmid int, sets []topology.CPUSet, want topology.CPUSet) error {
	if len(sets) == 0 {
		return fmt.Errorf("VM %d has no threads", vmid)
	}
	for _, set := range sets {
		if !set.Equal(want) {
			return fmt.Errorf("a thread of VM %d is on CPUs %s instead of %s", vmid, set, want)
		}
	}
	return nil
}

// Eventually waits until check succeeds, and returns how long that took. It fails the test
// after a minute.
func Eventually(t testing.TB, check func() error) time.Duration {
	t.Helper()
	begun := time.Now()
	deadline, ticker := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return time.Since(begun)
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
