package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
)

// inGit configures a stage's fleet to be in git, with a remote, and returns the remote.
func inGit(t *testing.T, stage *demo.Stage) string {
	t.Helper()
	remote := filepath.Join(t.TempDir(), "fleet.git")
	git(t, "", "init", "--quiet", "--bare", "--initial-branch", "main", remote)
	edit(t, stage, "numaform.yaml", "  backend: {type: local}", "  backend: {type: local}\n  git: {remote: "+remote+"}")
	return remote
}

// git runs git in a directory.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GIT_AUTHOR_NAME=op", "GIT_AUTHOR_EMAIL=op@example.com",
		"GIT_COMMITTER_NAME=op", "GIT_COMMITTER_EMAIL=op@example.com", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// vms returns the VMIDs of the fleet's range that exist in Proxmox.
func vms(stage *demo.Stage) []int {
	var ids []int
	for _, guest := range stage.Sim.Guests() {
		if guest.VMID >= 2000 && guest.VMID < 3000 {
			ids = append(ids, guest.VMID)
		}
	}
	slices.Sort(ids)
	return ids
}

// controlPlane is a Node that does not belong to the fleet.
const controlPlane = `apiVersion: v1
kind: Node
metadata: {name: control-plane}
spec: {unschedulable: true}
`

// nothing writes the manifests of a cluster without pods.
func nothing(t *testing.T, stage *demo.Stage) string {
	t.Helper()
	path := filepath.Join(stage.Dir, "nothing.yaml")
	if err := os.WriteFile(path, []byte(controlPlane), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func history(t *testing.T, stage *demo.Stage, args ...string) []audit.Entry {
	t.Helper()
	var entries []audit.Entry
	if err := json.Unmarshal([]byte(run(t, stage, cli.ExitOK, slices.Concat([]string{"history", "-o", "json"}, args)...)), &entries); err != nil {
		t.Fatal(err)
	}
	return entries
}

func kinds(entries []audit.Entry) []audit.Kind {
	var found []audit.Kind
	for _, entry := range entries {
		found = append(found, entry.Change.Kind)
	}
	return found
}

// TestUndo checks the VMs and the records after the undo of a scale-up, of that undo, and
// of a scale-down, and that a change cannot be undone twice.
func TestUndo(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	made := vms(stage)
	none := nothing(t, stage)
	run(t, stage, cli.ExitOK, "undo", "-f", none, "--auto-approve")
	if left := vms(stage); len(left) != 0 {
		t.Fatalf("the scale-up was undone, but VMs %v still exist", left)
	}
	// The undo of the undo creates the same number of VMs, with new VMIDs and keys.
	run(t, stage, cli.ExitOK, "undo", "-f", none, "--auto-approve")
	again := vms(stage)
	if len(again) != len(made) || slices.ContainsFunc(again, func(id int) bool { return slices.Contains(made, id) }) {
		t.Fatalf("VMs %v, before %v", again, made)
	}
	compare(t, stage)
	desired, _ := readFleet(t, kept(t, stage))
	pinned := desired.VMs[slices.IndexFunc(desired.VMs, func(vm fleet.VM) bool { return vm.Pool == "pinned" })]
	run(t, stage, cli.ExitOK, "remove", pinned.Name, "-f", none, "--auto-approve")
	entries := history(t, stage)
	run(t, stage, cli.ExitOK, "undo", entries[len(entries)-1].Change.ID, "-f", none, "--auto-approve")
	compare(t, stage)
	entries = history(t, stage)
	want := []audit.Kind{audit.KindScaleUp, audit.KindUndo, audit.KindUndo, audit.KindScaleDown, audit.KindUndo}
	if got := kinds(entries); !slices.Equal(got, want) {
		t.Fatalf("history %v, want %v", got, want)
	}
	last, down := entries[4].Change, entries[3].Change
	if last.Undoes != down.ID || len(last.Added) != 1 || last.Added[0].Host != pinned.Host || last.Added[0].Key == pinned.Key {
		t.Errorf("the last change undoes %s and adds %+v", last.Undoes, last.Added)
	}
	for _, entry := range entries {
		if entry.Outcome == nil || len(entry.Unfinished()) > 0 || len(entry.Change.Hosts) == 0 {
			t.Errorf("change %s is not finished: %+v", entry.Change.ID, entry.Outcome)
		}
		for _, host := range entry.Change.Hosts {
			if len(host.PlanSHA256) != 64 || len(host.Verdict.Findings) > 0 {
				t.Errorf("change %s: plan %q, verdict %s", entry.Change.ID, host.PlanSHA256, host.Verdict)
			}
		}
	}
	for _, undone := range []int{0, 3} {
		out := run(t, stage, cli.ExitFailed, "undo", entries[undone].Change.ID, "-f", none, "--auto-approve")
		if len(vms(stage)) != len(again) {
			t.Errorf("a second undo of the same change had an effect:\n%s", out)
		}
	}
}

// TestUndoAfterAnInterruption checks that undo finishes an undo without an outcome, and does
// not revert it.
func TestUndoAfterAnInterruption(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	none := nothing(t, stage)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	run(t, stage, cli.ExitOK, "undo", "-f", none, "--auto-approve")
	entries := history(t, stage)
	undo := entries[len(entries)-1].Change.ID
	if err := os.Remove(filepath.Join(kept(t, stage), "history", undo+".outcome.json")); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "undo", "-f", none, "--auto-approve")
	if left := vms(stage); len(left) != 0 {
		t.Errorf("the undo %s was reverted: VMs %v", undo, left)
	}
	run(t, stage, cli.ExitOK, "undo", "-f", none, "--auto-approve")
	if len(vms(stage)) == 0 {
		t.Error("the finished undo was not reverted")
	}
}

// TestGitRevert checks that numaform applies a git revert of a scale-up, of that revert,
// and of a scale-down.
func TestGitRevert(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	remote := inGit(t, stage)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	made := vms(stage)
	none := nothing(t, stage)
	laptop := t.TempDir()
	git(t, "", "clone", "--quiet", remote, laptop)
	up := git(t, laptop, "rev-parse", "HEAD")
	if trailers := git(t, laptop, "log", "-1", "--format=%(trailers:only)"); !strings.Contains(trailers, "Numaform-Plan: homelab/pve-2 sha256:") {
		t.Errorf("trailers:\n%s", trailers)
	}
	git(t, laptop, "revert", "--no-edit", up)
	git(t, laptop, "push", "--quiet")
	run(t, stage, cli.ExitOK, "apply", "-f", none, "--auto-approve")
	if left := vms(stage); len(left) != 0 {
		t.Fatalf("the scale-up was reverted, but VMs %v still exist", left)
	}
	// The revert of the revert creates the same VMs again.
	git(t, laptop, "pull", "--quiet", "--rebase")
	git(t, laptop, "revert", "--no-edit", git(t, laptop, "log", "--format=%H", "--grep=^Revert", "-1"))
	git(t, laptop, "push", "--quiet")
	run(t, stage, cli.ExitOK, "apply", "-f", none, "--auto-approve")
	if again := vms(stage); !slices.Equal(again, made) {
		t.Fatalf("VMs %v, before %v", again, made)
	}
	compare(t, stage)
	// Revert a scale-down.
	name := vmOf(t, stage, 2000).Name
	run(t, stage, cli.ExitOK, "remove", name, "-f", none, "--auto-approve")
	git(t, laptop, "pull", "--quiet", "--rebase")
	git(t, laptop, "revert", "--no-edit", "HEAD")
	git(t, laptop, "push", "--quiet")
	run(t, stage, cli.ExitOK, "apply", "-f", none, "--auto-approve")
	compare(t, stage)
	entries := history(t, stage)
	want := []audit.Kind{audit.KindScaleUp, audit.KindByHand, audit.KindByHand, audit.KindScaleDown, audit.KindByHand}
	if got := kinds(entries); !slices.Equal(got, want) {
		t.Errorf("history %v, want %v", got, want)
	}
	for _, entry := range entries {
		if entry.Commit == "" || len(entry.Unfinished()) > 0 {
			t.Errorf("change %s: commit %q, unfinished %v", entry.Change.ID, entry.Commit, entry.Unfinished())
		}
	}
	if commits := git(t, laptop, "rev-list", "--count", "origin/main"); commits == "0" {
		t.Error("no commits")
	}
	if about := history(t, stage, name); len(about) != 5 {
		t.Errorf("%d changes of %s, want all 5", len(about), name)
	}
}

// TestGitRevertOfAnOlderChange checks that a git revert of the first of two scale-ups,
// which added files that the VMs of both use, deletes only its own VMs, and that neither
// VMIDs nor keys are reused.
func TestGitRevertOfAnOlderChange(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := oneHost(t)
	remote := inGit(t, stage)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	first := vms(stage)
	edit(t, stage, "manifests/pods.yaml", "replicas: 4", "replicas: 5")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	second := slices.DeleteFunc(vms(stage), func(id int) bool { return slices.Contains(first, id) })
	if len(second) == 0 {
		t.Fatal("the second scale-up created no VM")
	}
	laptop := t.TempDir()
	git(t, "", "clone", "--quiet", remote, laptop)
	if changed := git(t, laptop, "show", "--format=", "--name-only", "HEAD", "--", ":!*/node-*.tf", ":!history"); changed != "" {
		t.Errorf("the second scale-up changed %s", changed)
	}
	git(t, laptop, "revert", "--no-edit", "HEAD~1")
	git(t, laptop, "push", "--quiet")
	none := nothing(t, stage)
	run(t, stage, cli.ExitOK, "apply", "-f", none, "--auto-approve")
	if left := vms(stage); !slices.Equal(left, second) {
		t.Fatalf("VMs %v exist, want %v", left, second)
	}
	// After a revert of the second scale-up too, no VM is left, and the pods need new VMs.
	git(t, laptop, "pull", "--quiet", "--rebase")
	newest := "*/node-*-" + strconv.Itoa(slices.Max(second)) + ".tf"
	git(t, laptop, "revert", "--no-edit", git(t, laptop, "log", "--format=%H", "-1", "--", newest))
	git(t, laptop, "push", "--quiet")
	run(t, stage, cli.ExitOK, "apply", "-f", none, "--auto-approve")
	if left := vms(stage); len(left) > 0 {
		t.Fatalf("both scale-ups were reverted, but VMs %v still exist", left)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if fresh := vms(stage); len(fresh) == 0 || slices.Min(fresh) <= slices.Max(second) {
		t.Errorf("VMs %v after %v", fresh, second)
	}
	compare(t, stage)
	keys := map[fleet.Key]bool{}
	for _, entry := range history(t, stage) {
		for _, vm := range entry.Change.Added {
			if keys[vm.Key] {
				t.Errorf("key %s was assigned twice", vm.Key)
			}
			keys[vm.Key] = true
		}
	}
}

// TestReviewMode checks that, with review, changes are pushed to branches and not applied,
// and that the next apply applies merged changes.
func TestReviewMode(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	remote := inGit(t, stage)
	edit(t, stage, "numaform.yaml", "git: {remote: ", "git: {review: true, remote: ")
	out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if made := vms(stage); len(made) != 0 || !strings.Contains(out, "waits for review on branch numaform/") {
		t.Fatalf("apply created VMs %v:\n%s", made, out)
	}
	laptop := t.TempDir()
	git(t, "", "clone", "--quiet", remote, laptop)
	git(t, laptop, "checkout", "--quiet", "-B", "main")
	merge := func() {
		t.Helper()
		git(t, laptop, "fetch", "--quiet")
		branch := git(t, laptop, "for-each-ref", "--sort=-creatordate", "--count=1", "--format=%(refname)", "refs/remotes/origin/numaform/")
		git(t, laptop, "merge", "--quiet", "--no-edit", branch)
		git(t, laptop, "push", "--quiet", "origin", "main")
	}
	merge()
	run(t, stage, cli.ExitOK, "apply", "-f", nothing(t, stage), "--auto-approve")
	compare(t, stage)
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	// Merged changes are applied even while the nodes of pending pods wait for a review.
	git(t, laptop, "pull", "--quiet", "--no-edit", "origin", "main")
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", nothing(t, stage), "--auto-approve")
	merge()
	out = run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if _, exists := stage.Sim.Guest(2000); exists || !strings.Contains(out, "waits for review on branch numaform/") {
		t.Errorf("the merged removal was not applied, or no new node was proposed for its pods:\n%s", out)
	}
}
