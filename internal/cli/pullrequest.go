package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/prtext"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// openError reports that a change already waits for review in a pull request.
type openError struct{ URL string }

func (e *openError) Error() string {
	return fmt.Sprintf("the same change already waits for review in %s: merge it, then apply", e.URL)
}

// ownBranch matches the branches of the command line's changes. A controller's branches have
// one more element.
var ownBranch = regexp.MustCompile(`^numaform/[^/]+$`)

// openRequests returns the open pull requests of changes of the command line, and the client
// of the forge; nil if changes are not reviewed there.
func (p *proposal) openRequests(ctx context.Context, process Process) ([]forge.PullRequest, forge.Client, error) {
	if !p.session.config.Fleet.Git.Review {
		return nil, nil, nil
	}
	client, err := p.session.config.OpenForge(process.Environ, clock.RealClock{})
	if client == nil || err != nil {
		return nil, nil, err
	}
	open, err := client.Open(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the open pull requests: %w", err)
	}
	return ofCommandLine(open), client, nil
}

// ofCommandLine returns the pull requests of changes of the command line.
func ofCommandLine(all []forge.PullRequest) []forge.PullRequest {
	return slices.DeleteFunc(all, func(o forge.PullRequest) bool { return o.Fork || !ownBranch.MatchString(o.Head) })
}

// alreadyOpen returns an openError if the change is to be reviewed, and an open pull request
// has its digest. Nothing is decided by it: at worst, a change is not proposed twice.
func (p *proposal) alreadyOpen(ctx context.Context, process Process) error {
	open, _, err := p.openRequests(ctx, process)
	if err != nil {
		return err
	}
	for i := range open {
		if strings.Contains(open[i].Body, digest(p.plans)) {
			return &openError{URL: open[i].URL}
		}
	}
	return nil
}

// openPullRequest opens a pull request for a change that waits for review on a branch, and
// sets its status, if a forge is configured. It closes those that the change replaces.
func (p *proposal) openPullRequest(ctx context.Context, process Process, proposed *store.ProposedError) error {
	open, client, err := p.openRequests(ctx, process)
	if client == nil || err != nil {
		return err
	}
	shown := digest(p.plans)
	// The status exists before the pull request, so that it does not replace the verdict of a
	// controller that sees the pull request.
	status := forge.Status{Context: "numaform/plan", State: forge.Success, Description: "digest " + shown}
	if err := client.SetStatus(ctx, proposed.Commit, status); err != nil {
		return fmt.Errorf("the branch %s waits for review, but setting the status of its commit failed: %w: open a pull request by hand", proposed.Branch, err)
	}
	request, err := client.Create(ctx, p.pullRequest(proposed.Branch, shown))
	if incomplete := new(forge.IncompleteError); errors.As(err, &incomplete) {
		fmt.Fprintf(process.Stderr, "numaform: %v\n", incomplete)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("the branch %s waits for review, but opening its pull request failed: %w: open one by hand", proposed.Branch, err)
	}
	fmt.Fprintf(process.Stdout, "Pull request: %s\n", request.URL)
	if settings := &p.session.config.Fleet.Git.Forge; len(settings.Approvers) > 0 {
		fmt.Fprintln(process.Stderr, "numaform: only the controller checks fleet.git.forge.approvers, quorum and merge: here, the approvers are requested as "+
			"reviewers, and the forge's rules for the branch decide who may merge")
	}
	return p.closeReplaced(ctx, process, client, open, fmt.Sprintf("%s replaces it: a later `numaform apply` has a different plan", request.URL))
}

// closeReplaced closes the pull requests that a change replaces, with the reason. Merging
// both would create the nodes for the same pods twice, or conflict.
func (p *proposal) closeReplaced(ctx context.Context, process Process, client forge.Client, open []forge.PullRequest, why string) error {
	for i := range open {
		other := &open[i]
		if !p.replaces(other.Body) {
			continue
		}
		if err := client.Close(ctx, other.Number, why); err != nil {
			return fmt.Errorf("closing %s, which this change replaces: %w: close it by hand", other.URL, err)
		}
		fmt.Fprintf(process.Stdout, "Closed: %s, because %s\n", other.URL, why)
	}
	return nil
}

// closeUnneeded closes the pull requests of nodes for pods that no longer need them: the
// change needs none.
func (p *proposal) closeUnneeded(ctx context.Context, process Process) error {
	if p.decision == nil {
		return nil
	}
	open, client, err := p.openRequests(ctx, process)
	if client == nil || err != nil {
		return err
	}
	return p.closeReplaced(ctx, process, client, open, "no pending pod needs new nodes now")
}

