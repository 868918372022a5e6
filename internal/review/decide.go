package review

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/forge"
)

// mayReject reports whether a user rejects a change by closing its pull request. With
// approvers, only they can, and no user can if the forge does not report who closed it.
func (p *Policy) mayReject(user string) bool {
	return len(p.Approvers) == 0 ||
		slices.ContainsFunc(p.Approvers, func(name string) bool { return strings.EqualFold(name, user) })
}

// decide returns the users whose approvals of a commit satisfy the policy, or the reason why
// the pull request waits. reviews has the newest review of each user. An approval counts only
// if it is about exactly that commit, whatever its time, and not if it is the author's own.
func (p *Policy) decide(request *forge.PullRequest, head string, reviews []forge.Review, checks []forge.Check) (approvers []string, waits string) {
	last := map[string]forge.Review{}
	for _, review := range reviews {
		last[strings.ToLower(review.User)] = review
	}
	stale := false
	for _, name := range p.Approvers {
		review, given := last[strings.ToLower(name)]
		switch {
		case !given || strings.EqualFold(name, request.Author):
		case review.State == forge.ChangesRequested:
			return nil, fmt.Sprintf("%s requests changes", name)
		case review.State == forge.Approved && review.SHA == head:
			approvers = append(approvers, name)
		case review.State == forge.Approved:
			stale = true
		}
	}
	if missing := p.Quorum - len(approvers); len(p.Approvers) > 0 && missing > 0 {
		others := slices.DeleteFunc(slices.Clone(p.Approvers), func(name string) bool {
			return slices.Contains(approvers, name) || strings.EqualFold(name, request.Author)
		})
		waits = fmt.Sprintf("waits for the approval of %d of %s", missing, strings.Join(others, ", "))
		if stale {
			waits += ": an earlier approval was for another commit"
		}
		return nil, waits
	}
	for _, check := range checks {
		if check.Name != statusContext && check.State != forge.Success && check.State != forge.Neutral {
			return nil, fmt.Sprintf("waits for the check %s, which is %s", clip(check.Name, 100), strings.ToLower(string(check.State)))
		}
	}
	return approvers, ""
}
