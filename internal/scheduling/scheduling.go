// Package scheduling decides which VMs pending pods need. It runs Karpenter's
// scheduler as a library over a cluster that is read from manifests or from an
// API server, and asks the planner what hosts can still take, until both agree.
// It writes nothing and keeps nothing between decisions. Start at Load or
// FromKubeconfig, then Cluster.Decide. DESIGN.md beside this file says what is
// relied on in Karpenter and how a decision is made the same twice.
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

// Request is what a decision starts from.
type Request struct {
	// ClusterID is the numaform's whose VMs Kept are.
	ClusterID string
	Snapshot  *topology.Snapshot
	// Kept are the VMs that are desired already, whether or not they run.
	Kept []fleet.VM
	// Occupied are further VMs that hold their places and take no pods: those that
	// failed, or are being removed.
	Occupied []fleet.VM
	// Types are the instance types; nil means DefaultInstanceTypes.
	Types []InstanceType
	// Virtual are pods that do not exist, for which room is to be left: they get what the
	// others leave.
	Virtual []*corev1.Pod
	// Closed are offers that are not to be made for now.
	Closed []Offer
	// IgnorePreferences drops what pods only prefer (Karpenter's PREFERENCE_POLICY).
	IgnorePreferences bool
	// RelaxMinValues lets minValues be missed (Karpenter's MIN_VALUES_POLICY).
	RelaxMinValues bool
	// Overlays has NodeOverlays count (Karpenter's gate NodeOverlay).
	Overlays bool
	// Everywhere has InstanceTypes offer each type on each host of its class, full or not.
	Everywhere bool
	// Timed is told how long each part of the decision took, as often as it ran; nil
	// means that nobody wants to know.
	Timed func(part Part, took time.Duration)
	// ungrouped has Karpenter look at every pod, also where one of a kind will do.
	ungrouped bool
	// Now is when the decision is made, the zero value being the real time: a Node
	// that is not ready is waited for only while it is young.
	Now time.Time
}

// Part is a part of a decision.
type Part string

// The parts: Karpenter's scheduler, which finds what nodes pods want, and the planner,
// which finds their places.
const (
	PartSolve Part = "solve"
	PartPlace Part = "place"
)

// timed tells how long a part took that began then. Call it deferred.
func (r *Request) timed(part Part, began time.Time) {
	if r.Timed != nil {
		r.Timed(part, time.Since(began))
	}
}

// Decision says what happens to every pod that asked for a place.
type Decision struct {
	// New are the VMs to make, sorted by pool, host and type.
	New []Placed
	// InFlight are kept VMs that will take pods once they have joined.
	InFlight []Landing
	// Existing are nodes that have room for pods.
	Existing []Landing
	// Refused are the pods that get no place, sorted by name.
	Refused []Refusal
	// Asked is the number of pods that asked; Placed of them get a place.
	Asked, Placed int
}

// Placed is a VM to make, with its place and the pods that need it.
type Placed struct {
	Spec      fleet.Spec
	Placement fleet.Placement
	NodePool  string
	// ClassHash is that of the class as it was for this decision.
	ClassHash string
	Pods      []types.NamespacedName
}

// Landing is a node, or a VM on its way to be one, that takes pods.
type Landing struct {
	// Name is the node's, which is the VM's.
	Name string
	Pods []types.NamespacedName
}

// Refusal says why a pod gets no place.
type Refusal struct {
	Pod    types.NamespacedName
	Reason string
}

// Decide finds the VMs that the cluster's pending pods need beside the nodes and
// kept VMs that there are. The same request gives the same decision, and a request
// with the decision's VMs among the kept ones makes no further VM.
func (c *Cluster) Decide(ctx context.Context, request Request) (*Decision, error) {
	_, decision, err := c.decide(ctx, request)
	if err != nil {
		return nil, err
	}
	return decision, nil
}

// decide decides, and returns what the decision was made of.
func (c *Cluster) decide(ctx context.Context, request Request) (*session, *Decision, error) {
	if c.err != nil {
		return nil, nil, c.err
	}
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
		return nil, nil, fmt.Errorf("deciding: %d pods asked, but %d are placed and %d refused: Karpenter's scheduler lost some",
			decision.Asked, decision.Placed, len(decision.Refused))
	}
	return s, decision, nil
}

// withKarpenter puts what Karpenter takes from the context there: its options,
// and a logger that keeps silent unless the caller has one.
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
	// A reserved offering needs an id and a count at a cloud; here it is a label.
	o.FeatureGates.ReservedCapacity = false
	if request.IgnorePreferences {
		o.PreferencePolicy = options.PreferencePolicyIgnore
	}
	if request.RelaxMinValues {
		o.MinValuesPolicy = options.MinValuesPolicyBestEffort
	}
	return options.ToContext(ctx, o)
}

// silence takes the events that Karpenter publishes: what they say stands in the
// Decision.
type silence struct{}

// Publish drops the events.
func (silence) Publish(...events.Event) {}
