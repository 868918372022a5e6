package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
)

var (
	roleLine = regexp.MustCompile(`(?m)^ *pveum role add (\S+) +--privs "([^"]+)"$`)
	aclLine  = regexp.MustCompile(`(?m)^ *pveum acl modify (\S+) +--users (\S+) --roles (\S+)( --propagate 0)?$`)
)

// TestDocumentedRoles checks that numaform can scale up and down with exactly the
// privileges that docs/install.md lists for nodes without seeds, on both Proxmox versions,
// and that pins take effect without root's password.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"8.4", "9.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			stage := quickstart(t, func(config *pvesim.Config) {
				config.Version = version
				config.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
				everywhere, _, _ := strings.Cut(string(page), "If nodes join with seeds")
				for _, role := range roleLine.FindAllStringSubmatch(everywhere, -1) {
					config.Roles = append(config.Roles, pvesim.Role{Name: role[1], Privileges: strings.Fields(role[2])})
				}
				for _, acl := range aclLine.FindAllStringSubmatch(everywhere, -1) {
					config.ACL = append(config.ACL, pvesim.ACL{Path: acl[1], Subject: acl[2], Role: acl[3], NoPropagate: acl[4] != ""})
				}
				if len(config.Roles) != 4 || len(config.ACL) != 5 {
					t.Fatalf("docs/install.md has %d roles and %d acls, want 4 and 5", len(config.Roles), len(config.ACL))
				}
			})
			if version == "9.0" { // several hosts have pins
				edit(t, stage, "manifests/nodepools.yaml", `policy: Shared, overcommit: "2"`, "policy: Dedicated, pinWith: HostAgent")
			}
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			compare(t, stage)
			out := run(t, stage, cli.ExitOK, "topology")
			if strings.Contains(out, "warning") || strings.Contains(out, "missing") {
				t.Errorf("a privilege is missing:\n%s", out)
			}
			run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
			if version == "9.0" {
				hostAgents(t, stage)
			}
			onlyTheToken(t, stage)
		})
	}
}
