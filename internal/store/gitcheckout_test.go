package store_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/store"
)

// everything returns all files below dir, including git's own, with their modes, times and
// contents.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(text)
		}
		files[path] = info.Mode().String() + " " + info.ModTime().String() + "\n" + content
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// checkedOut returns a store whose fleet.dir is a person's checkout.
func checkedOut(t *testing.T, subdir string) (g *store.Git, ann string, config store.GitConfig) {
	t.Helper()
	config = store.GitConfig{Clone: t.TempDir(), Remote: bare(t), Subdir: subdir}
	begin(t, openGit(t, config), desired(), changed(0))
	ann = person(t, config.Remote)
	config.Dir = ann
	return openGit(t, config), ann, config
}

// TestGitCheckoutWithEdits makes uncommitted edits in a checkout: reads and writes fail if
// an edit changes the fleet, and the checkout itself does not change.
func TestGitCheckoutWithEdits(t *testing.T) {
	t.Parallel()
	node := "r/pve-1/node-a-2000.tf"
	for name, tt := range map[string]struct {
		edit func(t *testing.T, ann, fleet string)
		want string
	}{
		"modified":          {func(t *testing.T, _, fleet string) { put(t, fleet, node, "# mine\n") }, node},
		"modified, staged":  {func(t *testing.T, ann, fleet string) { put(t, fleet, node, "# mine\n"); run(t, ann, "add", "-A") }, node},
		"deleted":           {func(t *testing.T, ann, fleet string) { remove(t, fleet, node) }, node},
		"deleted, staged":   {func(t *testing.T, ann, fleet string) { remove(t, fleet, node); run(t, ann, "add", "-A") }, node},
		"added":             {func(t *testing.T, _, fleet string) { put(t, fleet, "r/pve-2/node-b-1.tf", "") }, "r/pve-2/node-b-1.tf"},
		"added, staged":     {func(t *testing.T, ann, fleet string) { put(t, fleet, "fleet.json", ""); run(t, ann, "add", "-A") }, "fleet.json"},
		"staged, then back": {func(t *testing.T, ann, fleet string) { stageAndRestore(t, ann, fleet, node) }, node},
		"link":              {func(t *testing.T, _, fleet string) { remove(t, fleet, node); link(t, fleet, node, "/dev/zero") }, node},
		"nothing of it":     {func(t *testing.T, ann, _ string) { put(t, ann, "notes.txt", ""); put(t, ann, "elsewhere/main.tf", "") }, ""},
		"left by older": {func(t *testing.T, _, fleet string) {
			put(t, fleet, ".numaform/lock", "")
			put(t, fleet, "r/pve-1/terraform.tfstate", "{}")
			put(t, fleet, "r/pve-1/.terraform/x.tf", "")
		}, ""},
		"other line ends": {func(t *testing.T, _, fleet string) {
			put(t, fleet, node, strings.ReplaceAll(string(desired()[node]), "\n", "\r\n"))
		}, ""},
	} {
		for _, subdir := range []string{"", "clusters/prod"} {
			t.Run(name+" in "+subdir, func(t *testing.T) {
				t.Parallel()
				g, ann, _ := checkedOut(t, subdir)
				_, base := readFrom(t, g)
				tt.edit(t, ann, filepath.Join(ann, subdir))
				before := everything(t, ann)
				_, _, err := g.Read(t.Context())
				if tt.want == "" && err != nil {
					t.Error(err)
				}
				if tt.want != "" {
					wantError(t, err, tt.want, "are not committed", "commit and push them")
					wantError(t, g.Begin(t.Context(), base, render(nil), changed(1)), tt.want)
				} else {
					begin(t, g, render(nil), changed(1))
				}
				if diff := cmp.Diff(before, everything(t, ann)); diff != "" {
					t.Errorf("the checkout (-before +after):\n%s", diff)
				}
			})
		}
	}
}

