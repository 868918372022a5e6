package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

func request(number int) string { return fmt.Sprintf("pull request %d", number) }

func reading(number int) string { return "reading " + request(number) }

// whole returns an error unless an answer describes a pull request: Gitea 1.26.0 answers with
// success and null while it stops.
func (c *connection) whole(pull *PullRequest, doing string) error {
	if field := pull.missing(); field != "" {
		return &UnavailableError{Forge: c.name, Doing: doing, Err: fmt.Errorf("the answer is not a pull request: it is null or has no %s", field)}
	}
	return nil
}

// missing returns the name of a field that each pull request has, but this one lacks, or "". The
// user, whose account can be deleted, and the head, which GitLab determines later, can be missing.
func (p *PullRequest) missing() string {
	return cmp.Or(named("number", p.Number), named("target branch", p.Base), named("known state", p.State))
}

func (c *connection) tooMany(what string, most int) error {
	return &TooManyError{Forge: c.name, What: what, Max: most}
}

// nameOf returns the forge's name for the state of a status.
func (c *connection) nameOf(status Status, names map[CheckState]string) (string, error) {
	name, ok := names[status.State]
	if !ok || status.Context == "" {
		return "", fmt.Errorf("%s: setting status %q to %q: must be a status with a name, and Success, Pending or Failure", c.name, status.Context, status.State)
	}
	return name, nil
}

// refused returns the reason for a merge that the forge refused: the forges report another
// head with the same code as other conflicts.
func (c *connection) refused(ctx context.Context, client Client, number int, headSHA string, err error) error {
	if !errors.As(err, new(*ConflictError)) {
		return err
	}
	now, getErr := client.Get(ctx, number)
	if getErr == nil && now.State == Open && now.HeadSHA != headSHA {
		return &HeadError{Forge: c.name, Number: number, Want: headSHA, Have: now.HeadSHA}
	}
	return err
}
