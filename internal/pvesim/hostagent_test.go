package pvesim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// agentOf is an agent that lets cluster prod pin.
func agentOf(change ...func(*pvesim.HostAgent)) pvesim.HostAgent {
	agent := pvesim.HostAgent{Rules: claim.Rules{Clusters: []string{"prod"}}}
	for _, change := range change {
		change(&agent)
	}
	return agent
}

// declare is the description of a VM that wants these CPUs.
func declare(key int, cpus ...int) string {
	return "Somebody's note.\n" + fleet.Marker{ClusterID: "prod", Key: fleet.Key(fmt.Sprintf("%032x", key)), Pins: cpus}.String()
}

// running makes VMs that run on pve-1 with a vCPU for each pin, or two.
func running(t *testing.T, c *client, descriptions map[int]string) {
	t.Helper()
	for _, vmid := range []int{500, 501, 502} {
		text, wanted := descriptions[vmid]
		if !wanted {
			continue
		}
		config := map[string]string{"name": fmt.Sprint(vmid), "cores": "2", "memory": "1024", "description": text}
		if err := c.server.PutGuest(pvesim.Foreign{VMID: vmid, Host: "pve-1", Config: config}); err != nil {
			t.Fatal(err)
		}
		if exit := c.run("POST", fmt.Sprintf("/nodes/pve-1/qemu/%d/status/start", vmid)); exit != "OK" {
			t.Fatal(exit)
		}
	}
}

// cpusOf tells where the threads of a guest may run: each vCPU's CPUs, then the others'.
func cpusOf(t *testing.T, c *client, vmid int) string {
	t.Helper()
	threads, ok := c.server.Threads(vmid)
	if !ok {
		return "stopped"
	}
	var parts []string
	for _, set := range threads.VCPUs {
		parts = append(parts, set.String())
	}
	text := strings.Join(parts, " ") + " | " + threads.Others.String()
	if threads.Refused != nil {
		text += " " + string(threads.Refused.Reason)
	}
	return text
}

