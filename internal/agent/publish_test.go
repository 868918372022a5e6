//go:build linux

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/agent/agenttest"
	"github.com/numaform/numaform/topology"
)

// pvesh simulates the Proxmox command on a host with notes.
type pvesh struct {
	notes string
	calls []string
	err   error
}

func (p *pvesh) run(_ context.Context, args ...string) ([]byte, error) {
	p.calls = append(p.calls, strings.Join(args[:2], " "))
	if args[0] == "set" {
		if args[2] != "--description" || len(args) != 6 || args[4] != "--digest" || args[5] != "0123" {
			return nil, errors.New("unknown option")
		}
		p.notes = args[3]
		return nil, p.err
	}
	return json.Marshal(map[string]string{"description": p.notes, "digest": "0123"})
}

func (w *world) publish(p *pvesh) (agent.Publication, error) {
	publisher := agent.Publisher{Root: w.Root, StateDir: w.dir, Host: "pve-1", Pvesh: p.run, Now: func() time.Time { return w.now }}
	return publisher.Publish(w.t.Context())
}

// said returns the agent's status in the notes.
func (p *pvesh) said(t *testing.T) topology.Agent {
	t.Helper()
	said, found, err := topology.ParseAgent(p.notes)
	if err != nil || !found {
		t.Fatalf("no status in the notes: %t, %v: %s", found, err, p.notes)
	}
	return said
}

// TestPublish checks that Publish writes the data that numaform reads, preserves other
// notes, and writes an unchanged status again only after four minutes or when the clock
// was set back.
func TestPublish(t *testing.T) {
	w := newWorld(t)
	w.begin("clusters: [prod]\nreserved_cpus: 1000\nmax_pinned_percent: 80\nisolation: enforce\n")
	w.ready(101, 1)
	w.ready(102, 1)
	w.ready(103, 1)
	w.Declare(101, agenttest.Marker(101, w.two).String())
	w.Declare(102, agenttest.Marker(102, w.two).String())
	w.Sync()
	// Both VMs requested the CPU at once; the VM that has it keeps it.
	w.Declare(102, "")
	w.Sync()
	w.Declare(102, agenttest.Marker(102, w.two).String())
	w.Sync()
	p := &pvesh{notes: "# the left rack\n"}
	begun := w.now
	for _, step := range []struct {
		later   time.Duration
		written bool
	}{{0, true}, {0, false}, {3 * time.Minute, false}, {time.Minute, true}, {-time.Hour, true}} {
		w.now = w.now.Add(step.later)
		if done, err := w.publish(p); err != nil || done.Written != step.written || done.Unwell != "" {
			t.Fatalf("%s later: %+v, %v", step.later, done, err)
		}
	}
	if diff := cmp.Diff(strings.Repeat("get,set,get,get,", 1)+"get,set,get,set", strings.ReplaceAll(strings.Join(p.calls, ","), " /nodes/pve-1/config", "")); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	want := topology.Agent{
		Version: "1.2.3", At: begun.Add(4*time.Minute - time.Hour).UTC(), Isolation: "enforce", Clusters: []string{"prod"}, MaxPinnedPercent: 80,
		ReservedCPUs: topology.CPUs(1000), Pinned: map[int]topology.Pins{101: {w.two}}, Refused: map[int]string{102: "overlap"},
	}
	if diff := cmp.Diff(want, p.said(t)); diff != "" {
		t.Errorf("status in the notes (-want +got):\n%s", diff)
	}
	machine, found, err := topology.ParsePublished(p.notes)
	if err != nil || !found || len(machine.CPUs) != 3 || !strings.HasPrefix(p.notes, "# the left rack\n") {
		t.Errorf("notes %q: %v, %v", p.notes, found, err)
	}
	if got := w.text(); !strings.Contains(got, "published  "+want.At.Format(time.RFC3339)+"\n") {
		t.Errorf("status:\n%s", got)
	}

	w.Declare(101, "")
	w.Sync()
	if done, err := w.publish(p); err != nil || !done.Written || len(p.said(t).Pinned) != 1 || p.said(t).Pinned[102] == nil {
		t.Errorf("after a change: %+v, %v: %+v", done, err, p.said(t))
	}
}

