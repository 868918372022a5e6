// Package scaler is the single writer of a fleet: it turns requests into a
// change of the fleet's files, has each touched shard planned and judged, and
// applies exactly what was planned. It chooses no places: planner did. Start at
// New, Propose, Plan and Apply.
package scaler

import (
	"context"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Proxmox is what the scaler needs of a live Proxmox cluster.
type Proxmox interface {
	// Refresh reads the guests of the given hosts, and which VMIDs exist, again.
	Refresh(ctx context.Context, snapshot *topology.Snapshot, hosts []topology.HostName) (*topology.Snapshot, error)
	Hosts
	// CanSetAffinity reports whether the credential may write a VM's affinity.
	CanSetAffinity() (bool, string)
	// CanSetHugePages reports whether it may back a VM's memory with huge pages.
	CanSetHugePages() (bool, string)
	// ProviderEnv is the environment that logs the provider in.
	ProviderEnv() map[string]string
}

// Hosts tells how hosts of a Proxmox cluster are now.
type Hosts interface {
	// Busy reports whether a host clones or destroys a guest.
	Busy(ctx context.Context, host topology.HostName) (bool, error)
	// Online reports whether the cluster reaches a host. It is an error if nobody can
	// tell.
	Online(ctx context.Context, host topology.HostName) (bool, error)
}

// Guests does for VMs what no plan can. Each write is a line for the record.
type Guests interface {
	// Seed uploads what new VMs join with, right before they are made.
	Seed(ctx context.Context, vms []fleet.VM) (written []string, err error)
	// ShutDown ends guests in good order before their VMs are destroyed. A guest that
	// does not obey is no error.
	ShutDown(ctx context.Context, vms []fleet.VM) (written []string, err error)
}

// Observer is told how long things take.
type Observer interface {
	PlanDone(shard fleet.Shard, took time.Duration, err error)
	GuardDone(took time.Duration)
	ApplyDone(shard fleet.Shard, took time.Duration, err error)
	// Queued is told how many VMs wait to be made or removed, and QueueDone how long one
	// did.
	Queued(vms int)
	QueueDone(shard fleet.Shard, waited time.Duration)
}

// unobserved drops what it is told.
type unobserved struct{}

func (unobserved) PlanDone(fleet.Shard, time.Duration, error)  {}
func (unobserved) GuardDone(time.Duration)                     {}
func (unobserved) ApplyDone(fleet.Shard, time.Duration, error) {}
func (unobserved) Queued(int)                                  {}
func (unobserved) QueueDone(fleet.Shard, time.Duration)        {}

// Region is what the scaler knows of a Proxmox cluster from the configuration.
type Region struct {
	Name     topology.RegionName
	Endpoint string
	Insecure bool
	// CAFile holds the certificates to trust; empty means the system's.
	CAFile string
	VMIDs  fleet.VMIDRange
	// WaitDelay is how long an apply that is being canceled may go on before it
	// is killed: longer than Proxmox takes over one VM. 0 means state's default.
	WaitDelay time.Duration
	// Timeouts are those of new VMs.
	Timeouts fleet.Timeouts
	// Live is nil in a dry run on a recorded snapshot.
	Live Proxmox
}

// Config is what New needs.
type Config struct {
	ClusterID string
	// Store keeps what is wanted and what was done.
	Store store.Store
	// Dir is the fleet's directory. Of it, only states of an older numaform are taken over.
	Dir string
	// StateDir holds what is this machine's alone: the engine's working directories, which
	// may be lost, and local states. Only this user may write it.
	StateDir string
	// Place is where a fleet in a plain directory lies, absolute; empty for others. The
	// state directory remembers it, so that a copy does not take it for its own.
	Place   string
	Backend fleet.Backend
	// Encryption lets OpenTofu encrypt states as the variable TF_ENCRYPTION says.
	Encryption bool
	Regions    []Region
	// Engine runs the plans; nil makes Plan and Apply fail.
	Engine *state.Engine
	// PluginDir is a filesystem mirror of providers; empty means the registry.
	PluginDir string
	// Providers decides which providers may run.
	Providers *state.Providers
	Rules     guard.Rules
	// Drained says by an error why a Node's VM must not be deleted yet. A Node that
	// does not exist is drained. nil means that nothing is known of Nodes, and no VM
	// is deleted.
	Drained func(ctx context.Context, node string) error
	// HolderGone proves that no engine that ran on a host, which a lock names, lives;
	// nil means that nobody can.
	HolderGone func(ctx context.Context, host string) (proof string, gone bool)
	// Blind says why a Node that Drained does not know may be there all the same, or
	// is empty. Then files that people deleted delete nothing.
	Blind string
	// Guests does for VMs what no plan can; nil does nothing.
	Guests Guests
	// Observe is told how long things take; nil drops it.
	Observe Observer
	// Release is what is written into fleets; the zero value is what this numaform
	// brings along.
	Release generator.Release
	// Actor is who runs numaform, such as user@host, and Version numaform's own.
	Actor, Version string
	// Progress receives a line for each step; nil drops them.
	Progress func(shard fleet.Shard, message string)
	// Notice receives what a person should know of the fleet, once each; nil drops it.
	Notice func(message string)
	// Log receives the engine's own words; nil drops them.
	Log io.Writer
	// Clock is the real one by default.
	Clock clock.WithTicker
}

// Scaler is the single writer of one fleet.
type Scaler struct {
	config Config
	// running is what goes on beside a change, in this process.
	running *running

	// mu guards noticed.
	mu sync.Mutex
	// noticed is the ID of the last change of others that Notice received.
	noticed string
}

// New returns the scaler of a fleet. It touches nothing.
func New(config Config) *Scaler {
	if config.Progress == nil {
		config.Progress = func(fleet.Shard, string) {}
	}
	if config.Notice == nil {
		config.Notice = func(string) {}
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Release.Modules == nil {
		config.Release = generator.Current()
	}
	if config.Observe == nil {
		config.Observe = unobserved{}
	}
	return &Scaler{config: config, running: newRunning()}
}

func (s *Scaler) region(name topology.RegionName) Region {
	for _, region := range s.config.Regions {
		if region.Name == name {
			return region
		}
	}
	return Region{Name: name}
}
