// Package approval delays changes that need approval. A change for which the mode of a
// NodePool, or the guard, requires approval becomes a ScalePlan, which is pending until
// an operator approves it by its complete hash. The package chooses no placements
// and changes no fleet: package scaler makes the dry plans and applies approved changes
// in the usual way. Start at New, Approvals.Up, Approvals.Approver and Approvals.Methods;
// docs/approval.md is the user's documentation.
package approval

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/topology"
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
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that must not be assigned.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Cost returns the cost of a change from some VMs to others, as Cluster.Cost of package
	// scheduling; nil means that ScalePlans state no cost.
	Cost func(ctx context.Context, before, after []fleet.VM) (scheduling.Cost, error)
	// Pictures makes proposed plans have pictures.
	Pictures bool
	// ClusterID is the cluster ID that signatures cover.
	ClusterID string
	// Signatures returns whose signatures approvals need; nil means that none do. It is
	// called for each decision, so that a removed key is invalid at once.
	Signatures func() (signature.Policy, error)
	// Freezes are the windows in which only break-glass approvals begin a change.
	Freezes freeze.Windows
	// Paused reports whether no change may begin now.
	Paused func() bool
	// Unset is the mode of a NodePool without an annotation; empty means ModePolicy.
	Unset Mode
	// Decide is called while a plan is approved but has not begun, or pods may no longer need
	// it, so that its requester decides again. It can be called several times for a plan.
	Decide func()
	Events events.Recorder
	Clock  clock.PassiveClock
}

// Approvals manages changes that need approval. Run it on the leader only.
type Approvals struct {
	config Config
	fleet  Fleet
	// started returns when it was first called, which only the leader does. A standby replica may
	// be built days before it leads.
	started func() time.Time

	// planning serializes dry plans, because each uses a processor for a while.
	planning sync.Mutex

	// writing is held while a status and its entry in the ledger change, and while both are
	// read, so that no reader sees a status without its entry.
	writing sync.Mutex

	// attributing guards the next two fields: the plans that ApproverOf read last, and
	// when it read them.
	attributing sync.Mutex
	listedAt    time.Time
	listedPlans []v1alpha1.ScalePlan

	// mu guards the fields below.
	mu sync.Mutex
	// planned is the last dry plan of each NodePool's new VMs.
	planned map[string]planned
	// waits are the reasons why new VMs wait, by NodePool.
	waits map[string]scheduling.Wait
	// pending counts the ScalePlans without a decision, as of the last Advance.
	pending map[v1alpha1.ScaleDirection]int
	// begunPlans counts the ScalePlans in progress, as of the last Advance; -1 before it.
	begunPlans int
	// glass counts the break-glass approvals that began.
	glass int
	// due are new VMs that must be planned before a decision about them is possible.
	due []*group
	// requested is when pods last requested VMs of each NodePool.
	requested map[string]time.Time
	// pictures are the pictures of plans that are not over, by plan and host.
	pictures map[string]map[string][]byte
	// seen is when a VM was last a candidate for each kind of disruption.
	seen map[candidacy]time.Time
}

var _ scaler.Gate = (*Approvals)(nil)

// New returns the approvals of one numaform installation. It does no I/O. Call Watch
// before any other method.
func New(config Config) *Approvals {
	config.Unset = cmp.Or(config.Unset, ModePolicy)
	return &Approvals{
		config:    config,
		started:   sync.OnceValue(config.Clock.Now),
		planned:   map[string]planned{},
		waits:     map[string]scheduling.Wait{},
		requested: map[string]time.Time{},
		seen:      map[candidacy]time.Time{},
		pictures:  map[string]map[string][]byte{},

		begunPlans: -1,
	}
}

// Watch sets the fleet. It is not part of the Config because the Writer, which implements
// Fleet, is created with these Approvals as its gate.
func (a *Approvals) Watch(fleet Fleet) { a.fleet = fleet }

// publish publishes an event about an object.
func (a *Approvals) publish(about client.Object, kind, reason, message string) {
	a.config.Events.Publish(events.Event{
		InvolvedObject: about, Type: kind, Reason: reason, Message: message, DedupeValues: []string{about.GetName(), message},
	})
}
