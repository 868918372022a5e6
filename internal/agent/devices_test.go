//go:build linux

package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/agent/agenttest"
	"github.com/numaform/numaform/topology"
)

const frequencies = "sys/devices/system/cpu/cpufreq/"

// policy adds a frequency policy to the host.
func (w *world) policy(id int, governor string, cpus ...int) {
	dir := fmt.Sprintf("%spolicy%d/", frequencies, id)
	w.Write(dir+"affected_cpus", strings.Trim(fmt.Sprint(cpus), "[]")+"\n")
	w.Write(dir+"scaling_available_governors", "performance powersave schedutil\n")
	w.Write(dir+"scaling_governor", governor+"\n")
}

// file returns an error unless the host's file has this text.
func (w *world) file(name, want string) error {
	data, err := os.ReadFile(filepath.Join(w.Root, name))
	if got := strings.TrimSpace(string(data)); err != nil || got != want {
		return fmt.Errorf("%s is %q, %w, want %q", name, got, err, want)
	}
	return nil
}

// governor checks the governors of the two policies.
func (w *world) governor(first, second string) {
	w.t.Helper()
	w.must(errors.Join(w.file(frequencies+"policy0/scaling_governor", first), w.file(frequencies+"policy1/scaling_governor", second)))
}

const governed = "clusters: [prod]\ngovernor: {pinned: performance}\n"

