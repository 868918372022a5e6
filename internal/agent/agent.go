// Package agent is numaform-agent, the daemon on a Proxmox host: it puts the vCPUs of
// VMs on the CPUs that their descriptions declare, keeps them there, and keeps other
// guests off. It is root and reads text that an API token wrote: packages claim, qemu
// and cgroup below it say what may come of that. It needs neither the network nor
// Proxmox' API, and starts no program but in Publish. Start at Agent.Run.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/cpufreq"
	"github.com/numaform/numaform/internal/agent/irq"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
)

// Options are what an Agent needs.
type Options struct {
	// Root is the directory of the host's file system, "/" but in tests.
	Root string
	// StateDir keeps the state; it is made if need be.
	StateDir string
	Settings Settings
	// Interval is the time between two looks at the host. While VMs start there are more.
	Interval time.Duration
	Version  string
	Log      *slog.Logger
	// Now is the wall clock, for the eyes of those who read the metrics: nothing is
	// decided by it.
	Now func() time.Time
	// Affinities is the kernel; nil means this machine's.
	Affinities qemu.Affinities
}

// Agent keeps the pins of one host.
type Agent struct {
	Options
	reader qemu.Reader
	groups cgroup.Tree
	irqs   irq.Tree
	self   qemu.Run

	frequencies cpufreq.Tree
	policies    []cpufreq.Policy

	// online is the kernel's list when host was read; possible are the CPUs that it
	// has, offline ones too.
	online   string
	possible topology.CPUSet
	host     claim.Host

	state State
	// written is the state file's text.
	written []byte
	// placed are the pins that were put into effect by this process.
	placed map[qemu.Run]*claim.Pins
	// confined are the control groups that were confined by this process, governed the
	// governors it gave to policies, and steered the interrupts that it moved, by number.
	confined map[string]topology.CPUSet
	governed map[int]string
	steered  map[int]*Interrupt
	metrics  metrics

	// changed is when VMs last started or ended, and hurry how many looks before their
	// time are left.
	changed time.Time
	hurry   int
}

const (
	// eager is how many times as often the agent looks while VMs start.
	eager = 5
	// hurries is for how many such looks after one started or ended.
	hurries = 2 * eager
	// heartbeat is how often in seconds the state says that the agent looks though
	// nothing changed.
	heartbeat = 15
)

// New returns an agent. It touches nothing yet.
func New(options Options) (*Agent, error) {
	if options.Interval <= 0 || options.Root == "" || options.StateDir == "" {
		return nil, errors.New("making the agent: an interval, a root and a state directory are needed")
	}
	if err := options.Settings.check(); err != nil {
		return nil, fmt.Errorf("making the agent: %w", err)
	}
	if options.Affinities == nil {
		options.Affinities = qemu.Kernel{}
	}
	return &Agent{
		Options: options, reader: qemu.Reader{Root: options.Root},
		groups: cgroup.Tree{Dir: filepath.Join(options.Root, "sys/fs/cgroup")}, irqs: irq.Tree{Root: options.Root},
		frequencies: cpufreq.Tree{Dir: filepath.Join(options.Root, "sys/devices/system/cpu/cpufreq")},
		placed:      map[qemu.Run]*claim.Pins{}, confined: map[string]topology.CPUSet{},
		governed: map[int]string{}, steered: map[int]*Interrupt{},
	}, nil
}

// Run looks at the host again and again until ctx ends. Pins stay as they are then: an
// agent that is replaced must not disturb the guests. A round that fails is logged once,
// and tried again.
func (a *Agent) Run(ctx context.Context) error {
	err := a.open()
	if err == nil {
		err = a.checkGovernor()
	}
	if err != nil {
		return err
	}
	a.Log.Info("started", "version", a.Version, "isolation", a.Settings.Isolation, "clusters", strings.Join(a.Settings.Clusters, " "),
		"max-pinned-percent", a.Settings.MaxPinnedPercent)
	if len(a.Settings.Clusters) == 0 {
		a.Log.Warn("no cluster may pin here: name clusters in the agent's configuration")
	}
	ticker := time.NewTicker(a.Interval / eager)
	defer ticker.Stop()
	for beat := 0; ; beat++ {
		if hurried := a.hurried(); hurried || beat%eager == 0 {
			a.Sync()
		}
		select {
		case <-ctx.Done():
			a.Log.Info("stopped, pins stay")
			return nil
		case <-ticker.C:
		}
	}
}

// hurried reports whether a VM starts, and the agent is to look before its time.
func (a *Agent) hurried() bool {
	if changed := a.reader.Changed(); !changed.Equal(a.changed) {
		a.changed, a.hurry = changed, hurries
	}
	if a.hurry > 0 {
		a.hurry--
		return true
	}
	return find(a.state.Guests, func(g Guest) bool { return g.Starting }) != nil
}

