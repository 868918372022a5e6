package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/store"
)

// proposal is a proposal of the tests.
func proposal() store.Proposal {
	return store.Proposal{
		Branch: "numaform/workers-up-1", Name: "workers-up-1", Content: []byte("a digest and plans\n"),
		Message: "numaform: propose workers-up-1\n", Time: time.Unix(1767225600, 0),
	}
}

func propose(t *testing.T, g *store.Git, p store.Proposal) string {
	t.Helper()
	commit, err := g.Propose(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return commit
}

func hasProposal(t *testing.T, g *store.Git, p store.Proposal) bool {
	t.Helper()
	has, err := g.HasProposal(t.Context(), p.Name, p.Content)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// TestGitProposal proposes a change, and merges it in each way. A proposal changes no file of
// the fleet, and only its exact content counts.
func TestGitProposal(t *testing.T) {
	t.Parallel()
	for name, merge := range map[string][]string{
		"merge":  {"merge", "--quiet", "--no-ff", "origin/numaform/workers-up-1", "-m", "merge"},
		"squash": {"merge", "--quiet", "--squash", "origin/numaform/workers-up-1"},
		"rebase": {"cherry-pick", "origin/numaform/workers-up-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			begin(t, g, desired(), changed(1))
			p := proposal()
			first := propose(t, g, p)
			if again := propose(t, g, p); again != first {
				t.Errorf("the same proposal has the commits %s and %s", first, again)
			}
			if hasProposal(t, g, p) {
				t.Error("it is on the fleet's branch before the merge")
			}

			clone := person(t, remote)
			put(t, clone, "README.md", "another commit\n")
			commitAll(t, clone, "another commit")
			run(t, clone, merge...)
			if name == "squash" {
				run(t, clone, "commit", "--quiet", "-m", "squashed")
			}
			run(t, clone, "push", "--quiet", "origin", "HEAD:main")
			if !hasProposal(t, g, p) {
				t.Error("the merged proposal is not on the fleet's branch")
			}
			other := p
			other.Content = []byte("another digest\n")
			if hasProposal(t, g, other) {
				t.Error("another content counts as merged")
			}
			wantFiles(t, g, desired())

			if err := g.DropProposals(t.Context(), time.Unix(1767225600, 0), p.Name, "unknown"); err != nil {
				t.Fatal(err)
			}
			if hasProposal(t, g, p) {
				t.Error("the proposal was not removed")
			}

			// Proposed again, it can be merged again, also by a rebase, which drops what
			// the branch had before.
			again := propose(t, g, p)
			run(t, clone, "fetch", "--quiet", "origin")
			run(t, clone, "rebase", "--quiet", "origin/main", "origin/"+p.Branch)
			run(t, clone, "push", "--quiet", "origin", "HEAD:main")
			if !hasProposal(t, g, p) {
				t.Error("the second rebase did not merge the proposal")
			}
			if err := g.DropProposals(t.Context(), time.Unix(1767225600, 0), p.Name); err != nil {
				t.Fatal(err)
			}
			if err := g.DropBranch(t.Context(), p.Branch, again); err != nil {
				t.Fatal(err)
			}
			if got := run(t, remote, "branch", "--list", "numaform/*"); got != "" {
				t.Errorf("the remote still has %s", got)
			}
			wantFiles(t, g, desired())
		})
	}
}

// TestGitProposalReplaced checks that commits of other clients on the branch of a proposal
// are replaced, and that a branch that another client changed is not deleted.
func TestGitProposalReplaced(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(1))
	p := proposal()
	ours := propose(t, g, p)
	clone := person(t, remote)
	run(t, clone, "switch", "--quiet", "--create", "theirs", "origin/"+p.Branch)
	put(t, clone, "proposals/workers-up-1.diff", "something else\n")
	run(t, clone, "commit", "--quiet", "--all", "-m", "something else")
	run(t, clone, "push", "--quiet", "--force", "origin", "theirs:"+p.Branch)
	if err := g.DropBranch(t.Context(), p.Branch, ours); err != nil {
		t.Fatal(err)
	}
	theirs := run(t, clone, "rev-parse", "HEAD")
	if got := run(t, remote, "rev-parse", p.Branch); got != theirs {
		t.Errorf("the branch of another client is at %s, want %s", got, theirs)
	}
	propose(t, g, p)
	if got := run(t, remote, "show", p.Branch+":proposals/workers-up-1.diff"); got != strings.TrimSpace(string(p.Content)) {
		t.Errorf("the branch has %q", got)
	}
	if got := run(t, remote, "log", "--format=%s", "main.."+p.Branch); got != "numaform: propose workers-up-1" {
		t.Errorf("the branch has the commits %q", got)
	}
}

