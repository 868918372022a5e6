package cli_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/cli"
)

// TestRedact checks that secrets are removed, and that other text is not.
func TestRedact(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "token"), "5f7c1a52-planted-in-file\n")
	put(t, filepath.Join(dir, "other"), "planted-in-file-of-variable\n")
	path := filepath.Join(dir, "numaform.yaml")
	put(t, path, `# planted-in-comment
clusterID: prod
clusters:
- region: homelab
  token_id: numaform@pve!scaler
  token_secret_file: token   # planted-in-comment
- region: other
  username: root@pam
  password: "planted&in-yaml"
  password_file: 0f9e8d7c-planted-in-place-of-a-file
  url: https://pve-2.example:8006
fleet:
  git: {remote: "https://user:planted-in-url@git.example/fleet.git"}
  backend:
    type: pg
    encryption: true
    config: {conn_str: "postgres://u:p@db/planted-conn", secret_key: planted-key, secret_suffix: homelab}
`)
	secrets := []string{
		"5f7c1a52-planted-in-file",
		"planted&in-yaml",
		`planted\u0026in-yaml`, // as in JSON
		"https://user:planted-in-url@git.example/fleet.git",
		"postgres://u:p@db/planted-conn",
		"planted-key",
		"planted-in-environment",
		"planted-in-file-of-variable",
		"planted-in-variable-of-file",
		"https://ghp_planted@github.com/o/r",
		"0f9e8d7c-planted-in-place-of-a-file",
		"numaform@pve!scaler=0f9e8d7c-1234-4abc-9def-001122334455",
		"abcdef.0123456789abcdef",
		"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl",
		"-----BEGIN EC PRIVATE KEY-----\nplanted\n-----END EC PRIVATE KEY-----",
		"PVE:root@pam:66F0A1B2::c2lnbmF0dXJlc2lnbmF0dXJl",
		"K10aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa::server:planted",
		"Authorization: Bearer planted-bearer",
		"password=planted-form",
	}
	const remains = "plan 4f090ff7a4b4 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 " +
		"uid 0f9e8d7c-1234-4abc-9def-001122334455 pve-1.example:8006 numaform@pve!scaler workers-2000 https://pve-1.example:8006/"
	text, config, err := cli.Redact([]string{
		"NUMAFORM_GIT_TOKEN=planted-in-environment",
		"NUMAFORM_CLUSTERS_0_TOKEN_SECRET_FILE=" + filepath.Join(dir, "other"),
		"NUMAFORM_FLEET_GIT_SSH_KEY_FILE=planted-in-variable-of-file",
		"HOME=/home/user",
	}, path, strings.Join(secrets, "\n")+"\n"+remains)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range append(secrets, "planted-in-comment") {
		if strings.Contains(text+config, secret) || strings.Contains(text+config, "planted") {
			t.Errorf("%q was not removed:\n%s\n%s", secret, text, config)
			break
		}
	}
	if !strings.Contains(text, remains) {
		t.Errorf("removed too much:\n%s", text)
	}
	for _, part := range []string{"clusterID: prod", "token_id: numaform@pve!scaler", "token_secret_file: token", "password: REDACTED", "encryption: true", "secret_suffix: homelab", "remote: "} {
		if !strings.Contains(config, part) {
			t.Errorf("the configuration lacks %q:\n%s", part, config)
		}
	}
	put(t, path, "clusters: [planted")
	if _, config, err := cli.Redact(nil, path, ""); err == nil || strings.Contains(config+err.Error(), "planted") {
		t.Errorf("an invalid configuration: %q, %v", config, err)
	}
}

