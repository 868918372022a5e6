package scale_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/numaform/numaform/internal/testenv"
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
		if *profiles != "" {
			if err := os.WriteFile(filepath.Join(*profiles, replica+".log"), c.log.stamped(), 0o600); err != nil {
				w.t.Error(err)
			}
		}
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
	addresses, err := testenv.FreePorts(1)
	if err != nil {
		w.t.Fatal(err)
	}
	return addresses[0]
}

// until polls until done returns true, seldom, because it competes with the controller for the
// CPU. It fails the test after limit, or if the controller exits.
func (c *controller) until(what string, limit time.Duration, done func() bool) {
	c.w.t.Helper()
	c.poll(500*time.Millisecond, what, limit, done)
}

func (c *controller) poll(every time.Duration, what string, limit time.Duration, done func() bool) {
	c.w.t.Helper()
	ticker := time.NewTicker(every)
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
	c.poll(50*time.Millisecond, "the controller is ready", 5*time.Minute, func() bool {
		response, err := http.Get("http://" + c.probes + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close() //nolint:errcheck // the body is not read
		return response.StatusCode == http.StatusOK
	})
}

// settled waits until the controller is idle: for quietChecks seconds, nothing is written to
// the API server, and the controller logs nothing. It counts checks, because a busy machine
// may suspend the test.
func (c *controller) settled() {
	c.w.t.Helper()
	lines, writes := c.log.length(), c.w.writes()
	for quiet, checks := 0, 0; quiet < quietChecks; checks++ {
		select {
		case <-time.After(time.Second):
		case <-c.done:
			c.w.t.Fatal("the controller exited before it was idle")
		}
		quiet++
		if now, written := c.log.length(), c.w.writes(); now != lines || !maps.Equal(written, writes) {
			if checks >= maxChecks {
				c.w.t.Fatalf("the controller is not idle after %d seconds: since the last check it logged %d lines, and these objects were written:%s",
					checks, now-lines, listed(minus(written, writes)))
			}
			quiet, lines, writes = 0, now, written
		}
	}
}

const (
	// quietChecks is the number of checks in succession that find the controller idle.
	quietChecks = 20
	// maxChecks is the maximum number of checks until the last write.
	maxChecks = 600
)

// usage contains the resources that a controller used.
type usage struct {
	// own and children are CPU times. children are the engines and their providers.
	own, children time.Duration
	// resident and peak are memory in bytes.
	resident, peak int64
}

// usage reads the usage from /proc.
func (c *controller) usage() usage {
	c.w.t.Helper()
	pid := c.command.Process.Pid
	controller, err := processStat(pid)
	if err != nil {
		c.w.t.Fatal(err)
	}
	used := usage{own: controller.own, children: controller.ended + running(pid)}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
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

// stat is a part of /proc/PID/stat.
type stat struct {
	parent int
	// own is the CPU time of the process, and ended that of its descendants that have ended.
	own, ended time.Duration
}

func processStat(pid int) (stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	number := func(field int) int {
		n, _ := strconv.Atoi(fields[field]) // the kernel's numbers
		return n
	}
	const tick = 10 * time.Millisecond
	return stat{
		parent: number(1),
		own:    time.Duration(number(11)+number(12)) * tick,
		ended:  time.Duration(number(13)+number(14)) * tick,
	}, nil
}

// running returns the CPU time of the running descendants of a process.
func running(ancestor int) time.Duration {
	names, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	children := map[int][]int{}
	stats := map[int]stat{}
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if s, err := processStat(pid); err == nil { // otherwise it has ended
			stats[pid] = s
			children[s.parent] = append(children[s.parent], pid)
		}
	}
	total := time.Duration(0)
	for next := children[ancestor]; len(next) > 0; next = next[1:] {
		s := stats[next[0]]
		total += s.own + s.ended
		next = append(next, children[next[0]]...)
	}
	return total
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

// writeRequests matches the API server's number of successful write requests of a kind. The
// API server itself tries to write its loopback address to Endpoints, which fails.
var writeRequests = regexp.MustCompile(`^apiserver_request_total\{code="2\d\d",.*resource="(\w*)".*subresource="(\w*)",verb="(APPLY|DELETE|DELETECOLLECTION|PATCH|POST|PUT)".*\} (\S+)$`)

// writes returns the number of successful write requests of all clients to the API server so
// far, by verb and resource. It omits Leases, which are renewed all the time.
func (w *world) writes() map[string]int {
	w.t.Helper()
	text, err := w.kube.RESTClient().Get().AbsPath("/metrics").DoRaw(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		match := writeRequests.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil || match[1] == "leases" {
			continue
		}
		n, _ := strconv.ParseFloat(match[4], 64) // the API server's numbers
		count[strings.TrimSuffix(match[3]+" "+match[1]+"/"+match[2], "/")] += int(n)
	}
	return count
}

// minus returns the positive differences of two counts.
func minus(after, before map[string]int) map[string]int {
	difference := map[string]int{}
	for key, n := range after {
		if n > before[key] {
			difference[key] = n - before[key]
		}
	}
	return difference
}

// listed returns one line for each kind of request, the most frequent first.
func listed(count map[string]int) string {
	var text strings.Builder
	for _, kind := range slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(count[b]-count[a], strings.Compare(a, b)) }) {
		fmt.Fprintf(&text, "\n%6d %s", count[kind], kind)
	}
	return text.String()
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

// stamped returns all lines with their times.
func (l *stampedLog) stamped() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text bytes.Buffer
	for _, line := range l.lines {
		fmt.Fprintf(&text, "%s %s\n", line.at.Format("15:04:05.000"), line.text)
	}
	return text.Bytes()
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
