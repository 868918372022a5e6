package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/prtext"
)

// pass is one comparison of all plans with their pull requests.
type pass struct {
	*Reviewer
	plans []v1alpha1.ScalePlan
	open  []forge.PullRequest
}

// Pass opens, updates, merges and closes pull requests, and records their decisions. A
// problem of one plan does not stop the others, unless the forge refuses more requests.
func (r *Reviewer) Pass(ctx context.Context) error {
	plans, err := r.config.Plans.Plans(ctx)
	if err != nil {
		return err
	}
	p := &pass{Reviewer: r, plans: plans}
	if p.open, err = r.config.Forge.Open(ctx); err != nil {
		err = fmt.Errorf("reading the open pull requests: %w", err)
		for i := range p.plans {
			if plan := &p.plans[i]; !limited(err) && r.config.Plans.Undecided(plan) {
				err = p.failed(ctx, plan, err)
			}
		}
		return err
	}
	// Old plans first: a new plan continues the pull request of the plan that it replaces.
	slices.SortFunc(p.plans, func(a, b v1alpha1.ScalePlan) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var errs []error
	for _, undecided := range []bool{true, false} {
		for i := range p.plans {
			plan := &p.plans[i]
			if r.config.Plans.Undecided(plan) != undecided {
				continue
			}
			step := p.finish
			if undecided {
				step = p.follow
			}
			err := step(ctx, plan)
			if limited(err) {
				return err
			}
			if err == nil {
				delete(p.failing, plan.Name)
			} else {
				errs = append(errs, p.failed(ctx, plan, fmt.Errorf("reviewing scaleplan %s: %w", plan.Name, err)))
			}
		}
	}
	errs = append(errs, p.closeStrays(ctx), p.checkOthers(ctx))
	return errors.Join(errs...)
}

// failed reports an error about the pull request of a plan in its status, as long as the plan
// is undecided, and in an event if the previous pass failed, too. It returns the error, and
// the one of its own.
func (p *pass) failed(ctx context.Context, plan *v1alpha1.ScalePlan, err error) error {
	text := clip(err.Error(), 1024)
	if p.failing[plan.Name] {
		p.config.Events.Publish(events.Event{
			InvolvedObject: plan, Type: corev1.EventTypeWarning, Reason: ReasonFailed, Message: text, DedupeValues: []string{plan.Name, text},
		})
	}
	p.failing[plan.Name] = true
	known := plan.Status.PullRequest
	if known == nil || known.Closed || !p.config.Plans.Undecided(plan) {
		return err
	}
	waiting := *known
	waiting.Waits = text
	return errors.Join(err, p.record(ctx, plan, &waiting))
}

// record records the pull request of a plan, now and in the cluster.
func (p *pass) record(ctx context.Context, plan *v1alpha1.ScalePlan, request *v1alpha1.ScalePlanPullRequest) error {
	plan.Status.PullRequest = request
	return p.config.Plans.SetPullRequest(ctx, plan.Name, request)
}

// follow opens the pull request of an undecided plan, or takes over its decision.
func (p *pass) follow(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	known := plan.Status.PullRequest
	if known == nil || known.Closed {
		return p.propose(ctx, plan, "")
	}
	request, err := p.config.Forge.Get(ctx, int(known.Number))
	if err == nil && request.State != forge.Open {
		// It may have been open when the pass began.
		p.open = slices.DeleteFunc(p.open, func(o forge.PullRequest) bool { return o.Number == request.Number })
	}
	switch {
	case err != nil:
		return err
	case request.State == forge.Merged:
		return p.merged(ctx, plan, &request)
	case request.State == forge.Closed && !p.config.Policy.mayReject(request.ClosedBy):
		return p.reopen(ctx, plan, &request)
	case request.State == forge.Closed:
		decided := *known
		decided.Waits = ""
		decided.Rejected = fmt.Sprintf("pull request #%d was closed without a merge", known.Number)
		decided.DecidedBy = clip(cmp.Or(request.ClosedBy, "a user of the forge"), 256)
		return p.record(ctx, plan, &decided)
	case request.Base != p.config.Branch:
		// A person chose another target, whose merge would approve nothing.
		if err := p.record(ctx, plan, nil); err != nil {
			return err
		}
		why := fmt.Sprintf("its target is %s, not %s: numaform opens another pull request", clip(request.Base, 100), p.config.Branch)
		return p.config.Forge.Close(ctx, int(known.Number), why)
	}
	if err := p.restore(ctx, plan, &request); err != nil {
		return err
	}
	return p.await(ctx, plan, &request)
}

// reopenEvery is the minimum interval between two pull requests of a plan that numaform opens
// because a user without the right to reject closed the previous one.
const reopenEvery = 10 * time.Minute

// reopen opens another pull request for one that a user closed who is no approver.
func (p *pass) reopen(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) error {
	now := p.config.Clock.Now()
	why := fmt.Sprintf("Pull request #%d was closed by %s, which rejects nothing: only an approver rejects by closing.", request.Number, clip(cmp.Or(request.ClosedBy, "an unknown user"), 100))
	if next := p.reopened[plan.Name].Add(reopenEvery); now.Before(next) {
		waiting := *plan.Status.PullRequest
		waiting.Waits = fmt.Sprintf("%s numaform opens another one at %s", why, next.UTC().Format(time.RFC3339))
		return p.record(ctx, plan, &waiting)
	}
	p.reopened[plan.Name] = now
	return p.propose(ctx, plan, why)
}

// propose pushes the proposal of a plan and opens its pull request. It continues the pull
// request of the plan that this plan replaces, if that is still open. note is the reason
// why the pull request is opened again.
func (p *pass) propose(ctx context.Context, plan *v1alpha1.ScalePlan, note string) error {
	branch := p.prefix() + plan.Name
	var replaced *v1alpha1.ScalePlan
	for i := range p.plans {
		other := &p.plans[i]
		request := other.Status.PullRequest
		if note != "" || request == nil || request.Closed || other.Status.Phase != v1alpha1.ScalePlanSuperseded || !sameRequest(plan, other) {
			continue
		}
		switch {
		case request.Approved != "":
			note = fmt.Sprintf("Pull request #%d was merged, but nothing was applied: the plan is different now.", request.Number)
		case p.openAt(int(request.Number)) != nil:
			replaced = other
			branch = request.Branch
		}
	}
	head, err := p.push(ctx, plan, branch)
	if err != nil {
		return err
	}
	title, body := prtext.Of(plan, "proposals/"+plan.Name+".diff", note, nil)
	at := slices.IndexFunc(p.open, func(o forge.PullRequest) bool { return o.Head == branch && o.Base == p.config.Branch && !o.Fork })
	var request forge.PullRequest
	if at >= 0 {
		p.open[at].HeadSHA = head
		request = p.open[at]
	} else {
		request, err = p.config.Forge.Create(ctx, forge.NewPullRequest{
			Head: branch, Title: title, Body: body, Labels: p.config.Labels, Reviewers: p.config.Reviewers,
		})
		if incomplete := new(forge.IncompleteError); errors.As(err, &incomplete) {
			// The change does not depend on them.
			log.FromContext(ctx).Info("opened a pull request without all labels and reviewers", logkey.PullRequest, request.Number, logkey.Message, incomplete.Error())
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("opening a pull request for branch %s: %w", branch, err)
	}
	if at < 0 {
		p.open = append(p.open, request)
	}
	opened := &v1alpha1.ScalePlanPullRequest{Number: int64(request.Number), URL: clip(request.URL, 2048), Branch: branch, Head: head, Note: note}
	if err := p.record(ctx, plan, opened); err != nil {
		return err
	}
	log.FromContext(ctx).Info("opened pull request", logkey.ScalePlan, plan.Name, logkey.PullRequest, request.Number)
	// The addresses of the pictures follow from the pull request's, which exists only now.
	if err := p.retext(ctx, plan, &request); err != nil {
		return err
	}
	if replaced != nil {
		closed := *replaced.Status.PullRequest
		closed.Closed = true
		if err := p.record(ctx, replaced, &closed); err != nil {
			return err
		}
	}
	return p.state(ctx, head, forge.Success, statusOf(plan))
}

// push pushes the proposal of a plan to a branch, and returns its commit. It first removes
// another client's files with the names of the proposal's from the fleet's branch, so that the
// pull request can add them.
func (p *pass) push(ctx context.Context, plan *v1alpha1.ScalePlan, branch string) (head string, err error) {
	proposed := p.proposal(plan, branch)
	exact, err := p.config.Repository.HasProposal(ctx, plan.Name, proposed.Content)
	if err == nil && !exact {
		err = p.config.Repository.DropProposals(ctx, p.config.Clock.Now(), plan.Name)
	}
	if err != nil {
		return "", err
	}
	if head, err = p.config.Repository.Propose(ctx, proposed); err != nil {
		return "", err
	}
	p.drawn[head] = slices.Sorted(maps.Keys(proposed.Pictures))
	return head, nil
}

// sameRequest reports whether two plans are proposals for the same need, so that the later
// one can continue the pull request of the earlier one.
func sameRequest(plan, other *v1alpha1.ScalePlan) bool {
	if plan.Name == other.Name || plan.Spec.Direction != other.Spec.Direction || plan.Spec.RequestedBy != other.Spec.RequestedBy ||
		!slices.Equal(plan.Spec.NodePools, other.Spec.NodePools) {
		return false
	}
	// There is one plan for all pods that need nodes of a NodePool, wherever these are placed.
	return plan.Spec.RequestedBy == requestedForPods ||
		slices.EqualFunc(plan.Spec.Hosts, other.Spec.Hosts, func(a, b v1alpha1.ScalePlanHost) bool { return a.Host == b.Host })
}

// requestedForPods is the requester of VMs for pods.
const requestedForPods = "provisioning"

// openAt returns the open pull request with a number, or nil.
func (p *pass) openAt(number int) *forge.PullRequest {
	at := slices.IndexFunc(p.open, func(o forge.PullRequest) bool { return o.Number == number && o.Base == p.config.Branch })
	if at < 0 {
		return nil
	}
	return &p.open[at]
}

// restore restores what other clients changed: the branch, the title, the text, and files of
// the fleet's branch that the forge could not merge the proposal with.
func (p *pass) restore(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) error {
	known := plan.Status.PullRequest
	if request.HeadSHA != known.Head {
		head, err := p.push(ctx, plan, known.Branch)
		if err != nil {
			return err
		}
		log.FromContext(ctx).Info("restored the branch of a pull request, which another client had changed",
			logkey.ScalePlan, plan.Name, logkey.PullRequest, known.Number)
		restored := *known
		restored.Head = head
		if err := p.record(ctx, plan, &restored); err != nil {
			return err
		}
		request.HeadSHA = head
	} else {
		removed, err := p.config.Repository.ClearProposal(ctx, p.config.Clock.Now(), known.Branch, known.Head, plan.Name)
		if err != nil {
			return err
		}
		if len(removed) > 0 {
			log.FromContext(ctx).Info("removed files of another client that conflict with a pull request",
				logkey.ScalePlan, plan.Name, logkey.PullRequest, known.Number, logkey.Message, strings.Join(removed, ", "))
		}
	}
	if err := p.retext(ctx, plan, request); err != nil {
		return err
	}
	return p.state(ctx, plan.Status.PullRequest.Head, forge.Success, statusOf(plan))
}

// retext sets the title and the text of a pull request, unless it has them already.
func (p *pass) retext(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) error {
	title, body, err := p.text(ctx, plan, request)
	if err != nil || request.Title == title && sameText(request.Body, body) {
		return err
	}
	if err := p.config.Forge.Edit(ctx, request.Number, title, body); err != nil {
		return fmt.Errorf("updating pull request #%d: %w", request.Number, err)
	}
	return nil
}

// sameText reports whether two texts are equal, apart from spaces at the ends of lines,
// which forges change.
func sameText(a, b string) bool {
	return slices.Equal(strings.Fields(a), strings.Fields(b))
}

// await reads the reviews of an open pull request, and merges it if it is approved and
// numaform is to merge.
func (p *pass) await(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) error {
	known := plan.Status.PullRequest
	reviews, err := p.config.Forge.Reviews(ctx, request.Number)
	if err != nil {
		return fmt.Errorf("reading the reviews of pull request #%d: %w", request.Number, err)
	}
	checks, err := p.config.Forge.Checks(ctx, known.Head)
	if err != nil {
		return fmt.Errorf("reading the checks of commit %s: %w", known.Head, err)
	}
	approvers, waits := p.config.Policy.decide(request, known.Head, reviews, checks)
	if waits == "" {
		waits = "waits for a person who merges it"
		if len(approvers) > 0 {
			waits = "approved by " + strings.Join(approvers, ", ") + ": waits for a person who merges it"
		}
	}
	if p.config.Policy.Merge && len(approvers) > 0 {
		if _, err := p.config.Forge.Merge(ctx, request.Number, known.Head); err != nil {
			return fmt.Errorf("pull request #%d is approved, but the forge refuses the merge: %w", request.Number, err)
		}
		log.FromContext(ctx).Info("merged pull request", logkey.ScalePlan, plan.Name, logkey.PullRequest, known.Number)
		after, err := p.config.Forge.Get(ctx, request.Number)
		if err != nil || after.State != forge.Merged {
			return err
		}
		return p.merged(ctx, plan, &after)
	}
	waiting := *known
	waiting.Waits = clip(waits, 1024)
	return p.record(ctx, plan, &waiting)
}

// merged takes over the decision of a merged pull request: the plan is approved if exactly
// its proposal is on the fleet's branch, and the policy's users approved exactly its commit.
// Otherwise nothing is approved, and the pull request is opened again.
func (p *pass) merged(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) error {
	known := plan.Status.PullRequest
	exact, err := p.config.Repository.HasProposal(ctx, plan.Name, p.proposal(plan, known.Branch).Content)
	if err != nil {
		return err
	}
	reviews, err := p.config.Forge.Reviews(ctx, request.Number)
	if err != nil {
		return fmt.Errorf("reading the reviews of pull request #%d: %w", request.Number, err)
	}
	approvers, waits := p.config.Policy.decide(request, known.Head, reviews, nil)
	switch {
	case request.Base != p.config.Branch:
		waits = fmt.Sprintf("it was merged into %s, not into %s", clip(request.Base, 100), p.config.Branch)
	case !exact:
		waits = fmt.Sprintf("%s does not contain exactly the proposal: it was edited, or the merge was reverted", p.config.Branch)
	}
	if waits == "" {
		decided := *known
		decided.Waits = ""
		decided.Approved = plan.Spec.PlanHash
		decided.DecidedBy = clip(cmp.Or(strings.Join(approvers, ", "), request.MergedBy, fmt.Sprintf("the merge of pull request #%d", request.Number)), 256)
		log.FromContext(ctx).Info("approved scaleplan by its pull request", logkey.ScalePlan, plan.Name,
			logkey.PullRequest, request.Number, logkey.Approver, decided.DecidedBy)
		return p.record(ctx, plan, &decided)
	}
	// Remove the proposal first, so that the next pull request can add it again.
	if err := p.config.Repository.DropProposals(ctx, p.config.Clock.Now(), plan.Name); err != nil {
		return err
	}
	return p.propose(ctx, plan, fmt.Sprintf("Pull request #%d was merged, but nothing was applied: %s.", request.Number, waits))
}

// finish closes the pull request of a plan that was decided elsewhere or is over, and
// removes its branch and its merged proposal.
func (p *pass) finish(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	known := plan.Status.PullRequest
	if known == nil || known.Closed || known.Approved != "" && !plan.Status.Phase.Over() || p.awaitsSuccessor(plan) {
		return nil
	}
	shared := slices.ContainsFunc(p.plans, func(other v1alpha1.ScalePlan) bool {
		request := other.Status.PullRequest
		return other.Name != plan.Name && request != nil && request.Number == known.Number && !request.Closed
	})
	if !shared {
		if slices.ContainsFunc(p.open, func(o forge.PullRequest) bool { return o.Number == int(known.Number) }) {
			if err := p.config.Forge.Close(ctx, int(known.Number), closing(plan)); err != nil {
				return fmt.Errorf("closing pull request #%d: %w", known.Number, err)
			}
			log.FromContext(ctx).Info("closed pull request", logkey.ScalePlan, plan.Name, logkey.PullRequest, known.Number)
		}
		if err := p.config.Repository.DropBranch(ctx, known.Branch, known.Head); err != nil {
			return err
		}
	}
	if err := p.config.Repository.DropProposals(ctx, p.config.Clock.Now(), plan.Name); err != nil {
		return err
	}
	closed := *known
	closed.Waits = ""
	closed.Closed = true
	return p.record(ctx, plan, &closed)
}

// succession is how long the pull request of a plan that was replaced stays open for the
// plan that replaces it, which is proposed right afterwards.
const succession = time.Minute

// awaitsSuccessor reports whether another plan may be about to continue a plan's pull
// request.
func (p *pass) awaitsSuccessor(plan *v1alpha1.ScalePlan) bool {
	finished := plan.Status.FinishedAt
	return plan.Status.Phase == v1alpha1.ScalePlanSuperseded && plan.Status.PullRequest.Approved == "" && finished != nil &&
		p.config.Clock.Since(finished.Time) < succession
}

// closing returns why a pull request is closed.
func closing(plan *v1alpha1.ScalePlan) string {
	_, approver := plan.Approval()
	_, rejecter := plan.Rejection()
	switch {
	case plan.Status.Phase.Over():
		return fmt.Sprintf("ScalePlan %s is %s: %s", plan.Name, plan.Status.Phase, plan.Status.Result)
	case approver != "":
		return fmt.Sprintf("%s approved ScalePlan %s in the cluster: numaform applies it if the change is still the same", approver, plan.Name)
	case rejecter != "":
		return fmt.Sprintf("%s rejected ScalePlan %s in the cluster", rejecter, plan.Name)
	}
	return fmt.Sprintf("ScalePlan %s has expired", plan.Name)
}

// closeStrays closes pull requests from branches of this installation whose plan no longer
// exists, for example because a user deleted it.
func (p *pass) closeStrays(ctx context.Context) error {
	var errs []error
	strays := map[int]bool{}
	for i := range p.open {
		request := &p.open[i]
		known := slices.ContainsFunc(p.plans, func(plan v1alpha1.ScalePlan) bool {
			return plan.Status.PullRequest != nil && plan.Status.PullRequest.Number == int64(request.Number)
		})
		if known || request.Fork || !strings.HasPrefix(request.Head, p.prefix()) {
			continue
		}
		// A plan of a moment ago may not have recorded its pull request yet.
		if strays[request.Number] = true; !p.stray[request.Number] {
			continue
		}
		if err := p.config.Forge.Close(ctx, request.Number, "its ScalePlan no longer exists"); err != nil {
			errs = append(errs, fmt.Errorf("closing pull request #%d: %w", request.Number, err))
			continue
		}
		errs = append(errs, p.config.Repository.DropBranch(ctx, request.Head, request.HeadSHA))
	}
	p.stray = strays
	return errors.Join(errs...)
}

// state sets numaform's status of a commit, unless it has that status already.
func (p *pass) state(ctx context.Context, commit string, state forge.CheckState, text string) error {
	if p.stated[commit] == string(state)+text {
		return nil
	}
	err := p.config.Forge.SetStatus(ctx, commit, forge.Status{Context: statusContext, State: state, Description: text})
	if err != nil {
		return fmt.Errorf("setting the status of commit %s: %w", commit, err)
	}
	p.stated[commit] = string(state) + text
	return nil
}
