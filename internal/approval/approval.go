// Package approval makes changes wait for people before anything is begun: a change that
// a NodePool's mode, or the guard, does not allow becomes a ScalePlan, which is pending
// until it is approved by the complete hash of its diff. The package chooses no
// placements and changes no fleet: scaler makes dry plans for it, and applies what is
// approved in the usual way. Start at New, Approvals.Up, Approvals.Approver and
// Approvals.Methods; docs/approval.md is the user's documentation.
package approval

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// The periods in a ScalePlan's life.
const (
	// DefaultExpiry is how long a ScalePlan can be approved and begun.
	DefaultExpiry = 24 * time.Hour
	// rejectedFor is how long a rejected plan is not proposed again.
	rejectedFor = 24 * time.Hour
	// keptFor is how long a finished plan is kept.
	keptFor = 7 * 24 * time.Hour
	// planFresh is how long a dry plan of the same VMs can be reused.
	planFresh = 10 * time.Minute
	// draftGood is how long a dry plan can replace a new plan of the same VMs.
	draftGood = 30 * time.Second
	// unrequestedFor is how long a plan remains after pods stopped requesting its VMs.
	unrequestedFor = 2 * time.Minute
	// computeEvery is the interval between calls of Karpenter's methods for pools whose nodes
	// must not be removed without approval.
	computeEvery = time.Minute
	// beginWithin is the maximum time until an approved plan shows a result.
	beginWithin = 15 * time.Minute
	// proposeWithin is how long to wait for clones of an earlier run before planning.
	proposeWithin = 20 * time.Second
	// drainWithin is the maximum time for approved nodes to leave once they can.
	drainWithin = time.Hour
	// candidateFor is how long a plan remains after its node stopped being a candidate for
	// disruption, and seenFor how long a candidate is remembered.
	candidateFor, seenFor = 5 * time.Minute, time.Hour
)

// Scaler proposes changes and makes dry plans; *scaler.Scaler implements it.
type Scaler interface {
	Propose(
		ctx context.Context, snapshot *topology.Snapshot, requests []scaler.Request, taken map[topology.RegionName][]fleet.VMID,
	) (*scaler.Change, error)
	ProposeRemoval(ctx context.Context, snapshot *topology.Snapshot, names []string) (*scaler.Change, error)
	Plan(ctx context.Context, change *scaler.Change) ([]scaler.RootPlan, error)
}

// Fleet reports the progress of VMs; *scaler.Writer implements it.
type Fleet interface {
	// Synced reports whether the fleet has been read: before that, VMs returns none.
	Synced() bool
	VMs() []scaler.VMState
}

// Config configures Approvals.
type Config struct {
	// Client reads NodePools and ScalePlans and writes ScalePlans. It must not read from
	// a cache, because a used approval must never look unused.
	Client client.Client
	// Namespace is numaform's own; it contains the ledger of ScalePlans.
	Namespace string
	// Scaler makes the dry plans.
	Scaler Scaler
	// Fleet reports the progress of VMs; see also Watch.
	Fleet Fleet
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that must not be assigned; nil means none.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Paused reports whether nothing may be begun; nil means never.
	Paused func(ctx context.Context) (bool, error)
	// Approved is called when a pending plan was approved and can be begun, so that its
	// requester asks again. It may be nil.
	Approved func()
	// Events receives events for people; nil discards them.
	Events events.Recorder
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Expiry is how long a ScalePlan can be approved; 0 means DefaultExpiry.
	Expiry time.Duration
}

// Approvals manages the changes that are pending approval. Run it on the leader only.
type Approvals struct {
	config  Config
	started time.Time

	// planning serializes dry plans, because each uses a processor for a while.
	planning sync.Mutex

	// mu guards the fields below.
	mu    sync.Mutex
	fleet Fleet
	// planned is the last dry plan of each NodePool's new VMs.
	planned map[string]planned
	// due are new VMs that must be planned before a decision about them is possible.
	due []*group
	// requested is when pods last requested VMs of each NodePool.
	requested map[string]time.Time
	// seen is when a VM was last a candidate for each kind of disruption.
	seen map[candidacy]time.Time
}

var _ scaler.Gate = (*Approvals)(nil)

// New returns the approvals of one numaform installation. It does no I/O.
func New(config Config) *Approvals {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Expiry == 0 {
		config.Expiry = DefaultExpiry
	}
	if config.Taken == nil {
		config.Taken = func(context.Context) (map[topology.RegionName][]fleet.VMID, error) { return nil, nil }
	}
	if config.Paused == nil {
		config.Paused = func(context.Context) (bool, error) { return false, nil }
	}
	if config.Approved == nil {
		config.Approved = func() {}
	}
	return &Approvals{
		config: config, started: config.Clock.Now(), fleet: config.Fleet,
		planned: map[string]planned{}, requested: map[string]time.Time{}, seen: map[candidacy]time.Time{},
	}
}

// Watch sets the Fleet after New, because the Writer needs the gate to be created.
func (a *Approvals) Watch(fleet Fleet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fleet = fleet
}

// vms returns the VMs that are desired or being removed.
func (a *Approvals) vms() []scaler.VMState {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fleet == nil {
		return nil
	}
	return a.fleet.VMs()
}

// publish publishes an event about an object.
func (a *Approvals) publish(about client.Object, kind, reason, message string) {
	if a.config.Events == nil {
		return
	}
	a.config.Events.Publish(events.Event{
		InvolvedObject: about, Type: kind, Reason: reason, Message: message, DedupeValues: []string{about.GetName(), message},
	})
}