// TestGovernor checks that the CPUs of a pinned guest and their siblings have the
// configured governor as long as the pins last, even if the agent restarts.
func TestGovernor(t *testing.T) {
	w := newWorld(t)
	w.Write(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", w.one), fmt.Sprintf("%d,%d\n", w.one, w.two))
	w.Write(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", w.two), fmt.Sprintf("%d,%d\n", w.one, w.two))
	w.policy(0, "schedutil", w.one)
	w.policy(1, "powersave", w.two)
	w.policy(2, "powersave", w.none)
	w.begin(governed + "metrics_dir: " + w.Root + "\n")
	w.ready(101, 1)
	w.Declare(101, "nothing")
	w.Sync()
	w.governor("schedutil", "powersave")

	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.Sync()
	w.governor("performance", "performance")
	w.must(w.file(frequencies+"policy2/scaling_governor", "powersave"))
	w.logged(fmt.Sprintf(`msg="set governor" cpus=%s governor=performance`, topology.CPUs(w.one, w.two)))
	for range 2 {
		w.Write(frequencies+"policy0/scaling_governor", "powersave\n")
		w.Sync()
		w.governor("performance", "performance")
	}
	if got := strings.Count(w.journal.String(), "restored governor that another program changed"); got != 1 {
		t.Errorf("logged %d times", got)
	}
	if got, want := w.text(), fmt.Sprintf("governor   CPUs %d performance, was schedutil; restored 2 times\n", w.one); !strings.Contains(got, want) {
		t.Errorf("status lacks %q:\n%s", want, got)
	}
	if !strings.Contains(w.metrics(), "\nnumaform_agent_governors_put_back 2\n") {
		t.Errorf("metrics:\n%s", w.metrics())
	}

	// A new agent restores the earlier governors after the old agent was killed.
	w.begin(governed)
	w.Write(frequencies+"policy1/scaling_governor", "powersave\n")
	w.begin("clusters: [prod]\ngovernor: {pinned: performance, free: powersave}\n")
	w.governor("performance", "performance")
	w.Declare(101, "nothing")
	w.Sync()
	w.governor("powersave", "powersave")
	w.Write(frequencies+"policy0/scaling_governor", "performance\n")
	w.Sync()
	w.governor("performance", "powersave")
	w.begin("clusters: [prod]")
	w.governor("schedutil", "powersave")
	w.logged(fmt.Sprintf(`msg="set governor" cpus=%d governor=schedutil`, w.one))

	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.begin("clusters: [prod]\ngovernor: {pinned: performance, free: powersave}\n")
	w.governor("performance", "performance")
	w.must(w.Release())
	w.governor("schedutil", "powersave")
}

// TestGovernorOfUnpinned checks that CPUs that never had pins get the governor for unpinned
// CPUs, once, and that their earlier one returns with the agent's settings.
func TestGovernorOfUnpinned(t *testing.T) {
	w := newWorld(t)
	w.policy(0, "schedutil", w.one)
	w.policy(1, "performance", w.two)
	const settings = "clusters: [prod]\ngovernor: {pinned: performance, unpinned: powersave}\n"
	w.begin(settings)
	w.ready(101, 1)
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.Sync()
	w.governor("performance", "powersave")
	w.Declare(101, "nothing")
	w.Sync()
	w.governor("powersave", "powersave")

	// Another program may change it.
	w.Write(frequencies+"policy1/scaling_governor", "schedutil\n")
	w.Sync()
	w.governor("powersave", "schedutil")
	w.begin(settings)
	w.governor("powersave", "powersave")
	w.begin(governed)
	w.governor("schedutil", "performance")
}

// TestGovernorTogether checks that CPUs with a common governor get their earlier one back
// when the last of them is free.
func TestGovernorTogether(t *testing.T) {
	w := newWorld(t)
	w.policy(0, "schedutil", w.one, w.two)
	w.begin(governed)
	w.ready(101, 1)
	w.ready(102, 1)
	for _, step := range []struct {
		first, second bool
		want          string
	}{{true, false, "performance"}, {true, true, "performance"}, {false, true, "performance"}, {false, false, "schedutil"}} {
		for vmid, cpu := range map[int]int{101: w.one, 102: w.two} {
			text := "nothing"
			if vmid == 101 && step.first || vmid == 102 && step.second {
				text = agenttest.Marker(vmid, cpu).String()
			}
			w.Declare(vmid, text)
		}
		w.Sync()
		w.must(w.file(frequencies+"policy0/scaling_governor", step.want))
	}
}

func TestGovernorIsNotHad(t *testing.T) {
	w := newWorld(t)
	w.begin(governed)
	if got := w.text(); !strings.Contains(got, "governor   none: this host has no cpufreq") {
		t.Errorf("status:\n%s", got)
	}
	// The driver is loaded later, and supports another governor.
	w.ready(101, 1)
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.policy(0, "schedutil", w.one)
	w.must(os.Remove(filepath.Join(w.Root, frequencies, "policy0/scaling_governor")))
	w.must(os.Mkdir(filepath.Join(w.Root, frequencies, "policy0/scaling_governor"), 0o755))
	w.Sync()
	w.must(w.Pinned(101, topology.CPUs(w.one), w.one))

	settings, err := agent.ParseSettings([]byte("governor: {pinned: ondemand}"))
	w.must(err)
	refusing, err := agent.New(agent.Options{Root: w.Root, StateDir: w.dir, Settings: settings, Interval: time.Hour, Log: w.Log, Now: w.Now})
	w.must(err)
	if err := refusing.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "do not support governor \"ondemand\": set one of performance, powersave, schedutil") {
		t.Errorf("error %v", err)
	}
	w.must(refusing.Release())
}

// ownProc gives the host a /proc with interrupts that differ from this machine's.
func (w *world) ownProc(pids ...int) {
	w.t.Helper()
	proc := filepath.Join(w.Root, "proc")
	w.must(errors.Join(os.Remove(proc), os.Mkdir(proc, 0o755)))
	for _, name := range []string{"uptime", "cpuinfo", "meminfo", fmt.Sprint(os.Getpid())} {
		w.must(os.Symlink("/proc/"+name, filepath.Join(proc, name)))
	}
	for _, pid := range pids {
		w.must(os.Symlink(fmt.Sprint("/proc/", pid), filepath.Join(proc, fmt.Sprint(pid))))
	}
}

const device = "0000:41:00.0"

// message adds a message-signaled interrupt of the device to the host.
func (w *world) message(irq int, action string) {
	w.Write(fmt.Sprintf("sys/bus/pci/devices/%s/msi_irqs/%d", device, irq), "msix\n")
	w.Write(fmt.Sprintf("sys/kernel/irq/%d/actions", irq), action+"\n")
	w.Write(affinityOf(irq), "0-1000\n")
}

func affinityOf(irq int) string { return fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq) }

