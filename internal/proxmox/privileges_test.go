package proxmox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestRolesAreTheSimulators checks that the roles have the privileges of the simulator's
// default token, which follow the rules of Proxmox.
func TestRolesAreTheSimulators(t *testing.T) {
	t.Parallel()
	// LeastPrivilege omits the roles for a pool and for a custom CPU model.
	want := map[string][]string{proxmox.RoleAudit: {"VM.Audit"}, proxmox.RoleCPU: {"Mapping.Use"}}
	for _, role := range pvesim.LeastPrivilege() {
		want[role.Name] = role.Privileges
	}
	have := map[string][]string{}
	for _, role := range proxmox.Roles() {
		have[role.Name] = role.Privileges
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("roles (-simulator +numaform):\n%s", diff)
	}
}

// TestDocumentsSayTheSame checks that each pveum command in docs/install.md is one of those
// that Pveum returns.
func TestDocumentsSayTheSame(t *testing.T) {
	t.Parallel()
	spaces := regexp.MustCompile(` +`)
	lines := (proxmox.Reach{}).Pveum(tokenID)
	lines = append(lines, (proxmox.Reach{Seeds: []string{"seeds"}}).Pveum(tokenID)...)
	for _, name := range []string{"docs/install.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(spaces.ReplaceAllString(line, " "))
			if !strings.HasPrefix(line, "pveum ") {
				continue
			}
			found++
			if !slices.Contains(lines, line) {
				t.Errorf("%s: %s is not what numaform init prints:\n%s", name, line, strings.Join(lines, "\n"))
			}
		}
		if found == 0 {
			t.Errorf("%s contains no pveum command", name)
		}
	}
}

func TestPveum(t *testing.T) {
	t.Parallel()
	const vm = `pveum role add NumaformVM --privs "VM.Allocate VM.Audit VM.Clone VM.Config.CDROM VM.Config.CPU ` +
		`VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.PowerMgmt"`
	for _, test := range []struct {
		name  string
		reach proxmox.Reach
		want  []string
	}{
		{"anywhere", proxmox.Reach{}, []string{
			vm,
			`pveum role add NumaformDisk --privs "Datastore.AllocateSpace Datastore.Audit"`,
			`pveum role add NumaformNet --privs "SDN.Use"`,
			`pveum role add NumaformHost --privs "Sys.Audit"`,
			"pveum user add numaform@pve",
			"pveum acl modify / --users numaform@pve --roles NumaformHost --propagate 0",
			"pveum acl modify /nodes --users numaform@pve --roles NumaformHost",
			"pveum acl modify /vms --users numaform@pve --roles NumaformVM",
			"pveum acl modify /storage --users numaform@pve --roles NumaformDisk",
			"pveum acl modify /sdn/zones --users numaform@pve --roles NumaformNet",
			`pveum user token add numaform@pve scaler --privsep 0 --output-format json | sed -n 's/.*"value" *: *"\([^"]*\)".*/\1/p'`,
		}},
		{"a pool, two storages, one for seeds, a CPU model", proxmox.Reach{Pool: "k8s", Disks: []string{"tank", "local"}, Seeds: []string{"local"}, CPUModels: []string{"tuned"}}, []string{
			"pveum pool add k8s",
			vm,
			`pveum role add NumaformDisk --privs "Datastore.AllocateSpace Datastore.Audit"`,
			`pveum role add NumaformSeed --privs "Datastore.AllocateSpace Datastore.Audit Datastore.AllocateTemplate Datastore.Allocate"`,
			`pveum role add NumaformNet --privs "SDN.Use"`,
			`pveum role add NumaformPool --privs "Pool.Audit"`,
			`pveum role add NumaformHost --privs "Sys.Audit"`,
			`pveum role add NumaformAudit --privs "VM.Audit"`,
			`pveum role add NumaformCPU --privs "Mapping.Use"`,
			"pveum user add numaform@pve",
			"pveum acl modify / --users numaform@pve --roles NumaformHost --propagate 0",
			"pveum acl modify /nodes --users numaform@pve --roles NumaformHost",
			"pveum acl modify /vms --users numaform@pve --roles NumaformAudit",
			"pveum acl modify /pool/k8s --users numaform@pve --roles NumaformVM",
			"pveum acl modify /pool/k8s --users numaform@pve --roles NumaformPool",
			"pveum acl modify /storage/tank --users numaform@pve --roles NumaformDisk",
			"pveum acl modify /storage/local --users numaform@pve --roles NumaformSeed",
			"pveum acl modify /mapping/cpu/tuned --users numaform@pve --roles NumaformCPU",
			"pveum acl modify /sdn/zones --users numaform@pve --roles NumaformNet",
			`pveum user token add numaform@pve scaler --privsep 0 --output-format json | sed -n 's/.*"value" *: *"\([^"]*\)".*/\1/p'`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lines := test.reach.Pveum(tokenID)
			if diff := cmp.Diff(test.want, lines); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			token, rest := test.reach.PveumDelete(tokenID)
			runs(t, lines, append([]string{token}, rest...))
		})
	}
}

