package pvesim_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

func TestStartChecks(t *testing.T) {
	t.Parallel()
	const qemu = "start failed: QEMU exited with code 1"
	numa := func(pairs ...string) map[string]string {
		conf := map[string]string{"cores": "4", "memory": "4096", "numa": "1"}
		for i := 0; i < len(pairs); i += 2 {
			conf[pairs[i]] = pairs[i+1]
		}
		return conf
	}
	for _, tt := range []struct {
		name string
		conf map[string]string
		exit string
		log  string
	}{
		{"bound to both nodes", numa("numa0", "cpus=0-1,hostnodes=0,memory=2048,policy=bind", "numa1", "cpus=2-3,hostnodes=1,memory=2048,policy=bind"), "OK", "TASK OK"},
		{"sum of memory", numa("numa0", "cpus=0-3,hostnodes=0,memory=2048,policy=bind"), "total memory for NUMA nodes must be equal to vm static memory", ""},
		{"memory missing", numa("numa0", "cpus=0-3,hostnodes=0,policy=bind"), "missing NUMA node0 memory value", ""},
		{"policy missing", numa("numa0", "cpus=0-3,hostnodes=0,memory=4096"), "you need to define a policy for hostnode 0", ""},
		{"no such host node", numa("numa0", "cpus=0-3,hostnodes=5,memory=4096,policy=bind"), "host NUMA node5 doesn't exist", ""},
		{"memory hotplug", numa("hotplug", "memory", "numa0", "cpus=0-3,memory=4096"), "cannot enable memory hotplugging with custom NUMA topology", ""},
		{"hugepages without numa", map[string]string{"hugepages": "2"}, "numa needs to be enabled to use hugepages", ""},
		{"hugepages over two nodes", numa("hugepages", "2", "numa0", "cpus=0-3,hostnodes=0-1,memory=4096,policy=bind"), "more than 1 hostnode value in numa node is not supported when hugepages are enabled", ""},
		{"memory of a node without CPUs", numa("numa0", "cpus=0-3,hostnodes=0;12,memory=4096,policy=interleave"), "OK", "TASK OK"},
		{"hugepages of a node of two digits", numa("hugepages", "2", "numa0", "cpus=0-3,hostnodes=12,memory=4096,policy=bind"), "more than 1 hostnode value in numa node is not supported when hugepages are enabled", ""},
		{"sum of memory in hugepages", numa("hugepages", "2", "numa0", "cpus=0-3,hostnodes=12,memory=2048,policy=bind"), "total memory for NUMA nodes must be equal to vm static memory", ""},
		{"too many vcpus", map[string]string{"sockets": "2", "cores": "9"}, "MAX 16 vcpus allowed per VM on this node", ""},
		{"cpu index", numa("numa0", "cpus=0-4,hostnodes=0,memory=4096,policy=bind"), qemu, "CPU index (4) should be smaller than maxcpus (4)"},
		{"cpu twice", numa("numa0", "cpus=0-2,memory=2048", "numa1", "cpus=2-3,memory=2048"), qemu, "CPU 2 is already assigned"},
		{"ids do not start at 0", numa("numa1", "cpus=0-3,memory=4096"), qemu, "Node ID missing: 0"},
		{"numaN without numa is ignored", map[string]string{"numa5": "cpus=0-99"}, "OK", "TASK OK"},
		{"affinity partly there", map[string]string{"affinity": "15-99"}, "OK", "TASK OK"},
		{"affinity nowhere", map[string]string{"affinity": "100-200"}, qemu, "taskset: failed to set pid 0's affinity: Invalid argument"},
		{"iso missing", map[string]string{"ide2": "local:iso/none.iso,media=cdrom"}, "volume 'local:iso/none.iso' does not exist", ""},
		{"locked", map[string]string{"lock": "backup"}, "VM is locked (backup)", ""},
		{"template", map[string]string{"template": "1"}, "you can't start a vm if it's a template", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := cluster()
			host := &cfg.Hosts[0]
			host.NUMANodes = append(slices.Clone(host.NUMANodes), pvesim.NUMANode{ID: 12, MemoryMiB: 8192})
			c := start(t, cfg)
			if err := c.server.PutGuest(pvesim.Foreign{VMID: 500, Host: "pve-1", Config: tt.conf}); err != nil {
				t.Fatal(err)
			}
			got := c.call("POST", "/nodes/pve-1/qemu/500/status/start")
			if got.status != 200 {
				t.Fatalf("start is answered %d %s, want 200", got.status, got.reason)
			}
			upid := got.data.(string)
			if exit := c.await(upid); exit != tt.exit {
				t.Errorf("exit status %q, want %q", exit, tt.exit)
			}
			lines := fmt.Sprint(c.call("GET", "/nodes/pve-1/tasks/"+url.PathEscape(upid)+"/log").data)
			if !strings.Contains(lines, tt.log) {
				t.Errorf("log %s lacks %q", lines, tt.log)
			}
			if running := c.guest(500).Running; running != (tt.exit == "OK") {
				t.Errorf("running %v", running)
			}
		})
	}
}

func TestMemoryOfRunningGuests(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	used := func() string {
		memory := c.call("GET", "/nodes/pve-1/status").data.(map[string]any)["memory"].(map[string]any)
		return fmt.Sprint(memory["used"])
	}
	before := used()
	c.clone(101)
	if got := used(); got != before {
		t.Errorf("a stopped clone uses memory: %s, before %s", got, before)
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu/101/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	if got := used(); got == before {
		t.Error("a running clone uses no memory")
	}
}

func TestReportHoldsTopology(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[0].CPUs[3].Online = false
	c := start(t, cfg)
	text := c.call("GET", "/nodes/pve-1/report").data.(string)
	_, block, ok := strings.Cut(text, "# lscpu\n")
	block, _, _ = strings.Cut(block, "\n# ")
	if !ok || !strings.Contains(text, "# cat /etc/pve/nodes/pve-1/qemu-server/100.conf") {
		t.Fatalf("report lacks lscpu or guests:\n%s", text)
	}
	for _, line := range []string{
		"CPU(s): 16", "On-line CPU(s) list: 0-2,4-15", "Off-line CPU(s) list: 3", "Core(s) per socket: 4", "Socket(s): 2",
		"NUMA node(s): 2", "NUMA node0 CPU(s): 0-2,8-11", "NUMA node1 CPU(s): 4-7,12-15",
	} {
		label, value, _ := strings.Cut(line, ": ")
		if !regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(label) + `: +` + regexp.QuoteMeta(value) + `$`).MatchString(block) {
			t.Errorf("lscpu lacks %q:\n%s", line, block)
		}
	}
}
