//go:build linux

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/agent/agenttest"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

func TestMain(m *testing.M) {
	if agenttest.Play() {
		return
	}
	os.Exit(m.Run())
}

// world is a host with an agent that runs rounds on request.
type world struct {
	*agenttest.Host
	*agent.Agent
	t       *testing.T
	journal bytes.Buffer
	dir     string
	// one and two are CPUs of this machine; none is not.
	one, two, none int
	free           topology.CPUSet
	now            time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	free, err := qemu.Kernel{}.Affinity(0)
	if err != nil || free.Size() < 2 {
		t.Fatalf("two CPUs are needed: %s, %v", free, err)
	}
	ids := free.List()
	w := &world{t: t, one: ids[0], two: ids[1], none: 1000, free: free, now: time.Unix(1700000000, 0)}
	w.Host = agenttest.New(t, topology.CPUs(w.one, w.two, w.none))
	w.dir = filepath.Join(w.Root, "run/numaform-agent")
	w.begin("clusters: [prod]\nmetrics_dir: " + w.Root + "\n")
	return w
}

// begin replaces the agent with a new one.
func (w *world) begin(settings string) {
	w.t.Helper()
	parsed, err := agent.ParseSettings([]byte(settings))
	if err != nil {
		w.t.Fatal(err)
	}
	options := agent.Options{
		Root: w.Root, StateDir: w.dir, Settings: parsed, Interval: time.Hour, Version: "1.2.3",
		Log: slog.New(slog.NewTextHandler(&w.journal, nil)), Now: func() time.Time { return w.now },
	}
	if w.Agent, err = agent.New(options); err != nil {
		w.t.Fatal(err)
	}
	// With an ended context, Run runs a single round.
	ended, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := w.Run(ended); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) logged(texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		if !strings.Contains(w.journal.String(), text) {
			w.t.Errorf("the journal lacks %q:\n%s", text, w.journal.String())
		}
	}
	w.journal.Reset()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(err)
	}
}

func (w *world) status() agent.Status {
	w.t.Helper()
	status, err := agent.ReadStatus(w.Root, w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return status
}

func (w *world) text() string {
	w.t.Helper()
	status := w.status()
	return status.String()
}

// ready starts a process that simulates a VM, and waits until its vCPU threads have their
// names.
func (w *world) ready(vmid, vcpus int, args ...string) int {
	w.t.Helper()
	pid := w.Start(vmid, vcpus, args...)
	agenttest.Eventually(w.t, func() error {
		if got, _ := w.Threads(vmid); len(got) != vcpus {
			return errors.New("the VM does not have all vCPUs yet")
		}
		return nil
	})
	return pid
}

func (w *world) metrics() string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.Root, agent.MetricsFile))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// TestReport checks that the agent pins a VM, reports an intruder once in the log and in the
// metrics, and releases the pins when they are no longer declared.
func TestReport(t *testing.T) {
	w := newWorld(t)
	w.logged("level=INFO msg=started")
	w.ready(101, 1)
	w.ready(105, 1)
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.Declare(105, "a database")
	w.Sync()
	w.must(w.Pinned(101, topology.CPUs(w.one), w.one))
	w.must(w.On(105, w.free))
	w.logged(`msg="pinned guest" vmid=101`, `msg="guest may run on pinned CPUs" vmid=105`)

	for _, want := range []string{
		"\nnumaform_agent_pinned_guests 1\n", "\nnumaform_agent_intruders 1\n", "\nnumaform_agent_online_cpus 3\n", "\nnumaform_agent_shared_cpus 2\n",
		"\nnumaform_agent_info{isolation=\"report\",version=\"1.2.3\"} 1\n", "\nnumaform_agent_refused_guests{reason=\"overlap\"} 0\n",
		"\nnumaform_agent_last_round_timestamp_seconds 1700000000\n", "# TYPE numaform_agent_put_back gauge\n",
	} {
		if !strings.Contains("\n"+w.metrics(), want) {
			t.Errorf("metrics lack %q:\n%s", want, w.metrics())
		}
	}
	w.Sync()
	if w.journal.Len() > 0 {
		t.Errorf("a round without changes logged:\n%s", w.journal.String())
	}
	w.Stop(105)
	w.Declare(101, "")
	w.Sync()
	w.must(w.On(101, w.free))
	w.logged(`msg="unpinned guest" vmid=101 runs=true`, `msg="guest can no longer run on pinned CPUs" vmid=105`)
}

