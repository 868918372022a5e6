package proxmox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func node(name string, online int) map[string]any {
	return map[string]any{"type": "node", "name": name, "online": online}
}

func TestRegion(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.resources(
		map[string]any{"type": "pool", "pool": "b"},
		map[string]any{"type": "pool", "pool": "a"},
		map[string]any{
			"type": "storage", "node": "pve-1", "storage": "local", "plugintype": "dir", "status": "available",
			"shared": 0, "content": "vztmpl,iso", "maxdisk": 100 << 30, "disk": 40 << 30,
		},
		map[string]any{
			"type": "storage", "node": "pve-1", "storage": "ceph", "plugintype": "rbd", "status": "unknown",
			"shared": 1, "content": "images", "maxdisk": 1 << 30,
		},
		map[string]any{"type": "sdn", "node": "pve-1"},
	)
	snapshot := server.read(t)
	want := []topology.Region{{Name: "r1", Version: "9.0.3", Quorate: true, Pools: []string{"a", "b"}}}
	if diff := cmp.Diff(want, snapshot.Regions); diff != "" {
		t.Errorf("regions (-want +got):\n%s", diff)
	}
	storages := []topology.Storage{
		{Name: "ceph", Type: "rbd", Shared: true, Content: []string{"images"}},
		{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "vztmpl"}, TotalMiB: 100 << 10, FreeMiB: 60 << 10},
	}
	if diff := cmp.Diff(storages, snapshot.Hosts[0].Storages); diff != "" {
		t.Errorf("storages (-want +got):\n%s", diff)
	}
}

func TestQuorum(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status []any
		want   bool
	}{
		{"lost", []any{map[string]any{"type": "cluster", "quorate": 0}, node("pve-1", 1), node("pve-2", 0)}, false},
		{"there", []any{map[string]any{"type": "cluster", "quorate": "1"}, node("pve-1", 1), node("pve-2", 0)}, true},
		{"a lone host has none to lose", []any{node("pve-1", 1)}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.cluster(test.status)
			if got := server.read(t).Regions[0].Quorate; got != test.want {
				t.Errorf("quorate is %v", got)
			}
			if lone, asked := len(test.status) == 1, server.asked("/cluster/status"); lone != (asked == 0) {
				t.Errorf("asked for the cluster's status %d times", asked)
			}
		})
	}
}

// TestReport checks that the best source is used, and missing data reported.
func TestReport(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		report  answer
		source  topology.Source // of the CPUs
		numa    topology.Source
		warning string
	}{
		{"good", answer{data: report(eightCPUs)}, topology.SourceReport, topology.SourceReport, ""},
		{
			"no privilege",
			answer{status: 403, reason: "Permission check failed (/nodes/pve-1, Sys.Audit)"},
			topology.SourceStatus, topology.SourceAssumed, "grant Sys.Audit on /nodes/pve-1: pveum acl modify /nodes/pve-1",
		},
		{"too slow", answer{status: 596, reason: "Connection timed out"}, topology.SourceStatus, topology.SourceAssumed, "exceeds pveproxy's timeout (596 Connection timed out), so NUMA nodes are known only from files: run `pvereport` on the host to see where it hangs"},
		{"without lscpu", answer{data: "# hostname\ncanary-host\n"}, topology.SourceStatus, topology.SourceAssumed, "lscpu"},
		{
			"cut off",
			answer{data: report("Architecture: x86_64\nOn-line CPU(s) list: 0-7\nNUMA node(s): 2\n")},
			topology.SourceStatus, topology.SourceAssumed, "pass the complete text",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.answer("/nodes/pve-1/report", test.report)
			host := server.read(t).Hosts[0]
			got := []any{host.Sources[topology.FactCPUs], host.Sources[topology.FactNUMA], len(host.CPUs), host.MemoryMiB, host.Model, host.Problem, host.Online}
			want := []any{test.source, test.numa, 8, int64(16 << 10), "Test CPU", "", true}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			warnings := strings.Join(host.Warnings, "\n")
			if !strings.Contains(warnings, test.warning) || (warnings == "") != (test.warning == "") || strings.Contains(warnings, "canary") {
				t.Errorf("warnings are %q", warnings)
			}
		})
	}
}

// TestCounts checks that the CPUs and memory in the host's entry in /cluster/resources are
// used, and the status of a host whose pvestatd is not running.
func TestCounts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		entry    map[string]any
		statuses int
		memory   int64
	}{
		"there":         {map[string]any{"status": "online", "maxcpu": 8, "maxmem": 12 << 30}, 0, 12 << 10},
		"pvestatd dead": {map[string]any{"status": "unknown"}, 1, 16 << 10},
		"no memory":     {map[string]any{"status": "online", "maxcpu": 8}, 1, 16 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			test.entry["type"], test.entry["node"] = "node", "pve-1"
			server.say("/cluster/resources", []any{test.entry})
			snapshot := server.read(t)
			host := snapshot.Hosts[0]
			got := []any{host.MemoryMiB, len(host.CPUs), host.Sources[topology.FactCPUs], host.Online, host.Problem, len(host.Warnings), snapshot.Regions[0].Version}
			want := []any{test.memory, 8, topology.SourceReport, true, "", 0, "9.0.3"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if asked := server.asked("/nodes/pve-1/status"); asked != test.statuses {
				t.Errorf("asked for the status %d times", asked)
			}
		})
	}
}