// TestInterrupts checks that the interrupts of a pinned guest's device are on the guest's
// CPUs as long as the pins last, and that no other interrupts are moved.
func TestInterrupts(t *testing.T) {
	w := newWorld(t)
	w.ready(102, 1)
	pid := w.ready(101, 2, "-device", "vfio-pci,host="+device+",id=hostpci0,bus=ich9-pcie-port-1,addr=0x0")
	w.ownProc(pid)
	w.message(57, "vfio-msix[0]("+device+")")
	w.message(58, "vfio-msix[1]("+device+")")
	w.message(59, "nvme0q1")
	w.message(60, "vfio-msix[0](0000:42:00.0)")
	w.Declare(101, agenttest.Marker(101, w.two, w.one).String())
	w.begin("clusters: [prod]")
	w.Sync()
	w.must(w.file(affinityOf(57), "0-1000"))

	asked := "clusters: [prod]\nirqs: guest\n"
	w.begin(asked)
	both := topology.CPUs(w.one, w.two).String()
	untouched := func() error { return errors.Join(w.file(affinityOf(59), "0-1000"), w.file(affinityOf(60), "0-1000")) }
	w.must(errors.Join(w.file(affinityOf(57), both), w.file(affinityOf(58), both), untouched()))
	w.logged(`msg="moved interrupts" vmid=101 device=0000:41:00.0 irqs=2 cpus=` + both)
	w.Write(affinityOf(58), "1000\n") // as irqbalance does
	w.Sync()
	w.must(w.file(affinityOf(58), both))
	w.logged("restored interrupt that another program or the guest's driver moved")
	if got, want := w.text(), "interrupts 2 of device 0000:41:00.0 of VM 101 on CPUs "+both+"; restored once\n"; !strings.Contains(got, want) {
		t.Errorf("status lacks %q:\n%s", want, got)
	}
	w.Sync()
	if w.journal.Len() > 0 {
		t.Errorf("a round without changes logged:\n%s", w.journal.String())
	}

	// The number belongs to another device after the guest's driver released it.
	w.message(57, "eth0-rx-0")
	w.Write(affinityOf(57), "7\n")
	w.begin(asked)
	w.Declare(101, "nothing")
	w.Sync()
	w.must(errors.Join(w.file(affinityOf(57), "7"), w.file(affinityOf(58), "0-1000"), untouched()))
	w.logged(`irqs=1 cpus=0-1000`)

	w.Declare(101, agenttest.Marker(101, w.two, w.one).String())
	w.Sync()
	w.must(w.file(affinityOf(58), both))
	w.must(w.Release())
	w.must(errors.Join(w.file(affinityOf(58), "0-1000"), untouched()))
}

// TestInterruptsAreRefused checks that interrupts managed by the kernel are reported once,
// and share a line of the status.
func TestInterruptsAreRefused(t *testing.T) {
	w := newWorld(t)
	pid := w.ready(101, 1, "-device", "vfio-pci,host="+device)
	w.ownProc(pid)
	for _, irq := range []int{57, 58} {
		w.message(irq, "vfio-msi[0]("+device+")")
		full := filepath.Join(w.Root, affinityOf(irq))
		w.must(errors.Join(os.Remove(full), os.Symlink("/proc/self/oom_score", full))) // it can be read but not written
	}
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.begin("clusters: [prod]\nirqs: guest\n")
	w.logged(`msg="interrupt not moved" vmid=101 irq=57`)
	w.Sync()
	if w.journal.Len() > 0 {
		t.Errorf("logged twice:\n%s", w.journal.String())
	}
	if got := w.text(); !strings.Contains(got, "interrupts 2 of device 0000:41:00.0 of VM 101 not moved: ") {
		t.Errorf("status:\n%s", got)
	}
	w.must(w.Pinned(101, topology.CPUs(w.one), w.one))
}
