package hostagent_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// machine returns a machine with 8 cores of two threads, 0 and 8, 1 and 9, …
func machine() topology.Machine {
	m := topology.Machine{Model: "Intel(R) Xeon(R) Test", MemoryMiB: 65536}
	for node := range 2 {
		m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: node, MemoryMiB: 32768})
	}
	for id := range 16 {
		core := id % 8
		m.CPUs = append(m.CPUs, topology.CPU{ID: id, Online: true, NUMANode: core / 4, Socket: core / 4, Core: core, L3: core / 4})
	}
	return m
}

// cluster returns a cluster of two hosts; pve-1 runs a VM with an affinity and a container.
func cluster() pvesim.Config {
	return pvesim.Config{Name: "lab", Hosts: []topology.Host{
		{Region: "lab", Name: "pve-1", Machine: machine(), Guests: []topology.Guest{
			{VMID: 100, Name: "database", Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 4096, Pins: topology.CPUs(0, 1)},
			{VMID: 200, Name: "dns", Kind: topology.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512},
		}},
		{Region: "lab", Name: "pve-2", Machine: machine()},
	}}
}

func start(t *testing.T, config pvesim.Config) *pvesim.Server {
	t.Helper()
	sim, err := pvesim.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return sim
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// agentOf returns an agent that accepts pins of cluster prod.
func agentOf(change ...func(*hostagent.Agent)) hostagent.Agent {
	agent := hostagent.Agent{Rules: claim.Rules{Clusters: []string{"prod"}}}
	for _, change := range change {
		change(&agent)
	}
	return agent
}

// declare returns the description of a VM that requests these CPUs.
func declare(key int, cpus ...int) string {
	return "50 % of: a note.\n" + fleet.Marker{ClusterID: "prod", Key: fleet.Key(fmt.Sprintf("%032x", key)), Pins: cpus}.String()
}

// put starts a VM with two vCPUs. It replaces an existing VM with that VMID.
func put(t *testing.T, sim *pvesim.Server, vmid int, host, description string) {
	t.Helper()
	config := map[string]string{"name": fmt.Sprint(vmid), "cores": "2", "memory": "1024", "description": description}
	must(t, sim.PutGuest(pvesim.Guest{VMID: vmid, Host: host, Config: config, Running: true}))
}

// running starts VMs on pve-1, with a round of the agent after each.
func running(t *testing.T, sim *pvesim.Server, descriptions map[int]string) {
	t.Helper()
	for _, vmid := range []int{500, 501} {
		if text, ok := descriptions[vmid]; ok {
			put(t, sim, vmid, "pve-1", text)
			hostagent.Threads(sim, vmid)
		}
	}
}

// cpusOf formats the CPUs on which the threads of a guest may run: first the thread of each
// vCPU, then the other threads.
func cpusOf(sim *pvesim.Server, vmid int) string {
	guest, runs := hostagent.Threads(sim, vmid)
	if !runs {
		return "stopped"
	}
	var parts []string
	for _, set := range guest.VCPUs {
		parts = append(parts, set.String())
	}
	text := strings.Join(parts, " ") + " | " + guest.Others.String()
	if guest.Refused != nil {
		text += " " + string(guest.Refused.Reason)
	}
	return text
}

func TestPins(t *testing.T) {
	t.Parallel()
	const floats = "0-15 0-15 | 0-15"
	for _, tt := range []struct {
		name  string
		agent hostagent.Agent
		vms   map[int]string
		want  map[int]string
	}{
		{"in the order of vCPUs", agentOf(), map[int]string{500: declare(1, 12, 4), 501: "none"}, map[int]string{500: "12 4 | 4,12", 501: floats, 100: "0-1 0-1 0-1 0-1 | 0-1"}},
		{"others confined", agentOf(func(a *hostagent.Agent) { a.Isolation = "enforce" }), map[int]string{500: declare(1, 2, 4), 501: "none"}, map[int]string{
			500: "2 4 | 2,4", 501: "0-1,3,5-9,11,13-15 0-1,3,5-9,11,13-15 | 0-1,3,5-9,11,13-15", 200: "0-1,3,5-9,11,13-15 | 0-1,3,5-9,11,13-15", 100: "0-1 0-1 0-1 0-1 | 0-1",
		}},
		{"emulator elsewhere", agentOf(), map[int]string{500: declare(1, 2, 4) + " emulator=shared"}, map[int]string{500: "2 4 | 0-1,3,5-9,11,13-15"}},
		{"overlap", agentOf(), map[int]string{500: declare(1, 12, 4), 501: declare(2, 4, 5)}, map[int]string{500: "12 4 | 4,12", 501: floats + " overlap"}},
		{"the marker of another", agentOf(), map[int]string{500: declare(1, 12, 4), 501: declare(1, 6, 7)}, map[int]string{500: "12 4 | 4,12", 501: floats + " key_twice"}},
		{"another cluster", agentOf(func(a *hostagent.Agent) { a.Clusters = []string{"test"} }), map[int]string{500: declare(1, 12, 4)}, map[int]string{500: floats + " foreign_cluster"}},
		{"ceiling", agentOf(func(a *hostagent.Agent) { a.MaxPercent = 30 }), map[int]string{500: declare(1, 12, 4), 501: declare(2, 5, 6)}, map[int]string{500: "12 4 | 4,12", 501: floats + " ceiling"}},
		{"reserved", agentOf(func(a *hostagent.Agent) { a.Reserved = topology.CPUs(4) }), map[int]string{500: declare(1, 12, 4)}, map[int]string{500: floats + " reserved_cpu"}},
		{"root's affinity", agentOf(), map[int]string{500: declare(1, 1, 4)}, map[int]string{500: floats + " affinity"}},
		{"not as many", agentOf(), map[int]string{500: declare(1, 4)}, map[int]string{500: floats + " vcpus_differ"}},
		{"no such CPU", agentOf(), map[int]string{500: declare(1, 4, 16)}, map[int]string{500: floats + " no_such_cpu"}},
		{"garbage", agentOf(), map[int]string{500: "numaform/1 pins=4,5"}, map[int]string{500: floats + " malformed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sim := start(t, hostagent.On(cluster(), tt.agent))
			running(t, sim, tt.vms)
			got := map[int]string{}
			for vmid := range tt.want {
				got[vmid] = cpusOf(sim, vmid)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("CPUs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFollows checks that the agent follows changes of guests and of their declarations.
func TestFollows(t *testing.T) {
	t.Parallel()
	sim := start(t, hostagent.On(cluster(), agentOf()))
	running(t, sim, map[int]string{500: declare(1, 2, 3), 501: declare(2, 4, 5)})
	first, _ := sim.Threads(500)
	describe := func(vmid int, text string) {
		t.Helper()
		_, err := sim.Pvesh("set", fmt.Sprintf("/nodes/pve-1/qemu/%d/config", vmid), "--description", text)
		must(t, err)
	}
	want := func(step, a, b string) {
		t.Helper()
		if gotA, gotB := cpusOf(sim, 500), cpusOf(sim, 501); gotA != a || gotB != b {
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
	if now, _ := sim.Threads(500); now.PID != first.PID || !now.Started.Equal(first.Started) {
		t.Errorf("process %d of %s, before %d of %s", now.PID, now.Started, first.PID, first.Started)
	}
	must(t, hostagent.Set(sim, "pve-1", agentOf(func(a *hostagent.Agent) { a.MaxPercent = 10 })))
	want("lower ceiling", "0-15 0-15 | 0-15 ceiling", "0-15 0-15 | 0-15")
	must(t, hostagent.Set(sim, "pve-1", agentOf()))
	must(t, hostagent.Stop(sim, "pve-1", 0))
	describe(500, declare(1, 2, 3))
	want("agent stopped", "5 7 | 5,7", "0-15 0-15 | 0-15")
	put(t, sim, 500, "pve-1", declare(1, 2, 3))
	want("restarted without agent", "0-15 0-15 | 0-15", "0-15 0-15 | 0-15")
	must(t, hostagent.Start(sim, "pve-1"))
	want("agent started", "2 3 | 2-3", "0-15 0-15 | 0-15")
	if now, _ := sim.Threads(500); now.PID == first.PID {
		t.Error("the process is the same after a restart")
	}
	put(t, sim, 500, "pve-2", declare(1, 2, 3))
	put(t, sim, 502, "pve-1", declare(3, 2, 3))
	if here, there := cpusOf(sim, 502), cpusOf(sim, 500); here != "2 3 | 2-3" || there != here {
		t.Errorf("on two hosts: %s here and %s there", here, there)
	}
	sim.RemoveGuest(502)
	if got := cpusOf(sim, 502); got != "stopped" {
		t.Errorf("removed: %s", got)
	}
}

// TestLooksByItself checks that the agent runs rounds without a call of Threads.
func TestLooksByItself(t *testing.T) {
	t.Parallel()
	sim := start(t, hostagent.On(cluster(), agentOf()))
	put(t, sim, 500, "pve-1", declare(1, 2, 3))
	deadline, ticker := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for {
		threads, _ := sim.Threads(500)
		if cmp.Equal(threads.Pins(), []int{2, 3}) {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("the vCPUs run on %v", threads.VCPUs)
		}
	}
}

func TestPublishes(t *testing.T) {
	t.Parallel()
	began := time.Now().UTC().Truncate(time.Second)
	config := hostagent.Each(cluster(), map[topology.HostName]hostagent.Agent{"pve-1": agentOf(func(a *hostagent.Agent) { a.Reserved = topology.CPUs(0) })})
	sim := start(t, config)
	notes := func(host string) string {
		t.Helper()
		text, err := sim.Pvesh("get", "/nodes/"+host+"/config", "--output-format", "json")
		must(t, err)
		var found struct {
			Description string `json:"description"`
		}
		must(t, json.Unmarshal(text, &found))
		return found.Description
	}
	want := topology.Agent{Version: "1.0.0", Isolation: "report", Clusters: []string{"prod"}, MaxPinnedPercent: 90, ReservedCPUs: topology.CPUs(0)}
	check := func(step string, ago time.Duration) {
		t.Helper()
		got, found, err := topology.ParseAgent(notes("pve-1"))
		if at := got.At.Add(ago); at.Before(began) || at.After(time.Now()) {
			t.Errorf("%s: as of %s, want %s ago", step, got.At, ago)
		}
		got.At = time.Time{}
		if diff := cmp.Diff(want, got); !found || err != nil || diff != "" {
			t.Errorf("%s: found %t, error %v (-want +got):\n%s", step, found, err, diff)
		}
	}
	check("at first", 0)
	if m, found, err := topology.ParsePublished(notes("pve-1")); !found || err != nil || cmp.Diff(machine().WithSource(topology.SourceAgent), m) != "" {
		t.Errorf("topology: found %t, error %v, %+v", found, err, m)
	}
	if got := notes("pve-2"); got != "" {
		t.Errorf("pve-2 has no agent, but notes %q", got)
	}
	put(t, sim, 500, "pve-1", declare(1, 12, 4))
	put(t, sim, 501, "pve-1", declare(2, 0, 5))
	check("before it is time", 0)
	must(t, hostagent.Publish(sim, "pve-1"))
	want.Pinned, want.Refused = map[int]topology.Pins{500: {12, 4}}, map[int]string{501: "reserved_cpu"}
	check("published", 0)
	_, err := sim.Pvesh("set", "/nodes/pve-1/config", "--description", "Rack 4.\n"+notes("pve-1"))
	must(t, err)
	must(t, hostagent.Stop(sim, "pve-1", time.Hour))
	check("stopped", time.Hour)
	must(t, hostagent.Start(sim, "pve-1"))
	check("started again", 0)
	if got := notes("pve-1"); !strings.HasPrefix(got, "Rack 4.\n<!-- numaform-topology\n") {
		t.Errorf("notes were lost: %.60q", got)
	}
	sim.SetQuorate(false)
	if err := hostagent.Stop(sim, "pve-1", time.Hour); err == nil || !strings.Contains(err.Error(), "no quorum") {
		t.Errorf("without quorum: %v", err)
	}
	check("without quorum", 0)
}

// TestMachines checks that each machine of topology/machines is published unchanged.
func TestMachines(t *testing.T) {
	t.Parallel()
	for _, name := range append(machines.Names(), machines.Constructed()...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := machines.Load(name)
			must(t, err)
			config := pvesim.Config{Hosts: []topology.Host{{Region: "lab", Name: "pve-1", Machine: want}}}
			sim := start(t, hostagent.On(config, agentOf()))
			text, err := sim.Pvesh("get", "/nodes/pve-1/config")
			must(t, err)
			var notes struct {
				Description string `json:"description"`
			}
			must(t, json.Unmarshal(text, &notes))
			got, found, err := topology.ParsePublished(notes.Description)
			if diff := cmp.Diff(want.WithSource(topology.SourceAgent), got); !found || err != nil || diff != "" {
				t.Errorf("found %t, error %v (-want +got):\n%s", found, err, diff)
			}
		})
	}
}

func TestNoneByDefault(t *testing.T) {
	t.Parallel()
	sim := start(t, cluster())
	put(t, sim, 500, "pve-1", declare(1, 12, 4))
	if got := cpusOf(sim, 500); got != "0-15 0-15 | 0-15" {
		t.Errorf("pinned without an agent: %s", got)
	}
	if err := hostagent.Publish(sim, "pve-1"); err == nil {
		t.Error("a host without an agent published")
	}
}

// TestLeavesNothing checks that a closed simulator, or one that fails to start, leaves no
// files behind.
func TestLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	sim, err := pvesim.New(hostagent.On(cluster(), agentOf()))
	must(t, err)
	must(t, sim.Close())
	for want, agent := range map[string]hostagent.Agent{
		`isolation: "some" is unknown`: agentOf(func(a *hostagent.Agent) { a.Isolation = "some" }),
		"clusters: ":                   agentOf(func(a *hostagent.Agent) { a.Clusters = []string{"No Cluster"} }),
		"max_pinned_percent 101: must": agentOf(func(a *hostagent.Agent) { a.MaxPercent = 101 }),
	} {
		if _, err := pvesim.New(hostagent.On(cluster(), agent)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := pvesim.New(hostagent.Each(cluster(), map[topology.HostName]hostagent.Agent{"pve-9": agentOf()})); err == nil {
		t.Error("a host that does not exist has an agent")
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
