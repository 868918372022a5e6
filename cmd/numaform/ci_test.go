package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// ciJob is a job of docs/ci.md as a shell script, with the variables that it sets.
type ciJob struct {
	env    []string
	script string
}

// ciSecrets are what the forges store for the jobs.
var ciSecrets = map[string]string{
	"PROXMOX_TOKEN": pvesim.DefaultTokenSecret, "PG_CONN_STR": "host=unused",
	"PROXMOX_APPLY_TOKEN": pvesim.DefaultTokenSecret, "PG_APPLY_CONN_STR": "host=unused",
}

// ciBlocks returns the blocks of docs/ci.md, each with its language and its text.
func ciBlocks(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "ci.md"))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile("(?s)```(yaml|sh|)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
}

// ciJobs returns the jobs of docs/ci.md that plan: of GitHub, of Gitea and Forgejo, and of
// GitLab, and the command for forks; and the job that applies.
func ciJobs(t *testing.T) (jobs []ciJob, apply ciJob) {
	t.Helper()
	secret := regexp.MustCompile(`\$\{\{ secrets\.(\w+) \}\}`)
	for _, block := range ciBlocks(t) {
		if block[1] != "yaml" {
			jobs = append(jobs, ciJob{script: block[2]})
			continue
		}
		var workflow struct {
			Jobs map[string]struct {
				Steps []struct {
					Run string
					Env map[string]string
				}
			}
			GitLab struct{ Script []string } `json:"numaform plan"`
		}
		if err := yaml.Unmarshal([]byte(block[2]), &workflow); err != nil {
			t.Fatal(err)
		}
		for name, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if step.Run == "" { // the checkout
					continue
				}
				j := ciJob{script: step.Run}
				for variable, value := range step.Env {
					j.env = append(j.env, variable+"="+secret.ReplaceAllStringFunc(value, func(text string) string { return ciSecrets[secret.FindStringSubmatch(text)[1]] }))
				}
				if name == "apply" {
					apply = j
				} else {
					jobs = append(jobs, j)
				}
			}
		}
		if script := workflow.GitLab.Script; len(script) > 0 {
			j := ciJob{script: strings.Join(script, "\n")}
			for name, value := range ciSecrets {
				j.env = append(j.env, name+"="+value)
			}
			jobs = append(jobs, j)
		}
	}
	return jobs, apply
}

