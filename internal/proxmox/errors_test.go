package proxmox_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/proxmox"
)

// TestErrors checks the errors that make all hosts unusable: each names the problem, the
// place and the fix.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		spoil  func(*canned, *proxmox.Config)
		status int
		want   []string
	}{
		{
			"wrong token", func(c *canned, _ *proxmox.Config) { c.refuse("/cluster/resources", 401, "invalid token value!") }, 401,
			[]string{"reading /cluster/resources of region r1", "401 invalid token value!", "check token_id and token_secret of API token numaform@pve!scaler"},
		},
		{
			"token refused for a reason that is not told", func(c *canned, _ *proxmox.Config) { c.refuse("/cluster/resources", 401, "Authentication failed!") }, 401,
			[]string{"401 Authentication failed!", "check token_id and token_secret of API token numaform@pve!scaler; if the token was deleted, create it again with " +
				"`pveum user token add numaform@pve scaler --privsep 0` and store its value as token_secret; if the token has expired, extend it: pveum user token modify numaform@pve scaler --expire 0"},
		},
		{
			"expired token", func(c *canned, _ *proxmox.Config) {
				c.refuse("/cluster/resources", 401, "token 'scaler' access expired")
			}, 401,
			[]string{"extend the token: pveum user token modify numaform@pve scaler --expire 0"},
		},
		{
			"expired user", func(c *canned, _ *proxmox.Config) {
				c.refuse("/cluster/resources", 401, "user 'numaform@pve' access expired")
			}, 401,
			[]string{"extend the user's access: pveum user modify numaform@pve --expire 0"},
		},
		{
			"disabled user", func(c *canned, _ *proxmox.Config) {
				c.refuse("/cluster/resources", 401, "user 'numaform@pve' is disabled")
			}, 401,
			[]string{"enable the user: pveum user modify numaform@pve --enable 1"},
		},
		{"missing privilege", func(c *canned, _ *proxmox.Config) {
			c.cluster([]any{node("pve-1", 1), node("pve-2", 1)})
			c.refuse("/cluster/status", 403, "Permission check failed (/, Sys.Audit)")
		}, 403, []string{"403 Permission check failed (/, Sys.Audit)", "grant Sys.Audit on /: pveum acl modify / --roles NumaformHost --users numaform@pve --tokens 'numaform@pve!scaler' --propagate 0"}},
		{"status line rewritten by a proxy", func(c *canned, _ *proxmox.Config) {
			c.cluster([]any{node("pve-1", 1), node("pve-2", 1)})
			c.answer("/cluster/status", answer{status: 403, reason: "Forbidden", body: `{"data":null,"message":"Permission check failed (/, Sys.Audit)\n"}`})
		}, 403, []string{"grant Sys.Audit on /"}},
		{"wrong password", func(c *canned, cfg *proxmox.Config) {
			cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", "me@pve", secret
			c.refuse("/access/ticket", 401, "authentication failure")
		}, 401, []string{"reading /access/ticket", "authentication failure", "check username and password of me@pve"}},
		{"second factor", func(c *canned, cfg *proxmox.Config) {
			cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", "me@pve", secret
			c.say("/access/ticket", map[string]any{"ticket": "PVE:!tfa!x", "username": "me@pve"})
		}, 401, []string{"second factor", "use an API token"}},
		{
			"unknown authority", func(_ *canned, cfg *proxmox.Config) { cfg.CA = nil }, 0,
			[]string{"certificate signed by unknown authority", "/etc/pve/pve-root-ca.pem"},
		},
		{"other host name", func(_ *canned, cfg *proxmox.Config) {
			cfg.URL = strings.Replace(cfg.URL, "127.0.0.1", "localhost", 1)
		}, 0, []string{"localhost", "use a host name in url for which the certificate is valid"}},
		{
			"nobody there", func(c *canned, _ *proxmox.Config) { c.Close() }, 0,
			[]string{"connection refused", "check url, and that the host is up"},
		},
		{
			"not Proxmox", func(c *canned, _ *proxmox.Config) { c.answer("/cluster/resources", answer{body: "<html>"}) }, 200,
			[]string{"the response is invalid", "check that url is the address of a Proxmox host"},
		},
		{
			"elsewhere", func(c *canned, _ *proxmox.Config) { c.refuse("/cluster/resources", 404, "Not Found") }, 404,
			[]string{"404 Not Found", "check that url is the address of a Proxmox host"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			cfg := server.config()
			test.spoil(server, &cfg)
			snapshot, err := newClient(t, cfg).Snapshot(context.Background())
			var refused *proxmox.Error
			if !errors.As(err, &refused) || refused.Status != test.status || snapshot != nil {
				t.Fatalf("got %+v, %v", snapshot, err)
			}
			for _, want := range append(test.want, strings.TrimPrefix(cfg.URL, "https://")) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("error contains a secret: %v", err)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		reason string
		tries  int
	}{
		{"no route", 595, "No route to host", 3},
		{"busy", 500, "got timeout", 3},
		{"bad gateway", 502, "Bad Gateway", 3},
		{"host timed out", 596, "Connection timed out", 1},
		{"forbidden", 403, "Permission check failed", 1},
		{"unknown path", 501, "Method 'GET /x' not implemented", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.refuse("/nodes/pve-1/report", 501, "not implemented")
			server.refuse("/nodes/pve-1/status", test.status, test.reason)
			host := server.read(t).Hosts[0]
			if got := server.asked("/nodes/pve-1/status"); got != test.tries {
				t.Errorf("asked %d times, want %d", got, test.tries)
			}
			if slow := strings.Contains(host.Problem, "does not respond before pveproxy's timeout (596 "); slow != (test.status == 596) || !strings.Contains(host.Problem, test.reason) {
				t.Errorf("problem is %q", host.Problem)
			}
		})
	}
}