// forPods is the subject of the VMs that pending pods need, which each change decides for all
// of them.
const forPods = "`nodes for pending pods`\n"

// subjects begins the line of a pull request's text with the changed VMs. It names the
// cluster, because fleets of several clusters can share a branch.
func (p *proposal) subjects() string {
	return fmt.Sprintf("\nchanges in cluster `%s`: ", p.session.config.ClusterID)
}

// subject returns the line of a pull request's text that says what the change is about.
func (p *proposal) subject() string {
	if p.decision != nil {
		return p.subjects() + forPods
	}
	var names []string
	for i := range p.change.Added {
		names = append(names, p.change.Added[i].Name)
	}
	for i := range p.change.Removed {
		names = append(names, p.change.Removed[i].Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return ""
	}
	const most = 150 // VMs, which fit into prtext.Room
	return p.subjects() + "`" + strings.Join(names[:min(len(names), most)], "` `") + "`\n"
}

// replaces reports whether the change is about the same as an earlier one, whose pull request
// has a text. A forged text only closes its own pull request.
func (p *proposal) replaces(text string) bool {
	mine := p.subject()
	if p.decision != nil {
		// A pod that is refused now, for example because a region does not respond, may still need
		// the earlier VMs. But VMs of both changes would be too many.
		keeps := len(p.decision.Refused) > 0 && len(p.change.Added) == 0
		return !keeps && strings.Contains(text, mine)
	}
	_, after, found := strings.Cut(text, p.subjects())
	line, _, _ := strings.Cut(after, "\n")
	theirs := strings.Fields(line)
	return found && slices.ContainsFunc(strings.Fields(strings.TrimPrefix(mine, p.subjects())), func(name string) bool { return slices.Contains(theirs, name) })
}

// pullRequest returns the pull request of a change, with the digest, the VMs and the plans.
func (p *proposal) pullRequest(branch, shown string) forge.NewPullRequest {
	spec := v1alpha1.ScalePlanSpec{
		Summary: p.change.Why, Why: p.change.Why, Cost: p.cost.String(), PlanHash: shown,
		Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictAllow},
	}
	for _, changed := range []struct {
		action v1alpha1.ScalePlanAction
		vms    []fleet.VM
	}{
		{v1alpha1.ScalePlanCreate, p.change.Added},
		{v1alpha1.ScalePlanWake, p.change.Woken},
		{v1alpha1.ScalePlanUpdate, slices.Concat(p.change.Updated, p.change.Repaired, p.change.Adopted, p.change.Foreign)},
		{v1alpha1.ScalePlanDelete, p.change.Removed},
	} {
		for i := range changed.vms {
			vm := &changed.vms[i]
			line := v1alpha1.ScalePlanVM{Action: changed.action, Name: vm.Name, Host: vm.Host.String(), NodePool: vm.Pool, InstanceType: vm.InstanceType}
			if changed.action == v1alpha1.ScalePlanCreate {
				line.Reason = vm.Reason
			}
			spec.VMs = append(spec.VMs, line)
			spec.NodePools = append(spec.NodePools, vm.Pool)
		}
	}
	slices.Sort(spec.NodePools)
	spec.NodePools = slices.Compact(spec.NodePools)

	var diff strings.Builder
	verdict := guard.Verdict{Decision: guard.Allow}
	for i := range p.plans {
		plan := &p.plans[i]
		if plan.Plan == nil || !plan.Changes() {
			continue
		}
		verdict = verdict.And(plan.Verdict)
		spec.Hosts = append(spec.Hosts, v1alpha1.ScalePlanHost{Host: plan.Host.String()})
		fmt.Fprintf(&diff, "# Host %s\n%s\n\n%s\n\n", plan.Host, plan.Verdict, plan.Plan.Text)
	}
	spec.Diff = diff.String()
	if verdict.Decision == guard.NeedsApproval {
		spec.Verdict.Decision = v1alpha1.VerdictNeedsApproval
	}
	for _, finding := range verdict.Findings {
		spec.Reasons = append(spec.Reasons, finding.String())
	}
	title, body := prtext.Of(&v1alpha1.ScalePlan{Spec: spec}, "", "", nil)
	settings := &p.session.config.Fleet.Git.Forge
	return forge.NewPullRequest{Head: branch, Title: title, Body: body + p.subject(), Labels: settings.Labels, Reviewers: settings.Asked()}
}