// applyConfig returns numaform.yaml with the fleet of the configuration in docs/ci.md with
// which a job applies, except its remote and its backend.
func applyConfig(t *testing.T, config []byte, remote, keyFile string) []byte {
	t.Helper()
	var own map[string]any
	if err := yaml.Unmarshal(config, &own); err != nil {
		t.Fatal(err)
	}
	for _, block := range ciBlocks(t) {
		var documented struct {
			Fleet struct {
				Dir string
				Git map[string]any
			}
		}
		if err := yaml.Unmarshal([]byte(block[2]), &documented); block[1] != "yaml" || err != nil || documented.Fleet.Git == nil {
			continue
		}
		fleet := own["fleet"].(map[string]any)
		fleet["dir"], fleet["git"] = documented.Fleet.Dir, documented.Fleet.Git
		documented.Fleet.Git["remote"] = remote
	}
	own["history"] = map[string]any{"key_file": keyFile}
	text, err := yaml.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestCIJobs runs the steps of the jobs in docs/ci.md in a clone of a fleet's repository, as
// a runner does: each plans a pull request, and fails if the files are not a fleet. The job
// that applies creates the VMs of a pull request once, and the next one can be planned.
func TestCIJobs(t *testing.T) {
	t.Parallel()
	states := testenv.HTTPState(t)
	stage, err := demo.Open(demo.Config{
		Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart"},
		Dir: t.TempDir(), PluginDir: testenv.PluginDir(t), Environ: testenv.CleanEnv(), Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	sh := func(dir, script string, env ...string) (string, error) {
		command := exec.CommandContext(t.Context(), "sh", "-ec", script)
		command.Dir = dir
		// The first user pushes; the jobs have only what the forge gives them.
		command.Env = append(testenv.CleanEnv(), append(env,
			"PATH="+os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=ann", "GIT_AUTHOR_EMAIL=ann@example",
			"GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example", "NUMAFORM_CLUSTERS_0_URL="+stage.Sim.URL(),
			"NUMAFORM_ENGINE_BINARY="+testenv.Engine(t), "NUMAFORM_ENGINE_PLUGIN_DIR="+testenv.PluginDir(t))...)
		out, err := command.CombinedOutput()
		t.Logf("$ %s\n%s", script, out)
		return string(out), err
	}
	run := func(dir, script string, env ...string) {
		t.Helper()
		if out, err := sh(dir, script, env...); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	token := "NUMAFORM_CLUSTERS_0_TOKEN_SECRET=" + pvesim.DefaultTokenSecret
	keyFile := filepath.Join(t.TempDir(), "history.key")
	config, err := os.ReadFile(filepath.Join(stage.Dir, "numaform.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config = []byte(strings.NewReplacer("  token_secret_file: token\n", "",
		"{type: local}", "{type: http, config: {address: '"+states.URL+"/states'}}").Replace(string(config)))
	if err := os.WriteFile(filepath.Join(stage.Dir, "numaform.yaml"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	run(stage.Dir, `rm token
numaform topology --config numaform.yaml -o json > lab.json
numaform apply --config numaform.yaml -f manifests --auto-approve
git init --quiet --initial-branch=main
git add numaform.yaml pve-root-ca.pem nodes-settings.json hosts manifests fleet lab.json
git commit --quiet -m "the fleet"
git switch --quiet --create mine
sed -i.bak 's/replicas: 15/replicas: 30/' manifests/pods.yaml
git commit --quiet --all -m "more pods"`, token, "NUMAFORM_HISTORY_KEY_FILE="+keyFile)

	jobs, apply := ciJobs(t)
	if len(jobs) != 4 || apply.script == "" {
		t.Fatalf("docs/ci.md has %d jobs that plan and the job %q that applies, want 4 and one", len(jobs), apply.script)
	}
	guests := len(stage.Sim.Guests())
	for _, job := range jobs {
		clone := t.TempDir()
		run(clone, "git clone --quiet --branch mine "+stage.Dir+" .")
		if out, err := sh(clone, job.script, job.env...); err != nil || !strings.Contains(out, "create ") {
			t.Errorf("the job does not plan the new VMs: %v", err)
		}
		if len(job.env) > 0 { // otherwise no engine plans
			run(clone, `git rm --quiet "$(git ls-files 'fleet/*/node-*.tf' | head -n 1)"`)
			if out, err := sh(clone, job.script, job.env...); err == nil || !strings.Contains(out, "denied [drained]") {
				t.Errorf("the job accepts the removal of a node whose pods are unknown: %v", err)
			}
		}
		run(clone, "for file in fleet/*/*/node-*.tf; do echo 'not HCL {' >$file; done")
		if _, err := sh(clone, job.script, job.env...); err == nil {
			t.Error("the job accepts files that are no fleet")
		}
	}
	if now := len(stage.Sim.Guests()); now != guests {
		t.Errorf("the jobs changed Proxmox: %d guests, want %d", now, guests)
	}
	if !slices.ContainsFunc(jobs, func(j ciJob) bool { return strings.Contains(j.script, "--snapshot") }) {
		t.Error("no job works without credentials")
	}

	remote := filepath.Join(t.TempDir(), "fleet.git")
	run(stage.Dir, "git clone --quiet --bare . "+remote+"; git push --quiet "+remote+" mine:main")
	text := applyConfig(t, config, remote, keyFile)
	checkApplyJob(t, stage, func(clone string) {
		run(clone, "git clone --quiet --branch main "+remote+" .")
		if err := os.WriteFile(filepath.Join(clone, "numaform-apply.yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		run(clone, apply.script, append(apply.env, "HOME="+t.TempDir())...)
	})
	next := t.TempDir()
	run(next, "git clone --quiet --branch main "+remote+" .")
	run(next, jobs[0].script, jobs[0].env...)
}

// checkApplyJob runs the job that applies a merged pull request in two directories, as two
// runners do, and checks that the second one creates no VM, because it finds the files that
// the first one pushed.
func checkApplyJob(t *testing.T, stage *demo.Stage, job func(clone string)) {
	t.Helper()
	before := len(stage.Sim.Guests())
	job(t.TempDir())
	first := len(stage.Sim.Guests())
	job(t.TempDir())
	if second := len(stage.Sim.Guests()); first == before || second != first {
		t.Errorf("%d guests before the job that applies, %d after it, %d after the next one: want more after the first one only", before, first, second)
	}
}