// TestSupportBundleOfCluster checks that a bundle contains the objects and logs of a
// cluster without secrets. Prepared responses replace the API server.
func TestSupportBundleOfCluster(t *testing.T) {
	t.Parallel()
	responses := map[string]string{
		"/apis":              `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"numaform.dev","versions":[{"groupVersion":"numaform.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"numaform.dev/v1alpha1","version":"v1alpha1"}}]}`,
		"/apis/numaform.dev": `{"kind":"APIGroup","apiVersion":"v1","name":"numaform.dev","versions":[{"groupVersion":"numaform.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"numaform.dev/v1alpha1","version":"v1alpha1"}}`,
		"/apis/numaform.dev/v1alpha1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"numaform.dev/v1alpha1","resources":[
			{"name":"scaleplans","singularName":"scaleplan","namespaced":false,"kind":"ScalePlan","verbs":["list"]},
			{"name":"proxmoxnodeclasses","singularName":"proxmoxnodeclass","namespaced":false,"kind":"ProxmoxNodeClass","verbs":["list"]}]}`,
		"/apis/numaform.dev/v1alpha1/scaleplans":          `{"kind":"ScalePlanList","apiVersion":"numaform.dev/v1alpha1","items":[{"kind":"ScalePlan","apiVersion":"numaform.dev/v1alpha1","metadata":{"name":"workers-1"},"spec":{"summary":"diff","diff":"token planted-token-secret"}}]}`,
		"/apis/numaform.dev/v1alpha1/proxmoxnodeclasses":  `{"kind":"ProxmoxNodeClassList","apiVersion":"numaform.dev/v1alpha1","items":[{"kind":"ProxmoxNodeClass","apiVersion":"numaform.dev/v1alpha1","metadata":{"name":"pinned"}}]}`,
		"/api/v1/namespaces/numaform/pods":                `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"numaform-0","namespace":"numaform"},"status":{"containerStatuses":[{"name":"numaform","restartCount":1}]}}]}`,
		"/api/v1/namespaces/numaform/pods/numaform-0/log": "joined with abcdef.0123456789abcdef and planted-token-secret, by planted-kube-token\n",
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, found := responses[r.URL.Path]
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
		if !strings.HasSuffix(r.URL.Path, "/log") {
			w.Header().Set("Content-Type", "application/json")
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)

	dir := t.TempDir()
	put(t, filepath.Join(dir, "kubeconfig"), `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "`+server.URL+`", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: planted-kube-token}}]
`)
	put(t, filepath.Join(dir, "token"), "planted-token-secret\n")
	put(t, filepath.Join(dir, "numaform.yaml"), `clusterID: prod
state_dir: state
clusters:
- region: homelab
  url: https://127.0.0.1:1
  insecure: true
  token_id: numaform@pve!scaler
  token_secret_file: token
`)
	path := filepath.Join(dir, "bundle.tar.gz")
	code, stdout, stderr := numaform(t.Context(), t, filepath.Join(dir, "kubeconfig"),
		"support-bundle", path, "--config", filepath.Join(dir, "numaform.yaml"))
	if code != cli.ExitOK || !strings.Contains(stdout, "Wrote "+path) {
		t.Fatalf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
	files := unpack(t, path)
	want := []string{
		"README.txt", "classes.json", "doctor.json", "environment.txt", "errors.txt", "history.json", "logs/numaform-0-numaform-previous.log",
		"logs/numaform-0-numaform.log", "numaform.yaml", "plans.json", "states.json", "version.txt",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s\n%s", diff, files["errors.txt"])
	}
	for name, content := range files {
		if strings.Contains(content, "planted") || strings.Contains(content, "abcdef.0123456789abcdef") {
			t.Errorf("%s contains a secret:\n%s", name, content)
		}
	}
	for name, part := range map[string]string{
		"plans.json": "workers-1", "classes.json": "pinned", "logs/numaform-0-numaform.log": "joined with REDACTED", "errors.txt": "topology.json: ",
	} {
		if !strings.Contains(files[name], part) {
			t.Errorf("%s lacks %q:\n%s", name, part, files[name])
		}
	}
	if code, _, stderr := numaform(t.Context(), t, filepath.Join(dir, "kubeconfig"), "support-bundle", path, "--config", "none"); code != cli.ExitFailed || !strings.Contains(stderr, "choose another file") {
		t.Errorf("overwrites a file: exit code %d, %s", code, stderr)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unpack returns the files of a support bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	packed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	compressed, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	archive := tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "numaform-support/")] = string(content)
	}
}
