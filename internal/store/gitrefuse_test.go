package store_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
)

// pushed returns a store with a fleet in a remote repository, a person's checkout of it,
// and the remote.
func pushed(t *testing.T, subdir string) (g *store.Git, ann, remote string) {
	t.Helper()
	remote = bare(t)
	g = openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote, Subdir: subdir})
	begin(t, g, desired(), changed(0))
	return g, person(t, remote), remote
}

// link creates a symbolic link.
func link(t *testing.T, dir, name, target string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
}

// wantRefused checks that the error of a read names a file and how to remove it, without
// terminal control sequences.
func wantRefused(t *testing.T, s store.Store, name string) {
	t.Helper()
	_, _, err := s.Read(t.Context())
	var refused *store.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want %q refused", err, name)
	}
	if text := err.Error(); !strings.Contains(text, name) || refused.Fix == "" || strings.ContainsAny(text, "\x1b\x00\n") {
		t.Errorf("got %q, want %q named and how to remove it", text, name)
	}
}

// intruders are files that are not part of a fleet, by name. With a target, the file is a
// link to it.
var intruders = map[string]struct{ path, target, shown string }{
	"JSON configuration":     {path: "r/pve-1/zz.tf.json"},
	"configuration":          {path: "r/pve-1/zz.tf"},
	"override":               {path: "r/pve-1/node-a_override.tf"},
	"OpenTofu's":             {path: "r/pve-1/main.tofu"},
	"variables":              {path: "r/pve-1/terraform.tfvars"},
	"file in a module":       {path: "modules/proxmox-node/0123456789abcdef/x.sh"},
	"module of another name": {path: "modules/evil/0123456789abcdef/main.tf"},
	"hidden file":            {path: "r/pve-1/.x.tf"},
	"file at the root":       {path: "x.tf"},
	"directory of its own":   {path: "docs/deep/er/x.md"},
	"capitals":               {path: "Fleet.json"},
	"region in capitals":     {path: "R/pve-1/main.tf"},
	"host in capitals":       {path: "r/PVE-1/node-a-3000.tf"},
	"look-alike":             {path: "r/pve-1/node-\u0430-1.tf"},
	"decomposed":             {path: "r\u0301/pve-1/main.tf"},
	"long name":              {path: "r/pve-1/node-" + strings.Repeat("a", 240) + ".tf", shown: "node-aaa"},
	"not UTF-8":              {path: "r/pve-1/node-\xff.tf", shown: `node-\xff.tf`},
	"escape":                 {path: "r/pve-1/node-\x1b[2J.tf", shown: `node-\x1b[2J.tf`},
	"line break":             {path: "r/pve-1/node-a\n.tf", shown: `node-a\n.tf`},
	"record of no change":    {path: "history/2026/11/x.json"},
	"record in another year": {path: "history/2025/11/20261121T134501Z-1.json"},
	"link to a file":         {path: "r/pve-1/node-b-1.tf", target: "/proc/self/environ"},
	"link to a directory":    {path: "s", target: "r"},
	"link in place of a record": {
		path: "history/2026/11/20261121T134501Z-1.json", target: "/etc/passwd",
	},
}

// TestFixOfRefused checks the fix for a refused file: git rm, or a reset of the branch if
// git would interpret the path differently.
func TestFixOfRefused(t *testing.T) {
	t.Parallel()
	const byHand = "reset the branch to the commit before it"
	for name, want := range map[string]string{
		"r/x.tf":      "git rm -r --cached r/x.tf && git commit",
		"r/a b.tf":    "git rm -r --cached 'r/a b.tf' && git commit",
		"r/.gitx":     "git rm -r --cached r/.gitx && git commit",
		"r/.Git/x.tf": byHand, "r/../x.tf": byHand, "r/./x.tf": byHand, "r//x.tf": byHand,
	} {
		var refused *store.RefusedError
		if err := store.Refused(name); !errors.As(err, &refused) || !strings.Contains(refused.Fix, want) || refused.Path != name {
			t.Errorf("%s: got %v, want the fix %q", name, err, want)
		}
	}
}

// TestGitRemoteThatSendsNothing checks the error for a server that lists a branch but sends
// an empty pack.
func TestGitRemoteThatSendsNothing(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
		switch path.Base(r.URL.Path) {
		case "refs":
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			hash := strings.Repeat("1", 40)
			_, _ = io.WriteString(w, line("# service=git-upload-pack\n")+"0000"+
				line(hash+" HEAD\x00symref=HEAD:refs/heads/main\n")+line(hash+" refs/heads/main\n")+"0000")
		case "git-upload-pack":
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			_, _ = io.WriteString(w, line("NAK\n"))
		}
	}))
	t.Cleanup(server.Close)
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: server.URL + "/x.git"})
	_, _, err := g.Read(t.Context())
	wantError(t, err, "fetching from "+server.URL+"/x.git", "it sent an empty pack")
}

