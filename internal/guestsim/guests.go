// Package guestsim simulates the software inside the VMs of pvesim: cloud-init, which reads
// the seed in the CD-ROM drive, and kubelet, which joins a real Kubernetes cluster with
// only the data of the seed. It runs a program of the module test/sim that shares no code
// with numaform.
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

	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/simprogram"
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
	// between two attempts of kubelet to join, Heartbeat between two renewals of its lease. 0
	// means 50 ms for each of the first three, 1 s for Retry and 10 s for Heartbeat.
	Boot, Ready, PodStart, Retry, Heartbeat time.Duration
	// PodStop is how long a deleted pod takes to terminate; 0 means a hundredth of its
	// grace period.
	PodStop time.Duration
}

// login contains the credentials of the program.
type login struct {
	Server               string
	CA, Certificate, Key []byte
	Token, Impersonate   string
	QPS                  float32
	Burst                int
}

func (c Config) json(hook func(simprogram.Hook) string) (any, error) {
	if c.Cluster == nil {
		return nil, errors.New("creating guests: Config.Cluster is required")
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
	program *simprogram.Program

	// mu guards the fields below. A holder of the read lock may still call the program.
	mu       sync.RWMutex
	ended    bool
	problems []Problem // set when the program ended
}

// New starts the program. Guests do not start before Run.
func New(cfg Config) (*Guests, error) {
	program, err := simprogram.Start("guestsim", nil, cfg.json)
	if err != nil {
		return nil, err
	}
	return &Guests{program: program}, nil
}

// Run runs the guests until the context ends, waits until all have ended, and ends the
// program. Afterwards, only Power and Problems may be called.
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

// Power handles power events; pass it as pvesim's Config.OnPower. It ignores events after
// the end of Run.
func (g *Guests) Power(event pvesim.PowerEvent) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.ended {
		g.program.Must("POST", "/power", event, nil)
	}
}

// SetFault sets the fault of the VM with that name.
func (g *Guests) SetFault(vm string, fault Fault) {
	g.program.Must("PUT", "/vms/"+vm+"/fault", fault, nil)
}

// StopKubelet stops the kubelet of a running VM: heartbeats end and pods are not handled.
func (g *Guests) StopKubelet(vm string) error { return g.setKubelet(vm, false) }

// StartKubelet starts the kubelet of a running VM again, with the data on its disk.
func (g *Guests) StartKubelet(vm string) error { return g.setKubelet(vm, true) }

func (g *Guests) setKubelet(vm string, runs bool) error {
	return g.program.Call(context.Background(), "PUT", "/vms/"+vm+"/kubelet", runs, nil)
}

// Problem is an error that a correct guest never encounters. It is recorded once, even if
// the guest retries.
type Problem struct {
	VM   string
	VMID int
	// Step is the phase of the guest: seed, kubelet, certificate, register, heartbeat or
	// pod.
	Step string
	Text string
}

func (p Problem) String() string { return fmt.Sprintf("vm %s: %s: %s", p.VM, p.Step, p.Text) }

// Problems returns the problems so far, in order.
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