// runs checks on Proxmox VE 8 and 9 that the commands in lines succeed, that the commands
// in deletes then delete what lines created, and that lines succeed again.
func runs(t *testing.T, lines, deletes []string) {
	t.Helper()
	for _, version := range []string{"8.4", "9.0"} {
		server, cfg := simulate(t, pvesim.Config{
			Version: version, Hosts: zoo(t, 0)[:1], Tokens: []pvesim.Token{{ID: "other@pve!x", Secret: "s"}},
		})
		for _, line := range lines {
			out, err := server.Shell(line)
			if err != nil {
				t.Error(err)
			}
			if out != "" {
				cfg.TokenSecret = out
			}
		}
		client := newClient(t, cfg)
		if have, err := client.Version(context.Background()); err != nil || have != version+".3" {
			t.Errorf("version %q, %v", have, err)
		}
		have, err := client.Permissions(context.Background(), []string{"/", "/vms", "/access"})
		if err != nil {
			t.Fatal(err)
		}
		if !have["/"].Has("Sys.Audit", false) || have["/"].Has("Sys.Audit", true) || !have["/vms"].Has("VM.Audit", true) || len(have["/access"]) > 0 {
			t.Errorf("Proxmox VE %s: %v", version, have)
		}
		for _, line := range slices.Concat(deletes, lines) {
			if _, err := server.Shell(line); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestGrantCommands(t *testing.T) {
	t.Parallel()
	grants := (proxmox.Reach{}).Grants()
	disk := grants[slices.IndexFunc(grants, func(g proxmox.Grant) bool { return g.Role.Name == proxmox.RoleDisk })]
	missing := []string{"Datastore.Audit"}
	const entry = "pveum acl modify /storage --users numaform@pve --roles NumaformDisk"
	for _, test := range []struct {
		name  string
		known map[string][]string
		want  []string
	}{
		{"no role", map[string][]string{}, []string{`pveum role add NumaformDisk --privs "Datastore.AllocateSpace Datastore.Audit"`, entry}},
		{"a role that lacks it", map[string][]string{"NumaformDisk": {"Datastore.AllocateSpace"}}, []string{`pveum role modify NumaformDisk --privs "Datastore.Audit" --append 1`, entry}},
		{"only the entry", map[string][]string{"NumaformDisk": {"Datastore.Audit"}}, []string{entry}},
	} {
		if diff := cmp.Diff(test.want, disk.Commands("numaform@pve", missing, test.known)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestTooOld(t *testing.T) {
	t.Parallel()
	c := newCanned(t)
	c.say("/version", map[string]any{"version": "7.4-17", "release": "7.4", "repoid": "513c62be"})
	version, err := newClient(t, c.config()).Version(context.Background())
	var old *proxmox.TooOldError
	if !errors.As(err, &old) || version != "7.4-17" || !strings.Contains(err.Error(), "region r1 runs Proxmox VE 7.4-17: numaform requires 8 or newer: upgrade") {
		t.Errorf("%q, %v", version, err)
	}
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 0)[:1]})
	cfg.CA = nil
	shown, err := newClient(t, cfg).Certificate(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(shown.Fingerprint) != 95 || !strings.Contains(shown.Subject, "pvesim") || shown.Expires.IsZero() {
		t.Errorf("%+v", shown)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, cfg).Certificate(context.Background()); err == nil {
		t.Error("a stopped Proxmox returned a certificate")
	}
}
