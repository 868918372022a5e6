package operator_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestGitCAFile checks that the git remote, the remote of checkpoints and the forge are reached
// with the CA in fleet.git.ca_file, and that the error without it names the key.
func TestGitCAFile(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.Path] = true
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"NUMAFORM_FORGE_TOKEN=token-of-forge", "NUMAFORM_GIT_TOKEN=token-of-git"}

	// errorsOf returns the errors of a request to the remote, to the forge, and to the remote
	// of checkpoints.
	errorsOf := func(caFile string) map[string]string {
		config := operator.Config{ClusterID: "prod", StateDir: t.TempDir()}
		config.Fleet.Git.Remote, config.Fleet.Git.CAFile = server.URL+"/ops/fleet.git", caFile
		config.Fleet.Git.Forge.Kind = "gitlab"
		config.History.CheckpointRemote = server.URL + "/audit/checkpoints.git"
		config.History.KeyFile = filepath.Join(t.TempDir(), "key")
		found := map[string]string{}
		fleet, err := config.OpenStore(environ, operator.Kubeconfig{})
		if err == nil {
			_, _, err = fleet.Read(t.Context())
		}
		found["/ops/fleet.git/info/refs"] = err.Error()
		client, err := config.OpenForge(environ, testclock.NewFakePassiveClock(time.Now()))
		if err == nil {
			_, err = client.Open(t.Context())
		}
		found["/api/v4/projects/ops/fleet/merge_requests"] = err.Error()
		_, err = config.Checkpoints(t.Context(), environ)
		found["/audit/checkpoints.git/info/refs"] = err.Error()
		return found
	}

	for path, err := range errorsOf("") {
		if asked[path] || !strings.Contains(err, "set fleet.git.ca_file") {
			t.Errorf("%s without ca_file: got %q", path, err)
		}
	}
	for path, err := range errorsOf(ca) {
		if !asked[path] {
			t.Errorf("%s with ca_file: not asked: %s", path, err)
		}
	}
	if err := os.WriteFile(ca, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, err := range errorsOf(ca) {
		if !strings.Contains(err, "fleet.git.ca_file") || !strings.Contains(err, "no certificate") {
			t.Errorf("%s with an empty ca_file: got %q", path, err)
		}
	}
}
