package proxmox_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*proxmox.Config)
		want   string
	}{
		{"no region", func(c *proxmox.Config) { c.Region = "" }, "region: is empty"},
		{"http", func(c *proxmox.Config) { c.URL = "http://pve-1:8006" }, `url: "http://pve-1:8006" is not https`},
		{"no host", func(c *proxmox.Config) { c.URL = "https://" }, "is not the address of a Proxmox host"},
		{"query", func(c *proxmox.Config) { c.URL = "https://pve-1:8006/?a=b" }, "is not the address of a Proxmox host"},
		{"other path", func(c *proxmox.Config) { c.URL = "https://pve-1:8006/x" }, "does not end in /api2/json"},
		{"password in url", func(c *proxmox.Config) { c.URL = "https://root:" + secret + "@pve-1:8006" }, "url: contains a user name"},
		{"unreadable url", func(c *proxmox.Config) { c.URL = "https://root:" + secret + "@pve-1:port" }, "url: is invalid"},
		{"no credential", func(c *proxmox.Config) { c.TokenID, c.TokenSecret = "", "" }, "no credential is set"},
		{"two credentials", func(c *proxmox.Config) { c.Username = "root@pam" }, "token_id, username: both are set"},
		{"token id without name", func(c *proxmox.Config) { c.TokenID = "numaform@pve" }, `token_id: "numaform@pve" is not of the form user@realm!name`},
		{"no secret", func(c *proxmox.Config) { c.TokenSecret = "" }, "token_secret: is empty"},
		{"secret with line break", func(c *proxmox.Config) { c.TokenSecret += "\n" }, "token_secret: is empty or contains white space"},
		{"user without realm", func(c *proxmox.Config) { c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root", secret }, `username: "root" is not of the form user@realm`},
		{"no password", func(c *proxmox.Config) { c.TokenID, c.TokenSecret, c.Username = "", "", "root@pam" }, "password: is empty"},
		{"bad ca", func(c *proxmox.Config) { c.CA = []byte("x") }, "ca_file: contains no certificate"},
		{"ca and insecure", func(c *proxmox.Config) { c.CA, c.Insecure = []byte("x"), true }, "insecure, ca_file: mutually exclusive"},
		{"negative timeout", func(c *proxmox.Config) { c.Timeout = -1 }, "must not be negative"},
		{"host name", func(c *proxmox.Config) { c.Hosts = []topology.HostName{"../x"} }, `hosts: "../x" is not a valid name`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := proxmox.Config{Region: "r1", URL: "https://pve-1:8006", TokenID: tokenID, TokenSecret: secret}
			test.change(&cfg)
			_, err := proxmox.New(cfg)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "numaform.yaml") {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("error contains a secret: %v", err)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		config   proxmox.Config
		affinity bool
		env      map[string]string
	}{
		{
			"token",
			proxmox.Config{TokenID: tokenID, TokenSecret: secret},
			false,
			map[string]string{"PROXMOX_VE_API_TOKEN": tokenID + "=" + secret},
		},
		{
			"token of root",
			proxmox.Config{TokenID: "root@pam!x", TokenSecret: secret},
			false,
			map[string]string{"PROXMOX_VE_API_TOKEN": "root@pam!x=" + secret},
		},
		{
			"user",
			proxmox.Config{Username: "me@pve", Password: secret},
			false,
			map[string]string{"PROXMOX_VE_USERNAME": "me@pve", "PROXMOX_VE_PASSWORD": secret},
		},
		{
			"root",
			proxmox.Config{Username: "root@pam", Password: secret},
			true,
			map[string]string{"PROXMOX_VE_USERNAME": "root@pam", "PROXMOX_VE_PASSWORD": secret},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.config.Region, test.config.URL = "r1", "https://pve-1:8006/api2/json/"
			client := newClient(t, test.config)
			can, reason := client.CanSetAffinity()
			if can != test.affinity || (reason == "") != can || strings.Contains(reason, secret) {
				t.Errorf("CanSetAffinity() = %v, %q", can, reason)
			}
			if !can && !strings.Contains(reason, "HostAgent") {
				t.Errorf("reason does not contain the fix: %s", reason)
			}
			may, why := client.CanSetHugePages()
			if may != can || (why == "") != can || !can && !strings.Contains(why, "set huge pages, not ") {
				t.Errorf("CanSetHugePages() = %v, %q", may, why)
			}
			if diff := cmp.Diff(test.env, client.ProviderEnv()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