// TestGitRefuses pushes files that are not part of a fleet: reads fail and name the file.
func TestGitRefuses(t *testing.T) {
	t.Parallel()
	more := map[string]struct{ path, target, shown string }{
		"cut-off write":   {path: ".numaform/next.json"},
		"engine's":        {path: "r/pve-1/.terraform/modules/modules.json"},
		"state":           {path: "r/pve-1/terraform.tfstate"},
		"errored state":   {path: "r/pve-1/errored.tfstate"},
		"import":          {path: "r/pve-1/" + generator.ImportFile},
		"hooks":           {path: "hooks/post-commit"},
		"modules of git":  {path: ".gitmodules"},
		"attributes":      {path: "r/.gitattributes"},
		"lost":            {path: "lost+found/x"},
		"workflow deeper": {path: "r/.github/x.yml"},
	}
	for _, subdir := range []string{"", "clusters/prod"} {
		t.Run("in "+subdir, func(t *testing.T) {
			t.Parallel()
			g, _, remote := pushed(t, subdir)
			base := run(t, remote, "rev-parse", "main")
			for _, list := range []map[string]struct{ path, target, shown string }{intruders, more} {
				for name, tt := range list {
					t.Run(name, func(t *testing.T) {
						graft(t, remote, base, path.Join(subdir, tt.path), tt.target)
						shown := tt.shown
						if shown == "" {
							shown = firstRefused(tt.path)
						}
						wantRefused(t, g, shown)
					})
				}
			}
		})
	}
}

// graft sets the branch to a commit on base that adds a file, or a link if there is a
// target. The name can be any that git stores.
func graft(t *testing.T, remote, base, name, target string) {
	t.Helper()
	mode := "100644"
	if target != "" {
		mode = "120000"
	}
	var stream strings.Builder
	fmt.Fprintf(&stream, "commit refs/heads/main\ncommitter Ann <ann@example.org> 1795348800 +0000\ndata 1\nx\nfrom %s\n", base)
	var quoted strings.Builder
	for i := range len(name) {
		fmt.Fprintf(&quoted, "\\%03o", name[i])
	}
	fmt.Fprintf(&stream, "M %s inline \"%s\"\ndata %d\n%s\n", mode, quoted.String(), len(target), target)
	command := exec.CommandContext(t.Context(), "git", "fast-import", "--quiet", "--force")
	command.Dir, command.Stdin = remote, strings.NewReader(stream.String())
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// firstRefused returns the part of a path that an error must name.
func firstRefused(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

func TestGitRefusesModes(t *testing.T) {
	t.Parallel()
	const remove = "git rm -r --cached "
	for name, tt := range map[string]struct{ mode, path, want, fix string }{
		"executable": {"100755", "r/pve-1/node-a-2000.tf", "is executable", "git update-index --chmod=-x "},
		"link":       {"120000", "r/pve-1/node-b-1.tf", "is a symbolic link", remove},
		"submodule":  {"160000", "r/pve-2", "is a submodule", remove},
		"module":     {"160000", "modules", "is a submodule", remove},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ann, _ := pushed(t, "")
			hash := run(t, ann, "rev-parse", "HEAD")
			if tt.mode != "160000" {
				hash = run(t, ann, "rev-parse", "HEAD:r/pve-1/node-a-2000.tf")
			} else {
				run(t, ann, "rm", "-r", "--quiet", "--cached", "--ignore-unmatch", tt.path)
			}
			run(t, ann, "update-index", "--add", "--cacheinfo", tt.mode+","+hash+","+tt.path)
			run(t, ann, "commit", "--quiet", "-m", "x")
			run(t, ann, "push", "--quiet")
			_, _, err := g.Read(t.Context())
			wantError(t, err, tt.path+" "+tt.want, tt.fix+tt.path)
			if both := strings.Contains(err.Error(), "git rm") && strings.Contains(err.Error(), "update-index"); both {
				t.Errorf("%v: two fixes that contradict each other", err)
			}
		})
	}
}

// TestGitRefusesTrees checks that trees are refused that git itself would not write.
func TestGitRefusesTrees(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entries []string
		want    string
	}{
		"parent":         {[]string{".."}, ".."},
		"git's own":      {[]string{".git"}, ".git"},
		"here":           {[]string{"."}, "."},
		"path":           {[]string{"r/pve-1/main.tf"}, "r/pve-1/main.tf"},
		"twice":          {[]string{"fleet.json", "fleet.json"}, "is a duplicate entry"},
		"case and twice": {[]string{"FLEET.json", "fleet.json"}, "FLEET.json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := pushed(t, "")
			blob := run(t, remote, "rev-parse", "main:fleet.json")
			raw, err := hex.DecodeString(blob)
			if err != nil {
				t.Fatal(err)
			}
			var tree bytes.Buffer
			for _, entry := range tt.entries {
				fmt.Fprintf(&tree, "100644 %s\x00%s", entry, raw)
			}
			commitTree(t, remote, tree.Bytes())
			_, _, err = g.Read(t.Context())
			wantError(t, err, tt.want)
		})
	}
}

