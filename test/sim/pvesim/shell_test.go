package pvesim_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestShell checks the outputs, errors and effects of an administrator's commands, which
// run in order.
func TestShell(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Tokens = []pvesim.Token{{ID: "other@pve!x", Secret: "s"}}
	c := start(t, cfg)
	for _, test := range []struct{ line, want, fails string }{
		{`pveum role add R --privs "VM.Audit VM.Config.CPU"`, "", ""},
		{`pveum role add R --privs "VM.Audit"`, "", "role 'R' exists: true"},
		{`pveum role modify R --privs VM.PowerMgmt --append 1`, "", ""},
		{`pveum role modify S --privs VM.PowerMgmt`, "", "role 'S' exists: false"},
		{`pveum role modify R --privs VM.Fly --append 1`, "", "invalid privilege 'VM.Fly'"},
		{`pveum user add new@pve`, "", ""},
		{`pveum user add new@pve`, "", "already exists"},
		{`pveum user token add new@pve t --privsep 1`, pvesim.DefaultTokenSecret, ""},
		{`pveum user token add new@pve t`, "", "token new@pve!t already exists"},
		{`pveum user token add nobody@pve t`, "", "no such user ('nobody@pve')"},
		{`pveum user token modify new@pve t --expire soon`, "", "type check ('integer') failed"},
		{`pveum user token modify new@pve u --privsep 0`, "", "no such token 'new@pve!u'"},
		{`pveum acl modify /vms --users new@pve --roles R`, "", ""},
		{`pveum acl modify /vms --users new@pve --roles Nothing`, "", `no role "Nothing"`},
		{`pveum acl modify /vms --users new@pve`, "", "--roles, and --users or --tokens, are required"},
		{`pveum pool add shelf`, "", ""},
		{`pveum pool modify shelf --vms 100`, "", ""},
		{`pveum pool modify nowhere --vms 100`, "", "pool 'nowhere' does not exist"},
		{`qm set 100 --name 'renamed' --delete hookscript`, "", ""},
		{`qm set 100 --cores 2`, "", "unknown option: cores"},
		{`qm set 4711 --name x`, "", "4711"},
		{`qm template 9000`, "", "template"},
		{`pveum user token add new@pve other --privsep 0 --output-format json`, `{"full-tokenid":"new@pve!other","info":{"privsep":"0"},"value":"` + pvesim.DefaultTokenSecret + `"}`, ""},
		{`pveum user add short@pve`, "", ""},
		{`pveum user delete short@pve`, "", ""},
		{`pveum user delete short@pve`, "", "no such user ('short@pve')"},
		{`pveum role add Short --privs VM.Audit`, "", ""},
		{`pveum role delete Short`, "", ""},
		{`pveum role delete Short`, "", "role 'Short' does not exist"},
		{`pveum pool add short`, "", ""},
		{`pveum pool delete short`, "", ""},
		{`pveum pool delete short`, "", "pool 'short' does not exist"},
		{`qm destroy 4711`, "", "4711"},
		{`pveum acl modify /vms --users "new@pve`, "", `unmatched "`},
		{`pveum role add R --privs`, "", "has no value"},
		{`pveum user add a@pve b@pve`, "", "2 arguments, want 1"},
		{`rm -rf /`, "", "no such command"},
		{`pveum passwd x`, "", "no such command"},
	} {
		out, err := c.server.Shell(test.line)
		if (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) || out != test.want {
			t.Errorf("%s: %q, %v; want %q, %q", test.line, out, err, test.want, test.fails)
		}
	}
	token := c.token("new@pve!t=" + pvesim.DefaultTokenSecret)
	if got := token.call("GET", vm100+"/config"); got.status != 403 {
		t.Errorf("a token with separate privileges has its user's: %d", got.status)
	}
	if _, err := c.server.Shell("pveum user token modify new@pve t --privsep 0 --expire 1"); err != nil {
		t.Fatal(err)
	}
	if got := token.call("GET", vm100+"/config"); got.status != 401 {
		t.Errorf("an expired token returns %d", got.status)
	}
	if _, err := c.server.Shell("pveum user token modify new@pve t --expire 0"); err != nil {
		t.Fatal(err)
	}
	holdsAll(t, token.call("GET", vm100+"/config"), `"name":"renamed"`)
	holdsAll(t, c.root().call("GET", "/pools/shelf"), `"qemu/100"`)
	holdsAll(t, c.root().call("GET", "/access/acl"), `"ugid":"new@pve"`)
}

// TestPvesh checks the output and the errors of pvesh, with which a program on a host
// writes and reads the host's notes.
func TestPvesh(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	for _, tt := range []struct{ args, want string }{
		{"set /nodes/pve-1/config --description it's", "null"},
		{"get /nodes/pve-1/config --output-format json --property description", `{"description":"it's"}`},
		{"set /nodes/pve-1/config --description x --digest 00", "detected modified configuration"},
		{"get /nodes/pve-9/config", "hostname lookup 'pve-9' failed"},
		{"get /nodes/pve-1/config more", "no such command"},
		{"create /pools --poolid x", "no such command"},
		{"get", "no such command"},
	} {
		out, err := c.server.Pvesh(strings.Fields(tt.args)...)
		if got := string(out); err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("pvesh %s: %s, %v, want %s", tt.args, got, err, tt.want)
		}
	}
	for _, call := range c.server.Calls() {
		t.Errorf("recorded as a call of the API: %+v", call)
	}
}
