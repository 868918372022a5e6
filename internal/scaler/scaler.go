// Package scaler is the single writer of a fleet: it turns requests into a change of the
// fleet's files, plans and checks each affected host, and applies exactly what was
// planned. It does not choose placements; package planner does. Start at New, Propose,
// Plan and Apply.
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

// Proxmox is the scaler's access to a live Proxmox cluster.
type Proxmox interface {
	// Refresh returns a copy of snapshot with the current VMIDs. It reads again the given
	// guests, and those guests of the given hosts whose CPUs, memory or devices may have
	// changed.
	Refresh(ctx context.Context, snapshot *topology.Snapshot, hosts []topology.HostName, guests ...fleet.VMID) (*topology.Snapshot, error)
	Hosts
	// CanSetAffinity reports whether the credential may write a VM's affinity, and if not,
	// the reason.
	CanSetAffinity() (bool, string)
	// CanSetHugePages reports whether the credential may back a VM's memory with huge
	// pages, and if not, the reason.
	CanSetHugePages() (bool, string)
	// ProviderEnv returns the environment variables with the provider's credential.
	ProviderEnv() map[string]string
}

// Hosts reports the current state of the hosts of a Proxmox cluster.
type Hosts interface {
	// Busy reports whether a task on a host is cloning or destroying a guest.
	Busy(ctx context.Context, host topology.HostName) (bool, error)
	// Online reports whether the cluster reaches a host. It returns an error if that is
	// unknown.
	Online(ctx context.Context, host topology.HostName) (bool, error)
	// Images returns the volumes of the disk images on a storage of a host.
	Images(ctx context.Context, host topology.HostName, storage string) ([]string, error)
}

// Guests performs operations on VMs that no plan can. Each returned string is a line for
// the record.
type Guests interface {
	// Seed uploads the seeds of VMs, right before the VMs are created, completed or woken.
	Seed(ctx context.Context, vms []fleet.VM) (written []string, err error)
	// ShutDown shuts guests down before their VMs are destroyed. A guest that does not
	// shut down is not an error.
	ShutDown(ctx context.Context, vms []fleet.VM) (written []string, err error)
}

// Observer receives how long operations take.
type Observer interface { //nolint:interfacebloat // one method for each kind of event
	PlanDone(host topology.HostID, took time.Duration, err error)
	GuardDone(took time.Duration, verdict guard.Decision)
	ApplyDone(host topology.HostID, took time.Duration, err error)
	// Queued receives how many VMs wait to be created, woken or removed, and QueueDone how
	// long a VM waited before its change began.
	Queued(vms int)
	QueueDone(host topology.HostID, waited time.Duration)
	// VMFailed receives the host of each VM that could not be created or woken, or that
	// vanished or conflicts with another guest.
	VMFailed(host topology.HostID)
}

// unobserved discards everything.
type unobserved struct{}

func (unobserved) PlanDone(topology.HostID, time.Duration, error)  {}
func (unobserved) GuardDone(time.Duration, guard.Decision)         {}
func (unobserved) ApplyDone(topology.HostID, time.Duration, error) {}
func (unobserved) Queued(int)                                      {}
func (unobserved) QueueDone(topology.HostID, time.Duration)        {}
func (unobserved) VMFailed(topology.HostID)                        {}

// Region is the configuration of a Proxmox cluster.
type Region struct {
	Name     topology.RegionName
	Endpoint string
	Insecure bool
	// CAFile contains the certificates to trust; empty means the system's.
	CAFile string
	VMIDs  fleet.VMIDRange
	// TemplateVMIDs is the range of VMIDs of templates; zero means none.
	TemplateVMIDs fleet.VMIDRange
	// WaitDelay is how long a canceled apply may continue before it is killed; it must be
	// longer than Proxmox takes for one VM. 0 means state.DefaultWaitDelay.
	WaitDelay time.Duration
	// Timeouts are the timeouts of new VMs.
	Timeouts fleet.Timeouts
	// Live is nil in a dry run on a recorded snapshot.
	Live Proxmox
}

