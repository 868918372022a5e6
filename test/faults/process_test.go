package faults_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// victim is a kind of process.
type victim string

// The victims.
const (
	victimEngine   victim = "engine"
	victimProvider victim = "provider"
	victimNumaform victim = "numaform"
)

// process is an entry of /proc.
type process struct {
	pid, parent int
	zombie      bool
	words       []string
}

// processes returns all processes of the machine.
func processes() []process {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	var found []process
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process ended
		}
		cmdline, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil {
			continue
		}
		// pid (name) state parent …, where name can contain anything
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		found = append(found, process{
			pid: pid, parent: parent, zombie: fields[0] == "Z",
			words: strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00"),
		})
	}
	return found
}

// below returns the descendants of a process.
func below(pid int) []process {
	all := processes()
	family := []int{pid}
	var found []process
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if slices.Contains(family, p.parent) && !slices.Contains(family, p.pid) {
				family, found, grown = append(family, p.pid), append(found, p), true
			}
		}
	}
	return found
}

// pids returns the IDs of the processes of a run that are of the given kind.
func (r *run) pids(v victim) []int {
	if v == victimNumaform {
		return []int{r.cmd.Process.Pid}
	}
	var pids []int
	for _, p := range below(r.cmd.Process.Pid) {
		isProvider := strings.HasPrefix(filepath.Base(p.words[0]), "terraform-provider-")
		isEngine := !isProvider && p.parent == r.cmd.Process.Pid
		if !p.zombie && (v == victimProvider && isProvider || v == victimEngine && isEngine) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// gone reports whether a process has ended.
func gone(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid {
			return p.zombie
		}
	}
	return true
}

// alive returns the processes that still run.
func alive(all []process) []process {
	return slices.DeleteFunc(all, func(p process) bool { return gone(p.pid) })
}

// kill kills all processes of a run that are of the given kind, waits until they end, and
// returns their IDs.
func (r *run) kill(v victim) []int {
	r.w.t.Helper()
	pids := r.pids(v)
	if len(pids) == 0 {
		r.w.t.Fatalf("no %s is running\n%s", v, r.said())
	}
	for _, pid := range pids {
		r.w.must(kill(pid, syscall.SIGKILL))
	}
	r.buried(v, pids)
	return pids
}

// killWhenSeen kills the running victims as soon as one appears. No gate stops a victim, so
// it can end by itself before the kill.
func (r *run) killWhenSeen(v victim) (pids []int) {
	r.w.t.Helper()
	r.w.until("a "+string(v), func() bool {
		for _, pid := range r.pids(v) {
			if kill(pid, syscall.SIGKILL) == nil {
				pids = append(pids, pid)
			}
		}
		return len(pids) > 0
	})
	r.buried(v, pids)
	return pids
}

// buried waits until the processes end.
func (r *run) buried(v victim, pids []int) {
	r.w.t.Helper()
	r.w.until("the death of the "+string(v), func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !gone(pid) })
	})
}
