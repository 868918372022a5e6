package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/review"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// The values of fleet.git.forge.merge.
const (
	mergeByPerson = "person"
	mergeAuto     = "auto"
)

// newGit returns the settings of a repository with the defaults.
func newGit() Git {
	return Git{Forge: Forge{Quorum: 1, Labels: []string{"numaform"}, Merge: mergeByPerson, Poll: 30 * time.Second}}
}

// check returns all errors in the configuration of the forge.
func (f *Forge) check() []error {
	var mistakes []error
	kinds := []string{}
	for _, kind := range forge.Kinds() {
		kinds = append(kinds, string(kind))
	}
	if f.Kind != "" && !slices.Contains(kinds, f.Kind) {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.kind %q: %s", f.Kind, didYouMean(f.Kind, kinds)))
	}
	mistakes = append(mistakes, f.checkAsked()...)
	if f.Kind == "" && (f.URL != "" || len(f.Approvers) > 0 || f.Merge == mergeAuto) {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge: kind is not set, so there are no pull requests: set it to %s", strings.Join(kinds, ", ")))
	}
	if f.Merge != mergeByPerson && f.Merge != mergeAuto {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.merge %q: must be %s or %s", f.Merge, mergeByPerson, mergeAuto))
	}
	if f.Merge == mergeAuto && len(f.Approvers) == 0 {
		mistakes = append(mistakes, errors.New("fleet.git.forge.merge: auto without approvers would merge changes without an approval: set fleet.git.forge.approvers, or merge: person"))
	}
	for i, user := range f.Approvers {
		if slices.ContainsFunc(f.Approvers[:i], func(other string) bool { return strings.EqualFold(other, user) }) {
			mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.approvers: duplicate user %q, whose approval would count twice: remove one", user))
		}
	}
	if f.Quorum < 1 || f.Quorum > max(1, len(f.Approvers)) {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.quorum: %d: must be at least 1, and at most the number of approvers, which is %d", f.Quorum, len(f.Approvers)))
	}
	if f.Poll < time.Second {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.poll: %s: must be at least 1s", f.Poll))
	}
	return mistakes
}

// checkAsked returns the errors in the labels and reviewers, with the smallest bounds of all
// forges: 50 characters (GitHub, Gitea), no comma (GitLab), and 15 reviewers (GitHub).
func (f *Forge) checkAsked() []error {
	var mistakes []error
	for _, label := range f.Labels {
		if strings.TrimSpace(label) != label || label == "" || strings.Contains(label, ",") || utf8.RuneCountInString(label) > 50 {
			mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.labels: %q: must have 1 to 50 characters, no comma, and no space at an end", label))
		}
	}
	for _, user := range f.Reviewers {
		if user == "" || strings.ContainsAny(user, "/@ ") {
			mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.reviewers: %q: must be the name of a user; for teams, use the repository's CODEOWNERS", user))
		}
	}
	if len(f.Reviewers) > 15 {
		mistakes = append(mistakes, fmt.Errorf("fleet.git.forge.reviewers: %d users: at most 15 can be asked", len(f.Reviewers)))
	}
	return mistakes
}

// Asked returns the users who are asked to review a pull request.
func (f *Forge) Asked() []string {
	if len(f.Reviewers) > 0 {
		return f.Reviewers
	}
	return f.Approvers
}

// OpenForge returns the client of the forge with the fleet's repository, or nil if none is
// configured. It makes no requests.
func (c *Config) OpenForge(environ []string, clock clock.PassiveClock) (forge.Client, error) {
	git := &c.Fleet.Git
	if git.Forge.Kind == "" {
		return nil, nil
	}
	trusted, err := git.trusted()
	if err != nil {
		return nil, err
	}
	return forge.New(forge.Config{
		Remote: git.Remote, Base: git.branch(), Kind: forge.Kind(git.Forge.Kind), URL: git.Forge.URL,
		Token: lookup(environ, forge.TokenVariable), RemoteToken: lookup(environ, gitToken), CAs: trusted, Clock: clock,
	})
}

// branch returns the fleet's branch.
func (g *Git) branch() string {
	if g.Branch == "" {
		return store.DefaultBranch
	}
	return g.Branch
}