// TestGitProposalOfANewFleet proposes the first change of a fleet, whose branch does not
// exist yet.
func TestGitProposalOfANewFleet(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	p := proposal()
	propose(t, g, p)
	if got := run(t, remote, "diff", "--name-status", "main", p.Branch); got != "A\tproposals/workers-up-1.diff" {
		t.Errorf("the branch differs in %q", got)
	}
	begin(t, g, desired(), changed(1))
	wantFiles(t, g, desired())
}

// TestGitProposalWithoutRemote checks the error without a remote.
func TestGitProposalWithoutRemote(t *testing.T) {
	t.Parallel()
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: filepath.Join(t.TempDir(), "fleet")})
	if _, err := g.Propose(t.Context(), proposal()); !errors.Is(err, store.ErrNoRemote) {
		t.Errorf("got %v, want ErrNoRemote", err)
	}
}

// TestGitAfterMerge returns the files after the merge of a person's branch, which is behind
// the fleet's branch, and refuses one that conflicts or has moved.
func TestGitAfterMerge(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(1))
	clone := person(t, remote)
	files, _ := readFrom(t, g)
	var node string
	for name := range files {
		if strings.Contains(name, "/node-") {
			node = name
		}
	}
	run(t, clone, "switch", "--quiet", "--create", "mine")
	run(t, clone, "rm", "--quiet", node)
	run(t, clone, "commit", "--quiet", "-m", "remove a node")
	run(t, clone, "push", "--quiet", "origin", "mine")
	head := run(t, clone, "rev-parse", "HEAD")
	run(t, clone, "switch", "--quiet", "main")
	put(t, clone, "README.md", "another commit\n")
	commitAll(t, clone, "another commit")
	run(t, clone, "push", "--quiet", "origin", "main")

	now, after, err := g.AfterMerge(t.Context(), "refs/heads/mine", head)
	if err != nil {
		t.Fatal(err)
	}
	want := desired()
	if diff := cmp.Diff(want, now); diff != "" {
		t.Errorf("now (-want +got):\n%s", diff)
	}
	delete(want, node)
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("after the merge (-want +got):\n%s", diff)
	}
	var problem *store.MergeError
	if _, _, err := g.AfterMerge(t.Context(), "refs/heads/mine", strings.Repeat("0", 40)); !errors.As(err, &problem) {
		t.Errorf("another commit: %v", err)
	}

	edited := run(t, clone, "show", "HEAD:"+node)
	put(t, clone, node, edited+"\n# edited\n")
	commitAll(t, clone, "edit the node")
	run(t, clone, "push", "--quiet", "origin", "main")
	if _, _, err := g.AfterMerge(t.Context(), "refs/heads/mine", head); !errors.As(err, &problem) || !strings.Contains(err.Error(), "conflicts") {
		t.Errorf("a conflict: %v", err)
	}
}

