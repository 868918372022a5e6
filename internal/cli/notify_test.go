package cli_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// TestNotifyTest checks the test messages and doctor's check of targets, and that neither
// shows a secret.
func TestNotifyTest(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/planted-secret" {
			sent.Add(1)
		}
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	path := filepath.Join(dir, "numaform.yaml")
	text := `clusterID: lab
clusters: [{region: a, url: 'https://127.0.0.1:1', token_id: u@pve!t, token_secret_file: token}]
state_dir: state
notifications:
  targets:
  - {name: works, type: webhook, url_file: url}
  - {name: down, type: webhook, url: 'http://127.0.0.1:1/planted-secret'}
`
	for name, content := range map[string]string{"numaform.yaml": text, "url": server.URL + "/planted-secret\n", "token": "s3cret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (code int, out string) {
		var output bytes.Buffer
		code = cli.Run(t.Context(), cli.Process{Args: append(args, "--config", path), Stdin: strings.NewReader(""), Stdout: &output, Stderr: &output})
		if strings.Contains(output.String(), "planted-secret") {
			t.Errorf("%v shows a secret:\n%s", args, output.String())
		}
		return code, output.String()
	}

	code, out := run("doctor", "-o", "json")
	var report struct {
		Findings []struct{ Check, Status, Where string }
	}
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &report); err != nil || code != cli.ExitFailed {
		t.Fatalf("exit code %d, %v:\n%s", code, err, out)
	}
	statuses := map[string]string{}
	for _, finding := range report.Findings {
		if finding.Check == "notify" {
			statuses[finding.Where] = finding.Status
		}
	}
	if statuses["works"] != "ok" || statuses["down"] != "warn" || sent.Load() != 0 {
		t.Errorf("doctor reports %v, and %d messages were sent", statuses, sent.Load())
	}

	if code, out := run("notify", "test"); code != cli.ExitFailed || !strings.Contains(out, "sent    works\n") ||
		!strings.Contains(out, "failed  down: sending the request: dial tcp 127.0.0.1:1: connect: connection refused") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out := run("notify", "test", "works"); code != cli.ExitOK || strings.Contains(out, "down") || sent.Load() != 2 {
		t.Errorf("exit code %d, %d messages:\n%s", code, sent.Load(), out)
	}
	if code, out := run("notify", "test", "ops"); code != cli.ExitUsage || !strings.Contains(out, `unknown target "ops": must be one of works, down`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
