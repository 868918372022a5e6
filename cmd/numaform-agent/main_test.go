//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/agent/agenttest"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// agentVariable is the environment variable that makes the test binary run numaform-agent.
const agentVariable = "NUMAFORM_TEST_AGENT"

func TestMain(m *testing.M) {
	if agenttest.Play() {
		return
	}
	if os.Getenv(agentVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		p := program{environ: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr}
		code := p.run(ctx, os.Args[1:])
		stop()
		os.Exit(code)
	}
	if os.Getpid() == 1 {
		hostMain()
	}
	if os.Getenv(hostVariable) != "" {
		inHost()
	}
	os.Exit(m.Run())
}

// journal is the log of an agent.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// process is an agent in a separate process.
type process struct {
	*exec.Cmd
	out *journal
}

func command(h *agenttest.Host, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append(args, //nolint:noctx // it is killed
		"--root", h.Root, "--config", filepath.Join(h.Root, "etc/numaform-agent.yaml"), "--state-dir", stateDir(h))...)
	cmd.Env = append(os.Environ(), agentVariable+"=1")
	return cmd
}

func stateDir(h *agenttest.Host) string { return filepath.Join(h.Root, "run/numaform-agent") }

func start(t *testing.T, h *agenttest.Host, args ...string) *process {
	t.Helper()
	p := &process{Cmd: command(h, args...), out: &journal{}}
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("output of the agent:\n%s", p.out)
		}
	})
	return p
}

func (p *process) kill(signal syscall.Signal) {
	if p.ProcessState == nil {
		_ = p.Process.Signal(signal)
		_ = p.Wait()
	}
}

// twoCPUs returns two CPUs that this process may use, and a host with a third CPU, which
// does not exist: the agent always leaves one CPU unpinned.
func twoCPUs(t *testing.T) (first, second int, host topology.CPUSet) {
	t.Helper()
	allowed := affinity(t, 0).List()
	if len(allowed) < 2 {
		t.Fatalf("this test needs two CPUs and may use %v", allowed)
	}
	return allowed[0], allowed[1], topology.CPUs(allowed[0], allowed[1], 1000)
}

// TestQEMU checks that a real VM is pinned when it starts, when its declaration changes,
// when a vCPU is moved by hand, when QEMU restarts, and after the agent was killed.
func TestQEMU(t *testing.T) {
	first, second, cpus := twoCPUs(t)
	h := agenttest.New(t, cpus)
	both, free := topology.CPUs(first, second), affinity(t, 0)
	p := start(t, h)

	h.Declare(101, agenttest.Marker(101, second, first).String())
	pid := h.StartQEMU(101, 2)
	t.Logf("a VM was pinned %s after QEMU began to start", agenttest.Eventually(t, func() error { return h.Pinned(101, both, second, first) }))

	var took []time.Duration
	for i := range 5 {
		pins := []int{first, second}
		if i%2 == 1 {
			slices.Reverse(pins)
		}
		h.Declare(101, "of numaform\n"+agenttest.Marker(101, pins...).String()+"\nand so on")
		took = append(took, agenttest.Eventually(t, func() error { return h.Pinned(101, both, pins...) }))
	}
	slices.Sort(took)
	t.Logf("a changed pin took %s", took)

	for tid := range tids(t, pid) {
		move(t, tid, free)
	}
	agenttest.Eventually(t, func() error { return h.Pinned(101, both, first, second) })
	agenttest.Eventually(t, says(p, "restored vCPUs that another program moved"))

	h.Stop(101)
	pid = h.StartQEMU(101, 2)
	agenttest.Eventually(t, func() error { return h.Pinned(101, both, first, second) })

	p.kill(syscall.SIGKILL)
	h.Declare(101, agenttest.Marker(101, second, first).String())
	for tid := range tids(t, pid) {
		move(t, tid, free)
	}
	p = start(t, h)
	agenttest.Eventually(t, func() error { return h.Pinned(101, both, second, first) })

	// A reboot discards the state.
	p.kill(syscall.SIGKILL)
	if err := os.RemoveAll(stateDir(h)); err != nil {
		t.Fatal(err)
	}
	for tid := range tids(t, pid) {
		move(t, tid, free)
	}
	p = start(t, h)
	agenttest.Eventually(t, func() error { return h.Pinned(101, both, second, first) })

	h.Declare(101, "nobody's")
	agenttest.Eventually(t, func() error { return h.On(101, free) })
	agenttest.Eventually(t, says(p, "unpinned guest"))
}

