// Package scheduling decides which VMs pending pods need. It runs Karpenter's scheduler as
// a library over a cluster read from manifests or an API server, and places the result with
// the planner, until both agree. It writes nothing and keeps no state between decisions.
// Start at Load or FromKubeconfig, then Cluster.Decide. DESIGN.md in this directory
// describes the dependencies on Karpenter and how decisions are reproducible.
package scheduling

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Request is the input of a decision.
type Request struct {
	// ClusterID is the cluster ID of the installation that owns Existing.
	ClusterID string
	Snapshot  *topology.Snapshot
	// Existing are the VMs that are already desired, whether or not they run, including
	// standby VMs.
	Existing []fleet.VM
	// Reserved are further VMs that use resources but take no pods: they have failed, or
	// are being removed.
	Reserved []fleet.VM
	// Types are the instance types; nil means DefaultInstanceTypes.
	Types []InstanceType
	// Prices determine the prices of the types.
	Prices Prices
	// Virtual are pods that do not exist but for which room is reserved: they get the room
	// that the other pods leave.
	Virtual []*corev1.Pod
	// Standby are pods that do not exist but for which standby VMs are created: they are
	// never placed on nodes or other VMs.
	Standby []*corev1.Pod
	// Unready are the standby VMs that cannot be woken now, because they are being created,
	// failed, or need an approval.
	Unready map[fleet.Key]bool
	// Keep are the standby VMs that are not replaced yet, even if they are outdated.
	Keep map[fleet.Key]bool
	// Busy are the hosts on which the start of a standby VM would wait for a change, and
	// Removing the hosts on which it would wait only for the removal of VMs.
	Busy, Removing []topology.HostID
	// Evacuated are the hosts on which no standby VM is woken or remains.
	Evacuated []topology.HostID
	// Unavailable are the unavailable offerings.
	Unavailable []OfferingSelector
	// IgnorePreferences ignores preferences of pods (Karpenter's PREFERENCE_POLICY).
	IgnorePreferences bool
	// RelaxMinValues relaxes minValues (Karpenter's MIN_VALUES_POLICY).
	RelaxMinValues bool
	// Overlays enables NodeOverlays (Karpenter's gate NodeOverlay).
	Overlays bool
	// Everywhere makes InstanceTypes offer each type on each host of its class, with or
	// without room.
	Everywhere bool
	// Timed, if not nil, receives the duration of each run of a part of the decision.
	Timed func(part Part, took time.Duration)
	// Now is the time of the decision, by default the real time: a Node that is not ready
	// counts as joining only while it is young.
	Now time.Time
}

// Part is a part of a decision.
type Part string

// The parts: Karpenter's scheduler, which finds the nodes that pods need, and the
// planner, which places them.
const (
	PartSolve Part = "solve"
	PartPlace Part = "place"
)

// timed reports the duration of a part that began at began. Call it in a defer statement.
func (r *Request) timed(part Part, began time.Time) {
	if r.Timed != nil {
		r.Timed(part, time.Since(began))
	}
}

// Decision is the result for every pending pod.
type Decision struct {
	// New are the VMs to create, sorted by pool, host and type.
	New []Placed
	// Woken are the standby VMs to start, sorted by name.
	Woken []Woken
	// Standby are the other standby VMs, sorted by name, except VMs whose host is down.
	Standby []Standby
	// InFlight are existing VMs that will take pods once they have joined.
	InFlight []Landing
	// Existing are the existing nodes that have room for some of the pods.
	Existing []Landing
	// Refused are the pods that cannot be placed, sorted by name.
	Refused []Refusal
	// Asked is the number of pods in the decision, including virtual and standby pods;
	// Placed is the number of pods that have a place.
	Asked, Placed int
}

// Placed is a VM to create, with its placement and the pods that need it.
type Placed struct {
	Spec      fleet.Spec
	Placement fleet.Placement
	NodePool  string
	// ClassHash is the hash of the class in this decision.
	ClassHash string
	Pods      []types.NamespacedName
	// Standby is set for a VM that stays stopped, and Reserve if it reserves its CPUs and
	// memory meanwhile.
	Standby, Reserve bool
	// ScalePlan is the approved plan that creates the VM, or empty.
	ScalePlan string
}

// Landing is a node, or a VM that will become one, with the pods placed on it.
type Landing struct {
	// Name is the node's name, which is also the VM's.
	Name string
	Pods []types.NamespacedName
}

// Refusal explains why a pod cannot be placed.
type Refusal struct {
	Pod    types.NamespacedName
	Reason string
	// Limited is the NodePool whose limit is the only obstacle, or empty.
	Limited string
}

// Wait is the reason why new VMs of a NodePool wait, with the pods that need them.
type Wait struct {
	NodePool string
	// ScalePlan is the plan for which the VMs wait, or empty.
	ScalePlan string
	// Since is the time of the first failure of the state backend; zero for other reasons.
	Since time.Time
	// Reason is one of v1alpha1's reasons why new nodes wait, and Message one sentence with
	// the fix.
	Reason, Message string
	Pods            []types.NamespacedName
}

// Decide returns the VMs that the cluster's pending pods need in addition to the existing
// nodes and VMs. The same request gives the same decision, and a request with the
// decision's VMs among the existing ones adds no further VM.
func (c *Cluster) Decide(ctx context.Context, request Request) (*Decision, error) {
	_, decision, err := c.decide(ctx, request)
	if err != nil {
		return nil, err
	}
	return decision, nil
}

// decide decides, and also returns the session for explanations.
func (c *Cluster) decide(ctx context.Context, request Request) (*session, *Decision, error) {
	if request.Snapshot == nil {
		return nil, nil, errors.New("deciding: the request has no topology snapshot")
	}
	ctx = withKarpenter(ctx, request)
	s, err := newSession(ctx, c.client, request)
	if err != nil {
		return nil, nil, fmt.Errorf("deciding: %w", err)
	}
	decision, err := s.run(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("deciding: %w", err)
	}
	if decision.Placed+len(decision.Refused) != decision.Asked {
		return nil, nil, fmt.Errorf("deciding: of %d pending pods, %d are placed and %d refused: Karpenter's scheduler lost the others",
			decision.Asked, decision.Placed, len(decision.Refused))
	}
	return s, decision, nil
}

// withKarpenter adds what Karpenter reads from the context: its options, and a silent
// logger unless the caller has set one.
func withKarpenter(ctx context.Context, request Request) context.Context {
	if _, err := logr.FromContext(ctx); err != nil {
		ctx = log.IntoContext(ctx, logr.Discard())
	}
	o := &options.Options{
		PreferencePolicy:  options.PreferencePolicyRespect,
		MinValuesPolicy:   options.MinValuesPolicyStrict,
		IgnoreDRARequests: true,
		FeatureGates:      options.DefaultFeatureGates(),
	}
	// Karpenter requires an ID and a count from a cloud for reserved capacity; here,
	// reserved is only a label.
	o.FeatureGates.ReservedCapacity = false
	if request.IgnorePreferences {
		o.PreferencePolicy = options.PreferencePolicyIgnore
	}
	if request.RelaxMinValues {
		o.MinValuesPolicy = options.MinValuesPolicyBestEffort
	}
	return options.ToContext(ctx, o)
}

// silence discards the events that Karpenter publishes: the Decision contains their
// information.
type silence struct{}

// Publish discards the events.
func (silence) Publish(...events.Event) {}
