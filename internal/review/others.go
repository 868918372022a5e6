package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/store"
)

// maxChecks limits how many pull requests of persons one pass checks, because each check can
// plan every host.
const maxChecks = 3

// checkOthers sets numaform's status of the pull requests that persons opened against the
// fleet's branch: what their merge would change, and the guard's verdict. Each commit is
// checked again when the fleet's files change. Only the status is written: titles, texts and
// comments are neither read nor changed.
//
// A branch below numaform/ can be a proposal of another installation, which has its own
// status and changes no file of this fleet, or a person's branch with such a name.
func (p *pass) checkOthers(ctx context.Context) error {
	if p.config.Check == nil {
		return nil
	}
	var others []*forge.PullRequest
	for i := range p.open {
		if o := &p.open[i]; o.Base == p.config.Branch && o.HeadSHA != "" && (o.Fork || !strings.HasPrefix(o.Head, p.prefix())) {
			others = append(others, o)
		}
	}
	if len(others) == 0 {
		p.checked = map[string]bool{}
		return nil
	}
	_, fleet, err := p.config.Repository.Read(ctx)
	if err != nil {
		return fmt.Errorf("checking pull requests: %w", err)
	}
	// Forks last: anyone can open many of them.
	slices.SortStableFunc(others, func(a, b *forge.PullRequest) int { return cmp.Compare(rank(a), rank(b)) })
	var errs []error
	checks := 0
	current := map[string]bool{}
	trusted := map[string]bool{}
	for _, request := range others {
		// A status belongs to a commit: that of a whole plan must not be the one of a fork, whose
		// files are only compared.
		if !request.Fork {
			trusted[request.HeadSHA] = true
		} else if trusted[request.HeadSHA] {
			continue
		}
		key := fmt.Sprint(request.HeadSHA, " ", fleet, " ", request.Fork)
		if current[key] = true; p.checked[key] {
			continue
		}
		if checks++; checks > maxChecks {
			continue
		}
		done, err := p.checkOther(ctx, request)
		if err != nil {
			errs = append(errs, fmt.Errorf("checking pull request #%d: %w", request.Number, err))
		}
		p.checked[key] = done && err == nil
	}
	for key := range p.checked {
		if !current[key] {
			delete(p.checked, key)
		}
	}
	return errors.Join(errs...)
}

// rank orders the pull requests of persons.
func rank(request *forge.PullRequest) int {
	if request.Fork {
		return 1
	}
	return 0
}

// checkOther sets the status of a person's pull request. It returns false if the forge has
// not updated the reference of the head yet, so that the next pass checks it again.
func (p *pass) checkOther(ctx context.Context, request *forge.PullRequest) (done bool, err error) {
	now, after, mergeErr := p.config.Repository.AfterMerge(ctx, p.config.Reference(request.Number), request.HeadSHA)
	if mergeErr == nil && !request.Fork && strings.HasPrefix(request.Head, proposals) && store.RevisionOf(now) == store.RevisionOf(after) {
		return true, nil
	}
	state, text, err := verdict(func() (bool, string, error) {
		if mergeErr != nil {
			return false, "", mergeErr
		}
		return p.config.Check(ctx, now, after, !request.Fork)
	})
	if err == nil {
		err = p.state(ctx, request.HeadSHA, state, text)
	}
	if request.Fork && errors.As(err, new(*forge.NotFoundError)) {
		err = nil // GitLab has no status for the commit of a fork
	}
	if err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("checked pull request", logkey.PullRequest, request.Number, logkey.Verdict, string(state), logkey.Message, text)
	var unmergeable *store.MergeError
	return !errors.As(mergeErr, &unmergeable) || !unmergeable.Moved, nil
}

// verdict converts the result of a check to a status. Problems of the pull request itself are
// failures; err is a problem of numaform, after which the check is repeated.
func verdict(check func() (bool, string, error)) (forge.CheckState, string, error) {
	ok, summary, err := check()
	var refused *store.RefusedError
	var unmergeable *store.MergeError
	switch {
	case errors.As(err, &refused), errors.As(err, &unmergeable):
		return forge.Failure, clip(err.Error(), maxStatus), nil
	case err != nil:
		return "", "", err
	case ok:
		return forge.Success, clip(summary, maxStatus), nil
	}
	return forge.Failure, clip(summary, maxStatus), nil
}