// Config configures a Scaler.
type Config struct {
	ClusterID string
	// Store holds the desired state and the history.
	Store store.Store
	// Dir is the fleet's directory. StateDir must be outside it. The scaler migrates
	// states of an older version from it, and otherwise neither reads nor writes it.
	Dir string
	// StateDir is for data that belongs to this machine: the engine's working directories,
	// which can be lost without harm, and local states. Only this user may have write
	// access.
	StateDir string
	// Place is the absolute path of a fleet in a plain directory; empty for others. The
	// state directory records it, so that a copy of the fleet does not use the same
	// states.
	Place   string
	Backend fleet.Backend
	// Kubeconfig logs the engine in to the API server with the states.
	Kubeconfig state.Kubeconfig
	// Encryption makes OpenTofu encrypt states as configured in the variable
	// TF_ENCRYPTION.
	Encryption bool
	Regions    []Region
	// Engine runs the plans; without it, Plan and Apply fail.
	Engine *state.Engine
	// PluginDir is a filesystem mirror of providers; empty means the registry.
	PluginDir string
	// Engines returns how many engines may run at once now, in all changes together. If it
	// is nil or returns 0, only the number of hosts that one change processes at once is
	// limited.
	Engines func() int
	// Providers decides which providers may run.
	Providers *state.Providers
	Rules     guard.Rules
	// Drained returns the reason why a Node's VM must not be deleted yet, as an error. A
	// Node that does not exist is drained. If Drained is nil, nothing is known about
	// Nodes, and no VM is deleted.
	Drained func(ctx context.Context, node string) error
	// NodeExists reports whether Kubernetes has a Node. If it is nil, a drained Node is
	// assumed not to exist.
	NodeExists func(ctx context.Context, node string) (bool, error)
	// NodeAddresses maps the addresses of the cluster's Nodes, which VMs must not get, to the
	// Nodes' names. If it is nil, they are unknown.
	NodeAddresses func(ctx context.Context) (map[string]string, error)
	// ClassVMIDs returns the ranges of VMIDs of classes, from which VMs of classes without a
	// range get none. If it is nil, no class has a range.
	ClassVMIDs func(ctx context.Context) ([]fleet.VMIDRange, error)
	// HolderGone reports whether it is certain that no engine on a host, as named in a
	// lock, is alive, and the proof. If it is nil, this is never certain.
	HolderGone func(ctx context.Context, host string) (proof string, gone bool)
	// Blind is the reason why a Node that Drained does not find may still exist, or
	// empty. If it is set, numaform does not delete a VM because its file was deleted.
	Blind string
	// Guests performs operations on VMs that no plan can; nil does nothing.
	Guests Guests
	// Observe receives how long operations take; nil discards it.
	Observe Observer
	// Release is what this version writes to fleets; the zero value means
	// generator.Current.
	Release generator.Release
	// Actor is who runs numaform, such as user@host, and Version is the version of
	// numaform.
	Actor, Version string
	// Progress receives a line for each step; nil discards them.
	Progress func(host topology.HostID, message string)
	// Quiet omits the steps of Progress that each change has: planning, applying, and the
	// start and end of the engine's operation on each VM.
	Quiet bool
	// Count receives how many hosts of a step, such as planning, are done; nil discards it.
	Count func(step string, done, total int)
	// Notice receives each message about the fleet once; nil discards them.
	Notice func(message string)
	// Log receives the engine's output; nil discards it.
	Log io.Writer
	// Clock defaults to the real clock.
	Clock clock.WithTicker
}

// Scaler is the single writer of one fleet.
type Scaler struct {
	config  Config
	engines slots
	// restoring is a test hook that ends a restore before one of its steps.
	restoring func(step string) error

	// mu guards the fields below. The store's lock excludes other processes; within one
	// process, changes of different hosts run concurrently, and must not treat each other as
	// leftovers of a crash.
	mu sync.Mutex
	// busy are the hosts to which a Writer is applying a change.
	busy map[topology.HostID]bool
	// done are the hosts on which changes succeeded whose outcomes are not recorded yet.
	done map[hostPart]bool
	// noticed is the ID of the latest change by another installation that Notice
	// received.
	noticed string
}

// New returns the scaler of a fleet. It does no I/O.
func New(config Config) *Scaler {
	if config.Progress == nil {
		config.Progress = func(topology.HostID, string) {}
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
	config.Release.Memo = &generator.Memo{}
	if config.NodeAddresses == nil {
		config.NodeAddresses = func(context.Context) (map[string]string, error) { return nil, nil }
	}
	if config.ClassVMIDs == nil {
		config.ClassVMIDs = func(context.Context) ([]fleet.VMIDRange, error) { return nil, nil }
	}
	if config.Count == nil {
		config.Count = func(string, int, int) {}
	}
	if config.Observe == nil {
		config.Observe = unobserved{}
	}
	return &Scaler{
		config: config, engines: slots{limit: config.Engines}, busy: map[topology.HostID]bool{}, done: map[hostPart]bool{},
	}
}

// region returns the configuration of a region, or only its name if it is not configured.
func (s *Scaler) region(name topology.RegionName) Region {
	for _, region := range s.config.Regions {
		if region.Name == name {
			return region
		}
	}
	return Region{Name: name}
}