// reviewers returns the controller of pull requests, or none if no forge is configured.
func (b *builder) reviewers(approvals *approval.Approvals, fleetScaler *scaler.Scaler) []controller.Controller {
	if b.forge == nil {
		return nil
	}
	settings := &b.config.Fleet.Git.Forge
	reference := "refs/pull/%d/head"
	if settings.Kind == string(forge.GitLab) {
		reference = "refs/merge-requests/%d/head"
	}
	check := mergeCheck{scaler: fleetScaler, snapshot: b.inventory.Snapshot}
	return []controller.Controller{review.New(review.Config{
		Plans: approvals, Repository: b.repository, Forge: b.forge, ClusterID: b.config.ClusterID, Branch: b.config.Fleet.Git.branch(),
		Policy:    review.Policy{Approvers: settings.Approvers, Quorum: settings.Quorum, Merge: settings.Merge == mergeAuto},
		Reference: func(number int) string { return fmt.Sprintf(reference, number) },
		FileURLs: func(request *forge.PullRequest, commit, file string) (content, page string) {
			return forge.FileURLs(forge.Kind(settings.Kind), request, commit, file)
		},
		Labels: settings.Labels, Reviewers: settings.Asked(),
		Check: check.run, Every: settings.Poll, Clock: b.clock, Events: b.recorder,
	})}
}

// mergeCheck evaluates what the merge of a person's pull request would change.
type mergeCheck struct {
	scaler interface {
		Compare(now, after generator.Files) (*scaler.Edits, error)
		Preview(ctx context.Context, snapshot *topology.Snapshot, edits *scaler.Edits) ([]scaler.RootPlan, error)
	}
	snapshot func(ctx context.Context) (*topology.Snapshot, error)
}

// run implements review.Check. Files of a fork are only compared: no engine or provider, and
// so no credential, is used for them.
func (c mergeCheck) run(ctx context.Context, now, after generator.Files, trusted bool) (ok bool, summary string, err error) {
	edits, err := c.scaler.Compare(now, after)
	if err != nil {
		return false, "not a valid fleet: " + err.Error(), nil //nolint:nilerr // a result of the check, not a failure
	}
	var hosts []string
	for _, host := range edits.Hosts() {
		hosts = append(hosts, host.String())
	}
	files := counts(" on "+strings.Join(hosts, ", "), "in the files",
		amount{len(edits.Added), "to add"}, amount{len(edits.Edited), "to change"}, amount{len(edits.Removed), "to remove"})
	switch {
	case len(hosts) == 0:
		return true, "no VM changes", nil
	case !trusted:
		return true, "from a fork, so without a plan: " + files, nil
	}

	snapshot, err := c.snapshot(ctx)
	if err != nil {
		return false, "", fmt.Errorf("reading Proxmox: %w", err)
	}
	plans, err := c.scaler.Preview(ctx, snapshot, edits)
	if err != nil {
		return false, "", err
	}
	return judged(plans)
}

// judged returns the result for the plans after a merge. A deletion is possible although the
// Node is not drained yet: numaform drains it first.
func judged(plans []scaler.RootPlan) (ok bool, summary string, err error) {
	var create, change, remove int
	var hosts []string
	verdict := guard.Verdict{Decision: guard.Allow}
	waits := false
	for i := range plans {
		plan := &plans[i]
		if plan.Err != nil {
			return false, "", fmt.Errorf("planning %s: %w", plan.Host, plan.Err)
		}
		create += len(plan.Intent.Create)
		change += len(plan.Intent.Update) + len(plan.Intent.Import) + len(plan.Intent.Wake)
		remove += len(plan.Intent.Delete)
		hosts = append(hosts, plan.Host.String())
		if len(plan.Verdict.Findings) == 0 {
			verdict = verdict.And(plan.Verdict)
		}
		for _, finding := range plan.Verdict.Findings {
			if finding.Rule == guard.RuleDrained {
				waits = true
				continue
			}
			verdict = verdict.And(guard.Verdict{Decision: finding.Decision, Findings: []guard.Finding{finding}})
		}
	}
	text := counts(" on "+strings.Join(hosts, ", "), "in the plans", amount{create, "to create"}, amount{change, "to change"}, amount{remove, "to delete"})
	if waits {
		text += " once drained"
	}
	switch verdict.Decision {
	case guard.Deny:
		return false, "the guard denies it: " + verdict.Findings[0].String(), nil
	case guard.NeedsApproval:
		return true, text + "; needs approval after the merge: " + verdict.Findings[0].String(), nil
	case guard.Allow:
	}
	return true, text + "; guard: allowed", nil
}

// amount is a number of VMs and what happens to them.
type amount struct {
	n    int
	what string
}

// counts returns the positive amounts in one line, with where, or none if there are none.
func counts(where, of string, amounts ...amount) string {
	var parts []string
	for _, a := range amounts {
		if a.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", a.n, a.what))
		}
	}
	if len(parts) == 0 {
		return "no VM changes " + of
	}
	return strings.Join(parts, ", ") + where
}
