// Package agent implements numaform-agent, the daemon on a Proxmox host: it pins the vCPUs of
// VMs to the CPUs that their descriptions declare. With isolation: enforce, it also confines
// guests without pins to other CPUs. It runs as root and reads text written with an API token:
// its subpackages claim, qemu and cgroup limit what such text can cause. The daemon needs
// neither the network nor the Proxmox API, and starts no program; only Publish, which runs
// separately, does. Start at Agent.Run.
package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/cpufreq"
	"github.com/numaform/numaform/internal/agent/irq"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
)

// Options configure an Agent.
type Options struct {
	// Root is the root directory of the host's file system, "/" except in tests.
	Root string
	// StateDir is the directory of the state; it is created if missing.
	StateDir string
	Settings Settings
	// Interval is the time between two rounds. Rounds are more frequent while VMs start.
	Interval time.Duration
	Version  string
	Log      *slog.Logger
	// Now returns the wall clock for the metrics. No decision depends on it.
	Now func() time.Time
	// Affinities reads and sets CPU affinities; nil means this machine's kernel.
	Affinities qemu.Affinities
}

// Agent manages the pins of one host.
type Agent struct {
	Options
	reader qemu.Reader
	groups cgroup.Tree
	irqs   irq.Tree
	self   qemu.Run

	frequencies cpufreq.Tree
	policies    []cpufreq.Policy

	// online is the kernel's list of online CPUs when host was last read; possible are all
	// CPUs of the host, including offline ones.
	online   string
	possible topology.CPUSet
	host     claim.Host

	state State
	// written is the current text of the state file.
	written []byte
	// placed are the pins that this process applied.
	placed map[qemu.Run]*claim.Pins
	// confined are the control groups that this process confined, by name; governed the
	// governors that it set, by policy; and steered the interrupts that it moved, by number.
	confined map[string]topology.CPUSet
	governed map[int]string
	steered  map[int]*Interrupt
	metrics  metrics

	// changed is when VMs last started or ended; early is the number of early rounds left.
	changed time.Time
	early   int
}

const (
	// earlyFactor is how many times more frequent rounds are while VMs start.
	earlyFactor = 5
	// earlyRounds is the number of early rounds after a VM started or ended.
	earlyRounds = 2 * earlyFactor
	// heartbeat is the interval, in seconds, at which rounds without changes are recorded in
	// the state and in the metrics.
	heartbeat = 15
)

// New returns an agent. It does not touch the host yet.
func New(options Options) (*Agent, error) {
	if options.Interval <= 0 || options.Root == "" || options.StateDir == "" {
		return nil, errors.New("creating the agent: Interval, Root and StateDir must be set")
	}
	if err := options.Settings.check(); err != nil {
		return nil, fmt.Errorf("creating the agent: %w", err)
	}
	if options.Affinities == nil {
		options.Affinities = qemu.Kernel{}
	}
	return &Agent{
		Options:     options,
		reader:      qemu.Reader{Root: options.Root},
		groups:      cgroup.Tree{Dir: filepath.Join(options.Root, "sys/fs/cgroup")},
		irqs:        irq.Tree{Root: options.Root},
		frequencies: cpufreq.Tree{Dir: filepath.Join(options.Root, "sys/devices/system/cpu/cpufreq")},
		placed:      map[qemu.Run]*claim.Pins{},
		confined:    map[string]topology.CPUSet{},
		governed:    map[int]string{},
		steered:     map[int]*Interrupt{},
	}, nil
}

// Run runs rounds until ctx ends. The pins remain in effect, because replacing an agent must
// not disturb the guests. It logs the error of a failed round once, and continues.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.open(); err != nil {
		return err
	}

	// A host without governors is valid: it may be a VM, or its firmware scales
	// frequencies.
	policies, err := a.frequencies.Policies()
	if err != nil {
		return err
	}
	for _, policy := range policies {
		for _, name := range []string{a.Settings.Governor.Pinned, a.Settings.Governor.Free, a.Settings.Governor.Unpinned} {
			if name != "" && len(policy.Available) > 0 && !slices.Contains(policy.Available, name) {
				return fmt.Errorf("governor: CPUs %s do not support governor %q: set one of %s in the agent's configuration",
					policy.CPUs, name, strings.Join(policy.Available, ", "))
			}
		}
	}

	a.Log.Info("started", "version", a.Version, "isolation", a.Settings.Isolation, "clusters", strings.Join(a.Settings.Clusters, " "),
		"max-pinned-percent", a.Settings.MaxPinnedPercent)
	if len(a.Settings.Clusters) == 0 {
		a.Log.Warn("no cluster may pin VMs on this host: set clusters in the agent's configuration")
	}
	ticker := time.NewTicker(a.Interval / earlyFactor)
	defer ticker.Stop()
	for beat := 0; ; beat++ {
		if changed := a.reader.Changed(); !changed.Equal(a.changed) {
			a.changed = changed
			a.early = earlyRounds
		}
		starting := find(a.state.Guests, func(g Guest) bool { return g.Starting }) != nil
		if a.early > 0 || starting || beat%earlyFactor == 0 {
			a.early = max(a.early-1, 0)
			a.Sync()
		}
		select {
		case <-ctx.Done():
			a.Log.Info("stopped, pins remain")
			return nil
		case <-ticker.C:
		}
	}
}

