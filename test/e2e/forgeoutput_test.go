package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
)

// TestDataOfReviewedChanges checks that stdout contains only data with -o json, while pull
// requests are opened, replaced and closed, and that a refused pod keeps one open.
func TestDataOfReviewedChanges(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	repository := t.TempDir()
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", repository, "-c", "user.name=ops", "-c", "user.email=ops@example"}, args...)...).Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet", "--bare", "--initial-branch=main")
	git("update-ref", "refs/heads/main", git("commit-tree", git("hash-object", "-t", "tree", "-w", os.DevNull), "-m", "empty"))
	const token = "canary-of-forge"
	server := forgetest.Serve(t, forge.GitHub, forgetest.New("main"), repository, token)
	edit(t, stage, "numaform.yaml", "  backend: {type: local}", fmt.Sprintf(
		"  backend: {type: local}\n  git: {remote: '%s', username: numaform, review: true, forge: {kind: github, url: '%s'}}", server.Remote, server.URL,
	))
	stage.Setenv("NUMAFORM_GIT_TOKEN="+token, "NUMAFORM_FORGE_TOKEN="+token)
	refused := filepath.Join(stage.Dir, "refused.yaml")
	pod := "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: default}\nspec: {containers: [{name: web, image: web}]}\n"
	if err := os.WriteFile(refused, []byte(controlPlane+pod), 0o600); err != nil {
		t.Fatal(err)
	}

	apply := func(what, manifests string, wantOpen int) {
		t.Helper()
		out := run(t, stage, cli.ExitOK, "apply", "-f", manifests, "--auto-approve", "-o", "json")
		if !json.Valid([]byte(out)) {
			t.Errorf("%s: stdout is not JSON:\n%s", what, out)
		}
		open, err := server.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		number := 0
		if len(open) == 1 {
			number = open[0].Number
		}
		if len(open) > 1 || number != wantOpen {
			t.Errorf("%s: open are %+v, want #%d", what, open, wantOpen)
		}
	}
	apply("opened", stage.Manifests(), 1)
	apply("already open", stage.Manifests(), 1)
	edit(t, stage, "manifests/pods.yaml", "replicas: 4", "replicas: 8")
	apply("replaced", stage.Manifests(), 2)

	open, err := server.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sha, err := server.Squash(open[0].Head, open[0].HeadSHA)
	if err != nil {
		t.Fatal(err)
	}
	server.Update(2, func(p *forge.PullRequest) { p.State, p.MergeSHA = forge.Merged, sha })
	run(t, stage, cli.ExitOK, "apply", "-f", nothing(t, stage), "--auto-approve")
	edit(t, stage, "manifests/pods.yaml", "replicas: 8", "replicas: 16")
	apply("opened after a merge", stage.Manifests(), 3)
	apply("refused", refused, 3)
	apply("no longer needed", nothing(t, stage), 0)
}
