package proxmox_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/proxmox"
)

// TestAnotherEndpoint reads a cluster whose first host is down, and one whose host
// goes down while it is being used.
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
		t.Errorf("the provider gets %q, want the one that answers", got)
	}
	up.Close()
	_, err = client.Snapshot(context.Background())
	var refused *proxmox.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"none of 2 addresses answers", down.URL, up.URL, "connection refused", "check url and urls"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// TestAnswerIsAnAnswer asks no other host because the first refuses, or cannot be
// trusted.
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
		t.Errorf("the second was asked: %v", second.calls)
	}
}

// TestRotatedToken changes the token's file while a client is in use.
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
			t.Errorf("the requests say %v, want %q", server.headers, want)
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