// open reads the state of an earlier agent, and returns an error if that agent is still
// running. It renames an unreadable state file: the agent finds declared pins again, but
// does not release pins that were withdrawn in the meantime.
func (a *Agent) open() error {
	if err := os.MkdirAll(a.StateDir, 0o755); err != nil {
		return fmt.Errorf("creating the state directory: %w", err)
	}
	self, err := a.reader.Self()
	if err != nil {
		return fmt.Errorf("reading /proc: %w", err)
	}
	state, err := ReadState(a.StateDir)
	if err != nil {
		err = errors.Join(err, os.Rename(StateFile(a.StateDir), StateFile(a.StateDir)+".bad"))
		a.Log.Error("state not read, starting with an empty one", logkey.Message, err.Error())
	}
	if state.Agent.PID != self.PID && state.Agent.PID > 0 && a.reader.Alive(state.Agent) {
		return fmt.Errorf("another numaform-agent is running as process %d: stop it first (systemctl stop numaform-agent)", state.Agent.PID)
	}
	a.self = self
	a.state = state
	return nil
}

// Sync runs one round: it reads the host, applies the necessary changes, and writes the
// state and the metrics. It logs errors.
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
	a.logChanges(&before)
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
	r, err := a.readGuests()
	if err != nil {
		return err
	}
	a.plan(r)
	// Write the plan first: an agent that starts after a crash must be able to revert it.
	if err := a.save(); err != nil {
		return err
	}
	// Control groups first: changing them may move threads.
	err = a.isolate(r)
	a.place(r)
	a.govern()
	a.steer()
	a.state.Intruders = a.intruders(r)
	return err
}

// Release reverts all changes of an agent on this host, and removes its state. No agent
// may be running.
func (a *Agent) Release() error {
	if err := a.open(); err != nil {
		return err
	}
	a.Settings.Clusters = nil
	a.Settings.Isolation = IsolationOff
	a.Settings.Governor = Governor{}
	a.Settings.IRQs = InterruptsOff
	if err := a.sync(); err != nil {
		return fmt.Errorf("releasing guests: %w", err)
	}

	// Report everything that could not be reverted, with the manual fix.
	var errs []error
	for _, c := range a.state.Confined {
		errs = append(errs, fmt.Errorf("control group %s is still confined: write %q to /sys/fs/cgroup/%s/cpuset.cpus", c.Group, c.Was, c.Group))
	}
	for _, g := range a.state.Governors {
		errs = append(errs, fmt.Errorf("%s: write %q to /sys/devices/system/cpu/cpufreq/policy%d/scaling_governor", g.Problem, g.Was, g.Policy))
	}
	for _, i := range a.state.Interrupts {
		errs = append(errs, fmt.Errorf("interrupt %d was not restored to CPUs %s: %s: write %q to /proc/irq/%d/smp_affinity_list",
			i.IRQ, i.Was, i.Refused, i.Was, i.IRQ))
	}
	if len(errs) > 0 {
		return fmt.Errorf("releasing guests: %w", errors.Join(errs...))
	}
	for _, name := range []string{StateFile(a.StateDir), filepath.Join(a.Settings.MetricsDir, MetricsFile), publishedFile(a.StateDir)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("releasing guests: %w", err)
		}
	}
	return nil
}

// save writes the state file if the state changed.
func (a *Agent) save() error {
	data, err := json.MarshalIndent(&a.state, "", " ")
	if err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	data = append(data, '\n')
	if bytes.Equal(data, a.written) {
		return nil
	}
	if err := renameio.WriteFile(StateFile(a.StateDir), data, 0o644); err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	a.written = data
	return nil
}

// readHost reads the topology in the first round and whenever the online CPUs change.
func (a *Agent) readHost() error {
	data, err := os.ReadFile(filepath.Join(a.Root, "sys/devices/system/cpu/online"))
	if err != nil {
		return fmt.Errorf("reading the online CPUs: %w", err)
	}
	// A frequency driver may be loaded later.
	if string(data) != a.online || a.governorNote() != "" {
		if a.policies, err = a.frequencies.Policies(); err != nil {
			return err
		}
	}
	if string(data) == a.online {
		return nil
	}
	file, err := sysfs.Collect(os.DirFS(a.Root))
	if err != nil {
		return err
	}
	var all []int
	for _, cpu := range file.CPUs {
		all = append(all, cpu.ID)
	}
	a.host = claim.NewHost(file.CPUs)
	a.online = string(data)
	a.possible = topology.CPUs(all...)
	return nil
}
