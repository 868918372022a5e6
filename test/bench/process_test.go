package bench_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// tick is the unit of CPU time in /proc.
	tick = 10 * time.Millisecond
	// sampleInterval is the interval between samples. The CPU time of a process is exact
	// once its parent has waited for it; samples only divide it between engine and
	// provider.
	sampleInterval = 50 * time.Millisecond
)

// sample contains the resources that the controller and its child processes used up to a
// time.
type sample struct {
	at time.Time
	// controller, engines and providers are CPU times. Engines include all other programs
	// that the controller started.
	controller, engines, providers time.Duration
	// memory is the memory of all processes, and resident the memory of the controller, in
	// bytes.
	memory, resident int64
}

// run is one run of the engine.
type run struct {
	command string
	began   time.Time
}

// process is a descendant of the controller's process.
type process struct {
	provider bool
	command  string
	cpu      time.Duration
}

// sampler reads the controller's process and its descendants from /proc.
type sampler struct {
	root string

	// mu guards the fields below it.
	mu      sync.Mutex
	samples []sample
	runs    []run
	// known contains every process seen so far, by ID; nil for unrelated processes.
	known map[string]*process
	// providers is the CPU time of ended providers.
	providers time.Duration
}

// newSampler starts a sampler that reads a process and its descendants until ctx ends.
// done is closed when the sampler has ended.
func newSampler(ctx context.Context, pid int) (s *sampler, done <-chan struct{}) {
	s = &sampler{root: strconv.Itoa(pid), known: map[string]*process{}}
	s.known[s.root] = &process{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(sampleInterval)
		defer ticker.Stop()
		for {
			s.read()
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s, ended
}

// read adds a sample.
func (s *sampler) read() {
	s.mu.Lock()
	defer s.mu.Unlock()
	root, ok := readStat(s.root)
	if !ok {
		return
	}
	now := sample{at: time.Now(), controller: root.cpu, engines: root.children}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}

	alive := map[string]bool{s.root: true}
	// Several processes that map the same program share its pages in memory.
	mapped := map[string]int64{}
	for _, entry := range entries {
		pid := entry.Name()
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		p, seen := s.known[pid]
		if seen && p == nil {
			alive[pid] = true
			continue
		}
		stat, ok := readStat(pid)
		if !ok {
			continue
		}
		if !seen {
			if s.known[stat.parent] != nil {
				p = &process{}
			}
			s.known[pid] = p
		}
		alive[pid] = true
		if p == nil {
			continue
		}

		exe, err := os.Readlink("/proc/" + pid + "/exe")
		if err != nil {
			continue // a zombie: its CPU time is included once its parent waits for it
		}
		anonymous, file := readMemory(pid)
		now.memory += anonymous
		mapped[exe] = max(mapped[exe], file)
		if pid == s.root {
			now.resident = anonymous + file
			continue
		}
		p.cpu = stat.cpu
		p.provider = strings.HasPrefix(filepath.Base(exe), "terraform-provider-")
		now.engines += stat.cpu + stat.children
		s.begin(pid, p, exe, now.at)
	}
	for _, size := range mapped {
		now.memory += size
	}

	for pid, p := range s.known {
		switch {
		case p != nil && p.provider && !alive[pid]:
			s.providers += p.cpu
		case p != nil && p.provider:
			now.providers += p.cpu
		}
		if !alive[pid] {
			delete(s.known, pid)
		}
	}
	now.providers += s.providers
	now.engines -= now.providers
	s.samples = append(s.samples, now)
}

// begin records the run of an engine when its process executes it.
func (s *sampler) begin(pid string, p *process, exe string, now time.Time) {
	if p.command != "" || p.provider || strings.HasPrefix(filepath.Base(exe), "numaform") {
		return
	}
	line, err := os.ReadFile("/proc/" + pid + "/cmdline")
	arguments := strings.Split(string(line), "\x00")
	if err != nil || len(arguments) < 2 {
		return
	}
	p.command = arguments[1]
	s.runs = append(s.runs, run{p.command, now})
}

// at returns the first sample at or after a time, or the last sample.
func (s *sampler) at(t time.Time) sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.samples, t, func(one sample, t time.Time) int { return one.at.Compare(t) })
	return s.samples[min(i, len(s.samples)-1)]
}

// peak returns the largest memory of all processes in a period.
func (s *sampler) peak(from, to time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var most int64
	for _, one := range s.samples {
		if !one.at.Before(from) && !one.at.After(to) {
			most = max(most, one.memory)
		}
	}
	return most
}

// runsSince returns the times at which runs of an engine's command began.
func (s *sampler) runsSince(from time.Time, command string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var times []time.Time
	for _, one := range s.runs {
		if one.command == command && one.began.After(from) {
			times = append(times, one.began)
		}
	}
	return times
}

// busy reports whether an engine, or another program that the controller started, is
// running.
func (s *sampler) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, p := range s.known {
		if p != nil && p.command != "" && pid != s.root {
			return true
		}
	}
	return false
}

// stat is the content of /proc/PID/stat.
type stat struct {
	parent string
	// cpu is the process's own CPU time, and children the CPU time of the children for
	// which it waited.
	cpu, children time.Duration
}

func readStat(pid string) (stat, bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, false // the process ended
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if len(fields) < 15 {
		return stat{}, false
	}
	ticks := func(field int) time.Duration {
		n, _ := strconv.Atoi(fields[field]) // the kernel's numbers
		return time.Duration(n) * tick
	}
	return stat{parent: fields[1], cpu: ticks(11) + ticks(12), children: ticks(13) + ticks(14)}, true
}

// readMemory returns the anonymous and the file-backed memory of a process, in bytes.
func readMemory(pid string) (anonymous, file int64) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64) // 0 for other lines
		switch name {
		case "RssAnon", "RssShmem":
			anonymous += kib << 10
		case "RssFile":
			file += kib << 10
		}
	}
	return anonymous, file
}
