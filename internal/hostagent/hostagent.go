// Package hostagent runs numaform-agent on the hosts of a simulated Proxmox. It runs the
// real agent, package agent, on a directory to which the simulator exports a host's file
// system. The simulator reads the agent's changes from there, so the result of Threads does
// not depend on the agent's own reports. Start at On.
package hostagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

const (
	// interval is the default time between two rounds of an agent.
	interval = 500 * time.Millisecond
	// publishEvery is the interval of a host's publish timer.
	publishEvery = 5 * time.Minute
)

// Agent is the configuration of a host's agent.
type Agent struct {
	// Rules decide which declarations take effect. A MaxPercent of 0 means 90, and an empty
	// Emulator means the guest's CPUs.
	claim.Rules
	// Isolation is off, report or enforce; empty means report.
	Isolation agent.Isolation
	// Version is the agent's version; empty means "1.0.0".
	Version string
	// Interval is the time between two rounds of the agent. All agents of a cluster use
	// the longest of their intervals, and at least half a second. Set it if many agents
	// would slow down the test's machine.
	Interval time.Duration
}

func (a Agent) settings() agent.Settings {
	settings := agent.DefaultSettings()
	settings.Clusters, settings.ReservedCPUs, settings.MetricsDir = a.Clusters, a.Reserved, ""
	settings.MaxPinnedPercent = cmp.Or(a.MaxPercent, settings.MaxPinnedPercent)
	settings.Emulator = cmp.Or(a.Emulator, settings.Emulator)
	settings.Isolation = cmp.Or(a.Isolation, settings.Isolation)
	return settings
}

// On returns the config with this agent on each of its hosts.
func On(config pvesim.Config, a Agent) pvesim.Config {
	hosts := map[topology.HostName]Agent{}
	for i := range config.Hosts {
		hosts[config.Hosts[i].Name] = a
	}
	return Each(config, hosts)
}