// TestGitRefusesTreesBelow pushes the names .., . and .git in a directory of the fleet.
// The error must not suggest git rm, which would interpret them differently.
func TestGitRefusesTreesBelow(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"..", ".", ".git"} {
		g, _, remote := pushed(t, "")
		blob, err := hex.DecodeString(run(t, remote, "rev-parse", "main:fleet.json"))
		if err != nil {
			t.Fatal(err)
		}
		below, err := hex.DecodeString(putTree(t, remote, fmt.Appendf(nil, "100644 %s\x00%s", name, blob)))
		if err != nil {
			t.Fatal(err)
		}
		commitTree(t, remote, fmt.Appendf(nil, "40000 r\x00%s", below))
		_, _, err = g.Read(t.Context())
		wantError(t, err, "r/"+name+" is not part of a fleet", "reset the branch")
		if strings.Contains(err.Error(), "git rm") {
			t.Errorf("it says to remove %q by git rm: %v", name, err)
		}
	}
}

// commitTree commits a raw tree to the branch.
func commitTree(t *testing.T, remote string, tree []byte) {
	t.Helper()
	commit := run(t, remote, "commit-tree", "-p", "main", "-m", "x", putTree(t, remote, tree))
	run(t, remote, "update-ref", "refs/heads/main", commit)
}

// putTree stores a raw tree and returns its hash.
func putTree(t *testing.T, remote string, tree []byte) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
	command.Dir, command.Stdin = remote, bytes.NewReader(tree)
	hash, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(hash))
}

// TestGitSkips checks that files of forges, of the engine and of older versions next to a
// fleet are ignored, and that an invalid record of an older version is reported.
func TestGitSkips(t *testing.T) {
	t.Parallel()
	g, ann, _ := pushed(t, "")
	for _, name := range []string{
		"README.md", "LICENSE", "CODEOWNERS", ".gitattributes", ".gitlab-ci.yml", ".github/workflows/a.yml", ".gitea/b", ".forgejo/c/d",
		"r/pve-1/.terraform.lock.hcl", "history/20261121T134501Z-1.json", "history/20261121T134501Z-1.outcome.json",
	} {
		put(t, ann, name, "x")
	}
	link(t, ann, "README.txt", "/etc/passwd")
	commitAll(t, ann, "x")
	wantFiles(t, g, desired())
	unreadable := 0
	for _, e := range historyOf(t, g, time.Time{}) {
		if e.Unreadable != "" && e.Change.ID == "20261121T134501Z-1" {
			unreadable++
		}
	}
	if unreadable != 1 {
		t.Error("a record that numaform did not write so is passed over")
	}
}

// TestGitOutsideItsDirectory adds arbitrary content outside the fleet's directory: it is
// neither read nor refused nor changed.
func TestGitOutsideItsDirectory(t *testing.T) {
	t.Parallel()
	g, ann, remote := pushed(t, "clusters/prod")
	for _, name := range []string{".numaform/next.json", "main.tf", "a/b/c/d/e/f/g", "clusters/staging/fleet.json", "caf\u00e9", "clusters/Prod/x"} {
		put(t, ann, name, "x")
	}
	link(t, ann, "link", "/etc/passwd")
	put(t, ann, "huge", strings.Repeat("\x00", 20<<20))
	commitAll(t, ann, "x")
	outside := func() string {
		return run(t, remote, "ls-tree", "-r", "main", "--", "link", "main.tf", "a", ".numaform", "clusters/staging", "clusters/Prod", "huge")
	}
	before := outside()
	begin(t, g, render(nil), changed(1))
	if after := outside(); after != before || before == "" {
		t.Errorf("outside was\n%s\nis\n%s", before, after)
	}
	run(t, remote, "fsck")
	wantFiles(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote, Subdir: "clusters/prod"}), render(nil))
}

// TestGitInvalidSubdir replaces a parent of the fleet's directory with a file or a link: it
// is refused.
func TestGitInvalidSubdir(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(ann string){
		"link": func(ann string) { link(t, ann, "clusters", "elsewhere") },
		"file": func(ann string) { put(t, ann, "clusters", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ann, _ := pushed(t, "clusters/prod")
			run(t, ann, "rm", "-r", "--quiet", "clusters")
			replace(ann)
			commitAll(t, ann, "x")
			_, _, err := g.Read(t.Context())
			wantError(t, err, "clusters is the directory of the fleet, but it is not a directory")
		})
	}
}