func says(p *process, text string) func() error {
	return func() error {
		if !strings.Contains(p.out.String(), text) {
			return &silent{text}
		}
		return nil
	}
}

type silent struct{ text string }

func (e *silent) Error() string { return "the agent did not say: " + e.text }

func tids(t *testing.T, pid int) map[int]bool {
	t.Helper()
	threads, err := (qemu.Reader{Root: "/"}).Threads(qemu.Run{PID: pid})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, thread := range threads {
		ids[thread.TID] = true
	}
	return ids
}

func affinity(t *testing.T, tid int) topology.CPUSet {
	t.Helper()
	set, err := qemu.Kernel{}.Affinity(tid)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// move moves a thread, as `taskset` does.
func move(t *testing.T, tid int, cpus topology.CPUSet) {
	t.Helper()
	var set unix.CPUSet
	for _, cpu := range cpus.List() {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
}

// once runs the program in this process.
func once(t *testing.T, environ map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, talk bytes.Buffer
	p := program{stdout: &out, stderr: &talk, environ: func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the daemon runs a single round
	code = p.run(ctx, args)
	return code, out.String(), talk.String()
}

func TestCommandLine(t *testing.T) {
	h := agenttest.New(t, topology.CPUs(0, 1))
	at := []string{"--root", h.Root, "--config", filepath.Join(h.Root, "etc/numaform-agent.yaml"), "--state-dir", stateDir(h)}
	tests := []struct {
		name    string
		environ map[string]string
		args    []string
		code    int
		stdout  string
		stderr  string
	}{
		{"version", nil, []string{"version"}, exitDone, "numaform-agent (devel)\n", ""},
		{"status before", nil, []string{"status"}, exitFailed, "no agent has run", ""},
		{"isolation of the file", nil, nil, exitDone, "isolation=report", ""},
		{"isolation of the environment", map[string]string{"NUMAFORM_AGENT_ISOLATION": "enforce"}, nil, exitDone, "isolation=enforce", ""},
		{"the flag wins", map[string]string{"NUMAFORM_AGENT_ISOLATION": "enforce"}, []string{"--isolation", "off"}, exitDone, "isolation=off", ""},
		{"status", nil, []string{"status"}, exitDone, "isolation off\nCPUs       online 0-1, pinned none, shared 0-1\n", ""},
		{"status as JSON", nil, []string{"status", "-o", "json"}, exitDone, `"running": true`, ""},
		{"status as YAML", nil, []string{"status", "-o", "yaml"}, exitUsage, "", `--output "yaml": must be text or json`},
		{"no such isolation", nil, []string{"--isolation", "on"}, exitUsage, "", "set off, report or enforce"},
		{"no such flag", nil, []string{"--isolate"}, exitUsage, "", "unknown flag"},
		{"no such command", nil, []string{"stop"}, exitUsage, "", `unknown command "stop"`},
		{"a variable that is no duration", map[string]string{"NUMAFORM_AGENT_INTERVAL": "fast"}, nil, exitUsage, "", "NUMAFORM_AGENT_INTERVAL"},
		{"interval too short", nil, []string{"--interval", "1ms"}, exitUsage, "", "must be at least 10ms"},
		{"release", nil, []string{"release"}, exitDone, "", ""},
		{"status after", nil, []string{"status"}, exitFailed, "no agent has run", ""},
	}
	for _, tt := range tests {
		code, stdout, stderr := once(t, tt.environ, append(tt.args, at...)...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%s: exit code %d, want %d; stdout %q, want %q; stderr %q, want %q", tt.name, code, tt.code, stdout, tt.stdout, stderr, tt.stderr)
		}
	}
	h.Settings("cluster: [prod]\n")
	if code, _, stderr := once(t, nil, at...); code != exitFailed || !strings.Contains(stderr, "etc/numaform-agent.yaml") || !strings.Contains(stderr, "line 1") {
		t.Errorf("an unknown key: %d, %s", code, stderr)
	}
}
