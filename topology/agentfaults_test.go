package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestAgentFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(h *topology.Host, a *topology.Agent)
		state  topology.AgentState
		what   string
		fix    string
		blocks bool
	}{
		{name: "living", state: topology.AgentLiving},
		{
			name: "unread", state: topology.AgentUnread, blocks: true, what: "does not show whether numaform-agent is running", fix: "grant Sys.Audit",
			change: func(h *topology.Host, _ *topology.Agent) {
				h.AgentProblem = "its notes cannot be read: grant Sys.Audit"
			},
		},
		{
			name: "absent", state: topology.AgentAbsent, blocks: true, what: "has no numaform-agent that publishes its state", fix: "install or upgrade numaform-agent",
			change: func(h *topology.Host, _ *topology.Agent) { h.Agent = nil },
		},
		{name: "just young enough", state: topology.AgentLiving, change: func(h *topology.Host, _ *topology.Agent) { h.ReadAt = agentAt.Add(15 * time.Minute) }},
		{
			name: "old", state: topology.AgentOld, blocks: true, what: "has published nothing for 15m, since 2026-11-22T03:00:00Z", fix: "systemctl status numaform-agent",
			change: func(h *topology.Host, _ *topology.Agent) { h.ReadAt = agentAt.Add(15*time.Minute + time.Second) },
		},
		{name: "a little ahead", state: topology.AgentLiving, change: func(h *topology.Host, _ *topology.Agent) { h.ReadAt = agentAt.Add(-15 * time.Minute) }},
		{
			name: "from the future", state: topology.AgentClockDiffers, blocks: true, what: "whose clock is 3h ahead of numaform's", fix: "synchronize the clocks",
			change: func(h *topology.Host, _ *topology.Agent) { h.ReadAt = agentAt.Add(-3 * time.Hour) },
		},
		{
			name: "failing", state: topology.AgentFailing, blocks: true, what: "whose last round failed: no /etc/pve", fix: "journalctl -u numaform-agent",
			change: func(_ *topology.Host, a *topology.Agent) { a.Problem = "no /etc/pve" },
		},
		{
			name: "other clusters", state: topology.AgentDisagrees, blocks: true, what: "pins VMs of clusterIDs a, b, not of clusterID prod", fix: "add prod to clusters in /etc/numaform-agent.yaml",
			change: func(_ *topology.Host, a *topology.Agent) { a.Clusters = []string{"a", "b"} },
		},
		{
			name: "no cluster", state: topology.AgentDisagrees, blocks: true, what: "pins VMs of no cluster, not of clusterID prod", fix: "add prod",
			change: func(_ *topology.Host, a *topology.Agent) { a.Clusters = nil },
		},
		{
			name: "reserves more", state: topology.AgentDisagrees, blocks: true, what: "pins no VM to CPUs 1, but numaform would place VMs there", fix: "reserve them in topology_file",
			change: func(_ *topology.Host, a *topology.Agent) { a.ReservedCPUs = topology.CPUs(0, 1, 4000) },
		},
		{name: "reserves less", state: topology.AgentLiving, change: func(_ *topology.Host, a *topology.Agent) { a.ReservedCPUs = topology.CPUSet{} }},
		{
			name: "another machine", state: topology.AgentDisagrees, what: "whose topology is not used: it lists CPUs 0-3", fix: "systemctl start numaform-agent-publish",
			change: func(h *topology.Host, _ *topology.Agent) { h.Contradicted = "it lists CPUs 0-3, but the host has 0-7" },
		},
		{
			name: "refuses ours", state: topology.AgentDisagrees, what: "refuses to pin VM 2001 web-1 as declared: a declared CPU is reserved for the host (reserved_cpu); it is still pinned to CPUs 4,36,5,37", fix: "reserve these CPUs in topology_file",
			change: func(_ *topology.Host, a *topology.Agent) {
				a.Refused = map[int]string{2001: "reserved_cpu", 2002: "overlap"}
			},
		},
		{name: "refuses another cluster's VM", state: topology.AgentLiving, change: func(_ *topology.Host, a *topology.Agent) { a.Refused = map[int]string{2002: "overlap"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := agent()
			a.Refused = nil
			host := topology.Host{
				Region: "fra", Name: "pve1", Online: true, ReadAt: agentAt, Agent: &a, Machine: sound(), ReservedCPUs: topology.CPUs(0, 24),
				Guests: []topology.Guest{{VMID: 2001, Name: "web-1", ClusterID: "prod"}, {VMID: 2002, ClusterID: "test"}},
			}
			if test.change != nil {
				test.change(&host, &a)
			}
			if state := host.AgentState("prod", host.ReadAt); state != test.state {
				t.Errorf("state is %q, want %q", state, test.state)
			}
			faults := append(host.AgentFaults("prod", host.ReadAt), topology.AgentFault{})
			if f := faults[0]; !strings.Contains(f.What, test.what) || !strings.Contains(f.Fix, test.fix) || f.Blocks != test.blocks || (f.What == "") != (test.what == "") {
				t.Errorf("fault is %+v", f)
			}
		})
	}
}

// TestAgentFaultsOrder checks that blocking faults come first, and that each refused VM has
// its own fault.
func TestAgentFaultsOrder(t *testing.T) {
	t.Parallel()
	a := agent()
	a.Clusters, a.Refused = []string{"test"}, map[int]string{2003: "ceiling", 2001: "overlap"}
	host := topology.Host{
		ReadAt: agentAt, Agent: &a, Contradicted: "x",
		Guests: []topology.Guest{{VMID: 2001, ClusterID: "prod"}, {VMID: 2003, ClusterID: "prod"}},
	}
	var got []any
	for _, f := range host.AgentFaults("prod", agentAt) {
		got = append(got, f.Blocks, f.VMID)
	}
	if want := []any{true, 0, false, 0, false, 2001, false, 2003}; !cmp.Equal(want, got) {
		t.Errorf("faults are %v, want %v", got, want)
	}
	if faults := host.AgentFaults("", agentAt); len(faults) != 3 {
		t.Errorf("without a cluster ID, faults are %+v", faults)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]string{
		0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 2 * time.Hour: "2h", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := topology.Age(age); got != want {
			t.Errorf("%s is %q, want %q", age, got, want)
		}
	}
}
