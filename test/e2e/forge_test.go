package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/testenv"
)

// TestPullRequestOfTheCommandLine checks that apply opens one pull request for a change in
// review mode, with its digest as text and as status, and applies it after the merge.
func TestPullRequestOfTheCommandLine(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	gitea := testenv.Gitea(t)
	token, err := gitea.User(t.Context(), "ops", true)
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, path string, sent, received any) {
		t.Helper()
		if err := gitea.Call(t.Context(), token, method, path, sent, received); err != nil {
			t.Fatal(err)
		}
	}
	call(http.MethodPost, "user/repos", map[string]any{"name": "fleet", "auto_init": true, "default_branch": "main"}, nil)
	edit(t, stage, "numaform.yaml", "  backend: {type: local}", fmt.Sprintf(
		"  backend: {type: local}\n  git: {remote: '%[1]s/ops/fleet.git', username: ops, review: true, forge: {kind: gitea, url: '%[1]s'}}", gitea.URL,
	))
	stage.Setenv("NUMAFORM_GIT_TOKEN="+token, "NUMAFORM_FORGE_TOKEN="+token)

	type pull struct {
		Number int
		Body   string
		Head   struct{ Sha string }
	}
	open := func() []pull {
		var list []pull
		call(http.MethodGet, "repos/ops/fleet/pulls?state=open", nil, &list)
		return list
	}
	out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	list := open()
	if len(list) != 1 || !strings.Contains(out, gitea.URL+"/ops/fleet/pulls/1") || len(vms(stage)) != 0 {
		t.Fatalf("%d pull requests, VMs %v:\n%s", len(list), vms(stage), out)
	}
	_, after, _ := strings.Cut(list[0].Body, "**digest:** `")
	shown, _, _ := strings.Cut(after, "`")
	var statuses []struct{ Context, Status, Description string }
	call(http.MethodGet, "repos/ops/fleet/commits/"+list[0].Head.Sha+"/statuses", nil, &statuses)
	if len(shown) != 64 || len(statuses) != 1 || statuses[0].Context != "numaform/plan" || statuses[0].Description != "digest "+shown {
		t.Errorf("digest %q, statuses %+v", shown, statuses)
	}
	out = run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if again := open(); len(again) != 1 || !strings.Contains(out, "already waits for review in "+gitea.URL) {
		t.Errorf("the same change again has %d pull requests:\n%s", len(again), out)
	}
	// A later apply with another plan replaces the pull request.
	edit(t, stage, "manifests/pods.yaml", "replicas: 4", "replicas: 8")
	out = run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	var comments []struct{ Body string }
	call(http.MethodGet, "repos/ops/fleet/issues/1/comments", nil, &comments)
	if list = open(); len(list) != 1 || list[0].Number != 2 || len(comments) != 1 || !strings.Contains(comments[0].Body, "ops/fleet/pulls/2 replaces it") {
		t.Errorf("open pull requests %+v, comments %+v:\n%s", list, comments, out)
	}
	// The forge checks in the background whether the pull request can be merged.
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for range 100 {
		if err = gitea.Call(t.Context(), token, http.MethodPost, "repos/ops/fleet/pulls/2/merge", map[string]any{"Do": "squash"}, nil); err == nil {
			break
		}
		<-ticker.C
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", nothing(t, stage), "--auto-approve")
	if len(vms(stage)) == 0 {
		t.Error("the merged change was not applied")
	}

	// One that needs no node any more closes it.
	edit(t, stage, "manifests/pods.yaml", "replicas: 8", "replicas: 16")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	out = run(t, stage, cli.ExitOK, "apply", "-f", nothing(t, stage), "--auto-approve")
	if list = open(); len(list) != 0 || !strings.Contains(out, "Closed: "+gitea.URL+"/ops/fleet/pulls/3, because no pending pod needs new nodes now") {
		t.Errorf("open pull requests %+v:\n%s", list, out)
	}
}