// TestEmulatorShared checks that with emulator=shared, threads that run no vCPU are on CPUs
// without pins.
func TestEmulatorShared(t *testing.T) {
	w := newWorld(t)
	w.Write("sys/devices/system/cpu/online", topology.CPUs(w.one, w.two).String()+"\n")
	w.ready(101, 1)
	marker := agenttest.Marker(101, w.two)
	marker.Emulator = fleet.EmulatorShared
	w.Declare(101, marker.String())
	w.Sync()
	w.must(w.Pinned(101, topology.CPUs(w.one), w.two))
	if got := w.text(); !strings.Contains(got, "emulator shared, cluster prod") {
		t.Errorf("status:\n%s", got)
	}
}

// TestTheKernelRefuses checks that a VM whose pins the kernel rejects stays unpinned, that the
// refusal is logged once, and that later valid pins apply.
func TestTheKernelRefuses(t *testing.T) {
	w := newWorld(t)
	w.ready(101, 1)
	w.Declare(101, agenttest.Marker(101, w.none).String())
	w.Sync()
	w.must(w.On(101, w.free))
	w.logged(`msg="pins refused" vmid=101 reason=failed`)
	w.Sync()
	if w.journal.Len() > 0 {
		t.Errorf("logged twice:\n%s", w.journal.String())
	}
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.Sync()
	w.must(w.Pinned(101, topology.CPUs(w.one), w.one))
}

// TestKeepsWithoutConfiguration checks that pins remain while /etc/pve is missing, as when
// pve-cluster stops.
func TestKeepsWithoutConfiguration(t *testing.T) {
	w := newWorld(t)
	w.ready(101, 2)
	w.Declare(101, agenttest.Marker(101, w.two, w.one).String())
	w.Sync()
	w.must(os.Rename(filepath.Join(w.Root, "etc/pve"), filepath.Join(w.Root, "gone")))
	w.Sync()
	w.must(w.Pinned(101, topology.CPUs(w.one, w.two), w.two, w.one))
	w.logged("reason=unread")
	w.begin("clusters: [prod]")
	w.must(w.Pinned(101, topology.CPUs(w.one, w.two), w.two, w.one))
	// The agent's settings apply even while /etc/pve is missing.
	w.begin("clusters: [other]")
	w.must(w.On(101, w.free))
	w.logged("reason=foreign_cluster")
}

// TestTwoAgents checks that no agent starts while the process that wrote the state is
// alive.
func TestTwoAgents(t *testing.T) {
	w := newWorld(t)
	status := w.status()
	if !status.Healthy() {
		t.Errorf("status: %s", status.String())
	}
	w.ready(101, 1)
	guests, err := qemu.Reader{Root: w.Root}.Running()
	if err != nil || len(guests) != 1 {
		t.Fatal(guests, err)
	}
	status.Agent = guests[0].Run
	text, err := json.Marshal(status.State)
	w.must(err)
	w.Write("run/numaform-agent/state.json", string(text))
	if err := w.Release(); err == nil || !strings.Contains(err.Error(), "another numaform-agent is running") {
		t.Errorf("error %v, want one about another agent", err)
	}
	w.Stop(101)
	w.must(w.Release())
	if after := w.status(); after.Running || after.Format != 0 || !strings.Contains(after.String(), "no agent has run") {
		t.Errorf("after the release: %s", after.String())
	}
}

