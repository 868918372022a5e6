// Package guestsim simulates the software inside the VMs of pvesim: cloud-init, which reads
// the seed in the CD-ROM drive, and kubelet, which joins a real Kubernetes cluster with
// only the data of the seed. Each kubelet requests its certificate with the bootstrap
// token, registers its Node, renews its heartbeat and runs pods. It uses its own
// credentials, so that the API server authorizes each request.
//
// It is as strict as a real guest: errors that prevent a real guest from joining (a missing
// file, invalid YAML, a refused request, a missing taint that Karpenter needs) are Problems.
// A VM without join data does not join, without a Problem. Guests start no containers, have
// no network between pods and mount no volumes.
//
// Pass Guests.Power as pvesim's Config.OnPower, call Guests.Run, and check Guests.Problems
// at the end.
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

// Config is the configuration of all guests. Only Cluster is required.
type Config struct {
	// Cluster is a client config with permission to watch pods, which all guests share.
	// With CloudProviderID, it also needs permission to write nodes. Guests use their own
	// credentials for everything else.
	Cluster *rest.Config
	// BakedIn returns the join data in the template of a VM that starts without a seed. If
	// it is nil or returns false, such a VM does not join.
	BakedIn func(vm pvesim.GuestState) (Documents, bool)
	// CloudProviderID returns the providerID that a simulated cloud controller manager sets
	// for a VM. If it is nil, the cluster has no cloud controller manager, and nodes that
	// wait for one remain uninitialized.
	CloudProviderID func(vm pvesim.GuestState) string
	// Boot is the time from power-on to kubelet's start, Ready from the Node's registration
	// until it is ready, and PodStart from a pod's arrival until it runs. Retry is the time
	// between two attempts of kubelet to join, Heartbeat between two renewals of its lease.
	// 0 means 50 ms, 50 ms, 50 ms, 1 s and 10 s.
	Boot, Ready, PodStart, Retry, Heartbeat time.Duration
	// PodStop returns how long a deleted pod takes to terminate, at most its grace period;
	// nil means a hundredth of its grace period.
	PodStop func(pod *corev1.Pod) time.Duration
	// Clock is the clock of the guests; nil means the real clock.
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

// Fault is a simulated fault of a guest. Set it before the VM starts.
type Fault struct {
	// NeverJoins makes the guest hang at boot.
	NeverJoins bool
	// IgnoresSeed simulates a template without cloud-init.
	IgnoresSeed bool
	// BootDelay is added to Config.Boot.
	BootDelay time.Duration
}

// Guests are the guests of a simulated Proxmox. Create them with New.
type Guests struct {
	cfg     Config
	admin   kubernetes.Interface
	end     func()
	pods    *podWatch
	running sync.WaitGroup

	// mu guards the fields below.
	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // the context of Run, with which guests end; nil before Run
	early    []pvesim.PowerEvent
	machines map[int]*machine
	faults   map[string]Fault
	problems []Problem
	// addresses is the number of addresses assigned to pods.
	addresses int
}

// New returns guests that do not start before Run.
func New(cfg Config) (*Guests, error) {
	if cfg.Cluster == nil {
		return nil, errors.New("creating guests: Config.Cluster is required")
	}
	g := &Guests{cfg: cfg.withDefaults(), machines: map[int]*machine{}, faults: map[string]Fault{}}
	transport, err := rest.HTTPClientFor(cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("creating guests: %w", err)
	}
	g.end = transport.CloseIdleConnections
	if g.admin, err = kubernetes.NewForConfigAndClient(cfg.Cluster, transport); err != nil {
		return nil, fmt.Errorf("creating guests: %w", err)
	}
	g.pods = newPodWatch(g.admin)
	return g, nil
}

// Run runs the guests until the context ends, and waits until all have ended.
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

// Power handles power events; pass it as pvesim's Config.OnPower.
func (g *Guests) Power(event pvesim.PowerEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		g.early = append(g.early, event)
		return
	}
	g.power(event)
}

// power starts or ends a machine. The caller must hold the lock.
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

// SetFault sets the fault of the VM with that name.
func (g *Guests) SetFault(vm string, fault Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults[vm] = fault
}

// StopKubelet stops the kubelet of a running VM: heartbeats end and pods are not handled.
func (g *Guests) StopKubelet(vm string) error {
	return g.withMachine(vm, (*machine).halt)
}

// StartKubelet starts the kubelet of a running VM again, with the data on its disk.
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
	return fmt.Errorf("finding the guest of vm %s: the vm is not running", vm)
}

// Problems returns the problems so far, in order.
func (g *Guests) Problems() []Problem {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.problems)
}