// TestGitCheckoutIsNamed refuses a file of a checkout whose remote is not configured: the
// error names the checkout.
func TestGitCheckoutIsNamed(t *testing.T) {
	t.Parallel()
	_, ann, _ := checkedOut(t, "")
	put(t, ann, "r/pve-1/zz.tf", "")
	commitAll(t, ann, "x")
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: ann})
	_, _, err := g.Read(t.Context())
	var refused *store.RefusedError
	if !errors.As(err, &refused) || refused.Where != "branch main of "+ann || refused.Path != "r/pve-1/zz.tf" {
		t.Errorf("got %v, want a file refused in the checkout %s", err, ann)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func stageAndRestore(t *testing.T, ann, fleet, name string) {
	t.Helper()
	put(t, fleet, name, "# mine\n")
	run(t, ann, "add", "-A")
	put(t, fleet, name, string(desired()[name]))
}

// TestGitCheckoutRunsNothing checks that filters and hooks in a checkout do not run.
func TestGitCheckoutRunsNothing(t *testing.T) {
	t.Parallel()
	g, ann, _ := checkedOut(t, "")
	ran := filepath.Join(t.TempDir(), "ran")
	put(t, ann, ".gitattributes", "* filter=evil diff=evil\n")
	for _, key := range []string{"filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "core.fsmonitor", "core.sshCommand"} {
		run(t, ann, "config", key, "touch "+ran)
	}
	for _, hook := range []string{"post-checkout", "pre-commit", "post-commit", "pre-push", "reference-transaction", "post-index-change"} {
		put(t, ann, ".git/hooks/"+hook, "#!/bin/sh\ntouch "+ran+"\n")
		if err := os.Chmod(filepath.Join(ann, ".git", "hooks", hook), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, g, render(nil), changed(1))
	end(t, g, changed(1))
	if _, err := os.Lstat(ran); err == nil {
		t.Error("a program of the checkout's was run")
	}
}

// TestGitCheckoutAhead adds commits that the remote lacks to a checkout: the checkout is
// refused only if the commits change the fleet.
func TestGitCheckoutAhead(t *testing.T) {
	t.Parallel()
	g, ann, _ := checkedOut(t, "clusters/prod")
	begin(t, g, render(nil), changed(1)) // the checkout is behind
	wantFiles(t, g, render(nil))
	put(t, ann, "docs/x.md", "")
	run(t, ann, "add", "-A")
	run(t, ann, "commit", "--quiet", "-m", "docs")
	wantFiles(t, g, render(nil))
	run(t, ann, "rm", "--quiet", "clusters/prod/r/pve-1/node-a-2000.tf")
	run(t, ann, "commit", "--quiet", "-m", "\x1b[2J")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "has commits of the fleet", run(t, ann, "rev-parse", "--short=12", "HEAD"), "push origin HEAD:main")
	run(t, ann, "switch", "--quiet", "-c", "mine")
	_, _, err = g.Read(t.Context())
	wantError(t, err, "has commits of the fleet")
	run(t, ann, "switch", "--quiet", "main")
	run(t, ann, "reset", "--quiet", "--hard", "origin/main")
	wantFiles(t, g, render(nil))
}

func TestGitRefusesLocations(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, dir, remote string)
		alone   bool
		want    string
	}{
		"files": {func(t *testing.T, dir, _ string) { put(t, dir, "a/b.txt", "") }, true, "contains a and is not a git repository"},
		"fleet": {func(t *testing.T, dir, _ string) { put(t, dir, "fleet.json", "") }, false, "contains a fleet but is not a checkout"},
		"two URLs": {func(t *testing.T, dir, remote string) {
			run(t, dir, "clone", "-q", remote, ".")
			run(t, dir, "config", "--add", "remote.origin.url", "http://127.0.0.1:1/x.git")
		}, false, "has 2 URLs"},
		"two URLs and no remote": {func(t *testing.T, dir, remote string) {
			run(t, dir, "clone", "-q", remote, ".")
			run(t, dir, "config", "--add", "remote.origin.url", "http://127.0.0.1:1/x.git")
		}, true, "git -C "},
		"another origin": {func(t *testing.T, dir, remote string) {
			run(t, dir, "clone", "-q", remote, ".")
			run(t, dir, "remote", "set-url", "origin", "/x")
		}, false, "remote set-url origin"},
		"no origin": {func(t *testing.T, dir, _ string) {
			run(t, dir, "init", "-q")
			put(t, dir, "fleet.json", "")
		}, true, "git clone --bare "},
		"shallow": {func(t *testing.T, dir, remote string) {
			run(t, dir, "clone", "-q", "--depth=1", "file://"+remote, ".")
			run(t, dir, "remote", "set-url", "origin", remote)
		}, false, "fetch --unshallow"},
		"partial": {func(t *testing.T, dir, remote string) {
			run(t, remote, "config", "uploadpack.allowFilter", "true")
			run(t, dir, "clone", "-q", "--filter=blob:none", "file://"+remote, ".")
			run(t, dir, "remote", "set-url", "origin", remote)
		}, false, "fetch --refetch"},
		"partial, as git marked it at first": {func(t *testing.T, dir, remote string) {
			run(t, dir, "clone", "-q", remote, ".")
			run(t, dir, "config", "extensions.partialClone", "origin")
		}, false, "fetch --refetch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, remote := t.TempDir(), bare(t)
			g := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
			begin(t, g, desired(), changed(0))
			begin(t, g, render(nil), changed(1))
			tt.prepare(t, dir, remote)
			before := everything(t, dir)
			config := store.GitConfig{Clone: t.TempDir(), Dir: dir, Remote: remote}
			if tt.alone {
				config.Remote = ""
			}
			_, _, err := openGit(t, config).Read(t.Context())
			wantError(t, err, dir, tt.want)
			if diff := cmp.Diff(before, everything(t, dir)); diff != "" {
				t.Errorf("the directory (-before +after):\n%s", diff)
			}
		})
	}
}

