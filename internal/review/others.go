package review

import (
	"context"
	"errors"
	"fmt"
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
func (p *pass) checkOthers(ctx context.Context) error {
	if p.config.Check == nil {
		return nil
	}
	var errs []error
	checks := 0
	current := map[string]bool{}
	for i := range p.open {
		request := &p.open[i]
		if request.Base != p.config.Branch || !request.Fork && strings.HasPrefix(request.Head, "numaform/") {
			continue
		}
		now, after, err := p.config.Repository.AfterMerge(ctx, p.config.Reference(request.Number), request.HeadSHA)
		key := request.HeadSHA + " " + string(store.RevisionOf(now))
		current[key] = true
		if p.checked[key] {
			continue
		}
		if checks++; checks > maxChecks {
			break
		}
		state, text, err := verdict(func() (bool, string, error) {
			if err != nil {
				return false, "", err
			}
			return p.config.Check(ctx, now, after, !request.Fork)
		})
		if err == nil {
			err = p.state(ctx, request.HeadSHA, state, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("checking pull request #%d: %w", request.Number, err))
			continue
		}
		p.checked[key] = true
		log.FromContext(ctx).Info("checked pull request", logkey.PullRequest, request.Number, logkey.Verdict, string(state), logkey.Message, text)
	}
	if checks <= maxChecks {
		for key := range p.checked {
			if !current[key] {
				delete(p.checked, key)
			}
		}
	}
	return errors.Join(errs...)
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