// TestVersion checks that the version is the one in the report's packages or, if the report
// cannot be used, the one in the status.
func TestVersion(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		old, new string // within the report
		want     string
	}{
		"8.4":                {"9.0.3", "8.4.14", "8.4.14"},
		"another section's":  {"# pveversion --verbose", "# cat /etc/hosts", ""},
		"a guest's":          {"cores: 64", "pve-manager: 1.0 (running version: 1.0/ab)", "9.0.3"},
		"only a guest's":     {"# hostname\npve-1\n\n# pveversion --verbose", "# x", ""},
		"not of that format": {"(running version:", "(", ""},
		"no lscpu":           {"Architecture:", "Nothing:", "8.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.say("/nodes/pve-1/status", map[string]any{"cpuinfo": map[string]any{"cpus": 8}, "pveversion": "pve-manager/8.2.2/9355359cd7afbae4"})
			server.say("/nodes/pve-1/report", strings.ReplaceAll(report(eightCPUs), test.old, test.new))
			if got := server.read(t).Regions[0].Version; got != test.want {
				t.Errorf("version is %q, want %q", got, test.want)
			}
		})
	}
}

// TestForbidden checks that a host's problem names the privilege to grant if Proxmox
// rejects report and status, which both require Sys.Audit on the host.
func TestForbidden(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	for _, path := range []string{"report", "status"} {
		server.refuse("/nodes/pve-1/"+path, 403, "Permission check failed (/nodes/pve-1, Sys.Audit)")
	}
	server.resources(guestResource("pve-1", 100, nil))
	host := server.read(t).Hosts[0]
	if !strings.Contains(host.Problem, "grant Sys.Audit on /nodes/pve-1: pveum acl modify /nodes/pve-1") || len(host.Guests) != 1 || !host.Online {
		t.Errorf("host: %+v", host)
	}
}

func TestArm(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.refuse("/nodes/pve-1/report", 596, "Connection timed out")
	server.say("/nodes/pve-1/status", map[string]any{"cpuinfo": map[string]any{"cpus": "2"}, "current-kernel": map[string]any{"machine": "aarch64"}})
	if host := server.read(t).Hosts[0]; host.Arch != "arm64" || len(host.CPUs) != 2 {
		t.Errorf("machine: %+v", host.Machine)
	}
}

func TestCollectedWins(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	collected := topology.Machine{NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: 6000}, {ID: 1, MemoryMiB: 8000}}}
	for id := range 8 {
		collected.CPUs = append(collected.CPUs, topology.CPU{ID: id, Online: true, NUMANode: id % 4 / 2, Core: id % 4, L3: id % 4 / 2})
	}
	cfg := server.config()
	cfg.Machines = map[topology.HostName]topology.Machine{"pve-1": collected.WithSource(topology.SourceCollected)}
	snapshot, err := newClient(t, cfg).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	host := snapshot.Hosts[0]
	if !host.SiblingsKnown() || host.Sources[topology.FactSiblings] != topology.SourceCollected || host.NUMANode(1).MemoryMiB != 8000 || len(host.Warnings) != 0 {
		t.Errorf("host: %+v", host)
	}
}

// TestHostsThatCannotBeUsed checks that hosts that cannot be used are still in the
// snapshot, with the reason, because their VMIDs are in use.
func TestHostsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	guests := []any{
		guestResource("pve-1", 100, nil),
		guestResource("pve-2", 101, map[string]any{"status": "unknown", "name": "b", "maxmem": 0, "maxcpu": 0}),
		guestResource("pve-3", 102, nil), guestResource("pve-4", 103, nil),
	}
	server := newCanned(t)
	server.cluster([]any{node("pve-1", 1), node("pve-2", 0), node("pve-3", 1), node("pve-4", 1)}, guests...)
	server.say("/nodes/pve-1/qemu/100/config?current=1", map[string]any{})
	server.refuse("/nodes/pve-3/report", 595, "No route to host")
	cfg := server.config()
	cfg.Hosts = []topology.HostName{"pve-1", "pve-2", "pve-3", "pve-9"}
	snapshot, err := newClient(t, cfg).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name    topology.HostName
		online  bool
		problem string
		guests  int
	}{
		{"pve-1", true, "", 1},
		{"pve-2", false, "is offline", 1},
		{"pve-3", false, "cannot be reached (595 No route to host)", 1},
		{"pve-4", true, "is not among the hosts of numaform.yaml", 1},
		{"pve-9", false, "is not in the cluster, whose hosts are [pve-1 pve-2 pve-3 pve-4]", 0},
	}
	if len(snapshot.Hosts) != len(want) {
		t.Fatalf("hosts: %+v", snapshot.Hosts)
	}
	for i, want := range want {
		host := snapshot.Hosts[i]
		if host.Name != want.name || host.Online != want.online || len(host.Guests) != want.guests ||
			!strings.Contains(host.Problem, want.problem) || (host.Problem == "") != (want.problem == "") {
			t.Errorf("want %+v, got %+v", want, host)
		}
	}
	for _, path := range []string{"/nodes/pve-2/report", "/nodes/pve-3/status", "/nodes/pve-3/qemu/102/config?current=1", "/nodes/pve-4/report", "/nodes/pve-2/qemu/101/config?current=1"} {
		if server.asked(path) != 0 {
			t.Errorf("asked for %s", path)
		}
	}
}

