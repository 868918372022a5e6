package proxmox_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// oneNode is eightCPUs after a change of the firmware's settings: all CPUs are on one NUMA node.
const oneNode = `Architecture:                       x86_64
CPU(s):                             8
On-line CPU(s) list:                0-7
Model name:                         Test CPU
Thread(s) per core:                 2
Core(s) per socket:                 4
Socket(s):                          1
L3 cache:                           16 MiB (1 instance)
NUMA node(s):                       1
NUMA node0 CPU(s):                  0-7
`

// fourCPUs is eightCPUs without SMT.
const fourCPUs = `Architecture:                       x86_64
CPU(s):                             8
On-line CPU(s) list:                0-3
Off-line CPU(s) list:               4-7
Model name:                         Test CPU
Thread(s) per core:                 1
Core(s) per socket:                 4
Socket(s):                          1
L3 cache:                           16 MiB (2 instances)
NUMA node(s):                       2
NUMA node0 CPU(s):                  0-1
NUMA node1 CPU(s):                  2-3
`

// changing is a host whose hardware can change.
type changing struct {
	*canned
	now      time.Time
	client   *proxmox.Client
	snapshot *topology.Snapshot
}

// newChanging returns a host with eightCPUs that has run for some seconds when it is read.
func newChanging(t *testing.T, uptime int) *changing {
	t.Helper()
	c := &changing{canned: newCanned(t), now: readAt}
	c.list(map[string]any{"uptime": uptime})
	cfg := c.config()
	cfg.Now = func() time.Time { return c.now }
	c.client = newClient(t, cfg)
	var err error
	if c.snapshot, err = c.client.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// list changes the host's list entry; nil lists the host as offline.
func (c *changing) list(fields map[string]any) {
	entry := map[string]any{"type": "node", "node": "pve-1", "status": "offline"}
	if fields != nil {
		entry = nodeResource("pve-1")
		maps.Copy(entry, fields)
	}
	c.say("/cluster/resources", []any{entry})
}

// read reads the host some seconds later, and returns the CPUs of its NUMA nodes.
func (c *changing) read(t *testing.T, method string, seconds int) string {
	t.Helper()
	c.now = c.now.Add(time.Duration(seconds) * time.Second)
	var err error
	if method == "update" {
		c.snapshot, err = c.client.Update(t.Context(), c.snapshot)
	} else {
		c.snapshot, err = c.client.Refresh(t.Context(), c.snapshot, []topology.HostName{"pve-1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.snapshot.Validate(); err != nil {
		t.Error(err)
	}
	host := &c.snapshot.Hosts[0]
	var nodes []string
	for _, node := range host.NUMANodes {
		var cpus []int
		for _, cpu := range host.CPUs {
			if cpu.Online && cpu.NUMANode == node.ID {
				cpus = append(cpus, cpu.ID)
			}
		}
		nodes = append(nodes, topology.CPUs(cpus...).String())
	}
	return strings.Join(nodes, " ")
}

// TestHardwareChanges checks that the hardware of a known host is read again after a restart and
// after a change of its list entry, and only then.
func TestHardwareChanges(t *testing.T) {
	t.Parallel()
	const before = "0-1,4-5 2-3,6-7"
	tests := []struct {
		name   string
		uptime int // at the first read
		// offline is how long the host is offline, in seconds.
		offline int
		entry   map[string]any
		report  string
		want    string
	}{
		{"nothing", 3600, 0, map[string]any{"uptime": 3630}, oneNode, before},
		{"the list is old", 3600, 0, map[string]any{"uptime": 3600}, oneNode, before},
		{"uptimes are hidden", 3600, 0, map[string]any{}, oneNode, before},
		{"SMT is disabled", 3600, 0, map[string]any{"uptime": 3630, "maxcpu": 4}, fourCPUs, "0-1 2-3"},
		{"more memory", 3600, 0, map[string]any{"uptime": 3630, "maxmem": 32 << 30}, oneNode, "0-7"},
		{"a restart", 3600, 0, map[string]any{"uptime": 45}, oneNode, "0-7"},
		{"a lost connection", 3600, 600, map[string]any{"uptime": 4230}, oneNode, before},
		{"a second restart", 45, 600, map[string]any{"uptime": 60}, oneNode, "0-7"},
		{"pvestatd does not run yet", 3600, 600, map[string]any{"status": "unknown", "maxcpu": 0, "maxmem": 0}, oneNode, "0-7"},
		{"pvestatd failed", 3600, 0, map[string]any{"status": "unknown", "maxcpu": 0, "maxmem": 0}, oneNode, before},
	}
	for _, tt := range tests {
		for _, method := range []string{"update", "refresh"} {
			t.Run(tt.name+"/"+method, func(t *testing.T) {
				t.Parallel()
				c := newChanging(t, tt.uptime)
				if tt.offline > 0 {
					c.list(nil)
					if got := c.read(t, method, 30); got != before {
						t.Errorf("offline, the host has CPUs %s", got)
					}
				}
				c.list(tt.entry)
				c.say("/nodes/pve-1/report", report(tt.report))
				if got := c.read(t, method, tt.offline+30); got != tt.want || c.snapshot.Hosts[0].Problem != "" {
					t.Errorf("CPUs are %s, want %s; problem %q", got, tt.want, c.snapshot.Hosts[0].Problem)
				}
				asked := c.asked("/nodes/pve-1/report")
				c.read(t, method, 0)
				if c.asked("/nodes/pve-1/report") != asked {
					t.Error("the hardware was read again although nothing changed")
				}
			})
		}
	}
}

// TestReportOfABootingHost checks that a host that has restarted keeps its NUMA nodes if its
// report cannot be read, and that a host with other CPUs is read again until its report can be
// read, but not for longer than a boot takes.
func TestReportOfABootingHost(t *testing.T) {
	t.Parallel()
	const path = "/nodes/pve-1/report"
	c := newChanging(t, 3600)
	c.refuse(path, 596, "Connection timed out")
	c.list(map[string]any{"uptime": 40})
	if got := c.read(t, "update", 30); got != "0-1,4-5 2-3,6-7" {
		t.Errorf("without a report, CPUs are %s", got)
	}
	asked := c.asked(path)
	c.list(map[string]any{"uptime": 70})
	if c.read(t, "update", 30); c.asked(path) != asked {
		t.Error("a host with the same CPUs is read again")
	}

	c.list(map[string]any{"uptime": 40, "maxcpu": 4})
	c.say("/nodes/pve-1/status", map[string]any{"cpuinfo": map[string]any{"cpus": 4}})
	if got := c.read(t, "update", 30); got != "0-3" {
		t.Errorf("without a report, CPUs are %s", got)
	}
	c.say(path, report(fourCPUs))
	c.list(map[string]any{"uptime": 70, "maxcpu": 4})
	if got := c.read(t, "update", 30); got != "0-1 2-3" {
		t.Errorf("with a report, CPUs are %s", got)
	}

	c.refuse(path, 596, "Connection timed out")
	c.list(map[string]any{"uptime": 60})
	c.read(t, "update", 30)
	c.list(map[string]any{"uptime": 301})
	c.read(t, "update", 241)
	asked = c.asked(path)
	c.list(map[string]any{"uptime": 331})
	if c.read(t, "update", 30); c.asked(path) != asked {
		t.Error("a host that booted is read again and again")
	}
}

// TestNewHost checks that a read of the whole region finds hosts that joined the cluster, with
// their devices, and that a read of one host does not.
func TestNewHost(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(context.Context, *proxmox.Client, *topology.Snapshot) (*topology.Snapshot, error){
		"update": func(ctx context.Context, client *proxmox.Client, old *topology.Snapshot) (*topology.Snapshot, error) {
			return client.Update(ctx, old)
		},
		"refresh": func(ctx context.Context, client *proxmox.Client, old *topology.Snapshot) (*topology.Snapshot, error) {
			return client.Refresh(ctx, old, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.say("/access/permissions", map[string]any{"/vms": map[string]any{"VM.Audit": 1}, "/mapping": map[string]any{"Mapping.Use": 1}})
			server.say("/cluster/mapping/pci", []any{})
			client := newClient(t, server.config())
			old, err := client.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			server.cluster([]any{map[string]any{"type": "cluster", "quorate": 1}, node("pve-1", 1), node("pve-2", 1)})
			server.say("/cluster/mapping/pci", []any{map[string]any{"id": "gpu", "map": []string{"node=pve-2,path=0000:41:00.0,id=10de:2684"}}})
			server.say("/nodes/pve-2/report", report(oneNode))
			server.say("/nodes/pve-2/config", map[string]any{"digest": "0"})

			one, err := client.Refresh(t.Context(), old, []topology.HostName{"pve-1"})
			if err != nil {
				t.Fatal(err)
			}
			if len(one.Hosts) != 1 {
				t.Errorf("a read of pve-1 returns %d hosts", len(one.Hosts))
			}
			fresh, err := read(t.Context(), client, old)
			if err != nil {
				t.Fatal(err)
			}
			host := fresh.Host(topology.HostID{Region: "r1", Host: "pve-2"})
			if host == nil || host.Problem != "" || len(host.CPUs) != 8 {
				t.Fatalf("hosts: %+v", fresh.Hosts)
			}
			want := []topology.PCIDevice{{Mapping: "gpu", Path: "0000:41:00.0", NUMANode: topology.Unknown}}
			if diff := cmp.Diff(want, host.PCIDevices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			// It is an ordinary host from then on.
			if fresh, err = read(t.Context(), client, fresh); err != nil {
				t.Fatal(err)
			}
			if len(fresh.Hosts) != 2 || len(fresh.Hosts[1].PCIDevices) != 1 {
				t.Errorf("hosts %+v", fresh.Hosts)
			}
			if asked := server.asked("/nodes/pve-2/report"); asked != 1 {
				t.Errorf("asked for the report %d times", asked)
			}
		})
	}
}
