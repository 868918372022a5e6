//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/agent/agenttest"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

const groups = "/sys/fs/cgroup"

// hostVariable is the environment variable that makes the test binary run the tests that
// require a separate machine.
const hostVariable = "NUMAFORM_TEST_HOST"

// hostMain is the first program of the separate machine: it mounts the file systems of a
// host, runs the tests, and reboots, which ends QEMU.
func hostMain() {
	fmt.Println("the first program runs")
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"}, {"cgroup2", groups}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			fmt.Println("mounting", m[1], err)
		}
	}
	cmd := exec.Command("/init", "-test.v") //nolint:noctx // the machine ends with it
	cmd.Env = append(os.Environ(), hostVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("\n" + hostPassed)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// hostPassed is the last line that the machine prints if its tests pass.
const hostPassed = "the tests of the host passed"

// inHost runs the tests of TestHost and exits.
func inHost() {
	testing.Main(regexp.MatchString, []testing.InternalTest{
		{Name: "report", F: inHostReport},
		{Name: "enforce", F: inHostEnforce},
		{Name: "doubt", F: inHostDoubt},
		{Name: "clock", F: inHostClock},
		{Name: "hotplug", F: inHostHotplug},
		{Name: "interrupts", F: inHostInterrupts},
	}, nil, nil)
}

// scene is the machine as a Proxmox host.
type scene struct {
	*agenttest.Host
	t *testing.T
}

// newScene returns a scene with the machine's own /sys, and a directory for the host's
// other files.
func newScene(t *testing.T) *scene {
	h := agenttest.New(t, topology.CPUs())
	if err := os.RemoveAll(filepath.Join(h.Root, "sys")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/sys", filepath.Join(h.Root, "sys")); err != nil {
		t.Fatal(err)
	}
	return &scene{Host: h, t: t}
}

// group creates a control group, and returns a function that moves a process into it.
func (s *scene) group(name string) func(pid int) {
	s.t.Helper()
	path := filepath.Join(groups, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		agenttest.Eventually(s.t, func() error { return os.Remove(path) })
	})
	return func(pid int) {
		if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// vm starts a VM in its control group.
func (s *scene) vm(vmid, vcpus int, args ...string) {
	s.group(fmt.Sprintf("qemu.slice/%d.scope", vmid))(s.Start(vmid, vcpus, args...))
}

// container starts a container; its process looks like a VM without vCPUs.
func (s *scene) container(vmid int) {
	s.group(fmt.Sprintf("lxc/%d", vmid))(s.Start(vmid, 0))
	if err := os.Remove(filepath.Join(s.Root, "run/qemu-server", fmt.Sprint(vmid)+".pid")); err != nil {
		s.t.Fatal(err)
	}
	s.Write(fmt.Sprintf("etc/pve/lxc/%d.conf", vmid), "arch: amd64\n")
}

// on waits until the guests have exactly these CPUs.
func (s *scene) on(cpus topology.CPUSet, vmids ...int) {
	s.t.Helper()
	for _, vmid := range vmids {
		took := agenttest.Eventually(s.t, func() error { return s.On(vmid, cpus) })
		s.t.Logf("guest %d on %s after %s", vmid, cpus, took.Round(time.Millisecond))
	}
}

func (s *scene) pinned(vmid int, cpus ...int) {
	s.t.Helper()
	took := agenttest.Eventually(s.t, func() error { return s.Pinned(vmid, topology.CPUs(cpus...), cpus...) })
	s.t.Logf("VM %d pinned to %v after %s", vmid, cpus, took.Round(time.Millisecond))
}

// configured returns the CPUs configured for a control group.
func configured(group string) string {
	data, err := os.ReadFile(filepath.Join(groups, group, "cpuset.cpus"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func six() topology.CPUSet { return topology.CPUs(0, 1, 2, 3, 4, 5) }

// inHostReport checks that guests on pinned CPUs are reported and not moved.
func inHostReport(t *testing.T) {
	s := newScene(t)
	s.vm(105, 1)
	s.Declare(105, "a database")
	s.container(200)
	s.vm(101, 2)
	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	p := start(t, s.Host)
	s.pinned(101, 3, 2)
	agenttest.Eventually(t, says(p, `msg="guest may run on pinned CPUs" vmid=105 cpus=2-3`))
	agenttest.Eventually(t, says(p, `msg="guest may run on pinned CPUs" vmid=200 cpus=2-3`))
	s.on(six(), 105, 200)
	if got := configured("lxc") + configured("qemu.slice/105.scope"); got != "" {
		t.Errorf("control groups were given %q", got)
	}
}

// inHostEnforce checks that guests are kept off pinned CPUs and their siblings, whenever
// they start, and get all CPUs back.
func inHostEnforce(t *testing.T) {
	s := newScene(t)
	s.vm(105, 1)
	s.Declare(105, "a database")
	s.container(200)
	s.vm(101, 2)
	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	p := start(t, s.Host, "--isolation", "enforce")
	s.pinned(101, 3, 2)
	rest := topology.CPUs(0, 1, 4, 5)
	s.on(rest, 105, 200)
	if got := configured("qemu.slice/101.scope"); got != "2-3" {
		t.Errorf("the control group of the pinned VM was given %q, want its own CPUs", got)
	}

	s.container(201)
	s.on(rest, 201)
	s.vm(106, 2)
	s.on(rest, 106)

	if err := os.WriteFile(groups+"/qemu.slice/105.scope/cpuset.cpus", []byte("0-5"), 0o600); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, says(p, "confined control group that another program changed"))
	s.on(rest, 105)

	// A confined guest gets pins: the other guests may no longer use its CPUs.
	s.Declare(106, agenttest.Marker(106, 4, 5).String())
	s.pinned(106, 4, 5)
	s.on(topology.CPUs(0, 1), 105, 200, 201)
	s.Declare(106, "")
	s.on(rest, 106, 105, 200)

	p.kill(syscall.SIGKILL)
	s.Declare(101, agenttest.Marker(101, 5, 0).String())
	p = start(t, s.Host, "--isolation", "enforce")
	s.pinned(101, 5, 0)
	s.on(topology.CPUs(2, 3), 105, 106, 200, 201)

	p.kill(syscall.SIGTERM)
	s.on(topology.CPUs(2, 3), 105)
	p = start(t, s.Host)
	s.on(six(), 105, 106, 200, 201)
	p.kill(syscall.SIGTERM)
	p = start(t, s.Host, "--isolation", "enforce")
	s.on(topology.CPUs(2, 3), 105, 106, 200, 201)

	s.Declare(101, "")
	s.on(six(), 101, 105, 106, 200, 201)
	for _, group := range []string{"lxc", "qemu.slice/101.scope", "qemu.slice/105.scope", "qemu.slice/106.scope"} {
		if got := configured(group); got != "" && got != six().String() {
			t.Errorf("control group %s kept %q", group, got)
		}
	}

	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	s.on(rest, 105, 200)
	p.kill(syscall.SIGTERM)
	if out, err := command(s.Host, "release").CombinedOutput(); err != nil {
		t.Fatalf("release: %v: %s", err, out)
	}
	s.on(six(), 101, 105, 106, 200, 201)
}

// inHostDoubt checks that a description without valid pins moves nothing, and that the
// journal explains why.
func inHostDoubt(t *testing.T) {
	s := newScene(t)
	s.vm(101, 2)
	s.vm(102, 1)
	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	p := start(t, s.Host, "--isolation", "enforce")
	s.pinned(101, 3, 2)
	unmanaged := agenttest.Marker(101, 4, 5)
	unmanaged.ClusterID = "other"
	for reason, description := range map[string]string{
		"malformed": "numaform/1 cluster=prod key=; rm -rf / pins=4,5", "no_such_cpu": agenttest.Marker(101, 4, 6).String(),
		"vcpus_differ": agenttest.Marker(101, 4).String(), "foreign_cluster": unmanaged.String(),
	} {
		s.Declare(101, description)
		agenttest.Eventually(t, says(p, "reason="+reason))
		s.pinned(101, 3, 2)
	}
	for reason, description := range map[string]string{
		"overlap": agenttest.Marker(102, 2).String(), "key_twice": agenttest.Marker(101, 4).String(),
	} {
		s.Declare(101, agenttest.Marker(101, 3, 2).String())
		s.Declare(102, description)
		agenttest.Eventually(t, says(p, "reason="+reason))
		s.on(topology.CPUs(0, 1, 4, 5), 102)
		s.pinned(101, 3, 2)
	}
	s.Settings("clusters: [prod]\nmax_pinned_percent: 40\n")
	p.kill(syscall.SIGTERM)
	p = start(t, s.Host, "--isolation", "enforce")
	s.Declare(102, agenttest.Marker(102, 4).String())
	agenttest.Eventually(t, says(p, "reason=ceiling"))
	s.on(topology.CPUs(0, 1, 4, 5), 102)
	s.pinned(101, 3, 2)
}

// inHostClock checks that no decision depends on the clock.
func inHostClock(t *testing.T) {
	s := newScene(t)
	s.vm(101, 2)
	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	start(t, s.Host)
	s.pinned(101, 3, 2)
	for i, jump := range []time.Duration{87600 * time.Hour, -2 * 87600 * time.Hour} {
		now := unix.NsecToTimeval(time.Now().Add(jump).UnixNano())
		if err := unix.Settimeofday(&now); err != nil {
			t.Fatal(err)
		}
		s.Declare(101, agenttest.Marker(101, i, 5).String())
		s.pinned(101, i, 5)
	}
}

// inHostHotplug checks that pins to a removed CPU are released, and that the next
// declaration takes effect.
func inHostHotplug(t *testing.T) {
	s := newScene(t)
	s.vm(101, 2)
	s.Declare(101, agenttest.Marker(101, 4, 5).String())
	p := start(t, s.Host)
	s.pinned(101, 4, 5)
	online := func(value string) {
		if err := os.WriteFile("/sys/devices/system/cpu/cpu5/online", []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	online("0")
	agenttest.Eventually(t, says(p, "reason=no_such_cpu"))
	s.on(topology.CPUs(0, 1, 2, 3, 4), 101)
	online("1")
	s.pinned(101, 4, 5)
	if set, err := (qemu.Kernel{}).Affinity(0); err != nil || !set.Equal(six()) {
		t.Errorf("this process is on %s, %v", set, err)
	}
}

// inHostInterrupts checks that the interrupts of a VM's devices are moved to its CPUs until
// release, and that the journal reports an interrupt that cannot be moved. The devices are
// this machine's serial line, and its timer, whose interrupt the kernel refuses to move.
func inHostInterrupts(t *testing.T) {
	s := newScene(t)
	if err := os.Remove(filepath.Join(s.Root, "sys")); err != nil {
		t.Fatal(err)
	}
	for i, irq := range []string{"4", "0"} {
		s.Write("sys/bus/pci/devices/0000:41:00.0/msi_irqs/"+irq, "msix\n")
		s.Write("sys/kernel/irq/"+irq+"/actions", fmt.Sprintf("vfio-msix[%d](0000:41:00.0)\n", i))
	}
	for _, name := range []string{"devices", "fs"} {
		if err := os.Symlink("/sys/"+name, filepath.Join(s.Root, "sys", name)); err != nil {
			t.Fatal(err)
		}
	}
	s.Settings("clusters: [prod]\nirqs: guest\n")
	s.vm(101, 2, "-device", "vfio-pci,host=0000:41:00.0,id=hostpci0")
	s.Declare(101, agenttest.Marker(101, 3, 2).String())
	p := start(t, s.Host)
	handled := func(cpus string) func() error {
		return func() error {
			data, err := os.ReadFile("/proc/irq/4/smp_affinity_list")
			if got := strings.TrimSpace(string(data)); err != nil || got != cpus {
				return fmt.Errorf("the interrupt is on %s, %w, want %s", got, err, cpus)
			}
			return nil
		}
	}
	agenttest.Eventually(t, handled("2-3"))
	agenttest.Eventually(t, says(p, `msg="interrupt not moved" vmid=101 irq=0`))
	agenttest.Eventually(t, says(p, "input/output error"))
	p.kill(syscall.SIGKILL)
	if out, err := command(s.Host, "release").CombinedOutput(); err != nil {
		t.Fatalf("release: %v: %s", err, out)
	}
	agenttest.Eventually(t, handled("0-5"))
	s.on(six(), 101)
}
