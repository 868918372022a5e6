package scheduling_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// TestJudgeAgents checks that a class with host agent pins is allowed only on hosts with a
// live agent that pins the VMs of this cluster.
func TestJudgeAgents(t *testing.T) {
	t.Parallel()
	const pinned = `{template: {name: debian}, placement: {policy: Dedicated, pinWith: HostAgent}}`
	each := func(change func(*topology.Host)) func(*topology.Snapshot) {
		return func(s *topology.Snapshot) {
			for i := range s.Hosts {
				change(&s.Hosts[i])
			}
		}
	}
	for _, test := range []struct {
		name, spec string
		change     func(*topology.Snapshot)
		hosts      []topology.HostID
		finding    string
		fix        string // of the first fault
	}{
		{name: "all live", spec: pinned, hosts: all("epyc", "ryzen", "xeon")},
		{
			name: "one has none", spec: pinned, hosts: all("ryzen", "xeon"), change: func(s *topology.Snapshot) { s.Hosts[0].Agent = nil },
			fix: "install or upgrade numaform-agent on the host, then run `systemctl start numaform-agent-publish`",
		},
		{
			name: "none lives", spec: pinned, change: each(func(h *topology.Host) { h.ReadAt = agentAt.Add(47 * time.Minute) }),
			finding: "lab/epyc has a numaform-agent that has published nothing for 47m, since 2026-11-22T03:00:00Z, " +
				"lab/ryzen has a numaform-agent that has published nothing for 47m, since 2026-11-22T03:00:00Z, " +
				"lab/xeon has a numaform-agent that has published nothing for 47m, since 2026-11-22T03:00:00Z: " +
				"run `systemctl status numaform-agent numaform-agent-publish.timer` on the host",
			fix: "run `systemctl status numaform-agent numaform-agent-publish.timer` on the host",
		},
		{
			name: "of another cluster", spec: `{template: {name: debian}, hosts: [xeon], placement: {policy: Isolated, pinWith: HostAgent}}`,
			change:  each(func(h *topology.Host) { h.Agent.Clusters = []string{"prod"} }),
			finding: "lab/xeon has a numaform-agent that pins VMs of clusterID prod, not of clusterID test: add test to clusters in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent",
			fix:     "add test to clusters in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent",
		},
		{
			name: "notes that may not be read", spec: `{template: {name: debian}, hosts: [xeon], placement: {policy: Dedicated, pinWith: HostAgent}}`,
			change: each(func(h *topology.Host) {
				h.Agent, h.AgentProblem = nil, "its notes cannot be read: 403 Permission check failed (/, Sys.Audit): grant Sys.Audit on /"
			}),
			finding: "lab/xeon does not show whether numaform-agent is running: its notes cannot be read: 403 Permission check failed (/, Sys.Audit): grant Sys.Audit on /",
			fix:     "its notes cannot be read: 403 Permission check failed (/, Sys.Audit): grant Sys.Audit on /",
		},
		{
			name: "refusals of some VMs keep no new ones off", spec: pinned, hosts: all("epyc", "ryzen", "xeon"),
			change: each(func(h *topology.Host) {
				h.Agent.Refused = map[int]string{2000: "overlap"}
				h.Guests = []topology.Guest{{VMID: 2000, Kind: topology.GuestVM, ClusterID: "test"}}
			}),
		},
		{
			name: "classes without such pins need none", spec: `{template: {name: debian}, placement: {policy: Dedicated, pinWith: Affinity}}`,
			hosts: all("epyc", "ryzen", "xeon"), change: each(func(h *topology.Host) { h.Agent = nil }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			snapshot := lab()
			if test.change != nil {
				test.change(snapshot)
			}
			class := nodeClass(t, test.spec)
			report := scheduling.EvaluateClass(class, snapshot, "test", nil)
			var want []scheduling.Finding
			if test.finding != "" {
				want = []scheduling.Finding{{Condition: "PlacementReady", Reason: "HostAgentNotReady", Message: test.finding}}
			}
			if diff := cmp.Diff(want, report.Findings); diff != "" {
				t.Errorf("findings differ:\n%s", diff)
			}
			if diff := cmp.Diff(test.hosts, report.Hosts); diff != "" {
				t.Errorf("hosts differ:\n%s", diff)
			}
			if faults := append(scheduling.EvaluateClass(class, snapshot, "test", nil).Faults, scheduling.Fault{}); faults[0].Fix != test.fix {
				t.Errorf("the first fault's fix is %q, want %q", faults[0].Fix, test.fix)
			}
		})
	}
}

// TestDeadAgentKeepsNodes checks that no VM is created on a host whose agent would not pin
// it, and that existing VMs there continue to take pods.
func TestDeadAgentKeepsNodes(t *testing.T) {
	t.Parallel()
	snapshot := lab()
	for i := range snapshot.Hosts {
		if snapshot.Hosts[i].Name != "ryzen" {
			snapshot.Hosts[i].ReadAt = agentAt.Add(time.Hour)
		}
	}
	kept := keptVM(2000, "general", "dedicated", "xeon", fleet.PolicyDedicated)
	kept.PinWith, kept.VCPUPins, kept.CPUs = fleet.PinWithHostAgent, []int{0, 40, 1, 41}, topology.CPUs(0, 40, 1, 41)
	c := load(t, classes, nodePool("general", "dedicated", ""), deployment("a", 12, "1", "1Gi", ""))
	d := decide(t, c, snapshot, kept)
	if len(d.InFlight) != 1 || len(d.InFlight[0].Pods) != 3 || len(d.Refused) > 0 {
		t.Errorf("in flight %+v, refused %+v", d.InFlight, d.Refused)
	}
	if got := hostsOf(d); !cmp.Equal(map[string]int{"ryzen": 9}, got) {
		t.Errorf("new VMs take pods on %v", got)
	}
	// The report still has the template: a dead agent does not change the image.
	report := scheduling.EvaluateClass(nodeClass(t, `{template: {name: debian}, placement: {policy: Dedicated, pinWith: HostAgent}}`), snapshot, "test", nil)
	if len(report.Templates) != 3 || len(report.Hosts) != 1 {
		t.Errorf("templates %v on hosts %v", report.Templates, report.Hosts)
	}
}
