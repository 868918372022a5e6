package review_test

import (
	"context"
	"os"
	"path/filepath"
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

// TestUnknownHead does not check a pull request whose head the forge does not know yet.
func TestUnknownHead(t *testing.T) { everywhere(t, testUnknownHead) }

func testUnknownHead(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.config.Check = func(context.Context, generator.Files, generator.Files, bool) (bool, string, error) {
		t.Error("checked")
		return true, "fine", nil
	}
	b.restart()
	b.forge.OpenBy("alice", "mine", "", "a title", false)
	b.pass()
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

// TestBlocked removes files of a stranger that the pull request could not be merged with, and
// keeps its approval: only with exactly the proposal, the stranger's file is no conflict.
func TestBlocked(t *testing.T) { everywhere(t, testBlocked) }

func testBlocked(t *testing.T, at kind) {
	const file, picture = "proposals/workers-up-1.diff", "proposals/workers-up-1.lab.pve-1.svg"
	for name, c := range map[string]struct {
		// before is a file that exists before the plan, and after one after the approval.
		before, after string
		exact         bool
		keeps         []string
	}{
		"the proposal":         {after: file},
		"a picture":            {after: picture},
		"before the proposal":  {before: file},
		"exactly the proposal": {after: file, exact: true, keeps: []string{file}},
		"another proposal":     {after: "proposals/workers-up-10.diff", keeps: []string{"proposals/workers-up-10.diff"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.config.Plans = drawn{b.plans}
			b.restart()
			if c.before != "" {
				b.write(c.before, "in the way\n")
				b.commit("block")
			}
			b.add("workers-up-1", "1")
			b.pass()
			request := b.request("workers-up-1")
			b.forge.Review(1, "alice", forge.Approved)
			b.pass()
			if c.after != "" {
				content := "in the way"
				if c.exact {
					content = b.run(b.remote, "show", request.Branch+":"+file)
				}
				b.run(b.clone, "pull", "--quiet", "origin", "main")
				b.write(c.after, content+"\n")
				b.commit("block")
			}
			b.pass()
			b.wantProposals(c.keeps...)
			if got := b.request("workers-up-1"); got.Head != request.Head || !strings.Contains(got.Waits, "approved by alice") {
				t.Errorf("the pull request is %+v", got)
			}
			b.merge("workers-up-1", "merge")
			b.pass()
			b.wantApproved("workers-up-1", "alice")
		})
	}
}

// TestBlockedForGood reports a conflict that numaform may not remove, because the fleet's branch
// refuses its pushes.
func TestBlockedForGood(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.write("proposals/workers-up-1.diff", "in the way\n")
	b.commit("block")
	hook := filepath.Join(b.remote, "hooks", "update")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const want = "removing files that conflict with the proposal workers-up-1 from branch main"
	if err := b.reviewer.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if waits := b.request("workers-up-1").Waits; !strings.Contains(waits, want) || !strings.Contains(waits, "allow numaform's user to push to it") {
		t.Errorf("it waits: %q", waits)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.wantProposals()
}