// TestHostileState checks that the content of the state file is validated, although only
// root can write to it below /run.
func TestHostileState(t *testing.T) {
	for name, text := range map[string]string{
		"garbage": "{", "another format": `{"format":2}`, "an unknown key": `{"format":1,"evil":1}`, "two": `{"format":1}{}`,
		"a group of the system": `{"format":1,"confined":[{"group":"system.slice","was":"","now":"1"}]}`,
		"a path":                `{"format":1,"confined":[{"group":"lxc/../system.slice","was":"","now":"1"}]}`,
		"no list of CPUs":       `{"format":1,"confined":[{"group":"lxc","was":"x","now":"1"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Write("run/numaform-agent/state.json", text)
			if _, err := agent.ReadState(w.dir); err == nil {
				t.Errorf("%s was read", text)
			}
			w.begin("clusters: [prod]")
			w.logged("state not read, starting with an empty one")
			if status := w.status(); !status.Healthy() {
				t.Errorf("status: %s", status.String())
			}
		})
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	defaults := agent.DefaultSettings()
	for text, problem := range map[string]string{
		"": "", "{}": "", "clusters: [prod, stage]\nreserved_cpus: 0-1,8\nisolation: enforce\nemulator: shared\n": "", "reserved_cpus: 0": "",
		"governor: {pinned: performance, unpinned: powersave}": "", "governor: {unpinned: powersave}": "unpinned requires pinned",
		"governor: {pinned: performance, free: powersave, unpinned: powersave}": "and replaces free",
		"cluster: [prod]": "line 1: unknown key cluster: valid keys are clusters, ", "clusters: [Prod]": "clusters", "clusters: prod": "line 1: cannot unmarshal", "max_pinned_percent: 0": "from 1 to 100",
		"max_pinned_percent: 101": "from 1 to 100", "emulator: host": "guest or shared", "isolation: on": "off, report or enforce",
		"isolation: false": "off, report or enforce", "reserved_cpus: 3-1": "is reversed", "clusters: []\n---\nclusters: [x]": "second document",
	} {
		got, err := agent.ParseSettings([]byte(text))
		switch {
		case problem == "" && err != nil, problem != "" && (err == nil || !strings.Contains(err.Error(), problem)):
			t.Errorf("%q: error %v, want %q", text, err, problem)
		case problem == "" && (got.MaxPinnedPercent != defaults.MaxPinnedPercent || got.MetricsDir != defaults.MetricsDir):
			t.Errorf("%q lost defaults: %+v", text, got)
		}
	}
	name := filepath.Join(t.TempDir(), "settings.yaml")
	if got, err := agent.ReadSettings(name); err != nil || !cmp.Equal(got, defaults) {
		t.Errorf("no file: %+v, %v", got, err)
	}
	if err := errors.Join(os.WriteFile(name, []byte("clusters: [prod]"), 0o600), os.Chmod(name, 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.ReadSettings(name); err == nil || !strings.Contains(err.Error(), "chmod 644") {
		t.Errorf("a file that any user can write: %v", err)
	}
}

func TestShippedSettings(t *testing.T) {
	t.Parallel()
	got, err := agent.ReadSettings("../../packaging/numaform-agent.yaml")
	got.Clusters = nil
	if diff := cmp.Diff(agent.DefaultSettings(), got); err != nil || diff != "" {
		t.Errorf("error %v, the file of the package (-defaults +file):\n%s", err, diff)
	}
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	status := agent.Status{Running: true, State: agent.State{
		Format: 1, Version: "1.2.3", Agent: qemu.Run{PID: 812}, Isolation: agent.IsolationEnforce,
		Online: topology.CPUs(0, 1, 2, 3), Pinned: topology.CPUs(2), Shared: topology.CPUs(0, 1),
		Guests: []agent.Guest{
			{Run: qemu.Run{VMID: 2001}, PutBack: 2, Pins: &claim.Pins{ClusterID: "prod", CPUs: []int{3, 2}, Emulator: fleet.EmulatorGuest}},
			{Run: qemu.Run{VMID: 2002}, Refused: &claim.Refusal{Reason: claim.ReasonOverlap, Text: "CPU 2 belongs to guest 2001"}},
			{Run: qemu.Run{VMID: 2003}, Starting: true},
		},
		Confined:  []agent.Confinement{{Group: "lxc", Now: topology.CPUs(0, 1)}},
		Intruders: []agent.Intruder{{VMID: 105, CPUs: topology.CPUs(2), Text: "root set its affinity to 2"}},
		Governors: []agent.Governed{
			{Policy: 2, CPUs: topology.CPUs(2), Was: "powersave", Now: "performance"},
			{Policy: 3, CPUs: topology.CPUs(3), Was: "powersave", Now: "performance"},
			{Policy: 0, CPUs: topology.CPUs(0), Was: "schedutil", Now: "powersave", Free: true},
		},
		Interrupts: []agent.Interrupt{
			{IRQ: 57, Device: "0000:41:00.0", VMID: 2001, Now: topology.CPUs(2, 3), PutBack: 1},
			{IRQ: 58, Device: "0000:41:00.0", VMID: 2001, Now: topology.CPUs(2, 3)},
			{IRQ: 59, Device: "0000:41:00.0", VMID: 2001, Now: topology.CPUs(2, 3), Refused: "input/output error"},
			{IRQ: 60, Device: "0000:41:00.0", VMID: 2001, Now: topology.CPUs(2, 3), Refused: "no space left on device"},
			{IRQ: 61, Device: "0000:41:00.0", VMID: 2001, Now: topology.CPUs(2, 3), Refused: "input/output error"},
		},
	}, Published: time.Unix(1700000000, 0).UTC()}
	want := `agent      1.2.3, process 812, isolation enforce
CPUs       online 0-3, pinned 2, shared 0-1
VM 2001    pinned 3,2, emulator guest, cluster prod; restored 2 times
VM 2002    not pinned; refused (overlap): CPU 2 belongs to guest 2001
VM 2003    starting
confined   lxc to 0-1
intruder   guest 105 may run on 2: root set its affinity to 2
governor   CPUs 2-3 performance, was powersave
governor   free CPUs 0 powersave, was schedutil
interrupts 2 of device 0000:41:00.0 of VM 2001 on CPUs 2-3; restored once
interrupts 2 of device 0000:41:00.0 of VM 2001 not moved: input/output error
interrupts 1 of device 0000:41:00.0 of VM 2001 not moved: no space left on device
published  2023-11-14T22:13:20Z
`
	if diff := cmp.Diff(want, status.String()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	status.Running, status.Problem = false, "no cpuset controller"
	if got := status.String(); !strings.Contains(got, "is not running") || !strings.Contains(got, "problem    no cpuset controller\n") || status.Healthy() {
		t.Errorf("status:\n%s", got)
	}
}

// TestHurry checks that the agent detects a starting VM long before the next regular round.
func TestHurry(t *testing.T) {
	w := newWorld(t)
	w.must(w.Release())
	settings, err := agent.ParseSettings([]byte("clusters: [prod]"))
	w.must(err)
	a, err := agent.New(agent.Options{
		Root: w.Root, StateDir: w.dir, Settings: settings, Interval: 10 * time.Second, Version: "1.2.3", Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	w.must(err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	t.Cleanup(func() { w.must(<-ended) })
	agenttest.Eventually(t, func() error {
		_, err := os.Stat(agent.StateFile(w.dir))
		return err
	})
	w.Declare(101, agenttest.Marker(101, w.one).String())
	w.Start(101, 1)
	took := agenttest.Eventually(t, func() error { return w.Pinned(101, topology.CPUs(w.one), w.one) })
	if took > 7*time.Second {
		t.Errorf("a VM was pinned %s after it started, by an agent with an interval of 10s", took)
	}
}
