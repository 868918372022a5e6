package proxmox_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

// said returns the text that an agent publishes in notes at that time.
func said(t *testing.T, at time.Time) string {
	t.Helper()
	text, err := topology.Agent{Version: "1.2.3", At: at, Isolation: "enforce", Clusters: []string{"prod"}, MaxPinnedPercent: 90}.PublishIn("Rack 4")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func described(text string) map[string]any { return map[string]any{"description": text} }

const notesPath = "/nodes/pve-1/config"

// TestAgentInNotes checks that the agent's data is read from notes that also contain the
// topology, and that the reason is reported if it cannot be read.
func TestAgentInNotes(t *testing.T) {
	t.Parallel()
	exact, other := eightMachine(), small()
	notes := func(text string) answer { return answer{data: described(text)} }
	for _, test := range []struct {
		name    string
		given   sourced
		version string
		problem string
		state   topology.AgentState
	}{
		{name: "none", state: topology.AgentAbsent},
		{"living", sourced{notes: notes(said(t, readAt) + block(t, exact))}, "1.2.3", "", topology.AgentLiving},
		{"old", sourced{notes: notes(said(t, readAt.Add(-time.Hour)))}, "1.2.3", "", topology.AgentOld},
		{"of another machine", sourced{notes: notes(said(t, readAt) + block(t, other))}, "1.2.3", "", topology.AgentDisagrees},
		{"garbage", sourced{notes: notes("<!-- numaform-agent\n{}\n-->")}, "", "is invalid: reading the text after the line", topology.AgentUnread},
		{
			"no privilege",
			sourced{collected: &exact, notes: answer{status: 403, reason: "Permission check failed (/, Sys.Audit)"}},
			"", "its notes cannot be read: 403 Permission check failed (/, Sys.Audit): grant Sys.Audit on /: pveum acl modify / --roles ", topology.AgentUnread,
		},
		{
			"in a VM's description, which more may write",
			sourced{guests: map[int]map[string]any{900: {"name": "numaform-topology", "description": said(t, readAt) + "\n" + block(t, exact)}}},
			"", "", topology.AgentAbsent,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			host, _ := test.given.read(t)
			version := ""
			if host.Agent != nil {
				version = host.Agent.Version
			}
			if version != test.version || !strings.Contains(host.AgentProblem, test.problem) || (test.problem == "") != (host.AgentProblem == "") {
				t.Errorf("agent %+v, problem %q", host.Agent, host.AgentProblem)
			}
			if state := host.AgentState("prod", host.ReadAt); state != test.state {
				t.Errorf("state %q, want %q: %+v", state, test.state, host.AgentFaults("prod", host.ReadAt))
			}
		})
	}
}

// TestRefreshReadsTheAgent checks that the agent's data is read once a minute, and ages
// while Proxmox does not respond.
func TestRefreshReadsTheAgent(t *testing.T) {
	t.Parallel()
	server, now := newCanned(t), readAt
	server.resources()
	server.say(notesPath, described(said(t, now)))
	cfg := server.config()
	cfg.Now = func() time.Time { return now }
	client := newClient(t, cfg)
	snapshot, err := client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	refresh := func(after time.Duration, asked int) topology.AgentState {
		t.Helper()
		now = readAt.Add(after)
		if snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"}); err != nil {
			t.Fatal(err)
		}
		host := &snapshot.Hosts[0]
		if diff := cmp.Diff(now, host.ReadAt); diff != "" || server.asked(notesPath) != asked {
			t.Errorf("after %s: asked for the notes %d times, want %d; read at (-want +got):\n%s", after, server.asked(notesPath), asked, diff)
		}
		return host.AgentState("prod", host.ReadAt)
	}
	server.say(notesPath, described(said(t, readAt.Add(time.Minute))))
	refresh(59*time.Second, 1)
	if state := refresh(time.Minute, 2); state != topology.AgentLiving || !snapshot.Hosts[0].Agent.At.Equal(now) {
		t.Errorf("the agent's newer data was not read: %s, %+v", state, snapshot.Hosts[0].Agent)
	}
	server.refuse(notesPath, http.StatusInternalServerError, "no")
	for minute := 2; minute <= 16; minute++ {
		asked := server.asked(notesPath)
		now = readAt.Add(time.Duration(minute) * time.Minute)
		if snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"}); err != nil || server.asked(notesPath) == asked {
			t.Fatalf("minute %d: asked %d times, error %v", minute, server.asked(notesPath), err)
		}
		if state := snapshot.Hosts[0].AgentState("prod", now); state != topology.AgentLiving {
			t.Fatalf("minute %d: %s", minute, state)
		}
	}
	now = readAt.Add(17 * time.Minute)
	if snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"}); err != nil || snapshot.Hosts[0].AgentState("prod", now) != topology.AgentOld {
		t.Errorf("an agent without a report for 16 minutes is considered running: %v, %+v", err, snapshot.Hosts[0].Agent)
	}
	server.refuse(notesPath, http.StatusForbidden, "no")
	now = readAt.Add(18 * time.Minute)
	if snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"}); err != nil || snapshot.Hosts[0].AgentState("prod", now) != topology.AgentUnread {
		t.Errorf("the data of an agent that must not be read remains: %v, %+v", err, snapshot.Hosts[0].Agent)
	}
}
