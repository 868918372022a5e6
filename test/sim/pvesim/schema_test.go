package pvesim_test

import (
	"strings"
	"testing"
)

func TestParameterErrors(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	const (
		missing   = "property is missing and it is not optional"
		undefined = "property is not defined in schema and the schema does not allow additional properties"
	)
	conf := vm100 + "/config"
	for _, tt := range []struct {
		name   string
		method string
		path   string
		params []string
		param  string
		want   string
	}{
		{"unknown parameter", "PUT", conf, []string{"nonsense", "1"}, "nonsense", undefined},
		{"unknown query parameter", "GET", "/version", []string{"x", "1"}, "x", undefined},
		{"missing parameter", "POST", vm9000 + "/clone", nil, "newid", missing},
		{"integer", "PUT", conf, []string{"cores", "x"}, "cores", "type check ('integer') failed - got 'x'"},
		{"number", "PUT", conf, []string{"cpulimit", "x"}, "cpulimit", "type check ('number') failed - got 'x'"},
		{"boolean", "PUT", conf, []string{"numa", "true"}, "numa", "type check ('boolean') failed - got 'true'"},
		{"minimum", "PUT", conf, []string{"cores", "0"}, "cores", "value must have a minimum value of 1"},
		{"maximum", "PUT", conf, []string{"cpulimit", "200"}, "cpulimit", "value must have a maximum value of 128"},
		{"enumeration", "PUT", conf, []string{"bios", "efi"}, "bios", "value 'efi' does not have a value in the enumeration 'seabios, ovmf'"},
		{"length", "PUT", conf, []string{"description", strings.Repeat("x", 8193)}, "description", "value may only be 8192 characters long"},
		{"pattern", "PUT", vm100 + "/resize", []string{"disk", "scsi0", "size", "big"}, "size", "value does not match the regex pattern"},
		{"vmid", "POST", vm9000 + "/clone", []string{"newid", "99"}, "newid", "invalid format - value does not look like a valid VM ID\n"},
		{"name", "PUT", conf, []string{"name", "a_b"}, "name", "invalid format - value does not look like a valid DNS name\n"},
		{"tag", "PUT", conf, []string{"tags", "a;b c;ä"}, "tags", "invalid format - invalid characters in tag\n"},
		{"affinity", "PUT", conf, []string{"affinity", "0-x"}, "affinity", "invalid format - unable to parse cpuset option\n"},
		{"affinity range", "PUT", conf, []string{"affinity", "4-2"}, "affinity", "invalid format - unable to parse cpuset option\n"},
		{"numa without cpus", "PUT", conf, []string{"numa0", "memory=10"}, "numa0", "invalid format - format error\nnuma0.cpus: " + missing + "\n"},
		{"numa with a comma list", "PUT", conf, []string{"numa0", "cpus=0,2"}, "numa0", "invalid format - value without key, but schema does not define a default key\n"},
		{"numa policy", "PUT", conf, []string{"numa0", "cpus=0,policy=strict"}, "numa0", "invalid format - format error\nnuma0.policy: value 'strict' does not have a value in the enumeration 'preferred, bind, interleave'\n"},
		{"numa8", "PUT", conf, []string{"numa8", "cpus=0"}, "numa8", undefined},
		{"net key", "PUT", conf, []string{"net0", "virtio,bridge=vmbr0,color=red"}, "net0", "invalid format - invalid key in comma-separated list property: color\n"},
		{"net mac", "PUT", conf, []string{"net0", "virtio=01:00:00:00:00:00"}, "net0", "invalid format - format error\nnet0.macaddr: invalid format - value does not look like a valid unicast MAC address\n"},
		{"drive twice", "PUT", conf, []string{"scsi1", "local-lvm:1,size=1G,size=2G"}, "scsi1", "invalid format - duplicate key in comma-separated list property: size\n"},
		{"requires", "PUT", conf, []string{"force", "1"}, "delete", "missing property - 'force' requires this property"},
		{"iso without media", "PUT", conf, []string{"ide2", "local:iso/x.iso"}, "ide2", "explicit 'media=cdrom' is required for iso images"},
		{"type of resources", "GET", "/cluster/resources", []string{"type", "qemu"}, "type", "value 'qemu' does not have a value in the enumeration 'vm, storage, node, sdn'"},
		{"unknown option deleted", "PUT", conf, []string{"delete", "foo"}, "delete", "unknown option 'foo'"},
		{"set and delete", "PUT", conf, []string{"name", "a", "delete", "name"}, "delete", "you can't use '-name' and -delete name' at the same time"},
		{"task that is none", "GET", "/nodes/pve-1/tasks/UPID:pve-1:00000001:00000001:00000001:x:y:z:/status", nil, "upid", "no such task"},
		{"task of no form", "GET", "/nodes/pve-1/tasks/UPID:pve-1:1:1:1:x:y:z:/status", nil, "upid", "unable to parse worker upid"},
		{"storage that is none", "GET", "/nodes/pve-1/storage/tank/status", nil, "storage", "No such storage."},
		{"watchdog", "PUT", conf, []string{"watchdog", "i6300esp"}, "watchdog", "invalid format - format error\nwatchdog.model: value 'i6300esp' does not have a value in the enumeration 'i6300esb, ib700'\n"},
		{"watchdog's action", "PUT", conf, []string{"watchdog", "ib700,action=halt"}, "watchdog", "invalid format - format error\nwatchdog.action: value 'halt' does not have a value in the enumeration 'reset, shutdown, poweroff, pause, debug, none'\n"},
		{"hotplug", "PUT", conf, []string{"hotplug", "disk,gpu"}, "hotplug", "invalid format - invalid hotplug feature 'gpu'\n"},
		{"numa memory", "PUT", conf, []string{"numa2", "cpus=0,memory=x"}, "numa2", "invalid format - format error\nnuma2.memory: type check ('number') failed - got 'x'\n"},
		{"hookscript that is none", "PUT", conf, []string{"hookscript", "local:snippets/y.sh"}, "hookscript", "script 'local:snippets/y.sh' does not exist\n"},
		{"hookscript elsewhere", "PUT", conf, []string{"hookscript", "local:iso/y.iso"}, "hookscript", "'local:iso/y.iso' is not in the snippets directory\n"},
		{"hookscript nowhere", "PUT", conf, []string{"hookscript", "tank:snippets/y.sh"}, "hookscript", "storage 'tank' does not exist\n"},
		{"firewall action", "POST", vm100 + "/firewall/rules", []string{"type", "in", "action", "PASS"}, "action", "unknown action 'PASS'"},
		{"firewall direction", "POST", vm100 + "/firewall/rules", []string{"type", "forward", "action", "DROP"}, "type", "invalid rule type 'forward' for rule_env 'vm'"},
		{"firewall device", "POST", vm100 + "/firewall/rules", []string{"type", "group", "action", "web", "iface", "vmbr0"}, "iface", "value does not match the regex pattern 'net\\d+'"},
		{"security group", "POST", vm100 + "/firewall/rules", []string{"type", "group", "action", "7"}, "action", "value does not match the regex pattern"},
		{"upload to a bad node name", "POST", "/nodes/a_b/storage/local/upload", []string{"content", "iso", "filename", "x.iso"}, "node", "invalid format - value does not look like a valid node name\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := c.call(tt.method, tt.path, tt.params...)
			if got.status != 400 || got.reason != "Parameter verification failed." || got.errors[tt.param] != tt.want {
				t.Errorf("got %d %s %q\nwant errors[%s] %q", got.status, got.reason, got.errors, tt.param, tt.want)
			}
		})
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	target := c.server.URL() + "/api2/json" + vm100 + "/config"
	for _, tt := range []struct {
		name, kind, body string
		status           int
		reason           string
	}{
		{"json", "application/json", `{"onboot":true,"cores":3,"description":"x"}`, 200, "OK"},
		{"json list", "application/json", `{"delete":["description","balloon"]}`, 200, "OK"},
		{"json object", "application/json", `{"name":{}}`, 400, "Parameter verification failed."},
		{"broken json", "application/json", `{`, 501, "malformed JSON string"},
		{"another type", "text/plain", "x", 506, "upload 'text/plain' not implemented"},
		{"too large", "application/x-www-form-urlencoded", "description=" + strings.Repeat("x", 70000), 501, "for data too large"},
		{"repeated list", "application/x-www-form-urlencoded", "delete=balloon&delete=shares", 200, "OK"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := c.send("PUT", target, tt.kind, strings.NewReader(tt.body))
			if got.status != tt.status || got.reason != tt.reason {
				t.Errorf("got %d %s %s, want %d %s", got.status, got.reason, got.body, tt.status, tt.reason)
			}
		})
	}
	if got := c.guest(100).Pending["cores"]; got != "3" {
		t.Errorf("cores %q, want 3", got)
	}
}