// open reads what an earlier agent left. A state that cannot be read is put aside: the
// pins that are declared are found again, those that were withdrawn meanwhile are not.
func (a *Agent) open() error {
	if err := os.MkdirAll(a.StateDir, 0o755); err != nil {
		return fmt.Errorf("making the directory of the state: %w", err)
	}
	self, err := a.reader.Self()
	if err != nil {
		return fmt.Errorf("reading /proc: %w", err)
	}
	state, err := ReadState(a.StateDir)
	if err != nil {
		err = errors.Join(err, os.Rename(StateFile(a.StateDir), StateFile(a.StateDir)+".bad"))
		a.Log.Error("state could not be read, beginning anew", logkey.Message, err.Error())
	}
	if state.Agent.PID != self.PID && state.Agent.PID > 0 && a.reader.Alive(state.Agent) {
		return fmt.Errorf("another numaform-agent runs, process %d: stop it first (systemctl stop numaform-agent)", state.Agent.PID)
	}
	a.self, a.state = self, state
	return nil
}

// Sync looks at the host once, and does what is to be done.
func (a *Agent) Sync() {
	before := a.state
	err := a.sync()
	a.state.Problem = ""
	if err != nil {
		a.state.Problem = err.Error()
	}
	if a.state.Problem != before.Problem && err != nil {
		a.Log.Error("round failed", logkey.Message, err.Error())
	}
	a.tell(before)
	if up, err := a.reader.Uptime(); err == nil && (up < a.state.Looked || up >= a.state.Looked+heartbeat) {
		a.state.Looked = up
	}
	if err := a.save(); err != nil {
		a.Log.Error("state not written", logkey.Message, err.Error())
	}
	a.writeMetrics()
}

func (a *Agent) sync() error {
	if err := a.readHost(); err != nil {
		return err
	}
	r, err := a.look()
	if err != nil {
		return err
	}
	a.plan(r)
	// What is about to be done is written first: whoever starts after a crash must be
	// able to undo it.
	if err := a.save(); err != nil {
		return err
	}
	// Control groups first: changing them may move threads.
	err = errors.Join(a.unconfine(r), a.isolate(r))
	a.place(r)
	a.govern()
	a.steer()
	a.state.Intruders = a.intruders(r)
	return err
}

// Release undoes all that an agent did on this host, and forgets it. None may run.
func (a *Agent) Release() error {
	if err := a.open(); err != nil {
		return err
	}
	a.Settings.Clusters, a.Settings.Isolation, a.Settings.Governor, a.Settings.IRQs = nil, IsolationOff, Governor{}, InterruptsOff
	if err := a.sync(); err != nil {
		return fmt.Errorf("releasing guests: %w", err)
	}
	if err := a.left(); err != nil {
		return fmt.Errorf("releasing guests: %w", err)
	}
	for _, name := range []string{StateFile(a.StateDir), filepath.Join(a.Settings.MetricsDir, MetricsFile), publishedFile(a.StateDir)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("releasing guests: %w", err)
		}
	}
	return nil
}

// left says what could not be undone, and how to do it by hand.
func (a *Agent) left() error {
	var errs []error
	for _, c := range a.state.Confined {
		errs = append(errs, fmt.Errorf("control group %s is still confined: write %q to its cpuset.cpus", c.Group, c.Was))
	}
	for i := range a.state.Governors {
		g := &a.state.Governors[i]
		errs = append(errs, fmt.Errorf("frequency policy %d has not its governor %s again: %s", g.Policy, g.Was, g.Problem))
	}
	for _, i := range a.state.Interrupts {
		errs = append(errs, fmt.Errorf("interrupt %d is not on CPUs %s again: %s", i.IRQ, i.Was, i.Refused))
	}
	return errors.Join(errs...)
}

func (a *Agent) save() error {
	written, err := a.state.write(a.StateDir, a.written)
	a.written = written
	return err
}

// readHost reads the topology at first, and when CPUs came or went.
func (a *Agent) readHost() error {
	data, err := os.ReadFile(filepath.Join(a.Root, "sys/devices/system/cpu/online"))
	if err != nil {
		return fmt.Errorf("reading which CPUs are online: %w", err)
	}
	if string(data) == a.online {
		if a.governorNote() == "" {
			return nil
		}
		return a.readPolicies() // its driver may come later
	}
	if err := a.readPolicies(); err != nil {
		return err
	}
	file, err := sysfs.Collect(os.DirFS(a.Root))
	if err != nil {
		return err
	}
	var all []int
	for _, cpu := range file.CPUs {
		all = append(all, cpu.ID)
	}
	a.host, a.online, a.possible = claim.NewHost(file.CPUs), string(data), topology.CPUs(all...)
	return nil
}
