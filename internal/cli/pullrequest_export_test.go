package cli

import (
	"context"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// ReviewedChange is a change of apply, or, with removed, one of remove.
func ReviewedChange(removed ...string) *Reviewed { return ReviewedChangeOf("lab", removed...) }

// ReviewedChangeOf is a change of a cluster's fleet.
func ReviewedChangeOf(clusterID string, removed ...string) *Reviewed {
	p := &proposal{session: &session{config: &operator.Config{ClusterID: clusterID}}, change: &scaler.Change{Why: "a reason"}}
	if len(removed) == 0 {
		p.decision = &scheduling.Decision{}
	}
	for _, name := range removed {
		p.change.Removed = append(p.change.Removed, fleet.VM{Name: name})
	}
	return &Reviewed{p}
}

// Reviewed is a change that waits for review.
type Reviewed struct{ p *proposal }

// Request returns the pull request of the change.
func (r *Reviewed) Request(branch string) forge.NewPullRequest {
	return r.p.pullRequest(branch, "1234")
}

// CloseReplaced closes the pull requests that the change replaces.
func (r *Reviewed) CloseReplaced(ctx context.Context, process Process, client forge.Client, why string) error {
	open, err := client.Open(ctx)
	if err != nil {
		return err
	}
	return r.p.closeReplaced(ctx, process, client, ofCommandLine(open), why)
}

// Refusing makes a change of apply refuse a pod and add VMs.
func (r *Reviewed) Refusing(added ...string) *Reviewed {
	r.p.decision.Refused = []scheduling.Refusal{{}}
	for _, name := range added {
		r.p.change.Added = append(r.p.change.Added, fleet.VM{Name: name})
	}
	return r
}
