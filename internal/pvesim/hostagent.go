package pvesim

import (
	"fmt"
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/topology"
)

// The kinds of HostAgent.Isolation.
const (
	isolationReport  = "report"
	isolationEnforce = "enforce"
)

// publishEvery is how often a host's timer publishes.
const publishEvery = 5 * time.Minute

// HostAgent is numaform-agent on a host, with the settings of the host's administrator.
type HostAgent struct {
	// Rules decide which declarations take effect. A MaxPercent of 0 means 90, an
	// Emulator that is empty the guest's CPUs.
	claim.Rules
	// Isolation is off, report or enforce; empty means report.
	Isolation string
	// Version is the agent's; empty means "1.0.0".
	Version string
}

// WithHostAgents returns the config with that agent on each of its hosts.
func (c Config) WithHostAgents(agent HostAgent) Config {
	c.HostAgents = map[topology.HostName]HostAgent{}
	for i := range c.Hosts {
		c.HostAgents[c.Hosts[i].Name] = agent
	}
	return c
}

// checkHostAgents refuses agents on hosts that are not there.
func (c Config) checkHostAgents() error {
	for name := range c.HostAgents {
		if !slices.ContainsFunc(c.Hosts, func(h topology.Host) bool { return h.Name == name }) {
			return fmt.Errorf("reading config: %q has an agent and is no host", name)
		}
	}
	return nil
}

func (a HostAgent) withDefaults() (HostAgent, error) {
	if a.MaxPercent == 0 {
		a.MaxPercent = 90
	}
	if a.Emulator == "" {
		a.Emulator = fleet.EmulatorGuest
	}
	if a.Isolation == "" {
		a.Isolation = isolationReport
	}
	if a.Version == "" {
		a.Version = "1.0.0"
	}
	if !slices.Contains([]string{"off", isolationReport, isolationEnforce}, a.Isolation) {
		return a, fmt.Errorf("isolation of a host agent is %q: want off, report or enforce", a.Isolation)
	}
	for _, id := range a.Clusters {
		if err := fleet.CheckClusterID(id); err != nil {
			return a, fmt.Errorf("clusters of a host agent: %w", err)
		}
	}
	return a, nil
}

// process is a guest's QEMU, or what runs in a container: it ends with the guest, and
// when the guest moves to another host.
type process struct{ vmid, pid int }

func (g *guest) process() process { return process{g.id, g.pid} }

// hostAgent is the agent of one host: its settings, and what it did.
type hostAgent struct {
	HostAgent
	machine claim.Host
	stopped bool
	// verdicts are those of the last look, by process. What an agent that is stopped
	// did stays as it is.
	verdicts map[process]claim.Verdict
	// confined are the CPUs that processes without pins are held to.
	confined map[process]topology.CPUSet
	// shared are the CPUs that nobody is pinned to.
	shared    topology.CPUSet
	published time.Time
}

// startAgent starts the host's agent, if it has one.
func (c *cluster) startAgent(h *host) error {
	settings, ok := c.cfg.HostAgents[topology.HostName(h.name)]
	if !ok {
		return nil
	}
	settings, err := settings.withDefaults()
	if err != nil {
		return err
	}
	h.agent = &hostAgent{HostAgent: settings, machine: claim.NewHost(h.machine.CPUs)}
	h.look()
	if h.offline != "" {
		return nil
	}
	return c.publish(h, c.started)
}

// look is what an agent does twice a second. Here it is done at each change of the
// host's guests, so that nobody has to wait for it.
func (h *host) look() {
	a := h.agent
	if a == nil || a.stopped {
		return
	}
	var guests []claim.Guest
	processes := map[int]process{}
	for id, g := range h.guests {
		if g.running {
			processes[id] = g.process()
			guests = append(guests, g.declared(a.verdicts[g.process()].Pins))
		}
	}
	verdicts := claim.Judge(a.machine, a.Rules, guests)
	a.verdicts, a.shared = map[process]claim.Verdict{}, a.machine.Shared(verdicts)
	for _, verdict := range verdicts {
		a.verdicts[processes[verdict.VMID]] = verdict
	}
	a.confined = a.confine(guests, processes)
}

