package scale_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// controller is a running controller.
type controller struct {
	w       *world
	command *exec.Cmd
	done    chan struct{}
	log     *stampedLog
	began   time.Time
	// probes, metrics and profiles are the addresses of its servers.
	probes, metrics, profiles string
}

// start starts a controller with a separate state directory.
func (w *world) start(replica string) *controller {
	w.t.Helper()
	c := &controller{w: w, done: make(chan struct{}), log: &stampedLog{}, probes: w.freeAddress(), metrics: w.freeAddress(), profiles: w.freeAddress()}
	c.command = exec.Command(w.binary, "controller", "--config", "numaform.yaml", "--kubeconfig", w.kubeconfig, "--namespace", namespace,
		"--health-probe-bind-address", c.probes, "--metrics-bind-address", c.metrics, "--pprof-bind-address", c.profiles)
	c.command.Args = append(c.command.Args, strings.Fields(*flags)...)
	c.command.Dir, c.command.Stdout, c.command.Stderr, c.command.Env = w.dir, c.log, c.log, w.environ(replica)
	c.began = time.Now()
	if err := c.command.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = c.command.Wait()
		close(c.done)
	}()
	w.t.Cleanup(func() {
		c.kill(syscall.SIGKILL)
		if w.t.Failed() {
			w.t.Logf("the last lines of %s:\n%s", replica, c.log.tail())
		}
	})
	return c
}

// kill sends a signal and waits until the controller exits.
func (c *controller) kill(signal syscall.Signal) {
	_ = c.command.Process.Signal(signal) // it may have exited
	<-c.done
}

func (w *world) freeAddress() string {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // only its address matters
	return listener.Addr().String()
}

// until polls until done returns true. It fails the test after limit, or if the controller
// exits.
func (c *controller) until(what string, limit time.Duration, done func() bool) {
	c.w.t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(limit)
	for !done() {
		select {
		case <-ticker.C:
		case <-c.done:
			c.w.t.Fatalf("the controller exited while waiting for: %s", what)
		case <-deadline:
			c.w.t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// ready waits until the controller is ready.
func (c *controller) ready() {
	c.w.t.Helper()
	c.until("the controller is ready", 5*time.Minute, func() bool {
		response, err := http.Get("http://" + c.probes + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close() //nolint:errcheck // the body is not read
		return response.StatusCode == http.StatusOK
	})
}

// settled waits until the controller is idle: it logs nothing and uses less than a fifth of a
// core for ten seconds, twice in succession, because it may only wait for Proxmox or for a
// busy machine. It waits at most two minutes, because the idle usage is measured separately.
func (c *controller) settled() {
	c.w.t.Helper()
	last, since, began := c.usage(), time.Now(), time.Now()
	quiet, lines := 0, c.log.length()
	c.until("the controller is idle", 10*time.Minute, func() bool {
		if time.Since(since) < 10*time.Second {
			return false
		}
		now := c.usage()
		quiet++
		if now.own+now.children-last.own-last.children >= 2*time.Second || c.log.length() != lines {
			quiet = 0
		}
		last, since, lines = now, time.Now(), c.log.length()
		return quiet == 2 || time.Since(began) > 2*time.Minute
	})
}

// usage contains the resources that a controller used.
type usage struct {
	// own and children are CPU times. children includes only ended programs.
	own, children time.Duration
	// resident and peak are memory in bytes.
	resident, peak int64
}

// usage reads the usage from /proc.
func (c *controller) usage() usage {
	c.w.t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(c.command.Process.Pid))
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		c.w.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	ticks := func(field int) time.Duration {
		n, _ := strconv.Atoi(fields[field]) // the kernel's numbers
		return time.Duration(n) * 10 * time.Millisecond
	}
	used := usage{own: ticks(11) + ticks(12), children: ticks(13) + ticks(14)}
	if text, err = os.ReadFile(filepath.Join(dir, "status")); err != nil {
		c.w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64) // 0 for other lines
		switch name {
		case "VmRSS":
			used.resident = kib << 10
		case "VmHWM":
			used.peak = kib << 10
		}
	}
	return used
}

// fetch returns the content of a URL of the controller.
func (c *controller) fetch(url string) []byte {
	c.w.t.Helper()
	response, err := http.Get("http://" + url)
	if err != nil {
		c.w.t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return text
}

// toKubernetes returns the number of the controller's requests to Kubernetes so far.
func (c *controller) toKubernetes() int {
	c.w.t.Helper()
	total := 0.0
	for line := range strings.Lines(string(c.fetch(c.metrics + "/metrics"))) {
		if strings.HasPrefix(line, "rest_client_requests_total{") {
			fields := strings.Fields(line)
			n, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
			total += n
		}
	}
	return int(total)
}

// profile writes a profile to the directory in -scale.profiles, if set.
func (c *controller) profile(name, path string) {
	if *profiles == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*profiles, name), c.fetch(c.profiles+path), 0o600); err != nil {
		c.w.t.Fatal(err)
	}
}

// cpuProfile profiles the controller's CPU use for a period, in the background. The
// returned function waits until the profile is written.
func (c *controller) cpuProfile(name string, period time.Duration) (wait func()) {
	if *profiles == "" {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.profile(name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(period.Seconds())))
	}()
	return func() { <-done }
}

// stampedLog stores the output lines of a process with the time of each.
type stampedLog struct {
	// mu guards the fields below.
	mu    sync.Mutex
	lines []stampedLine
	rest  []byte
}

type stampedLine struct {
	at   time.Time
	text string
}

// Write implements io.Writer.
func (l *stampedLog) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, text...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		l.lines = append(l.lines, stampedLine{time.Now(), string(line)})
		l.rest = bytes.Clone(rest)
	}
}

// length returns the number of lines.
func (l *stampedLog) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

// tail returns the last 60 lines.
func (l *stampedLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts []string
	for _, line := range slices.Backward(l.lines[max(0, len(l.lines)-60):]) {
		texts = append(texts, line.text)
	}
	slices.Reverse(texts)
	return strings.Join(texts, "\n")
}