// TestGitAfterMergeOfLargeFiles refuses a pull request with large files, without adding them to
// the clone, and reads the fleet while they are fetched.
func TestGitAfterMergeOfLargeFiles(t *testing.T) {
	t.Parallel()
	first, _, remote := working(t)
	begin(t, first, desired(), changed(1))
	mallory := person(t, remote)
	random := rand.NewChaCha8([32]byte{})
	for i := range 5 {
		content := make([]byte, 7<<20)
		if _, err := random.Read(content); err != nil {
			t.Fatal(err)
		}
		put(t, mallory, fmt.Sprintf("r/pve-1/%d", i), string(content))
	}
	for _, repository := range []string{mallory, remote} {
		run(t, repository, "config", "core.compression", "0") // random content
		run(t, repository, "config", "pack.window", "0")
	}
	run(t, mallory, "add", "-A")
	run(t, mallory, "commit", "--quiet", "-m", "large")
	run(t, mallory, "push", "--quiet", "origin", "HEAD:refs/pull/1/head")
	head := run(t, mallory, "rev-parse", "HEAD")

	var served *store.Git
	read := make(chan error, 1)
	server := serveGit(t, remote, func(request []byte) {
		if !bytes.Contains(request, []byte("want "+head)) {
			return
		}
		ended := make(chan error, 1)
		go func() {
			_, _, err := served.Read(t.Context())
			ended <- err
		}()
		select {
		case err := <-ended:
			read <- err
		case <-time.After(10 * time.Second):
			read <- errors.New("it waits until the pull request is fetched")
		}
	})
	for name, remote := range map[string]string{"path": remote, "http": server} {
		clone := t.TempDir()
		g := openGit(t, store.GitConfig{Clone: clone, Remote: remote})
		if name == "http" {
			served = g
		}
		wantFiles(t, g, desired())
		before := sizeOf(t, clone)
		var problem *store.MergeError
		if _, _, err := g.AfterMerge(t.Context(), "refs/pull/1/head", head); !errors.As(err, &problem) || problem.Moved || !strings.Contains(err.Error(), "32 MiB") {
			t.Errorf("%s: %v, want the size refused", name, err)
		}
		if after := sizeOf(t, clone); after > before+1<<20 {
			t.Errorf("%s: the clone grew from %d to %d bytes", name, before, after)
		}
		wantFiles(t, g, desired())
	}
	select {
	case err := <-read:
		if err != nil {
			t.Errorf("reading meanwhile: %v", err)
		}
	default:
		t.Error("the commit was not requested")
	}
}