func TestRetrySucceeds(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.answer("/cluster/resources", answer{status: 500, reason: "got timeout"}, answer{data: []any{nodeResource("pve-1")}})
	if hosts := server.read(t).Hosts; len(hosts) != 1 || hosts[0].Problem != "" {
		t.Errorf("hosts: %+v", hosts)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.refuse("/cluster/resources", 595, "No route to host")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := newClient(t, server.config()).Snapshot(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestTicket checks that a client logs in once, and again when Proxmox no longer accepts
// the ticket.
func TestTicket(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	cfg := server.config()
	cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", "root@pam", secret
	server.say("/access/ticket", map[string]any{"ticket": "PVE:root@pam:1", "CSRFPreventionToken": "x", "username": "root@pam"})
	client := newClient(t, cfg)
	for range 2 {
		if _, err := client.Snapshot(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if got := server.asked("/access/ticket"); got != 1 {
		t.Errorf("logged in %d times", got)
	}
	if got := server.headers[len(server.headers)-1].Get("Cookie"); got != "PVEAuthCookie=PVE:root@pam:1" {
		t.Errorf("cookie is %q", got)
	}
	server.answer("/cluster/resources", answer{status: 401, reason: "permission denied - invalid PVE ticket"}, answer{data: []any{nodeResource("pve-1")}})
	if _, err := client.Snapshot(context.Background()); err == nil {
		t.Error("an expired ticket causes no error")
	}
	if _, err := client.Snapshot(context.Background()); err != nil {
		t.Error(err)
	}
	if got := server.asked("/access/ticket"); got != 2 {
		t.Errorf("logged in %d times", got)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	stuck := httptest.NewUnstartedServer(nil) // accepts connections and never responds
	t.Cleanup(stuck.Close)
	cfg := proxmox.Config{Region: "r1", URL: "https://" + stuck.Listener.Addr().String(), TokenID: tokenID, TokenSecret: secret, Timeout: 50 * time.Millisecond}
	_, err := newClient(t, cfg).Snapshot(context.Background())
	if err == nil || !strings.Contains(err.Error(), "no response within 50ms") {
		t.Errorf("got %v", err)
	}
}