func TestHostAgentPins(t *testing.T) {
	t.Parallel()
	const floats = "0-15 0-15 | 0-15"
	for _, tt := range []struct {
		name  string
		agent pvesim.HostAgent
		vms   map[int]string
		want  map[int]string
	}{
		{"in the order of vCPUs", agentOf(), map[int]string{500: declare(1, 12, 4), 501: "none"}, map[int]string{500: "12 4 | 4,12", 501: floats, 100: "0-1 0-1 0-1 0-1 | 0-1"}},
		{"others confined", agentOf(func(a *pvesim.HostAgent) { a.Isolation = "enforce" }), map[int]string{500: declare(1, 2, 4), 501: "none"}, map[int]string{
			500: "2 4 | 2,4", 501: "0-1,3,5-9,11,13-15 0-1,3,5-9,11,13-15 | 0-1,3,5-9,11,13-15", 200: "0-1,3,5-9,11,13-15 | 0-1,3,5-9,11,13-15", 100: "0-1 0-1 0-1 0-1 | 0-1",
		}},
		{"emulator elsewhere", agentOf(), map[int]string{500: declare(1, 2, 4) + " emulator=shared"}, map[int]string{500: "2 4 | 0-1,3,5-9,11,13-15"}},
		{"overlap", agentOf(), map[int]string{500: declare(1, 12, 4), 501: declare(2, 4, 5)}, map[int]string{500: "12 4 | 4,12", 501: floats + " overlap"}},
		{"the marker of another", agentOf(), map[int]string{500: declare(1, 12, 4), 501: declare(1, 6, 7)}, map[int]string{500: "12 4 | 4,12", 501: floats + " key_twice"}},
		{"another cluster", agentOf(func(a *pvesim.HostAgent) { a.Clusters = []string{"test"} }), map[int]string{500: declare(1, 12, 4)}, map[int]string{500: floats + " foreign_cluster"}},
		{"ceiling", agentOf(func(a *pvesim.HostAgent) { a.MaxPercent = 30 }), map[int]string{500: declare(1, 12, 4), 501: declare(2, 5, 6)}, map[int]string{500: "12 4 | 4,12", 501: floats + " ceiling"}},
		{"reserved", agentOf(func(a *pvesim.HostAgent) { a.Reserved = topology.CPUs(4) }), map[int]string{500: declare(1, 12, 4)}, map[int]string{500: floats + " reserved_cpu"}},
		{"root's affinity", agentOf(), map[int]string{500: declare(1, 1, 4)}, map[int]string{500: floats + " affinity"}},
		{"not as many", agentOf(), map[int]string{500: declare(1, 4)}, map[int]string{500: floats + " vcpus_differ"}},
		{"no such CPU", agentOf(), map[int]string{500: declare(1, 4, 16)}, map[int]string{500: floats + " no_such_cpu"}},
		{"garbage", agentOf(), map[int]string{500: "numaform/1 pins=4,5"}, map[int]string{500: floats + " malformed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster().WithHostAgents(tt.agent))
			running(t, c, tt.vms)
			got := map[int]string{}
			for vmid := range tt.want {
				got[vmid] = cpusOf(t, c, vmid)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("CPUs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHostAgentFollows changes what runs and what is declared.
func TestHostAgentFollows(t *testing.T) {
	t.Parallel()
	c := start(t, cluster().WithHostAgents(agentOf()))
	running(t, c, map[int]string{500: declare(1, 2, 3), 501: declare(2, 4, 5)})
	first, _ := c.server.Threads(500)
	describe := func(vmid int, text string) {
		if got := c.call("PUT", fmt.Sprintf("/nodes/pve-1/qemu/%d/config", vmid), "description", text); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.reason)
		}
	}
	want := func(step, a, b string) {
		t.Helper()
		if gotA, gotB := cpusOf(t, c, 500), cpusOf(t, c, 501); gotA != a || gotB != b {
			t.Errorf("%s: %s and %s, want %s and %s", step, gotA, gotB, a, b)
		}
	}
	want("started", "2 3 | 2-3", "4 5 | 4-5")
	describe(500, declare(1, 6, 7))
	want("moved", "6 7 | 6-7", "4 5 | 4-5")
	describe(500, declare(1, 5, 7))
	want("moved onto another's", "6 7 | 6-7 overlap", "4 5 | 4-5")
	describe(501, "none any more")
	want("the other has left", "5 7 | 5,7", "0-15 0-15 | 0-15")
	if now, _ := c.server.Threads(500); now.PID != first.PID || !now.Started.Equal(first.Started) {
		t.Errorf("process %d of %s, before %d of %s", now.PID, now.Started, first.PID, first.Started)
	}
	if err := c.server.SetHostAgent("pve-1", agentOf(func(a *pvesim.HostAgent) { a.MaxPercent = 10 })); err != nil {
		t.Fatal(err)
	}
	want("lower ceiling", "0-15 0-15 | 0-15 ceiling", "0-15 0-15 | 0-15")
	if err := c.server.SetHostAgent("pve-1", agentOf()); err != nil {
		t.Fatal(err)
	}
	if err := c.server.StopHostAgent("pve-1", 0); err != nil {
		t.Fatal(err)
	}
	describe(500, declare(1, 2, 3))
	want("agent stopped", "5 7 | 5,7", "0-15 0-15 | 0-15")
	if exit := c.run("POST", "/nodes/pve-1/qemu/500/status/reboot"); exit != "OK" {
		t.Fatal(exit)
	}
	want("restarted without agent", "0-15 0-15 | 0-15", "0-15 0-15 | 0-15")
	if err := c.server.StartHostAgent("pve-1"); err != nil {
		t.Fatal(err)
	}
	want("agent started", "2 3 | 2-3", "0-15 0-15 | 0-15")
	if now, _ := c.server.Threads(500); now.PID == first.PID {
		t.Error("the process is the same after a restart")
	}
	if exit := c.root().run("POST", "/nodes/pve-1/qemu/500/migrate", "target", "pve-2", "online", "1"); exit != "OK" {
		t.Fatal(exit)
	}
	running(t, c, map[int]string{502: declare(3, 2, 3)})
	if here, there := cpusOf(t, c, 502), cpusOf(t, c, 500); here != "2 3 | 2-3" || there != here {
		t.Errorf("after a migration %s here and %s there", here, there)
	}
	c.server.RemoveGuest(502)
	if got := cpusOf(t, c, 502); got != "stopped" {
		t.Errorf("removed: %s", got)
	}
}

func TestHostAgentPublishes(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	clock := testingclock.NewFakeClock(began)
	cfg := cluster().WithHostAgents(agentOf(func(a *pvesim.HostAgent) { a.Reserved = topology.CPUs(0) }))
	delete(cfg.HostAgents, "pve-2")
	cfg.Clock = clock
	c := start(t, cfg)
	notes := func() string {
		text, _ := c.call("GET", "/nodes/pve-1/config").data.(map[string]any)["description"].(string)
		return text
	}
	want := topology.Agent{
		Version: "1.0.0", At: began, Isolation: "report", Clusters: []string{"prod"}, MaxPinnedPercent: 90, ReservedCPUs: topology.CPUs(0),
	}
	check := func(step string) {
		t.Helper()
		got, found, err := topology.ParseAgent(notes())
		if diff := cmp.Diff(want, got); !found || err != nil || diff != "" {
			t.Errorf("%s: found %t, error %v (-want +got):\n%s", step, found, err, diff)
		}
	}
	check("at first")
	if m, found, err := topology.ParsePublished(notes()); !found || err != nil || cmp.Diff(machine().WithSource(topology.SourceAgent), m) != "" {
		t.Errorf("topology: found %t, error %v, %+v", found, err, m)
	}
	if got := c.call("GET", "/nodes/pve-2/config").data.(map[string]any); got["description"] != nil {
		t.Errorf("pve-2 has no agent, and notes %v", got)
	}
	for vmid, text := range map[int]string{500: declare(1, 12, 4), 501: declare(2, 0, 5)} {
		config := map[string]string{"cores": "2", "memory": "1024", "description": text}
		if err := c.server.PutGuest(pvesim.Foreign{VMID: vmid, Host: "pve-1", Config: config, Running: true}); err != nil {
			t.Fatal(err)
		}
	}
	clock.Step(4 * time.Minute)
	check("before its timer")
	clock.Step(2 * time.Minute)
	want.At, want.Pinned, want.Refused = began.Add(6*time.Minute), map[int]topology.Pins{500: {12, 4}}, map[int]string{501: "reserved_cpu"}
	check("by its timer")
	if got := c.root().call("PUT", "/nodes/pve-1/config", "description", "Rack 4.\n"+notes()); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.reason)
	}
	if err := c.server.StopHostAgent("pve-1", time.Minute); err != nil {
		t.Fatal(err)
	}
	clock.Step(time.Hour)
	want.At = began.Add(5 * time.Minute)
	check("stopped")
	if err := c.server.StartHostAgent("pve-1"); err != nil {
		t.Fatal(err)
	}
	want.At = began.Add(66 * time.Minute)
	check("started again")
	c.server.RemoveGuest(500)
	if err := c.server.PublishHostAgent("pve-1"); err != nil {
		t.Fatal(err)
	}
	want.Pinned = nil
	check("told to publish")
	if !strings.HasPrefix(notes(), "Rack 4.\n<!-- numaform-topology\n") {
		t.Errorf("notes were not kept: %.60q", notes())
	}
	c.server.SetQuorate(false)
	clock.Step(time.Hour)
	check("without quorum")
}

func TestNoHostAgentByDefault(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	running(t, c, map[int]string{500: declare(1, 12, 4)})
	if got := cpusOf(t, c, 500); got != "0-15 0-15 | 0-15" {
		t.Errorf("pinned without an agent: %s", got)
	}
	for _, host := range []string{"pve-1", "pve-2"} {
		if got := c.call("GET", "/nodes/"+host+"/config").data.(map[string]any); got["description"] != nil {
			t.Errorf("notes of %s: %v", host, got)
		}
	}
}

func TestHostAgentsRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*pvesim.HostAgent){
		"want off, report or enforce":  func(a *pvesim.HostAgent) { a.Isolation = "some" },
		"clusters of a host agent":     func(a *pvesim.HostAgent) { a.Clusters = []string{"No Cluster"} },
		`has an agent and is no host`:  nil,
		"max_pinned_percent is 101: w": func(a *pvesim.HostAgent) { a.MaxPercent = 101 },
	} {
		cfg := cluster()
		if change == nil {
			cfg.HostAgents = map[topology.HostName]pvesim.HostAgent{"pve-9": agentOf()}
		} else {
			cfg = cfg.WithHostAgents(agentOf(change))
		}
		if _, err := pvesim.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
