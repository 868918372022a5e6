package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/store"
)

// openError reports that a change already waits for review in a pull request.
type openError struct{ URL string }

func (e *openError) Error() string {
	return fmt.Sprintf("the same change already waits for review in %s: merge it, then apply", e.URL)
}

// alreadyOpen returns an openError if the change is to be reviewed, and an open pull request
// from a branch of numaform has its digest. Nothing is decided by it: at worst, a change is not
// proposed twice.
func (p *proposal) alreadyOpen(ctx context.Context, process Process) error {
	if !p.session.config.Fleet.Git.Review {
		return nil
	}
	client, err := p.session.config.OpenForge(process.Environ, clock.RealClock{})
	if client == nil || err != nil {
		return err
	}
	open, err := client.Open(ctx)
	if err != nil {
		return fmt.Errorf("reading the open pull requests: %w", err)
	}
	shown := digest(p.plans)
	for i := range open {
		if o := &open[i]; !o.Fork && strings.HasPrefix(o.Head, "numaform/") && strings.Contains(o.Body, shown) {
			return &openError{URL: o.URL}
		}
	}
	return nil
}

// openPullRequest opens a pull request for a change that waits for review on a branch, and
// sets its status, if a forge is configured.
func (p *proposal) openPullRequest(ctx context.Context, process Process, proposed *store.ProposedError) error {
	client, err := p.session.config.OpenForge(process.Environ, clock.RealClock{})
	if client == nil || err != nil {
		return err
	}
	shown := digest(p.plans)
	request, err := client.Create(ctx, p.pullRequest(proposed.Branch, shown))
	if incomplete := new(forge.IncompleteError); errors.As(err, &incomplete) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("the branch %s waits for review, but opening its pull request failed: %w: open one by hand", proposed.Branch, err)
	}
	fmt.Fprintf(process.Stdout, "Pull request: %s\n", request.URL)
	status := forge.Status{Context: "numaform/plan", State: forge.Success, Description: "digest " + shown}
	if err := client.SetStatus(ctx, proposed.Commit, status); err != nil {
		return fmt.Errorf("setting the status of commit %.12s: %w", proposed.Commit, err)
	}
	return nil
}

// pullRequest returns the pull request of a change, with the digest and a line for each
// plan.
func (p *proposal) pullRequest(branch, shown string) forge.NewPullRequest {
	var body strings.Builder
	fmt.Fprintf(&body, "%s\n\ndigest: `%s`\n\n```text\n", p.change.Why, shown)
	for i := range p.plans {
		if plan := &p.plans[i]; plan.Plan != nil && plan.Changes() {
			fmt.Fprintf(&body, "%s: %d to create, %d to change, %d to delete; guard: %s\n", plan.Host, len(plan.Intent.Create),
				len(plan.Intent.Import)+len(plan.Intent.Update)+len(plan.Intent.Wake), len(plan.Intent.Delete), plan.Verdict.Decision)
		}
	}
	body.WriteString("```\n")
	title := []rune("numaform: " + p.change.Why)
	return forge.NewPullRequest{Head: branch, Title: string(title[:min(len(title), forge.MaxTitle)]), Body: body.String()}
}