// Each returns the config with these agents, and none on other hosts. The agents publish
// when the simulator starts, unless their host is offline, and then every five minutes.
func Each(config pvesim.Config, hosts map[topology.HostName]Agent) pvesim.Config {
	offline := map[topology.HostName]bool{}
	for i := range config.Hosts {
		offline[config.Hosts[i].Name] = config.Hosts[i].Problem != ""
	}
	config.Attach = func(sim *pvesim.Server) (io.Closer, error) {
		as := &agents{sim: sim, hosts: map[string]*host{}}
		for _, name := range slices.Sorted(maps.Keys(hosts)) {
			err := as.add(string(name), hosts[name])
			if err == nil && !offline[name] {
				err = as.publish(as.hosts[string(name)], time.Now())
			}
			if err != nil {
				return nil, errors.Join(err, as.Close())
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		as.cancel = cancel
		as.running.Go(func() { as.run(ctx) })
		return as, nil
	}
	return config
}

// agents runs the agents of a simulated cluster.
type agents struct {
	sim     *pvesim.Server
	cancel  context.CancelFunc // nil until they run
	running sync.WaitGroup

	// mu guards the hosts, and prevents the simulator from reading partial writes.
	mu    sync.Mutex
	hosts map[string]*host
}

// host is a host with an agent.
type host struct {
	name, root string
	config     Agent
	agent      *agent.Agent // nil while it is stopped
	published  time.Time
}

func (h *host) stateDir() string { return filepath.Join(h.root, "run/numaform-agent") }

// add exports a host and starts its agent.
func (as *agents) add(name string, config Agent) error {
	root, err := os.MkdirTemp("", "host-"+name+"-")
	if err != nil {
		return fmt.Errorf("starting the agent of host %s: %w", name, err)
	}
	h := &host{name: name, root: root, config: config}
	as.hosts[name] = h
	if err := as.sim.ExportHost(name, root); err != nil {
		return err
	}
	// The agent is this process.
	if err := os.Symlink(fmt.Sprintf("/proc/%d", os.Getpid()), filepath.Join(root, "proc", strconv.Itoa(os.Getpid()))); err != nil {
		return fmt.Errorf("starting the agent of host %s: %w", name, err)
	}
	return h.start()
}

// start replaces the agent with a new one, and runs a round of it.
func (h *host) start() error {
	var err error
	h.agent, err = agent.New(agent.Options{
		Root: h.root, StateDir: h.stateDir(), Settings: h.config.settings(), Interval: interval,
		Version: cmp.Or(h.config.Version, "1.0.0"), Log: slog.New(slog.DiscardHandler), Now: time.Now, Affinities: affinities{h.root},
	})
	if err == nil {
		// With an ended context, Run runs a single round.
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		err = h.agent.Run(ended)
	}
	if err != nil {
		return fmt.Errorf("starting the agent of host %s: %w", h.name, err)
	}
	return nil
}

// look runs a round of the agent unless it is stopped.
func (h *host) look() {
	if h.agent != nil {
		h.agent.Sync()
	}
}

// publish runs `numaform-agent publish` on a host, with at as the current time.
func (as *agents) publish(h *host, at time.Time) error {
	publisher := agent.Publisher{
		Root: h.root, StateDir: h.stateDir(), Host: h.name, Now: func() time.Time { return at },
		Pvesh: func(_ context.Context, args ...string) ([]byte, error) { return as.sim.Pvesh(args...) },
	}
	h.published = time.Now()
	done, err := publisher.Publish(context.Background())
	if err == nil && done.Unwell != "" {
		err = errors.New(done.Unwell)
	}
	if err != nil {
		return fmt.Errorf("publishing the data of host %s: %w", h.name, err)
	}
	return nil
}

// run runs rounds and publishes until ctx ends.
func (as *agents) run(ctx context.Context) {
	every := interval
	for _, h := range as.hosts {
		every = max(every, h.config.Interval)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		as.mu.Lock()
		for _, h := range as.hosts {
			h.look()
			if h.agent != nil && time.Since(h.published) >= publishEvery {
				_ = as.publish(h, time.Now()) // on an error, the published status gets old, as on a real host
			}
		}
		as.mu.Unlock()
	}
}

// Close ends the agents and removes their directories.
func (as *agents) Close() error {
	if as.cancel != nil {
		as.cancel()
		as.running.Wait()
	}
	var errs []error
	for _, h := range as.hosts {
		errs = append(errs, as.sim.ExportHost(h.name, ""), os.RemoveAll(h.root))
	}
	return errors.Join(errs...)
}

// Guest contains the CPUs on which the threads of a guest may run.
type Guest struct {
	pvesim.Threads
	// Refused is the reason why the guest's declaration does not take effect, or nil.
	Refused *claim.Refusal
}

// Threads runs a round of the agent of the guest's host, if it has one, and returns the
// CPUs on which the guest's threads may run according to the simulator. It reports false
// if the guest does not run.
func Threads(sim *pvesim.Server, vmid int) (Guest, bool) {
	as, attached := sim.Attached().(*agents)
	var h *host
	if guest, exists := sim.Guest(vmid); exists && attached {
		as.mu.Lock()
		defer as.mu.Unlock()
		h = as.hosts[guest.Host]
	}
	if h == nil {
		threads, runs := sim.Threads(vmid)
		return Guest{Threads: threads}, runs
	}
	h.look()
	found := Guest{}
	var runs bool
	if found.Threads, runs = sim.Threads(vmid); !runs {
		return Guest{}, false
	}
	state, err := agent.ReadState(h.stateDir())
	if err != nil {
		panic(fmt.Sprintf("hostagent: %v", err)) // the agent wrote it
	}
	for _, guest := range state.Guests {
		if guest.VMID == vmid && guest.PID == found.PID {
			found.Refused = guest.Refused
		}
	}
	return found, true
}

// on calls change with a host's agent. It returns an error if the host has no agent.
func on(sim *pvesim.Server, name string, change func(as *agents, h *host) error) error {
	as, _ := sim.Attached().(*agents)
	if as == nil || as.hosts[name] == nil {
		return fmt.Errorf("host %q has no agent", name)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	return change(as, as.hosts[name])
}

// Set replaces the configuration of a host's agent, as its administrator would, starts it
// with the new one, and publishes.
func Set(sim *pvesim.Server, name string, config Agent) error {
	return on(sim, name, func(as *agents, h *host) error {
		h.config = config
		if err := h.start(); err != nil {
			return err
		}
		return as.publish(h, time.Now())
	})
}

// Stop runs a last round of a host's agent, stops it, and publishes as if it had stopped
// the given time ago. Pins remain in effect.
func Stop(sim *pvesim.Server, name string, ago time.Duration) error {
	return on(sim, name, func(as *agents, h *host) error {
		h.look()
		h.agent = nil
		return as.publish(h, time.Now().Add(-ago))
	})
}

// Start starts a stopped agent, and publishes.
func Start(sim *pvesim.Server, name string) error {
	return on(sim, name, func(as *agents, h *host) error {
		if err := h.start(); err != nil {
			return err
		}
		return as.publish(h, time.Now())
	})
}

// Publish runs a round of a host's agent and `numaform-agent publish`, so that tests need
// not wait five minutes.
func Publish(sim *pvesim.Server, name string) error {
	return on(sim, name, func(as *agents, h *host) error {
		h.look()
		return as.publish(h, time.Now())
	})
}
