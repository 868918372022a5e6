// Package approval lets people decide on changes before anything is begun: what a
// NodePool's mode, or the guard, does not let pass becomes a ScalePlan that waits
// for the whole hash of its diff. It decides on no place and changes no fleet:
// scaler plans dry for it, and what is approved goes the usual road. Start at New,
// Approvals.Up, Approvals.Approver and Approvals.Methods; docs/approval.md is what
// people read.
package approval

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// Times of a ScalePlan's life.
const (
	// DefaultExpiry is how long a ScalePlan can be approved and begun.
	DefaultExpiry = 24 * time.Hour
	// rejectedFor is how long a rejected plan is not proposed again.
	rejectedFor = 24 * time.Hour
	// keptFor is how long a plan stays once it is decided and done.
	keptFor = 7 * 24 * time.Hour
	// planFresh is how long a dry plan of the same VMs need not be made again.
	planFresh = 10 * time.Minute
	// draftGood is how long what was planned dry stands for a plan of the same VMs that
	// would be made now.
	draftGood = 30 * time.Second
	// unwantedFor is how long pods may not ask for what a plan holds until it goes.
	unwantedFor = 2 * time.Minute
	// askEvery is how often Karpenter's methods are asked about pools whose nodes
	// may not go unasked.
	askEvery = time.Minute
	// beginWithin is how long what was approved may take until it shows.
	beginWithin = 15 * time.Minute
	// proposeWithin is how long to wait for clones of an earlier run before a plan is made.
	proposeWithin = 20 * time.Second
	// drainWithin is how long approved nodes may take to leave after they could.
	drainWithin = time.Hour
)

// Scaler proposes changes and plans them without changing anything; *scaler.Scaler
// is one.
type Scaler interface {
	Propose(
		ctx context.Context, snapshot *topology.Snapshot, requests []scaler.Request, taken map[topology.RegionName][]fleet.VMID,
	) (*scaler.Change, error)
	ProposeRemoval(ctx context.Context, snapshot *topology.Snapshot, names []string) (*scaler.Change, error)
	Plan(ctx context.Context, change *scaler.Change) ([]scaler.ShardPlan, error)
}

// Fleet tells how far VMs are; *scaler.Writer is one.
type Fleet interface {
	// Synced reports whether the fleet has been read: before that, VMs knows of none.
	Synced() bool
	VMs() []scaler.VMState
}

// Config is what New needs.
type Config struct {
	// Client reads NodePools and ScalePlans and writes ScalePlans. It must not read
	// from a cache: an approval that was used must never look unused.
	Client client.Client
	// Namespace is numaform's own; the ledger of ScalePlans is there.
	Namespace string
	// Scaler makes the dry plans.
	Scaler Scaler
	// Fleet is asked how far VMs are; see also Watch.
	Fleet Fleet
	// Snapshot returns Proxmox as it was a moment ago.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that must not be given out; nil means none.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Paused reports whether nothing may be begun; nil means never.
	Paused func(ctx context.Context) (bool, error)
	// Approved is called when a plan that waits was approved and can be begun: whoever
	// wants it should ask again. nil drops it.
	Approved func()
	// Events takes what people should know; nil drops it.
	Events events.Recorder
	// Clock is the real one by default.
	Clock clock.PassiveClock
	// Expiry is how long a ScalePlan can be approved; 0 means DefaultExpiry.
	Expiry time.Duration
}

// Approvals knows which changes wait for people. Run it on the leader only.
type Approvals struct {
	config  Config
	started time.Time

	// planning makes dry plans follow each other: each costs a processor for a while.
	planning sync.Mutex

	// mu guards what follows.
	mu    sync.Mutex
	fleet Fleet
	// planned is the last dry plan of each NodePool's new VMs.
	planned map[string]planned
	// due are new VMs that have to be planned before anybody can say more of them.
	due []*group
	// wanted is when pods last asked for VMs of each NodePool.
	wanted map[string]time.Time
	// seen is when Karpenter last offered a VM to each kind of disruption.
	seen map[offered]time.Time
}

var _ scaler.Gate = (*Approvals)(nil)

// New returns the approvals of one numaform. It touches nothing.
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
		planned: map[string]planned{}, wanted: map[string]time.Time{}, seen: map[offered]time.Time{},
	}
}

// Watch sets whom to ask how far VMs are, where the Writer can only be made with the
// gate in hand.
func (a *Approvals) Watch(fleet Fleet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fleet = fleet
}

// synced reports whether it is known how far VMs are.
func (a *Approvals) synced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fleet == nil || a.fleet.Synced()
}

// vms returns the VMs that are wanted or being removed.
func (a *Approvals) vms() []scaler.VMState {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fleet == nil {
		return nil
	}
	return a.fleet.VMs()
}

// tell publishes an event about an object.
func (a *Approvals) tell(about runtime.Object, name, kind, reason, message string) {
	if a.config.Events == nil {
		return
	}
	a.config.Events.Publish(events.Event{
		InvolvedObject: about, Type: kind, Reason: reason, Message: message, DedupeValues: []string{name, message},
	})
}

// warn publishes a warning.
func (a *Approvals) warn(about client.Object, reason, message string) {
	a.tell(about, about.GetName(), corev1.EventTypeWarning, reason, message)
}
