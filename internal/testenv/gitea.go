package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
)

// Forge is a Gitea server on this machine, with SQLite.
type Forge struct {
	// URL is the server's address.
	URL string

	dir    string
	server *server
}

// Gitea starts a Gitea server that is stopped at the end of the test.
func Gitea(t testing.TB) *Forge {
	t.Helper()
	enginetest.Needs(t, "gcc") // which builds Gitea's SQLite
	f, err := startGitea(filepath.Join(enginetest.ModuleRoot(t), ".tools"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// startGitea creates the database of a server and starts it.
func startGitea(tools string) (*Forge, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "numaform-gitea-")
	if err != nil {
		return nil, fmt.Errorf("starting Gitea: %w", err)
	}
	f := &Forge{URL: "http://" + ports[0], dir: dir}
	f.server = &server{
		path: filepath.Join(tools, "bin", "gitea"), interrupt: syscall.SIGTERM,
		env: []string{"GITEA_WORK_DIR=" + dir, "HOME=" + dir, "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true"},
	}
	host, port, err := net.SplitHostPort(ports[0])
	if err == nil {
		err = os.WriteFile(f.config(), []byte(giteaConfig(f.URL, host, port, dir, filepath.Join(tools, "gitea"))), 0o600)
	}
	if err == nil {
		_, err = f.run(context.Background(), "migrate")
	}
	if err == nil {
		err = f.Resume()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting Gitea: %w: build it with make gitea", err), f.Close())
	}
	return f, nil
}

func (f *Forge) config() string { return filepath.Join(f.dir, "app.ini") }

// PageSize is the number of entries of a page of the server's lists, whatever the client
// requests. It is small, so that a test needs few entries for several pages.
const PageSize = 5

// giteaConfig returns the configuration of a server that sends nothing.
func giteaConfig(url, host, port, dir, static string) string {
	return fmt.Sprintf(`
RUN_USER =
RUN_MODE = prod
WORK_PATH = %[4]s
[server]
PROTOCOL = http
HTTP_ADDR = %[2]s
HTTP_PORT = %[3]s
ROOT_URL = %[1]s/
DISABLE_SSH = true
OFFLINE_MODE = true
STATIC_ROOT_PATH = %[5]s
LFS_START_SERVER = false
[database]
DB_TYPE = sqlite3
PATH = %[4]s/gitea.db
SQLITE_JOURNAL_MODE = WAL
[security]
INSTALL_LOCK = true
SECRET_KEY = canary-of-gitea
[log]
MODE = console
LEVEL = Error
[api]
MAX_RESPONSE_ITEMS = %[6]d
[repository]
DEFAULT_BRANCH = main
[queue]
TYPE = channel
[indexer]
ISSUE_INDEXER_TYPE = db
[session]
PROVIDER = memory
[service]
DISABLE_REGISTRATION = true
[mailer]
ENABLED = false
[cron]
ENABLED = false
[actions]
ENABLED = false
`, url, host, port, dir, static, PageSize)
}

// Show makes the server deliver a front end, which tools/gitea.sh does not build. public is the
// directory with that name after a build of Gitea's front end.
func (f *Forge) Show(public string) error {
	custom := filepath.Join(f.dir, "custom")
	if err := os.MkdirAll(custom, 0o750); err != nil {
		return err
	}
	return errors.Join(f.Stop(), os.Symlink(public, filepath.Join(custom, "public")), f.Resume())
}

// Stop stops the server and keeps its data.
func (f *Forge) Stop() error { return f.server.stop() }

// Resume starts a stopped server.
func (f *Forge) Resume() error {
	attributes := syscall.SysProcAttr{}
	return f.server.start(f.dir, []string{"web", "--config", f.config()}, &attributes, func(ctx context.Context) error {
		return f.Call(ctx, "", http.MethodGet, "version", nil, nil)
	})
}

// Close stops the server and removes its data.
func (f *Forge) Close() error { return errors.Join(f.server.stop(), os.RemoveAll(f.dir)) }

// run runs a command of Gitea.
func (f *Forge) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.server.path, append(args, "--config", f.config())...) //nolint:gosec // the pinned tool
	cmd.Dir, cmd.Env = f.dir, append(os.Environ(), f.server.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("gitea %s: %w: %s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// User creates a user and returns a token with all rights of the user. The administrator is
// a user like any other, with the right to create repositories for others.
func (f *Forge) User(ctx context.Context, name string, administrator bool) (token string, err error) {
	args := []string{
		"admin", "user", "create", "--username", name, "--random-password", "--email", name + "@example.com",
		"--must-change-password=false", fmt.Sprintf("--admin=%t", administrator),
	}
	if _, err := f.run(ctx, args...); err != nil {
		return "", err
	}
	return f.Token(ctx, name, "all", "all")
}

// Token creates a token of a user with scopes, such as write:repository.
func (f *Forge) Token(ctx context.Context, user, name, scopes string) (string, error) {
	out, err := f.run(ctx, "admin", "user", "generate-access-token", "--username", user, "--token-name", name, "--scopes", scopes, "--raw")
	if err != nil {
		return "", err
	}
	token := giteaToken.FindString(out) // as root, Gitea also prints a warning
	if token == "" {
		return "", fmt.Errorf("creating a token of %s: no token in %q", user, out)
	}
	return token, nil
}

var giteaToken = regexp.MustCompile(`(?m)^[0-9a-f]{40}$`)

// Call makes a request to the API as the user of a token, below /api/v1/. It sends and
// receives JSON unless the values are nil.
func (f *Forge) Call(ctx context.Context, token, method, path string, sent, received any) (err error) {
	var body bytes.Buffer
	if sent != nil {
		if err := json.NewEncoder(&body).Encode(sent); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, f.URL+"/api/v1/"+path, &body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "token "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if received == nil {
		return nil
	}
	return json.Unmarshal(text, received)
}
