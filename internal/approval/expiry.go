package approval

import (
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
)

// The periods in a ScalePlan's life.
const (
	// expiry is how long a ScalePlan can be approved and begun.
	expiry = 24 * time.Hour
	// rejectedFor is how long a rejected plan is not proposed again.
	rejectedFor = 24 * time.Hour
	// retainedFor is how long a finished plan remains.
	retainedFor = 7 * 24 * time.Hour
	// planFresh is how long VMs are not planned again while their ScalePlan is undecided
	// or was refused. A denial by the guard also lasts that long.
	planFresh = 10 * time.Minute
	// draftGood is how long a dry plan made after an approval can be used to begin.
	draftGood = 30 * time.Second
	// unrequestedFor is how long a plan remains after pods stopped requesting its VMs.
	unrequestedFor = 2 * time.Minute
	// computeEvery is the interval between calls of Karpenter's methods for pools whose nodes
	// must not be removed without approval.
	computeEvery = time.Minute
	// beginWithin is the maximum time between the beginning of an approved scale-up and the
	// reservation of all of its VMs.
	beginWithin = 15 * time.Minute
	// proposeWithin is the maximum time that a proposal takes, because it waits for clones
	// of an earlier run.
	proposeWithin = 20 * time.Second
	// drainWithin is the maximum time between the beginning of an approved scale-down and
	// the beginning of its deletions.
	drainWithin = time.Hour
	// candidateFor is how long a plan remains after its node stopped being a candidate for
	// disruption, and seenFor how long a candidate is remembered.
	candidateFor, seenFor = 5 * time.Minute, time.Hour
)

// expired reports whether it is too late to approve or begin the plan.
func (a *Approvals) expired(plan *v1alpha1.ScalePlan) bool {
	return !a.config.Clock.Now().Before(plan.Spec.ExpiresAt.Time)
}