// confine returns the CPUs of processes without pins, as far as somebody has pins. Whom
// root gave an affinity stays there.
func (a *hostAgent) confine(guests []claim.Guest, processes map[int]process) map[process]topology.CPUSet {
	confined := map[process]topology.CPUSet{}
	if a.Isolation != isolationEnforce || a.shared.IsEmpty() || a.shared.Equal(a.machine.Online()) {
		return confined
	}
	for i := range guests {
		process := processes[guests[i].VMID]
		if a.verdicts[process].Pins == nil && guests[i].Affinity.IsEmpty() {
			confined[process] = a.shared
		}
	}
	return confined
}

// declared is the guest as its host's agent finds it: the configuration file, and the
// process that runs.
func (g *guest) declared(held *claim.Pins) claim.Guest {
	if g.kind == topology.GuestContainer {
		return claim.Guest{VMID: g.id}
	}
	affinity, err := topology.ParseCPUSet(g.conf["affinity"])
	found := claim.Guest{
		VMID: g.id, Description: g.conf["description"], VCPUs: vcpus(g.live), Affinity: affinity, Held: held,
	}
	if err != nil {
		found.Unread = err.Error()
	}
	return found
}

// Threads says where the threads of a running guest may run.
type Threads struct {
	// PID and Started are the process': who restarts a guest changes them.
	PID     int
	Started time.Time
	// VCPUs are the CPUs of vCPU 0, 1, 2, …
	VCPUs []topology.CPUSet
	// Others are those of all other threads.
	Others topology.CPUSet
	// Refused says why the guest's declaration does not take effect, or is nil.
	Refused *claim.Refusal
}

// Pins returns the CPU of vCPU 0, 1, 2, … if each is held to one, or nil.
func (t Threads) Pins() []int {
	var pins []int
	for _, cpus := range t.VCPUs {
		if cpus.Size() != 1 {
			return nil
		}
		pins = append(pins, cpus.List()...)
	}
	return pins
}

// Threads returns those of a guest, and reports false if it does not run.
func (s *Server) Threads(vmid int) (Threads, bool) {
	s.state.mu.RLock()
	defer s.state.mu.RUnlock()
	g := s.state.guests[vmid]
	if g == nil || !g.running {
		return Threads{}, false
	}
	return g.threads(), true
}

func (g *guest) threads() Threads {
	floats := g.host.machine.OnlineCPUs()
	if affinity, err := topology.ParseCPUSet(g.live["affinity"]); err == nil && !affinity.IsEmpty() {
		floats = affinity.Intersection(floats)
	}
	found := Threads{PID: g.pid, Started: g.started, VCPUs: slices.Repeat([]topology.CPUSet{floats}, vcpus(g.live)), Others: floats}
	a := g.host.agent
	if a == nil {
		return found
	}
	if cpus, confined := a.confined[g.process()]; confined {
		found.VCPUs, found.Others = slices.Repeat([]topology.CPUSet{cpus}, vcpus(g.live)), cpus
	}
	verdict := a.verdicts[g.process()]
	found.Refused = verdict.Refused
	if verdict.Pins == nil {
		return found
	}
	found.VCPUs, found.Others = nil, verdict.Pins.Set()
	if verdict.Pins.Emulator == fleet.EmulatorShared {
		found.Others = a.shared
	}
	for _, cpu := range verdict.Pins.CPUs {
		found.VCPUs = append(found.VCPUs, topology.CPUs(cpu))
	}
	return found
}

// SetHostAgent gives the agent of a host other settings, as its administrator would,
// and publishes. It panics on a host without an agent.
func (s *Server) SetHostAgent(name string, settings HostAgent) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.withAgent(name)
	settings, err := settings.withDefaults()
	if err != nil {
		return fmt.Errorf("setting the agent of host %s: %w", name, err)
	}
	h.agent.HostAgent = settings
	h.look()
	return s.state.publish(h, s.cfg.Clock.Now())
}

// StopHostAgent ends the agent of a host, as if that had been some time ago. Pins stay
// as they are, and what is published gets old. It panics on a host without an agent.
func (s *Server) StopHostAgent(name string, ago time.Duration) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.withAgent(name)
	h.agent.stopped = true
	return s.state.publish(h, s.cfg.Clock.Now().Add(-ago))
}

// StartHostAgent starts an agent that was stopped; it publishes at once. It panics on a
// host without an agent.
func (s *Server) StartHostAgent(name string) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.withAgent(name)
	h.agent.stopped = false
	h.look()
	return s.state.publish(h, s.cfg.Clock.Now())
}

func (c *cluster) withAgent(name string) *host {
	h := c.hosts[name]
	if h == nil || h.agent == nil {
		panic(fmt.Sprintf("pvesim: no host %q with an agent", name))
	}
	return h
}