func TestHiddenGuests(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.say("/access/permissions", map[string]any{"/vms": map[string]any{"VM.Allocate": 1}})
	host := server.read(t).Hosts[0]
	if len(host.Warnings) != 1 || !strings.Contains(host.Warnings[0], "grant VM.Audit on /vms") || host.Problem != "" {
		t.Errorf("host: %+v", host)
	}
}

// TestGuestsOfAbsentHost checks that guests whose host left the cluster, but whose configuration
// is left there, are listed with their host: their VMIDs are in use.
func TestGuestsOfAbsentHost(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.cluster([]any{node("pve-1", 1)}, guestResource("pve-8", 100, nil), guestResource("pve-1", 101, nil))
	server.say("/nodes/pve-1/qemu/101/config?current=1", map[string]any{})
	client := newClient(t, server.config())
	snapshot, err := client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	check := func(snapshot *topology.Snapshot) {
		t.Helper()
		host := snapshot.Host(topology.HostID{Region: "r1", Host: "pve-8"})
		if host == nil || !host.Absent || host.Online || len(host.Guests) != 1 || host.Guests[0].VMID != 100 ||
			!strings.Contains(host.Problem, "delete /etc/pve/nodes/pve-8 on a host of the cluster") || snapshot.Left(host.ID()) {
			t.Errorf("hosts: %+v", snapshot.Hosts)
		}
	}
	check(snapshot)
	// A refresh of another host finds it as well.
	snapshot.Hosts = slices.DeleteFunc(snapshot.Hosts, func(h topology.Host) bool { return h.Absent })
	fresh, err := client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"})
	if err != nil {
		t.Fatal(err)
	}
	check(fresh)
}

// TestRefreshOfAbsentHost checks that a refresh reports that a host left the cluster, and
// drops its guests.
func TestRefreshOfAbsentHost(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	regions := []topology.Region{{Name: "r1", Version: "8.4.14", Quorate: false}}
	old := &topology.Snapshot{Regions: regions, Hosts: []topology.Host{{Region: "r1", Name: "pve-8", Online: true, Guests: []topology.Guest{{VMID: 100}}}}}
	fresh, err := newClient(t, server.config()).Refresh(context.Background(), old, []topology.HostName{"pve-8", "pve-8"})
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh.Hosts) != 1 || !fresh.Hosts[0].Absent || fresh.Hosts[0].Online || len(fresh.Hosts[0].Guests) != 0 ||
		!strings.Contains(fresh.Hosts[0].Problem, "is not in the cluster") {
		t.Errorf("hosts: %+v", fresh.Hosts)
	}
	if region := fresh.Regions[0]; region.Version != "8.4.14" || !region.Quorate {
		t.Errorf("no host was read, so only the version is the old one: %+v", region)
	}
}

// TestMemberThatListsOnlyItself reads a member whose cluster file system does not respond: it
// answers like a host without a cluster, and lists neither the other members nor their guests.
// None of them has left the cluster.
func TestMemberThatListsOnlyItself(t *testing.T) {
	t.Parallel()
	other := topology.HostID{Region: "r1", Host: "pve-3"}
	for name, test := range map[string]struct {
		members []any
		want    bool
	}{
		"the cluster without the host": {[]any{map[string]any{"type": "cluster", "name": "lab", "quorate": 1}, node("pve-1", 1), node("pve-2", 0)}, true},
		"only the member itself":       {[]any{node("pve-1", 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.cluster(test.members)
			snapshot, err := newClient(t, server.config()).Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := snapshot.Regions[0].Clustered; got != test.want || !test.want && snapshot.Left(other) {
				t.Errorf("clustered: %t, want %t; %s left: %t", got, test.want, other, snapshot.Left(other))
			}
		})
	}
}