// serveGit serves a repository over http, and returns its URL. It calls f with the body of each
// request first.
func serveGit(t *testing.T, repository string, f func(request []byte)) string {
	t.Helper()
	git := &cgi.Handler{
		Path: filepath.Join(run(t, "", "--exec-path"), "git-http-backend"), Stderr: io.Discard, Logger: log.New(io.Discard, "", 0),
		Env: []string{"GIT_PROJECT_ROOT=" + repository, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		f(body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		git.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// sizeOf returns the size of all files in a directory.
func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// TestGitPictures proposes a change with pictures: they are on its branch and, once it is
// merged, beside it, but they are neither part of the fleet nor of what is approved.
func TestGitPictures(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(1))
	p := proposal()
	p.Pictures = map[string][]byte{"lab.pve-1": []byte("<svg/>"), "lab.PVE_2": []byte("<svg></svg>"), "x/../y": []byte("?"), strings.Repeat("long", 100): []byte("?")}
	head := propose(t, g, p)
	if again := propose(t, g, p); again != head {
		t.Errorf("the same proposal has the commits %s and %s", head, again)
	}
	const want = "A\tproposals/workers-up-1.diff\nA\tproposals/workers-up-1.lab.PVE_2.svg\nA\tproposals/workers-up-1.lab.pve-1.svg"
	if got := run(t, remote, "diff", "--name-status", "main", p.Branch); got != want {
		t.Errorf("the branch differs in %q", got)
	}
	have, err := g.Pictures(t.Context(), p.Branch, head, p.Name, "lab.pve-1", "lab.pve-9", "x/../y", "lab.PVE_2")
	if diff := cmp.Diff([]string{"lab.pve-1", "lab.PVE_2"}, have); diff != "" || err != nil {
		t.Errorf("the branch has the pictures %q, %v", have, err)
	}
	if have, err := g.Pictures(t.Context(), p.Branch, strings.Repeat("0", 40), p.Name, "lab.pve-1"); len(have) > 0 || err != nil {
		t.Errorf("another commit has the pictures %q, %v", have, err)
	}

	// Another client replaces a picture: the branch is restored.
	clone := person(t, remote)
	run(t, clone, "switch", "--quiet", "--create", "theirs", "origin/main")
	put(t, clone, "proposals/workers-up-1.diff", string(p.Content))
	put(t, clone, "proposals/workers-up-1.lab.pve-1.svg", "<svg>harmless</svg>")
	put(t, clone, "proposals/workers-up-1.lab.PVE_2.svg", "<svg></svg>")
	run(t, clone, "add", "--all")
	run(t, clone, "commit", "--quiet", "-m", "another picture")
	run(t, clone, "push", "--quiet", "--force", "origin", "theirs:"+p.Branch)
	propose(t, g, p)
	if got := run(t, remote, "show", p.Branch+":proposals/workers-up-1.lab.pve-1.svg"); got != "<svg/>" {
		t.Errorf("the branch has the picture %q", got)
	}

	run(t, clone, "fetch", "--quiet", "origin")
	run(t, clone, "switch", "--quiet", "--detach", "origin/main")
	run(t, clone, "merge", "--quiet", "--squash", "origin/"+p.Branch)
	run(t, clone, "commit", "--quiet", "-m", "squashed")
	run(t, clone, "push", "--quiet", "origin", "HEAD:main")
	without := p
	without.Pictures = nil
	if !hasProposal(t, g, without) {
		t.Error("the merged proposal counts only with its pictures")
	}
	wantFiles(t, g, desired())
	if err := g.DropProposals(t.Context(), time.Unix(1767225600, 0), p.Name); err != nil {
		t.Fatal(err)
	}
	if got := run(t, remote, "ls-tree", "-r", "--name-only", "main", "proposals"); got != "" {
		t.Errorf("the fleet's branch still has %q", got)
	}
	wantFiles(t, g, desired())
}

// TestGitClearProposal removes from the fleet's branch only files that conflict with the branch
// of a proposal, and only as long as that is at the expected commit.
func TestGitClearProposal(t *testing.T) {
	t.Parallel()
	g, _, remote := working(t)
	begin(t, g, desired(), changed(1))
	p := proposal()
	p.Pictures = map[string][]byte{"lab.pve-1": []byte("<svg/>")}
	head := propose(t, g, p)
	cleared := func(commit string) []string {
		t.Helper()
		removed, err := g.ClearProposal(t.Context(), time.Unix(1767225600, 0), p.Branch, commit, p.Name)
		if err != nil {
			t.Fatal(err)
		}
		return removed
	}
	clone := person(t, remote)
	put(t, clone, "proposals/workers-up-1.lab.pve-1.svg", "<svg>theirs</svg>")
	put(t, clone, "proposals/workers-up-1.other.svg", "<svg>theirs</svg>")
	put(t, clone, "proposals/workers-up-1.diff", string(p.Content))
	commitAll(t, clone, "another picture")
	run(t, clone, "push", "--quiet", "origin", "main")
	if removed := cleared(strings.Repeat("0", 40)); len(removed) > 0 {
		t.Errorf("with another head, it removed %q", removed)
	}
	want := []string{"proposals/workers-up-1.lab.pve-1.svg"}
	if diff := cmp.Diff(want, cleared(head)); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if removed := cleared(head); len(removed) > 0 {
		t.Errorf("a second time, it removed %q", removed)
	}
	if got := run(t, remote, "ls-tree", "-r", "--name-only", "main", "proposals"); got != "proposals/workers-up-1.diff\nproposals/workers-up-1.other.svg" {
		t.Errorf("the fleet's branch has %q", got)
	}
	wantFiles(t, g, desired())
}
