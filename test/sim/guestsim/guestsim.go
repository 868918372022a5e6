// Package guestsim is what runs inside the VMs of pvesim: a cloud-init that reads
// the seed in the CD-ROM drive, and a kubelet that joins a real Kubernetes with
// nothing but what it finds there. It requests its certificate by the bootstrap
// token, registers its Node, keeps its heartbeat and runs pods, all as the user
// that the cluster made it, so that the API server judges each of its requests.
//
// It takes nothing on trust: whatever a real guest would stumble over (a file that
// is missing, YAML that does not parse, a refused request, a taint that Karpenter
// needs) is a Problem. It starts no containers, has no network between pods and
// mounts no volumes.
//
// Hand Guests.Power to pvesim's Config.OnPower, call Guests.Run, and look at
// Guests.Problems in the end.
package guestsim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// Config is what the guests have in common. Only Cluster is needed.
type Config struct {
	// Cluster logs in as one who may watch pods, once for all guests. With
	// CloudProviderID it also writes nodes. Guests log in as themselves.
	Cluster *rest.Config
	// BakedIn returns how a VM joins that starts without a seed, because its
	// template holds that. nil, or false, means not at all.
	BakedIn func(vm pvesim.GuestState) (Documents, bool)
	// CloudProviderID returns what a cloud controller manager, which shall run in
	// the cluster, says that a VM's providerID is. nil means that there is none:
	// nodes that wait for it stay uninitialized.
	CloudProviderID func(vm pvesim.GuestState) string
	// Boot is from power-on to kubelet's start, Ready from the Node's registration
	// until it is ready, and PodStart from a pod's arrival until it runs. Retry is
	// between two tries of kubelet to join, Heartbeat between two renewals of its
	// lease. 0 means 50 ms, 50 ms, 50 ms, 1 s and 10 s.
	Boot, Ready, PodStart, Retry, Heartbeat time.Duration
	// PodStop is how long a deleted pod takes to end, at most its grace period; nil
	// means a hundredth of that.
	PodStop func(pod *corev1.Pod) time.Duration
	// Clock is the guests' time; nil means the real one.
	Clock clock.WithTicker
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		given *time.Duration
		not   time.Duration
	}{
		{&c.Boot, 50 * time.Millisecond},
		{&c.Ready, 50 * time.Millisecond},
		{&c.PodStart, 50 * time.Millisecond},
		{&c.Retry, time.Second},
		{&c.Heartbeat, 10 * time.Second},
	} {
		if *d.given == 0 {
			*d.given = d.not
		}
	}
	if c.PodStop == nil {
		c.PodStop = func(pod *corev1.Pod) time.Duration { return gracePeriod(pod) / 100 }
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

// Fault is what is wrong with a guest. Set it before the VM starts.
type Fault struct {
	// NeverJoins lets the guest hang at boot.
	NeverJoins bool
	// IgnoresSeed is a template without cloud-init.
	IgnoresSeed bool
	// BootDelay is added to Config.Boot.
	BootDelay time.Duration
}

// Guests are the guests of a simulated Proxmox. Make them with New.
type Guests struct {
	cfg     Config
	admin   kubernetes.Interface
	end     func()
	pods    *podWatch
	running sync.WaitGroup

	// mu guards everything below.
	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of Run: guests end with it; nil before
	early    []pvesim.PowerEvent
	machines map[int]*machine
	faults   map[string]Fault
	problems []Problem
	// addresses counts those given to pods.
	addresses int
}

// New returns guests that wait for Run.
func New(cfg Config) (*Guests, error) {
	if cfg.Cluster == nil {
		return nil, errors.New("making guests: no cluster: give Config.Cluster")
	}
	g := &Guests{cfg: cfg.withDefaults(), machines: map[int]*machine{}, faults: map[string]Fault{}}
	transport, err := rest.HTTPClientFor(cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("making guests: %w", err)
	}
	g.end = transport.CloseIdleConnections
	if g.admin, err = kubernetes.NewForConfigAndClient(cfg.Cluster, transport); err != nil {
		return nil, fmt.Errorf("making guests: %w", err)
	}
	g.pods = newPodWatch(g.admin)
	return g, nil
}

// Run lets the guests live until the context ends, and waits until all have ended.
func (g *Guests) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer g.end()
	defer g.running.Wait()
	defer func() {
		g.mu.Lock() // nothing is launched afterwards
		defer g.mu.Unlock()
		cancel()
	}()
	g.running.Go(func() { g.pods.run(ctx) })
	if !g.pods.synced(ctx) {
		return nil
	}
	g.mu.Lock()
	g.ctx = ctx
	for _, event := range g.early {
		g.power(event)
	}
	g.early = nil
	g.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Power is for pvesim's Config.OnPower.
func (g *Guests) Power(event pvesim.PowerEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		g.early = append(g.early, event)
		return
	}
	g.power(event)
}

// power starts or ends a machine. The caller holds the lock.
func (g *Guests) power(event pvesim.PowerEvent) {
	if g.ctx.Err() != nil {
		return
	}
	id := event.Guest.VMID
	m := g.machines[id]
	if m != nil {
		m.halt()
		m.on = event.Kind == pvesim.PoweredOn
	}
	switch event.Kind {
	case pvesim.PoweredOn:
		if m == nil {
			m = newMachine(g, event.Guest)
			g.machines[id] = m
		}
		fault := g.faults[m.name]
		m.launch(g.ctx, func(ctx context.Context) { m.boot(ctx, event, fault) })
	case pvesim.Destroyed:
		delete(g.machines, id)
	case pvesim.PoweredOff:
	}
}

// SetFault sets what is wrong with the VM of that name.
func (g *Guests) SetFault(vm string, fault Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults[vm] = fault
}

// StopKubelet ends the kubelet of a running VM: its heartbeat ends and nobody sees
// to its pods.
func (g *Guests) StopKubelet(vm string) error {
	return g.withMachine(vm, (*machine).halt)
}

// StartKubelet starts the kubelet of a running VM again, with what is on its disk.
func (g *Guests) StartKubelet(vm string) error {
	return g.withMachine(vm, func(m *machine) { m.launch(g.ctx, m.kubelet) })
}

func (g *Guests) withMachine(vm string, do func(*machine)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.machines {
		if m.name == vm && m.on && g.ctx.Err() == nil {
			do(m)
			return nil
		}
	}
	return fmt.Errorf("looking for the guest of vm %s: it does not run", vm)
}

// Problems returns what guests met that no working guest would, in order.
func (g *Guests) Problems() []Problem {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.problems)
}
