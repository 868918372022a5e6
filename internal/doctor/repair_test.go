package doctor_test

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// TestRepair checks that Repair creates a missing state directory, and changes only modes
// of this user's files, and only where that is safe.
func TestRepair(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, open, unsafe := filepath.Join(dir, "missing"), filepath.Join(dir, "open"), filepath.Join(dir, "unsafe")
	secret, grouped := filepath.Join(dir, "token"), filepath.Join(dir, "grouped")
	for path, mode := range map[string]os.FileMode{open: 0o755, unsafe: 0o777} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{secret: 0o644, grouped: 0o640} {
		if err := os.WriteFile(path, []byte("s"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, path string
		config     doctor.Config
		done       []string
		mode       os.FileMode
	}{
		{"a missing state directory", missing, doctor.Config{StateDir: missing}, []string{"mkdir -m 700 -p " + missing}, 0o700},
		{"a readable one", open, doctor.Config{StateDir: open}, []string{"chmod 700 " + open}, 0o700},
		{"a writable one needs a review", unsafe, doctor.Config{StateDir: unsafe}, nil, 0o777},
		{"a secret", secret, doctor.Config{SecretFiles: []string{secret}}, []string{"chmod 600 " + secret}, 0o600},
		{"a secret of a pod's group", grouped, doctor.Config{SecretFiles: []string{grouped, filepath.Join(dir, "none")}}, nil, 0o640},
	} {
		done, err := doctor.Repair(test.config)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.done, done); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if info, err := os.Stat(test.path); err != nil || info.Mode().Perm() != test.mode {
			t.Errorf("%s: mode %v, %v, want %v", test.name, info.Mode(), err, test.mode)
		}
		if done, err := doctor.Repair(test.config); len(done) > 0 || err != nil {
			t.Errorf("%s: again: %v, %v", test.name, done, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(secret, 12345, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(secret, 0o644); err != nil {
			t.Fatal(err)
		}
		if done, err := doctor.Repair(doctor.Config{SecretFiles: []string{secret}}); len(done) > 0 || err == nil || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("a file of another user: %v, %v", done, err)
		}
	}
}

// TestCommands checks which commands of a report are printed, and in which order.
func TestCommands(t *testing.T) {
	t.Parallel()
	chmod := doctor.Command{Line: "chmod 700 /var/lib/numaform", Safe: true}
	grant := doctor.Command{Line: "pveum acl modify /vms --users numaform@pve --roles NumaformVM", OnHost: true, Safe: true}
	role := doctor.Command{Line: `pveum role add NumaformVM --privs "VM.Clone"`, OnHost: true, Safe: true}
	report := doctor.Report{
		{Status: doctor.OK, Commands: []doctor.Command{{Line: "pveum user add never@pve", OnHost: true, Safe: true}}},
		{Status: doctor.Fail, Commands: []doctor.Command{role, grant}},
		{Status: doctor.Warn, Commands: []doctor.Command{chmod}},
		{Status: doctor.Fail, Commands: []doctor.Command{{Line: "pvesh delete /nodes/pve-1/qemu/9001/firewall/rules/0", OnHost: true}, grant}},
		{Status: doctor.Fail, Fix: "run qm template 9001"},
	}
	if diff := cmp.Diff([]doctor.Command{role, grant, chmod}, report.Commands()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

// TestCommandsOfChecks checks the commands that the checks add to their findings.
func TestCommandsOfChecks(t *testing.T) {
	t.Parallel()
	safe := func(line string) doctor.Command { return doctor.Command{Line: line, OnHost: true, Safe: true} }
	conditional := func(line string) doctor.Command { return doctor.Command{Line: line, OnHost: true} }
	here := func(line string) doctor.Command { return doctor.Command{Line: line, Safe: true} }
	open := filepath.Join(t.TempDir(), "my state")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*patient)
		check  string
		want   []doctor.Command
	}{
		{"a readable state directory", func(p *patient) { p.StateDir = open }, "state", []doctor.Command{here("chmod 700 '" + open + "'")}},
		{"a missing pool", func(p *patient) { p.Classes[0].Spec.Pool = "k9s" }, "pool", []doctor.Command{safe("pveum pool add k9s")}},
		{"no privileges", func(p *patient) {
			grants(p, "/", allOfVM)
			p.sim.Tokens[0].FullPrivileges = false
		}, "privilege", []doctor.Command{safe("pveum user token modify numaform@pve scaler --privsep 0")}},
		{"a missing privilege", func(p *patient) { byAgent(p) }, "privilege", []doctor.Command{
			safe(`pveum role add NumaformAgent --privs "VM.GuestAgent.Audit VM.GuestAgent.Unrestricted"`),
			safe("pveum acl modify /vms --users numaform@pve --roles NumaformAgent"),
		}},
		{"tags", func(p *patient) { p.sim.Tags.Registered = []string{"numaform"} }, "tags", []doctor.Command{
			safe("pvesh set /cluster/options --delete registered-tags"),
		}},
		{"a template without its guest agent", func(p *patient) {
			for i := range p.sim.Hosts {
				delete(p.sim.Hosts[i].Templates[0].Options, "agent")
			}
		}, "template", []doctor.Command{safe("qm set 9001 --agent 1")}},
		{"a template with a hookscript, in general", func(p *patient) {
			p.Classes, p.Named = nil, false
			p.sim.Hosts[0].Templates[0].Options["hookscript"] = "local:snippets/x"
		}, "template", []doctor.Command{safe("qm set 9001 --delete hookscript")}},
		{"a VM that is not a template", func(p *patient) {
			for i := range p.sim.Hosts {
				p.sim.Hosts[i].Templates[0].Options["template"] = "0"
			}
		}, "template", []doctor.Command{safe("qm template 9001")}},
		{"a storage of another host", func(p *patient) {
			p.Classes[0].Spec.DataDisks = []v1alpha1.DataDisk{{Size: "1G", Storage: "fast"}}
			p.sim.Hosts[1].Storages = append(storages(1<<19), topology.Storage{Name: "fast", Type: "dir", Active: true, Content: []string{"images"}})
		}, "storage", []doctor.Command{safe("pvesm set fast --disable 0")}},
		{"a certificate that expires", func(p *patient) {
			p.Clock = clocktesting.NewFakePassiveClock(time.Now().AddDate(1, 11, 29))
		}, "certificate", []doctor.Command{conditional("pvecm updatecerts --force")}},
		{"an expired token", func(p *patient) {
			p.sim.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true, Expire: time.Unix(1, 0)}}
		}, "reach", []doctor.Command{conditional("pveum user token modify numaform@pve scaler --expire 0")}},
		{"an unknown authority", func(p *patient) { p.client.CA = otherCA(t) }, "reach", []doctor.Command{here("scp root@127.0.0.1:/etc/pve/pve-root-ca.pem .")}},
		{"a firewall that is off", grouped, "firewall", []doctor.Command{safe("pvesh set /nodes/pve-1/qemu/9001/firewall/options --enable 1 --dhcp 1 --policy_in DROP")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			report := examine(t, test.change)
			at := slices.IndexFunc(report, func(f doctor.Finding) bool { return f.Check == test.check && len(f.Commands) > 0 })
			if at < 0 {
				t.Fatalf("no finding of %s has a command: %+v", test.check, report)
			}
			if diff := cmp.Diff(test.want, report[at].Commands); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			for _, finding := range report {
				for _, command := range finding.Commands {
					if !strings.Contains(finding.Line(), command.Line) {
						t.Errorf("the text lacks the command %s: %s", command.Line, finding.Line())
					}
				}
			}
		})
	}
}

// otherCA returns a certificate that did not sign the one of the simulated Proxmox.
func otherCA(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
