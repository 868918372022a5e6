// Package guestsim runs what is inside the VMs of pvesim: a cloud-init that reads the seed
// in the CD-ROM drive, and a kubelet that joins a real Kubernetes with nothing but what it
// finds there. It is a program of the module test/sim, and shares no code with numaform.
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

	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/simprogram"
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
	// PodStop is how long a deleted pod takes to end; 0 means a hundredth of its grace
	// period.
	PodStop time.Duration
}

// login is how the program logs in.
type login struct {
	Server               string
	CA, Certificate, Key []byte
	Token, Impersonate   string
	QPS                  float32
	Burst                int
}

func (c Config) json(hook func(simprogram.Hook) string) (any, error) {
	if c.Cluster == nil {
		return nil, errors.New("making guests: no cluster: give Config.Cluster")
	}
	program := struct {
		Cluster                                          login
		BakedInURL, CloudProviderURL                     string
		Boot, Ready, PodStart, Retry, Heartbeat, PodStop time.Duration
	}{
		Cluster: login{
			Server: c.Cluster.Host, CA: c.Cluster.CAData, Certificate: c.Cluster.CertData, Key: c.Cluster.KeyData,
			Token: c.Cluster.BearerToken, Impersonate: c.Cluster.Impersonate.UserName, QPS: c.Cluster.QPS, Burst: c.Cluster.Burst,
		},
		Boot: c.Boot, Ready: c.Ready, PodStart: c.PodStart, Retry: c.Retry, Heartbeat: c.Heartbeat, PodStop: c.PodStop,
	}
	if c.BakedIn != nil {
		program.BakedInURL = hook(simprogram.Ask(func(_ context.Context, vm pvesim.GuestState) any {
			if documents, found := c.BakedIn(vm); found {
				return documents
			}
			return nil
		}))
	}
	if c.CloudProviderID != nil {
		program.CloudProviderURL = hook(simprogram.Ask(func(_ context.Context, vm pvesim.GuestState) any { return c.CloudProviderID(vm) }))
	}
	return program, nil
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
	program *simprogram.Program

	// mu guards everything below. Who reads it may still ask the program.
	mu       sync.RWMutex
	ended    bool
	problems []Problem // once ended
}

// New starts a program whose guests wait for Run.
func New(cfg Config) (*Guests, error) {
	program, err := simprogram.Start("guestsim", nil, cfg.json)
	if err != nil {
		return nil, err
	}
	return &Guests{program: program}, nil
}

// Run lets the guests live until the context ends, and waits until all have ended.
func (g *Guests) Run(ctx context.Context) error {
	if err := g.program.Call(context.Background(), "POST", "/start", nil, nil); err != nil {
		return err
	}
	<-ctx.Done()
	err := g.program.Call(context.Background(), "POST", "/stop", nil, nil)
	problems := g.Problems()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended, g.problems = true, problems
	return errors.Join(err, g.program.Close())
}

// Power is for pvesim's Config.OnPower.
func (g *Guests) Power(event pvesim.PowerEvent) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.ended {
		g.program.Must("POST", "/power", event, nil)
	}
}

// SetFault sets what is wrong with the VM of that name.
func (g *Guests) SetFault(vm string, fault Fault) {
	g.program.Must("PUT", "/vms/"+vm+"/fault", fault, nil)
}

// StopKubelet ends the kubelet of a running VM: its heartbeat ends and nobody sees
// to its pods.
func (g *Guests) StopKubelet(vm string) error { return g.setKubelet(vm, false) }

// StartKubelet starts the kubelet of a running VM again, with what is on its disk.
func (g *Guests) StartKubelet(vm string) error { return g.setKubelet(vm, true) }

func (g *Guests) setKubelet(vm string, runs bool) error {
	return g.program.Call(context.Background(), "PUT", "/vms/"+vm+"/kubelet", runs, nil)
}

// Problem is what a guest met that no working guest would. It is kept once,
// however often the guest tries.
type Problem struct {
	VM   string
	VMID int
	// Step is where the guest was: seed, kubelet, certificate, register, heartbeat or pod.
	Step string
	Text string
}

func (p Problem) String() string { return fmt.Sprintf("vm %s: %s: %s", p.VM, p.Step, p.Text) }

// Problems returns what guests met that no working guest would, in order.
func (g *Guests) Problems() []Problem {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.ended {
		return slices.Clone(g.problems)
	}
	var problems []Problem
	g.program.Must("GET", "/problems", nil, &problems)
	return problems
}