// TestGitLimits pushes files above the limits, one of them above the limit for delta bases,
// and checks that numaform does not inflate them. It is not parallel, because it measures
// allocations.
func TestGitLimits(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		mib        int
		want       string
	}{
		{"node file", "clusters/prod/r/pve-1/node-a-2000.tf", 65, "node-a-2000.tf"},
		{"module", "clusters/prod/modules/proxmox-node/0123456789abcdef/main.tf", 20, "main.tf"},
		{"skipped", "clusters/prod/r/pve-1/.terraform.lock.hcl", 20, ""},
		{"elsewhere", "zeros", 20, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, ann, _ := pushed(t, "clusters/prod")
			zeros := strings.Repeat("\x00", tt.mib<<20)
			put(t, ann, tt.path, zeros)
			commitAll(t, ann, "x")
			put(t, ann, tt.path, zeros+"another version")
			commitAll(t, ann, "x")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := g.Read(t.Context())
			runtime.ReadMemStats(&after)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
				t.Errorf("it allocated %d MiB", took>>20)
			}
		})
	}
}

// TestGitLimitOfAFile checks that a file above maxFile is refused, although it could be
// read.
func TestGitLimitOfAFile(t *testing.T) {
	t.Parallel()
	g, ann, _ := pushed(t, "")
	put(t, ann, "r/pve-1/node-a-2000.tf", strings.Repeat("\n", 2<<20))
	commitAll(t, ann, "x")
	wantRefused(t, g, "r/pve-1/node-a-2000.tf has 2097152 bytes: a file of the fleet must have at most 1048576")
}

// TestGitLimitOfACommit checks that a commit above maxCommit is refused, although it could
// be read.
func TestGitLimitOfACommit(t *testing.T) {
	t.Parallel()
	g, ann, _ := pushed(t, "")
	message := filepath.Join(t.TempDir(), "message")
	if err := os.WriteFile(message, []byte(strings.Repeat("x", 2<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, ann, "commit", "-q", "--allow-empty", "-F", message)
	run(t, ann, "push", "-q")
	_, _, err := g.Read(t.Context())
	wantError(t, err, "more than the limit of 1048576", "from the history of the branch")
}

// TestGitRedirects checks which redirects are followed: only to the configured host and
// scheme, because the request contains the credential.
func TestGitRedirects(t *testing.T) {
	t.Parallel()
	for to, allowed := range map[string]bool{
		"https://git.example.org/fleet/": true, "https://git.example.org:8443/fleet": false, "https://evil.example.org/fleet": false,
		"http://git.example.org/fleet": false,
	} {
		if err := store.SameHost(to, "https://git.example.org/fleet"); (err == nil) != allowed {
			t.Errorf("to %s: %v, want it allowed: %t", to, err, allowed)
		}
	}
}

// TestGitHidesEscapes checks that errors contain no terminal control sequences from a
// server, and that a commit with such sequences can be read.
func TestGitHidesEscapes(t *testing.T) {
	t.Parallel()
	g, ann, remote := pushed(t, "")
	put(t, remote, "hooks/pre-receive", "#!/bin/sh\nprintf '\\033[2Jfunny' >&2\nexit 1\n")
	if err := os.Chmod(filepath.Join(remote, "hooks", "pre-receive"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, base := readFrom(t, g)
	if err := g.Begin(t.Context(), base, render(nil), changed(1)); err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("got %q", err)
	}
	if err := os.Remove(filepath.Join(remote, "hooks", "pre-receive")); err != nil {
		t.Fatal(err)
	}
	run(t, ann, "-c", "user.name=\x1b[2J", "commit", "--quiet", "--allow-empty", "-m", "\x1b]0;x\x07")
	run(t, ann, "push", "--quiet")
	wantFiles(t, g, desired())
}

// TestDirectoryRefuses checks that the intruders are also refused in a plain directory.
func TestDirectoryRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range intruders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(t.TempDir())
			write(t, d, desired())
			if tt.target == "" {
				put(t, d.Path(), tt.path, "x")
			} else {
				link(t, d.Path(), tt.path, tt.target)
			}
			shown := tt.shown
			if shown == "" {
				shown = firstRefused(tt.path)
			}
			wantRefused(t, d, shown)
		})
	}
}

func TestDirectoryLimits(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	write(t, d, desired())
	name := filepath.Join(d.Path(), "r", "pve-1", "node-a-2000.tf")
	if err := os.Truncate(name, 1<<40); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, d, "node-a-2000.tf")
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, d, "node-a-2000.tf")
}