// TestPublishProblem checks that the error of a failed round is published, so that numaform
// shows the reason, and that it is removed after a successful round.
func TestPublishProblem(t *testing.T) {
	w := newWorld(t)
	p := &pvesh{}
	for _, step := range []struct{ online, problem string }{{"0\n", ""}, {"what\n", "what"}, {"0\n", ""}} {
		w.Write("sys/devices/system/cpu/online", step.online)
		w.Sync()
		w.Write("sys/devices/system/cpu/online", "0\n")
		w.now = w.now.Add(time.Hour)
		done, err := w.publish(p)
		if err != nil || !done.Written || done.Unwell != "" || !strings.Contains(done.Problem, step.problem) || (step.problem == "") != (done.Problem == "") {
			t.Errorf("problem %q: %+v, %v", step.problem, done, err)
		}
		if said := p.said(t); said.Problem != done.Problem || !said.At.Equal(w.now.UTC()) {
			t.Errorf("problem %q: the notes say %q at %s", step.problem, said.Problem, said.At)
		}
	}

	// The notes accept only one line of limited size.
	w.edit(func(s *agent.State) { s.Problem = "first\nsecond \x1b[31m\xff" + strings.Repeat("é", 1000) })
	done, err := w.publish(p)
	if said := p.said(t); err != nil || !strings.HasPrefix(said.Problem, "first second ?[31m?é") || !strings.HasSuffix(said.Problem, "é…") || len(said.Problem) > 1024 {
		t.Errorf("long text: %+v, %v: the notes say %q", done, err, said.Problem)
	}
}

// TestPublishUnwell checks that the last status of a daemon that hangs or does not run
// remains, and that the topology is written anyway.
func TestPublishUnwell(t *testing.T) {
	w := newWorld(t)
	p := &pvesh{}
	for _, step := range []struct {
		unwell string
		change func()
	}{
		{"", func() {}},
		{"100 seconds ago", func() {
			w.Write("sys/devices/system/cpu/online", "0\n")
			w.edit(func(s *agent.State) { s.Looked -= 100 })
		}},
		{"is not running", func() { w.edit(func(s *agent.State) { s.Agent.Start++ }) }},
		{"state.json", func() { w.Write("run/numaform-agent/state.json", "{") }},
	} {
		w.now = w.now.Add(time.Hour)
		step.change()
		done, err := w.publish(p)
		if err != nil || !strings.Contains(done.Unwell, step.unwell) || (step.unwell == "") != (done.Unwell == "") {
			t.Errorf("%q: %+v, %v", step.unwell, done, err)
		}
		if at := p.said(t).At; !at.Equal(time.Unix(1700003600, 0)) {
			t.Errorf("%q: the status in the notes is of %s", step.unwell, at)
		}
	}
	if machine, _, err := topology.ParsePublished(p.notes); err != nil || len(machine.CPUs) != 1 {
		t.Errorf("topology: %+v, %v", machine, err)
	}
}

// edit changes the state file without the agent.
func (w *world) edit(change func(*agent.State)) {
	w.t.Helper()
	state, err := agent.ReadState(w.dir)
	w.must(err)
	change(&state)
	text, err := json.Marshal(state)
	w.must(err)
	w.Write("run/numaform-agent/state.json", string(text))
}

func TestPublishRefuses(t *testing.T) {
	w := newWorld(t)
	p := &pvesh{notes: strings.Repeat("x", 65500)}
	if _, err := w.publish(p); err == nil || !strings.Contains(err.Error(), "shorten them") {
		t.Errorf("full notes: %v", err)
	}
	p.notes = "<!-- numaform-agent\n{"
	if _, err := w.publish(p); err == nil || !strings.Contains(err.Error(), "numaform-agent") {
		t.Errorf("a truncated block: %v", err)
	}
	p.notes, p.err = "", io.ErrUnexpectedEOF
	if _, err := w.publish(p); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v", err)
	}
	if got := w.text(); !strings.Contains(got, "published  not yet") {
		t.Errorf("status:\n%s", got)
	}
}
