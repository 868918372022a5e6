package review_test

import (
	"context"
	"strings"
	"testing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/forge"
)

// TestForkOfTheSameHead opens pull requests with one head from a fork, whose files are not
// trusted and so only compared, and from a branch: the status is that of the whole plan,
// whichever of them was opened first.
func TestForkOfTheSameHead(t *testing.T) { everywhere(t, testForkOfTheSameHead) }

func testForkOfTheSameHead(t *testing.T, at kind) {
	for name, forks := range map[string][]bool{"fork first": {true, false}, "branch first": {false, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.config.Check = func(_ context.Context, _, _ generator.Files, trusted bool) (bool, string, error) {
				return !trusted, "the guard denies only whole plans", nil
			}
			b.restart()
			b.run(b.clone, "switch", "--quiet", "--create", "mine")
			b.write("README.md", "changed\n")
			b.run(b.clone, "commit", "--quiet", "--all", "-m", "mine")
			head := b.run(b.clone, "rev-parse", "HEAD")
			b.run(b.clone, "push", "--quiet", "origin", "mine")
			for _, fork := range forks {
				number := b.forge.OpenBy("mallory", "mine", head, "a title", fork)
				b.run(b.remote, "update-ref", b.config.Reference(number), head)
				b.pass()
			}
			for range 2 {
				if status, _ := b.forge.Status(head, "numaform/plan"); status.State != forge.Failure {
					t.Errorf("status %+v", status)
				}
				b.restart()
				b.pass()
			}
		})
	}
}

// TestClosedByUnknown opens another pull request for one if the forge does not report who
// closed it: only an approver rejects by closing.
func TestClosedByUnknown(t *testing.T) { everywhere(t, testClosedByUnknown) }

func testClosedByUnknown(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Update(1, func(p *forge.PullRequest) { p.State = forge.Closed })
	b.pass()
	b.wantPending("workers-up-1")
	if now := b.at(b.request("workers-up-1").Number); now.Number != 2 || !strings.Contains(now.Body, "closed by an unknown user") {
		t.Errorf("the pull request is %+v", now)
	}
}

// racing is a forge where another client is faster: it acts right after each list of the open
// pull requests.
type racing struct {
	forge.Client
	act func()
}

func (r *racing) Open(ctx context.Context) ([]forge.PullRequest, error) {
	open, err := r.Client.Open(ctx)
	r.act()
	return open, err
}

// TestClosedDuringPass opens another pull request for one that was closed or merged after the
// pass had listed it as open.
func TestClosedDuringPass(t *testing.T) { everywhere(t, testClosedDuringPass) }

func testClosedDuringPass(t *testing.T, at kind) {
	for name, act := range map[string]func(b *bench){
		"closed": func(b *bench) {
			b.forge.Update(1, func(p *forge.PullRequest) { p.State, p.ClosedBy = forge.Closed, "mallory" })
		},
		"merged": func(b *bench) { b.merge("workers-up-1", "squash") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.add("workers-up-1", "1")
			b.pass()
			b.config.Forge = &racing{Client: b.config.Forge, act: func() { act(b) }}
			b.restart()
			b.pass()
			b.wantPending("workers-up-1")
			if now := b.at(b.request("workers-up-1").Number); now.Number != 2 || now.State != forge.Open {
				t.Errorf("the pull request is %+v", now)
			}
		})
	}
}