func TestListed(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{
		"a, b": {"a", "b"}, "a, b, c, d, e": strings.Split("abcde", ""), "a, b, c, d, e and 2 more": strings.Split("abcdefg", ""),
	} {
		if got := store.Listed(names); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestGitShallowRemote checks that a repository that lacks part of its history is refused.
func TestGitShallowRemote(t *testing.T) {
	t.Parallel()
	g, _, remote := pushed(t, "")
	begin(t, g, render(nil), changed(1))
	shallow := filepath.Join(t.TempDir(), "shallow.git")
	run(t, "", "clone", "-q", "--bare", "--depth=1", "file://"+remote, shallow)
	_, _, err := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: shallow}).Read(t.Context())
	wantError(t, err, "shallow", "git fetch --unshallow")
	_, _, err = openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: shallow}).Read(t.Context())
	wantError(t, err, "shallow", "fetch --unshallow")
}

// TestGitUpgrade opens the working copy of an older numaform. It checks that the new
// version uses the origin of the working copy, imports the outcomes that the older version
// could not push, and does not change the working copy.
func TestGitUpgrade(t *testing.T) {
	t.Parallel()
	first := changed(0)
	old := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: bare(t)})
	remoteOf := t.TempDir()
	other := filepath.Join(remoteOf, "fleet.git")
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: other})
	begin(t, g, desired(), first)
	end(t, g, first)
	begin(t, old, desired(), changed(1)) // an unrelated repository
	remote := filepath.Join(remoteOf, "remote.git")
	run(t, "", "clone", "-q", "--bare", other, remote)
	copied := filepath.Join(remoteOf, "copy")
	run(t, "", "clone", "-q", "--no-hardlinks", remote, copied)
	run(t, copied, "fetch", "-q", other, "refs/notes/numaform:refs/notes/numaform")
	config := store.GitConfig{Clone: t.TempDir(), Dir: copied}
	before := everything(t, copied)
	wantHistory(t, openGit(t, config), time.Time{}, closed(first))
	second := changed(2)
	begin(t, openGit(t, config), render(nil), second)
	end(t, openGit(t, config), second)
	if diff := cmp.Diff(before, everything(t, copied)); diff != "" {
		t.Errorf("the old working copy (-before +after):\n%s", diff)
	}
	wantHistory(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), time.Time{}, closed(first), closed(second))
}

// TestGitTokenStaysWithItsHost checks that a redirect to another host is not followed, so
// that the other host does not get the token.
func TestGitTokenStaysWithItsHost(t *testing.T) {
	t.Parallel()
	asked := 0
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer thief.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL+r.URL.String(), http.StatusFound)
	}))
	defer server.Close()
	_, _, err := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: server.URL + "/x.git", Auth: store.GitAuth{Token: "c4n4ry"}}).Read(t.Context())
	wantError(t, err, "redirects", "set fleet.git.remote")
	if asked > 0 {
		t.Error("the other server was asked")
	}
}

// TestGitCloneIsPrivate checks that only its owner can access the clone.
func TestGitCloneIsPrivate(t *testing.T) {
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "state", "git")
	begin(t, openGit(t, store.GitConfig{Clone: clone, Remote: bare(t)}), desired(), changed(0))
	info, err := os.Stat(clone)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
