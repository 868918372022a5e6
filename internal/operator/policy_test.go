package operator_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

func TestRules(t *testing.T) {
	t.Parallel()
	config, dir, err := load(t, minimal+"policy:\n  files: [freeze.yaml]\n  limits:\n    window: 30m\n    per_host: {creates: 3, deletes: 0}\n",
		"NUMAFORM_POLICY_LIMITS_PER_CHANGE_CREATES=7")
	if err != nil {
		t.Fatal(err)
	}
	rule := "rules:\n- name: freeze\n  when: change.creates > 0\n  decision: deny\n  message: frozen\n"
	if err := os.WriteFile(filepath.Join(dir, "freeze.yaml"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	rules, err := config.Rules()
	if err != nil {
		t.Fatal(err)
	}
	want := guard.DefaultLimits()
	want.WindowSeconds, want.PerHost = 1800, guard.Amount{Creates: 3}
	want.PerChange.Creates = 7
	if diff := cmp.Diff(want, rules.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if names := rules.Policy.Names(); !slices.Contains(names, "freeze") || !slices.Contains(names, "ordinary-scaling") {
		t.Errorf("rules %v", names)
	}
	config.Policy.ReplaceDefault = true
	if rules, err = config.Rules(); err != nil || slices.Contains(rules.Policy.Names(), "ordinary-scaling") {
		t.Errorf("rules %v, %v, want only the rules of the file", rules.Policy, err)
	}
	config.Policy.Files = nil
	if _, err := config.Rules(); err == nil {
		t.Error("a policy without rules is accepted")
	}
	config.Policy.Files = []string{filepath.Join(dir, "missing.yaml")}
	if _, err := config.Rules(); err == nil || !strings.Contains(err.Error(), "policy.files") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestFleetKeysThatContradict(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"fleet: {git: {remote: x}, configmap: {namespace: a, name: b}}": "git and configmap are both set",
		"fleet: {git: {branch: main}}":                                  "neither remote nor enabled",
		"fleet: {configmap: {name: b}, backend: {type: http}}":          "fleet.configmap: namespace or name is empty: set both",
		"fleet: {configmap: {namespace: a, name: b}}":                   "outlive a pod",
		"policy: {limits: {per_host: {creates: -1}}}":                   "policy.limits.per_host.creates: -1",
		"policy: {limits: {window: -1h}}":                               "policy.limits.window",
	} {
		if _, _, err := load(t, minimal+text+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestOpenStore(t *testing.T) {
	t.Parallel()
	config, _, err := load(t, minimal+"fleet: {dir: repo, git: {enabled: true, subdir: clusters/prod}}\n", "HOME=/home/me")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := config.OpenStore(nil, operator.Kubeconfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := kept.Unwrap().(*store.Git); !ok {
		t.Errorf("store %T, want git", kept.Unwrap())
	}
	if got := config.FleetDir(); !strings.HasSuffix(got, filepath.Join("repo", "clusters", "prod")) {
		t.Errorf("the fleet is in %s", got)
	}
	cluster := operator.Kubeconfig{Rest: &rest.Config{Host: "https://192.0.2.1"}}
	for environ, want := range map[string]string{
		"":                           "/history/key",
		"NUMAFORM_NAMESPACE=karp":    "/history/key", // not in a pod
		"NUMAFORM_NAMESPACE=karp in": "Secret karp/numaform-history",
		" in":                        "/history/key",
	} {
		variable, inPod := strings.CutSuffix(environ, " in")
		variables := []string{variable}
		if inPod {
			variables = append(variables, "KUBERNETES_SERVICE_HOST=192.0.2.1")
		}
		if kept, err = config.OpenStore(variables, cluster); err != nil || !strings.HasSuffix(kept.KeyPlace(), want) {
			t.Errorf("with %q the key is in %s (%v), want %s", variables, kept.KeyPlace(), err, want)
		}
	}
	config.StateDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(config.StateDir, "history"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config.StateDir, "history", "key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kept, err = config.OpenStore([]string{"NUMAFORM_NAMESPACE=karp", "KUBERNETES_SERVICE_HOST=192.0.2.1"}, cluster)
	if err != nil || !strings.HasSuffix(kept.KeyPlace(), "/history/key") {
		t.Errorf("the key is in %s (%v), want the existing file", kept.KeyPlace(), err)
	}
	if config, _, err = load(t, minimal, "HOME=/home/me"); err != nil {
		t.Fatal(err)
	}
	if kept, err = config.OpenStore(nil, operator.Kubeconfig{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := kept.Unwrap().(*store.Directory); !ok {
		t.Errorf("store %T, want a directory", kept.Unwrap())
	}
}
