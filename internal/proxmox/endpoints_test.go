package proxmox_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/proxmox"
)

// TestAnotherEndpoint checks that a cluster can be read if its first host is down, and if
// the host in use goes down.
func TestAnotherEndpoint(t *testing.T) {
	t.Parallel()
	down, up := newCanned(t), newCanned(t)
	cfg := up.config()
	cfg.URL, cfg.URLs = down.URL, []string{cfg.URL}
	client := newClient(t, cfg)
	if got := client.ProviderEnv()["PROXMOX_VE_ENDPOINT"]; got != down.URL+"/" {
		t.Errorf("the provider gets %q first", got)
	}
	cfg.CA = nil
	down.Close()
	snapshot, err := client.Snapshot(context.Background())
	if err != nil || len(snapshot.Hosts) != 1 || snapshot.Hosts[0].Problem != "" {
		t.Fatalf("got %+v, %v", snapshot, err)
	}
	if got := client.ProviderEnv()["PROXMOX_VE_ENDPOINT"]; got != up.URL+"/" {
		t.Errorf("the provider gets %q, want the one that responds", got)
	}
	up.Close()
	_, err = client.Snapshot(context.Background())
	var refused *proxmox.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"none of 2 addresses responds", down.URL, up.URL, "connection refused", "check url and urls"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
}

// TestAnswerIsAnAnswer checks that no other host is tried if the first one returns an
// error or is not trusted.
func TestAnswerIsAnAnswer(t *testing.T) {
	t.Parallel()
	first, second := newCanned(t), newCanned(t)
	first.refuse("/cluster/resources", 403, "Permission check failed (/, Sys.Audit)")
	cfg := first.config()
	cfg.URLs = []string{second.URL}
	if _, err := newClient(t, cfg).Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("got %v", err)
	}
	cfg.CA = nil
	if _, err := newClient(t, cfg).Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("got %v", err)
	}
	if len(second.calls) > 0 {
		t.Errorf("the second host was queried: %v", second.calls)
	}
}

// TestRotatedToken checks that a client uses the new token after the token's file changed,
// and keeps the last valid one if the file cannot be used.
func TestRotatedToken(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	cfg := server.config()
	now, broken := proxmox.Credential{TokenID: tokenID, TokenSecret: secret}, error(nil)
	cfg.Reread = func() (proxmox.Credential, error) { return now, broken }
	client := newClient(t, cfg)
	sent := func(want string) {
		t.Helper()
		if _, err := client.Snapshot(context.Background()); err != nil {
			t.Fatal(err)
		}
		server.mu.Lock()
		defer server.mu.Unlock()
		other := func(h http.Header) bool { return h.Get("Authorization") != "PVEAPIToken="+tokenID+"="+want }
		if len(server.headers) == 0 || slices.ContainsFunc(server.headers, other) {
			t.Errorf("the requests have %v, want %q", server.headers, want)
		}
		server.headers = nil
		if got := client.ProviderEnv()["PROXMOX_VE_API_TOKEN"]; got != tokenID+"="+want {
			t.Errorf("the provider gets %q, want %q", got, want)
		}
	}
	sent(secret)
	now.TokenSecret = "second"
	sent("second")
	now.TokenSecret = "half written\n"
	sent("second")
	now.TokenSecret, broken = "third", errors.New("no such file")
	sent("second")
	broken = nil
	sent("third")
}

// hanging responds to GET requests. It never responds to other requests, which it
// counts by path.
type hanging struct {
	*httptest.Server
	mu    sync.Mutex // guards sent
	sent  map[string]int
	ended chan struct{}
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	h := &hanging{sent: map[string]int{}, ended: make(chan struct{})}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"data":{"version":"9.0.3"}}`))
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		h.mu.Lock()
		h.sent[strings.TrimPrefix(r.URL.Path, "/api2/json")]++
		h.mu.Unlock()
		<-h.ended
	}))
	t.Cleanup(func() {
		close(h.ended)
		h.Close()
	})
	return h
}

func (h *hanging) got(path string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[path]
}

// TestNoWriteTwice checks that a write that was sent is never sent to a second host, and
// that the next write goes to the host that responds.
func TestNoWriteTwice(t *testing.T) {
	t.Parallel()
	first, second := newHanging(t), newHanging(t)
	cfg := proxmox.Config{
		Region: "r1", URL: first.URL, URLs: []string{second.URL}, Insecure: true,
		TokenID: tokenID, TokenSecret: secret, Timeout: 200 * time.Millisecond,
	}
	client := newClient(t, cfg)
	upload := func() {
		t.Helper()
		if err := client.UploadSeed(context.Background(), "pve-1", seedVolume, documents()); err == nil {
			t.Error("an upload without a response succeeded")
		}
	}
	const path = "/nodes/pve-1/storage/local/upload"
	upload()
	if first.got(path) != 1 || second.got(path) != 0 {
		t.Errorf("the write was sent %d and %d times, want 1 and 0", first.got(path), second.got(path))
	}
	first.CloseClientConnections()
	first.Listener.Close() //nolint:errcheck // it is now down
	upload()
	if second.got(path) != 1 {
		t.Errorf("the write that never reached the first was sent %d times to the second, want 1", second.got(path))
	}
}

// TestLoginElsewhere checks that a login with a password uses another host if the first
// accepts the connection but does not respond: a login changes nothing.
func TestLoginElsewhere(t *testing.T) {
	t.Parallel()
	first, second := newHanging(t), newHanging(t)
	_, err := newClient(t, proxmox.Config{
		Region: "r1", URL: first.URL, URLs: []string{second.URL}, Insecure: true,
		Username: "root@pam", Password: secret, Timeout: 200 * time.Millisecond,
	}).Version(context.Background())
	const path = "/access/ticket"
	if err == nil || first.got(path) == 0 || first.got(path) != second.got(path) {
		t.Errorf("got %v; the login was sent %d and %d times", err, first.got(path), second.got(path))
	}
}

// TestOneHostTwice checks that a client whose URLs are all the same passes this URL to the
// provider, because no HCL file contains a URL if URLs is set.
func TestOneHostTwice(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	cfg := server.config()
	cfg.URLs = []string{server.URL + "/api2/json"}
	if got := newClient(t, cfg).ProviderEnv()["PROXMOX_VE_ENDPOINT"]; got != server.URL+"/" {
		t.Errorf("the provider gets %q, want %s/", got, server.URL)
	}
}
